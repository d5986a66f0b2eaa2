package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func TestRefusalsAreOneClearLineOnBothSides(t *testing.T) {
	store := seal.NewMemoryStore(100)
	for _, c := range []struct {
		name string
		join func(r *rig, w *WorkerConfig)
		want error
		says string
		log  string
	}{
		{"token of another root", func(r *rig, w *WorkerConfig) {
			w.Join.Token, _ = seal.SignToken(seal.NewKey(), seal.Token{Role: seal.Worker, Issued: time.Now(), Hub: r.hub.ID()})
		}, seal.ErrNotRoot, "not signed by the root", "not signed by the root"},
		{"expired token", func(r *rig, w *WorkerConfig) {
			w.Join.Token = r.token(func(t *seal.Token) { t.Issued, t.Expires = time.Now().Add(-9*time.Hour), time.Now().Add(-time.Hour) })
		}, seal.ErrTokenExpired, "expired", "expired"},
		{"expired token and a clock off by a day", func(r *rig, w *WorkerConfig) {
			w.Join.Token = r.token(func(t *seal.Token) { t.Issued, t.Expires = time.Now().Add(-9*time.Hour), time.Now().Add(-time.Hour) })
			w.Dialer.Now = func() time.Time { return time.Now().AddDate(0, 0, -1) }
		}, seal.ErrTokenExpired, "this machine's clock is 24h0m0s behind the hub's", "expired"},
		{"used-up token", func(r *rig, w *WorkerConfig) {
			w.Join.Token = r.token(func(t *seal.Token) { t.Uses = 1 })
			if err := store.Use(context.Background(), w.Join.Token, seal.NewKey().Public()); err != nil {
				t.Fatal(err)
			}
		}, seal.ErrTokenUsed, "ask for another", "used up"},
		{"revoked token", func(_ *rig, w *WorkerConfig) {
			if err := store.Revoke(w.Join.Token.ID); err != nil {
				t.Fatal(err)
			}
		}, seal.ErrTokenRevoked, "revoked", "revoked"},
		{"token for another role", func(r *rig, w *WorkerConfig) {
			w.Join.Token = r.token(func(t *seal.Token) { t.Role = seal.Backbone })
		}, seal.ErrWrongRole, "for a backbone", "for a backbone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigConfig{limits: quick, hub: HubConfig{Store: store}})
			w := r.worker(r.gateAt)
			c.join(r, &w)
			_, err := DialWorker(within(t), w)
			oneLine(t, err, c.want, c.says)
			if !Final(err) {
				t.Errorf("%v: worth another try", err)
			}
			until(t, "logged", func() bool { return strings.Contains(r.log.String(), c.log) })
			if strings.Count(r.log.String(), "\n") != 1 {
				t.Errorf("not one line:\n%s", r.log)
			}
		})
	}
}

func TestWrongPlacesAreNamed(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick, hubTLS: true, gateTLS: true})
	other := newRig(t, rigConfig{limits: quick, hubTLS: true})

	// A hub that is not there: directly, and behind a gateway.
	w := r.worker("ws://" + freePort(t))
	_, err := DialWorker(within(t), w)
	oneLine(t, err, ErrNotThere, "connection refused")
	r.hub.Close()
	w = r.worker(r.gateAt)
	_, err = DialWorker(within(t), w)
	oneLine(t, err, ErrNotThere, "cannot reach the hub")
	if Final(err) {
		t.Errorf("%v: no other try", err)
	}
	if !strings.Contains(r.log.String(), "not there") {
		t.Errorf("the gateway's log does not say so:\n%s", r.log)
	}

	// Another hub than that of the token, and a gateway of another swarm.
	w = r.worker(other.hubAt)
	_, err = DialWorker(within(t), w)
	oneLine(t, err, ErrUntrusted, "shows the certificate of hub "+other.hub.ID(), "hub "+r.hub.ID()+" was asked for", "compare")
	w.Dialer.TLS = &tls.Config{InsecureSkipVerify: true}
	_, err = DialWorker(within(t), w)
	oneLine(t, err, err, "this is hub "+other.hub.ID())
	key := seal.NewKey()
	foreign, err := seal.SignGrant(seal.NewKey(), seal.Grant{Role: seal.Gateway, Key: key.Public(), Issued: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, Key: key, Grant: foreign})
	if err != nil {
		t.Fatal(err)
	}
	w = r.worker("wss://" + listen4(t, g.Serve, g.Close))
	_, err = DialWorker(within(t), w)
	oneLine(t, err, ErrUntrusted, "not signed by the root")

	// A backbone whose grant is another root's, at the hub.
	k := seal.NewKey()
	if foreign, err = seal.SignGrant(seal.NewKey(), seal.Grant{Role: seal.Backbone, Key: k.Public(), Issued: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, err = NewBackbone(BackboneConfig{Key: k, Grant: foreign, Root: root.Public(), Hubs: []Target{{Address: other.hubAt}}})
	oneLine(t, err, seal.ErrNotRoot)
	theirs := seal.NewKey()
	if foreign, err = seal.SignGrant(theirs, seal.Grant{Role: seal.Backbone, Key: k.Public(), Issued: time.Now()}); err != nil {
		t.Fatal(err)
	}
	b, err := NewBackbone(BackboneConfig{Key: k, Grant: foreign, Root: theirs.Public(),
		Hubs: []Target{{Address: other.hubAt, Hub: other.hub.ID()}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.Accept(within(t))
	oneLine(t, err, seal.ErrNotRoot, "refused by the hub")

	_, err = Listen(strings.TrimPrefix(other.hubAt, "wss://"))
	oneLine(t, err, ErrPortInUse, "another program listens")
}

// freePort returns an address of loopback on which nobody listens, of a port that systems give to nobody by
// themselves: it stays free.
func freePort(t testing.TB) string {
	t.Helper()
	for {
		l, err := Listen(fmt.Sprint("127.0.0.1:", 12_000+rand.IntN(18_000)))
		if errors.Is(err, ErrPortInUse) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // nobody was answered
		return l.Addr().String()
	}
}

// Strangers say all kinds of things on every port, at every pace. They are cut, and nothing is left.
func TestGarbageIsCutOnEveryPort(t *testing.T) {
	noise := make([]byte, 100<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	upgrade := "GET /worker HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	hellos := []struct {
		name string
		say  string
	}{
		{"nothing", ""},
		{"noise", string(noise)},
		{"zeros", strings.Repeat("\x00", 100<<10)},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"TLS with a huge record", "\x16\x03\x01\xff\xff" + string(noise)},
		{"SSH", "SSH-2.0-OpenSSH_9.9\r\n"},
		{"a long line", "GET /" + strings.Repeat("a", 100<<10)},
		{"many headers", "GET /worker HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", 20_000) + "\r\n"},
		{"a head without end", "POST /ledger HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + string(noise)},
		{"no proof, silent then", upgrade},
		{"no proof, again and again", strings.Repeat(upgrade, 20)},
		{"a wrong proof", strings.Replace(upgrade, "\r\n\r\n", "\r\nKvasir-Nonce: a\r\nKvasir-Signature: b\r\nKvasir-Token: c\r\nKvasir-Key: d\r\n\r\n", 1)},
		{"a backbone's upgrade", strings.Replace(upgrade, "websocket", controlProtocol, 1)},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{"proxy", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n"},
	}
	for _, secure := range []bool{false, true} {
		limits := quick
		limits.Greet = 700 * time.Millisecond
		r := newRig(t, rigConfig{limits: limits, hubTLS: secure, gateTLS: secure})
		var wg sync.WaitGroup
		for _, at := range []string{r.gateAt, r.hubAt} {
			_, addr, _ := strings.Cut(at, "://")
			for _, inside := range []bool{false, true} { // of TLS
				if inside && !secure {
					continue
				}
				for _, h := range hellos {
					wg.Go(func() {
						nc := dialRaw(t, addr, inside)
						_, _ = io.WriteString(nc, h.say) // it may be cut half way
						n, err := io.Copy(io.Discard, nc)
						if errors.Is(err, os.ErrDeadlineExceeded) || n > 64<<10 {
							t.Errorf("%s, TLS %v %v: %d bytes, %v", h.name, secure, inside, n, err)
						}
					})
				}
				wg.Go(func() { drip(t, dialRaw(t, addr, inside), upgrade) })
			}
		}
		wg.Wait()
		until(t, "nobody is left", func() bool { return r.hub.f.active() == 0 && r.gateway.Active() == 0 })
		until(t, "every place is free", func() bool { return r.hub.f.waiting.Load() == 0 && r.gateway.f.waiting.Load() == 0 })
		if n := strings.Count(r.log.String(), "\n"); n == 0 || n > 40 {
			t.Errorf("%d lines of log", n)
		}
	}
}

// drip sends one byte at a time, slower than Limits.Greet allows, until it is cut.
func drip(t testing.TB, nc net.Conn, say string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one byte at a time: %v", err)
		}
	}()
	for i := range len(say) {
		select {
		case <-tick.C:
		case <-done:
			return
		}
		if _, err := io.WriteString(nc, say[i:i+1]); err != nil {
			break
		}
	}
	<-done
}

func dialRaw(t testing.TB, addr string, secure bool) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	return rawly(t, nc, err, secure)
}

// rawly is for a connection that was dialled: it ends with the test, and has TLS over it when secure.
func rawly(t testing.TB, nc net.Conn, err error, secure bool) net.Conn {
	t.Helper()
	if err != nil {
		t.Error(err)
		runtime.Goexit() // of the test, or of a goroutine of it
	}
	t.Cleanup(func() { sever(nc) })
	_ = nc.SetDeadline(time.Now().Add(patience))
	if secure {
		t := tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
		if t.Handshake() == nil {
			return t
		}
	}
	return nc
}

func TestStrangersAreBoundedInNumber(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Pending: 4, Greet: patience}})
	addr := strings.TrimPrefix(r.hubAt, "ws://")
	var held []net.Conn
	for range 4 {
		held = append(held, dialRaw(t, addr, false))
	}
	until(t, "four are in", func() bool { return r.hub.f.active() == 4 })
	if _, err := dialRaw(t, addr, false).Read(make([]byte, 1)); err == nil {
		t.Error("the fifth was let in")
	}
	_ = held[0].Close()
	until(t, "three are in", func() bool { return r.hub.f.active() == 3 })
	r.backbone(r.hubAt, nil) // settled, and then holds no place
	until(t, "a backbone came", func() bool { return r.hub.Status().Backbones == 1 })
	s, _, _ := r.wait(r.worker(r.hubAt))
	until(t, "a worker is served", s.has("the backbone"))
}

func TestPlainRequestsGetShortAnswers(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	for _, c := range []struct {
		at, method, path string
		status           int
		says             string
	}{
		{r.gateAt, "GET", "/", 200, "gateway of Kvasir"},
		{r.gateAt, "GET", "/healthz", 200, "ok"},
		{r.gateAt, "GET", "/ledger/x", 404, "nothing"},
		{r.gateAt, "DELETE", "/", 405, "only GET"},
		{r.hubAt, "GET", "/healthz", 200, "ok"},
		{r.hubAt, "GET", "/", 404, "nothing"},
		{r.hubAt, "POST", "/healthz", 404, "nothing"},
		{r.hubAt, "GET", "/ledger/x", 404, "nothing"},
	} {
		nc := dialRaw(t, strings.TrimPrefix(c.at, "ws://"), false)
		_, _ = fmt.Fprintf(nc, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", c.method, c.path)
		raw, err := io.ReadAll(nc) // to its end: the connection is closed
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		if err != nil {
			t.Fatalf("%s %s: %v: %q", c.method, c.path, err, raw)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != c.status || !strings.Contains(string(body), c.says) || len(raw) > 500 {
			t.Errorf("%s %s at %s: %d %q", c.method, c.path, c.at, res.StatusCode, body)
		}
	}
	secure := newRig(t, rigConfig{limits: quick, gateTLS: true})
	nc := dialRaw(t, strings.TrimPrefix(secure.gateAt, "wss://"), false)
	_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if raw, _ := io.ReadAll(nc); !strings.Contains(string(raw), "speaks TLS") {
		t.Errorf("HTTP at a port of TLS: %q", raw)
	}
}
