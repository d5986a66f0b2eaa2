package seal

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func clientConfig(t testing.TB) ClientConfig {
	return ClientConfig{Self: worker, Root: root.Public(), Paired: grant(t, nil), Now: func() time.Time { return issued }}
}

func serverConfig(t testing.TB) ServerConfig {
	t.Helper()
	p, err := ProveToken(worker, token(t, nil), Challenge{Hub: "hub-1", Nonce: "bm9uY2U"}, "/join")
	if err != nil {
		t.Fatal(err)
	}
	return ServerConfig{Self: backbone, Root: root.Public(), Paired: p}
}

// session opens an inner session over a and b, and returns both ends and both errors.
func session(t testing.TB, a, b net.Conn, cc ClientConfig, sc ServerConfig) (c, s *tls.Conn, cerr, serr error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s, serr = Server(context.Background(), b, sc); serr != nil {
			_ = b.Close()
		}
	}()
	if c, cerr = Client(context.Background(), a, cc); cerr != nil {
		_ = a.Close()
	}
	<-done
	return c, s, cerr, serr
}

// A chunk is one record, and one write on the connection beneath.
func TestChunkIsOneRecordAndOneWrite(t *testing.T) {
	a, b := pair(t)
	ca, cb := &counted{Conn: a}, &counted{Conn: b}
	c, s, cerr, serr := session(t, ca, cb, clientConfig(t), serverConfig(t))
	if err := errors.Join(cerr, serr); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []struct {
		name     string
		from, to *tls.Conn
		wire     *counted
	}{{"worker to backbone", c, s, ca}, {"backbone to worker", s, c, cb}} {
		dir.wire.taken() // the handshake
		for n := 1; n <= MaxChunk; n = min(n*3, MaxChunk) + n/MaxChunk {
			p := bytes.Repeat([]byte("row."), MaxChunk/4)[:n]
			go func() {
				if _, err := dir.from.Write(p); err != nil {
					t.Error(err)
				}
			}()
			got := make([]byte, n)
			if _, err := io.ReadFull(dir.to, got); err != nil || !bytes.Equal(got, p) {
				t.Fatalf("%s: %d bytes: %v", dir.name, n, err)
			}
			writes := dir.wire.taken()
			if len(writes) != 1 {
				t.Fatalf("%s: %d bytes took %d writes", dir.name, n, len(writes))
			}
			w := writes[0]
			if w[0] != 23 || len(w) != n+22 || int(binary.BigEndian.Uint16(w[3:])) != n+17 {
				t.Errorf("%s: %d bytes became %d, header %x: not one record", dir.name, n, len(w), w[:5])
			}
			if n >= 8 && bytes.Contains(w, p[:8]) {
				t.Errorf("%s: plain text on the wire", dir.name)
			}
		}
	}
	if st := c.ConnectionState(); st.Version != tls.VersionTLS13 || st.NegotiatedProtocol != ALPN || st.DidResume {
		t.Errorf("state %+v", st)
	}
}

// No ticket is sent, even to a client that would take one, so nothing follows the handshake until
// somebody speaks, and no session is ever resumed without the checks.
func TestBackboneSendsNoTickets(t *testing.T) {
	config, err := innerTLS(worker, "backbone", backbone.Public())
	if err != nil {
		t.Fatal(err)
	}
	config.SessionTicketsDisabled, config.ClientSessionCache = false, tls.NewLRUClientSessionCache(1)
	config.ServerName = "x"
	a, b := pair(t)
	cb := &counted{Conn: b}
	done := make(chan error)
	go func() { done <- tls.Client(a, config).Handshake() }()
	if _, err := Server(t.Context(), cb, serverConfig(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := len(cb.taken()); n != 1 {
		t.Errorf("the backbone wrote %d times, want its one flight", n)
	}
}

func TestInnerSessionChecksBothKeys(t *testing.T) {
	for _, tt := range []struct {
		name       string
		change     func(t *testing.T, c *ClientConfig, s *ServerConfig)
		cerr, serr error
		want       string
	}{
		{"all is well", func(*testing.T, *ClientConfig, *ServerConfig) {}, nil, nil, ""},
		{"a worker's clock a day fast", func(_ *testing.T, c *ClientConfig, _ *ServerConfig) {
			c.Now = func() time.Time { return c.Paired.Expires.Add(24 * time.Hour) }
		}, nil, nil, ""},
		{"a worker's clock in 1970", func(_ *testing.T, c *ClientConfig, _ *ServerConfig) {
			c.Now = func() time.Time { return time.Unix(0, 0) }
		}, nil, nil, ""},
		{"a backbone's grant that is long over", func(_ *testing.T, c *ClientConfig, _ *ServerConfig) {
			c.Now = func() time.Time { return c.Paired.Expires.AddDate(0, 0, 3) }
		}, ErrGrantExpired, ErrHandshake, "this machine's clock says"},
		{"a hub that offers a backbone of its own", func(t *testing.T, c *ClientConfig, s *ServerConfig) {
			s.Self = stranger
			g, err := SignGrant(stranger, Grant{Role: Backbone, Key: stranger.Public(), Issued: issued})
			if err != nil {
				t.Error(err)
			}
			c.Paired = g
		}, ErrNotRoot, ErrHandshake, "backbone that the hub offers"},
		{"a hub that offers one backbone and connects another", func(_ *testing.T, _ *ClientConfig, s *ServerConfig) {
			s.Self = stranger
		}, ErrWrongKey, ErrRefused, "the backbone shows key"},
		{"a hub that offers itself as a backbone", func(t *testing.T, c *ClientConfig, _ *ServerConfig) {
			c.Paired = grant(t, func(g *Grant) { g.Role = Hub })
		}, ErrWrongRole, ErrHandshake, "it is for a hub"},
		{"a hub that connects another worker", func(_ *testing.T, c *ClientConfig, _ *ServerConfig) {
			c.Self = stranger
		}, nil, ErrWrongKey, "the worker shows key"},
		{"a hub that passes on another's proof", func(_ *testing.T, _ *ClientConfig, s *ServerConfig) {
			s.Paired.Key = stranger.Public()
		}, ErrHandshake, ErrBadProof, "worker that the hub offers"},
		{"a hub that passes on no proof", func(_ *testing.T, _ *ClientConfig, s *ServerConfig) {
			s.Paired = Proof{Key: worker.Public()}
		}, ErrHandshake, ErrBadProof, ""},
		{"a worker with a token of another swarm", func(t *testing.T, _ *ClientConfig, s *ServerConfig) {
			tok, err := SignToken(stranger, token(t, nil))
			if err != nil {
				t.Error(err)
			}
			s.Paired = prove(worker, Proof{Token: tok}, Challenge{Hub: "hub-1", Nonce: "bm9uY2U"}, "/join")
		}, ErrHandshake, ErrNotRoot, ""},
		{"a backbone in the place of a worker", func(t *testing.T, _ *ClientConfig, s *ServerConfig) {
			s.Paired = prove(backbone, Proof{Grant: grant(t, nil)}, Challenge{Hub: "hub-1", Nonce: "bm9uY2U"}, "/join")
		}, ErrHandshake, ErrWrongRole, ""},
		{"no key of our own", func(_ *testing.T, c *ClientConfig, _ *ServerConfig) { c.Self = Key{} }, ErrBadKey, ErrHandshake, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			cc, sc := clientConfig(t), serverConfig(t)
			tt.change(t, &cc, &sc)
			c, _, cerr, serr := session(t, a, b, cc, sc)
			if !errors.Is(cerr, tt.cerr) || !errors.Is(serr, tt.serr) {
				t.Fatalf("worker %v, want %v; backbone %v, want %v", cerr, tt.cerr, serr, tt.serr)
			}
			said := ""
			for _, err := range []error{cerr, serr} {
				if err != nil {
					oneLine(t, err, token(t, nil).Text())
					said += err.Error()
				}
			}
			if !strings.Contains(said, tt.want) {
				t.Errorf("said %s, want %s", said, tt.want)
			}
			if cerr == nil && serr != nil {
				// In TLS 1.3 the client is done before the server looks: its first read tells.
				_, err := c.Read(make([]byte, 1))
				if err = Explain(err); !errors.Is(err, ErrRefused) {
					t.Errorf("worker's first read: %v", err)
				}
				oneLine(t, err)
			}
		})
	}
}

// Peers that speak TLS, but not as they should.
func TestInnerSessionRefusesOtherTLS(t *testing.T) {
	good, err := innerTLS(worker, "x", backbone.Public())
	if err != nil {
		t.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, p256.Public(), p256)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(c *tls.Config)
		want   error
	}{
		{"no certificate", func(c *tls.Config) { c.Certificates = nil }, ErrHandshake},
		{"another kind of key", func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: p256}}
		}, ErrWrongKey},
		{"two certificates", func(c *tls.Config) {
			cert := c.Certificates[0]
			cert.Certificate = [][]byte{cert.Certificate[0], der}
			c.Certificates = []tls.Certificate{cert}
		}, ErrWrongKey},
		{"a certificate without its key", func(c *tls.Config) {
			cert, err := selfSigned(stranger)
			if err != nil {
				t.Error(err)
			}
			c.Certificates = []tls.Certificate{{Certificate: c.Certificates[0].Certificate, PrivateKey: cert.PrivateKey}}
		}, ErrHandshake},
		{"another protocol", func(c *tls.Config) { c.NextProtos = []string{"h2"} }, ErrHandshake},
		{"no protocol", func(c *tls.Config) { c.NextProtos = nil }, ErrHandshake},
		{"TLS 1.2", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, ErrHandshake},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			config := good.Clone()
			config.VerifyConnection = nil
			tt.change(config)
			go func() {
				c := tls.Client(a, config)
				_ = c.Handshake()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
			_, err := Server(t.Context(), b, serverConfig(t))
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			oneLine(t, err)
			_ = b.Close()
		})
	}
}

func TestInnerSessionRefusesGarbage(t *testing.T) {
	// What a session without TLS would begin with is garbage too: the head of a Hello.
	plain := "\x01\x00\x80\x00\x80\x00\x00\x00" + strings.Repeat("\x00", 8) + "\x80\x00\x01\x00\x01\x00\x01\x01" + strings.Repeat("\x00", 120)
	for _, garbage := range []string{"hello, are you there?\r\n", plain, "\x16\x03\x01\xff\xff", "", strings.Repeat("\x00", 1000),
		"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + strings.Repeat("\x00", 20000)} {
		for _, server := range []bool{true, false} {
			a, b := pair(t)
			go func() {
				_, _ = io.WriteString(a, garbage)
				_ = a.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, a)
			}()
			var err error
			if server {
				_, err = Server(t.Context(), b, serverConfig(t))
			} else {
				_, err = Client(t.Context(), b, clientConfig(t))
			}
			if !errors.Is(err, ErrHandshake) {
				t.Errorf("%.10q, server %v: %v", garbage, server, err)
			}
			oneLine(t, err)
			_ = b.Close()
		}
	}
}

func TestInnerHandshakeEndsInTime(t *testing.T) {
	for name, open := range map[string]func(ctx context.Context, nc net.Conn) error{
		"worker":   func(ctx context.Context, nc net.Conn) error { _, err := Client(ctx, nc, clientConfig(t)); return err },
		"backbone": func(ctx context.Context, nc net.Conn) error { _, err := Server(ctx, nc, serverConfig(t)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, far) }()
				start := time.Now()
				err := open(t.Context(), near)
				if !errors.Is(err, ErrHandshake) || time.Since(start) != HandshakeTime || !strings.Contains(err.Error(), "silent") {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
				_ = near.Close()
			})
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, far) }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				if err := open(ctx, near); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
				_ = near.Close()
			})
		})
	}
}
