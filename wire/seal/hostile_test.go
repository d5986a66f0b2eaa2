package seal

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// certificate makes one of the public half of owner, signed by signer.
func certificate(t *testing.T, owner, signer Key, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "x"},
		NotBefore: issued, NotAfter: issued.AddDate(1, 0, 0)}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, owner.private.Public(), signer.private)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: owner.private}
}

// TestOfACertificateItsKeyCounts has a worker show certificates of every kind: dates, names and signatures
// mean nothing, and a key that is not the announced one is refused whatever is written around it.
func TestOfACertificateItsKeyCounts(t *testing.T) {
	for _, tt := range []struct {
		name string
		cert func(t *testing.T) tls.Certificate
		want error
	}{
		{"its own", func(t *testing.T) tls.Certificate { return certificate(t, worker, worker, nil) }, nil},
		{"expired", func(t *testing.T) tls.Certificate {
			return certificate(t, worker, worker, func(c *x509.Certificate) { c.NotAfter = time.Unix(1, 0) })
		}, nil},
		{"of the future", func(t *testing.T) tls.Certificate {
			return certificate(t, worker, worker, func(c *x509.Certificate) { c.NotBefore = issued.AddDate(500, 0, 0) })
		}, nil},
		{"of an authority", func(t *testing.T) tls.Certificate {
			return certificate(t, worker, worker, func(c *x509.Certificate) {
				c.IsCA, c.BasicConstraintsValid, c.DNSNames = true, true, []string{"bank.example"}
			})
		}, nil},
		{"another's key", func(t *testing.T) tls.Certificate { return certificate(t, stranger, stranger, nil) }, ErrWrongKey},
		{"another's key under the same name", func(t *testing.T) tls.Certificate {
			return certificate(t, stranger, stranger, func(c *x509.Certificate) { c.Subject.CommonName = worker.Public().String() })
		}, ErrWrongKey},
		{"another's key, signed by the root", func(t *testing.T) tls.Certificate { return certificate(t, stranger, root, nil) }, ErrWrongKey},
		{"the backbone's own key", func(t *testing.T) tls.Certificate { return certificate(t, backbone, backbone, nil) }, ErrWrongKey},
		{"the key of the root", func(t *testing.T) tls.Certificate { return certificate(t, root, root, nil) }, ErrWrongKey},
		{"the right key, and a signature by another", func(t *testing.T) tls.Certificate {
			c := certificate(t, worker, worker, nil)
			c.PrivateKey = stranger.private
			return c
		}, ErrHandshake},
		{"bytes that are none", func(*testing.T) tls.Certificate {
			return tls.Certificate{Certificate: [][]byte{{1, 2, 3}}, PrivateKey: worker.private}
		}, ErrHandshake},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cert := tt.cert(t)
			a, b := pair(t)
			config, err := innerTLS(worker, "backbone", backbone.Public())
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = nil
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
			go func() {
				c := tls.Client(a, config)
				_ = c.Handshake()
				_, _ = io.Copy(io.Discard, c)
				_ = a.Close()
			}()
			_, err = Server(t.Context(), b, serverConfig(t))
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err != nil {
				oneLine(t, err)
			}
			_ = b.Close()
		})
	}
}

// recorded keeps what is read from a connection.
type recorded struct {
	net.Conn
	mu  sync.Mutex
	got []byte
}

func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.mu.Lock()
	r.got = append(r.got, p[:n]...)
	r.mu.Unlock()
	return n, err
}

// TestAReplayedHandshakeOpensNothing takes all that one side has sent in a session that was accepted, the
// first message within it included, and sends it again to the other side's next.
func TestAReplayedHandshakeOpensNothing(t *testing.T) {
	a, b := pair(t)
	ra, rb := &recorded{Conn: a}, &recorded{Conn: b}
	c, s, cerr, serr := session(t, ra, rb, clientConfig(t), serverConfig(t))
	if err := errors.Join(cerr, serr); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct{ from, to *tls.Conn }{{c, s}, {s, c}} {
		go func() { _, _ = way.from.Write([]byte("Hello")) }()
		if _, err := io.ReadFull(way.to, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	for name, replay := range map[string]struct {
		bytes []byte
		open  func(nc net.Conn) error
	}{
		"of a worker, to the backbone": {rb.got, func(nc net.Conn) error { _, err := Server(t.Context(), nc, serverConfig(t)); return err }},
		"of a backbone, to the worker": {ra.got, func(nc net.Conn) error { _, err := Client(t.Context(), nc, clientConfig(t)); return err }},
	} {
		near, far := pair(t)
		go func() {
			_, _ = far.Write(replay.bytes)
			_, _ = io.Copy(io.Discard, far)
		}()
		if err := replay.open(near); !errors.Is(err, ErrHandshake) {
			t.Errorf("%s: %v", name, err)
		}
		_, _ = near.Close(), far.Close()
	}
}

// cheat is a hub that does something to each record that passes from a worker, after the handshake.
type cheat struct {
	net.Conn
	do func(record []byte) [][]byte // what is sent instead; nil: as it is
}

func (c *cheat) Write(p []byte) (int, error) {
	if c.do == nil {
		return c.Conn.Write(p)
	}
	for _, q := range c.do(bytes.Clone(p)) {
		if _, err := c.Conn.Write(q); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// TestAHubCannotTouchASession has a hub repeat, drop, swap, change and make records.
func TestAHubCannotTouchASession(t *testing.T) {
	for name, hub := range map[string]func() func([]byte) [][]byte{
		"repeats": func() func([]byte) [][]byte { return func(p []byte) [][]byte { return [][]byte{p, p} } },
		"drops": func() func([]byte) [][]byte {
			n := 0
			return func(p []byte) [][]byte {
				if n++; n == 1 {
					return nil
				}
				return [][]byte{p}
			}
		},
		"swaps": func() func([]byte) [][]byte {
			var held []byte
			return func(p []byte) [][]byte {
				if held == nil {
					held = p
					return nil
				}
				return [][]byte{p, held}
			}
		},
		"changes a bit": func() func([]byte) [][]byte {
			return func(p []byte) [][]byte { p[len(p)/2] ^= 1; return [][]byte{p} }
		},
		"cuts": func() func([]byte) [][]byte {
			return func(p []byte) [][]byte { return [][]byte{p[:len(p)-1], {22, 3, 3}} }
		},
		"makes one": func() func([]byte) [][]byte {
			return func(p []byte) [][]byte { return [][]byte{append([]byte{23, 3, 3, 0, 20}, make([]byte, 20)...), p} }
		},
		"makes a long one": func() func([]byte) [][]byte {
			return func([]byte) [][]byte { return [][]byte{{23, 3, 3, 0xff, 0xff}} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			between := &cheat{Conn: a}
			c, s, cerr, serr := session(t, between, b, clientConfig(t), serverConfig(t))
			if err := errors.Join(cerr, serr); err != nil {
				t.Fatal(err)
			}
			between.do = hub()
			go func() {
				for range 3 {
					_, _ = c.Write([]byte("row"))
				}
				_ = a.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(s)
			if err == nil || len(got) > 0 && string(got) != "row" {
				t.Errorf("the backbone reads %q, %v", got, err)
			}
		})
	}
}

// TestAProofShownByManyAtOnceLetsOneIn is a hub under a replay.
func TestAProofShownByManyAtOnceLetsOneIn(t *testing.T) {
	d, _ := door(t)
	h := show(t, d, worker, token(t, func(t *Token) { t.Uses = 0 }))
	var in, used atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch _, err := d.Admit(t.Context(), h.Clone(), "/join", Worker); {
			case err == nil:
				in.Add(1)
			case errors.Is(err, ErrNonceUsed):
				used.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if in.Load() != 1 || used.Load() != 15 {
		t.Errorf("%d let in, %d refused", in.Load(), used.Load())
	}
}

// TestAStolenTokenIsOfNoUse has a copy of a token of one use shown by another key, with many tries at once:
// one key is bound, whoever it is, and that key alone comes back.
func TestAStolenTokenIsOfNoUse(t *testing.T) {
	d, _ := door(t)
	d.Nonces = NewNonces(1000, d.Now)
	tok := token(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	bound := map[PublicKey]bool{}
	for i := range 64 {
		k := key(byte(100 + i%4))
		h := show(t, d, k, tok)
		wg.Go(func() {
			p, err := d.Admit(t.Context(), h, "/join", Worker)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				bound[p.Key] = true
			} else if !errors.Is(err, ErrTokenUsed) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(bound) != 1 {
		t.Errorf("%d keys are bound to a token of one use", len(bound))
	}
	for k := range bound {
		for i := range 4 {
			own := key(byte(100 + i))
			_, err := d.Admit(t.Context(), show(t, d, own, tok), "/join", Worker)
			if (err == nil) != (own.Public() == k) {
				t.Errorf("key %d afterwards: %v", i, err)
			}
		}
	}
}

// TestAProofWithAnyByteChangedIsRefused is what a hub hands on, changed by that hub.
func TestAProofWithAnyByteChangedIsRefused(t *testing.T) {
	for _, p := range []Proof{serverConfig(t).Paired, prove(backbone, Proof{Grant: grant(t, nil)}, Challenge{Hub: "h", Nonce: "bm9uY2U"}, "/x")} {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		same := 0
		for i := range text {
			for _, x := range []byte{1, 2, 0x20, 0x80} {
				bad := bytes.Clone(text)
				bad[i] ^= x
				var got Proof
				if json.Unmarshal(bad, &got) != nil || got.Verify(root.Public()) != nil {
					continue
				}
				// The names of JSON fields may change in case and mean the same.
				if again, err := json.Marshal(got); err != nil || !bytes.Equal(again, text) {
					t.Fatalf("byte %d ^ %#02x: accepted %s", i, x, bad)
				}
				same++
			}
			var got Proof
			if json.Unmarshal(text[:i], &got) == nil {
				t.Fatalf("cut at %d: accepted", i)
			}
		}
		if same > len(text)/2 {
			t.Errorf("%d changes of %d changed nothing", same, 4*len(text))
		}
	}
}

// TestEveryBitOfATokenAndAGrantCounts flips each.
func TestEveryBitOfATokenAndAGrantCounts(t *testing.T) {
	tok, g := token(t, nil), grant(t, nil)
	for name, c := range map[string]struct {
		raw    []byte
		accept func(text string) bool
	}{
		"token": {append(tok.body(), tok.sig[:]...), func(text string) bool {
			got, err := ParseToken(text)
			return err == nil && got.Verify(root.Public()) == nil
		}},
		"grant": {append(g.body(), g.sig[:]...), func(text string) bool {
			got, err := ParseGrant(text)
			return err == nil && got.Verify(root.Public()) == nil
		}},
	} {
		if !c.accept(encode(c.raw)) {
			t.Fatalf("%s: the good one is refused", name)
		}
		for bit := range 8 * len(c.raw) {
			bad := bytes.Clone(c.raw)
			bad[bit/8] ^= 1 << (bit % 8)
			if c.accept(encode(bad)) {
				t.Errorf("%s: bit %d may be flipped", name, bit)
			}
		}
		for n := range c.raw {
			if c.accept(encode(c.raw[:n])) || c.accept(encode(append(bytes.Clone(c.raw), c.raw[:n+1]...))) {
				t.Errorf("%s: %d bytes of it, or more, are accepted", name, n)
			}
		}
	}
}

// TestSignaturesOfOneDomainCountInNoOther puts the signature of each thing under each other thing.
func TestSignaturesOfOneDomainCountInNoOther(t *testing.T) {
	body := []byte("the same bytes")
	domains := []string{tokenDomain, grantDomain, proofDomain}
	for _, of := range domains {
		sig := root.Sign(of, body)
		for _, in := range domains {
			if root.Public().Verify(in, body, sig) != (of == in) {
				t.Errorf("a signature of %q in %q", of, in)
			}
		}
		if ed25519.Verify(root.private.Public().(ed25519.PublicKey), body, sig) {
			t.Errorf("a signature of %q counts without a domain", of)
		}
	}
}

// TestHugeInputCostsLittle holds each parser to memory of the order of its own limits.
func TestHugeInputCostsLittle(t *testing.T) {
	long := strings.Repeat("A", 1<<20)
	address, challenge := joinScheme+"h/"+long+"#"+long, challengeScheme+long
	h := show(t, func() *Door { d, _ := door(t); return d }(), worker, token(t, nil))
	for name, parse := range map[string]func() error{
		"key":       func() error { _, err := ParsePublicKey(long); return err },
		"token":     func() error { _, err := ParseToken(long); return err },
		"token id":  func() error { _, err := ParseTokenID(long); return err },
		"grant":     func() error { _, err := ParseGrant(long); return err },
		"join":      func() error { _, err := ParseJoin(address); return err },
		"key file":  func() error { _, err := parseKeyFile(long); return err },
		"challenge": func() error { _, err := ParseChallenge(http.Header{challengeHeader: {challenge}}); return err },
		"told": func() error {
			return Told(http.Header{refusedHeader: {"busy"}}, long)
		},
		"nonce": func() error { return NewNonces(1, time.Now).Check(long) },
		"proof": func() error {
			for _, name := range []string{tokenHeader, keyHeader, nonceHeader, signatureHeader} {
				big := h.Clone()
				big.Set(name, long)
				if _, err := ParseProof(big, "hub-1", "/join"); err == nil {
					return nil
				}
			}
			_, err := ParseProof(h, "hub-1", long)
			return err
		},
		"proof of a hub": func() error {
			p := serverConfig(t).Paired
			p.Path = long
			return p.Verify(root.Public())
		},
	} {
		var err error
		if n := allocated(func() { err = parse() }); n > 32<<10 || err == nil {
			t.Errorf("%s: %d bytes for a mebibyte, %v", name, n, err)
		} else if len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestTheHandshakeIsBounded has a peer send without end: what is read is what TLS allows of a handshake.
func TestTheHandshakeIsBounded(t *testing.T) {
	hello := append([]byte{22, 3, 1, 0x40, 0x00, 1, 0, 0xff, 0xff}, make([]byte, 16384-4)...) // a ClientHello that claims 64 KiB
	more := append([]byte{22, 3, 1, 0x40, 0x00}, make([]byte, 16384)...)
	for _, server := range []bool{true, false} {
		a, b := pair(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := hello
			for {
				if _, err := a.Write(p); err != nil {
					return
				}
				p = more
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		ctx, cancel := context.WithTimeout(t.Context(), HandshakeTime)
		rb := &recorded{Conn: b}
		var err error
		if server {
			_, err = Server(ctx, rb, serverConfig(t))
		} else {
			_, err = Client(ctx, rb, clientConfig(t))
		}
		cancel()
		if !errors.Is(err, ErrHandshake) || len(rb.got) > 256<<10 {
			t.Errorf("server %v: %v after %d bytes", server, err, len(rb.got))
		}
		_, _ = a.Close(), b.Close()
		<-done
	}
}
