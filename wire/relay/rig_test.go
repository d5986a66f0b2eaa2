package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/wire/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	root = seal.NewKey()
	// Limits short enough for tests that wait for them.
	quick = Limits{Linger: 150 * time.Millisecond, Tick: 20 * time.Millisecond,
		Wait: 30 * time.Millisecond, Offer: 300 * time.Millisecond}
)

// patience bounds what a test waits for; nothing is measured by it.
const patience = 2 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// logbook keeps log lines.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// ledger is a Meter.
type ledger struct {
	mu    sync.Mutex
	begun int
	last  map[string][2]uint64
	ended map[string][2]uint64
	bad   []string
	done  chan struct{} // gets one a session that ended
}

func newLedger() *ledger {
	return &ledger{last: map[string][2]uint64{}, ended: map[string][2]uint64{}, done: make(chan struct{}, 10_000)}
}

func (l *ledger) Begin(Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
}

func (l *ledger) Count(s Session, up, down uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.ended[s.ID]; ok || l.last[s.ID][0] > up || l.last[s.ID][1] > down {
		l.bad = append(l.bad, fmt.Sprintf("%s: %d/%d after %v", s.ID, up, down, l.last[s.ID]))
	}
	l.last[s.ID] = [2]uint64{up, down}
}

func (l *ledger) End(s Session, up, down uint64, _ error) {
	l.Count(s, up, down)
	l.mu.Lock()
	l.ended[s.ID] = [2]uint64{up, down}
	l.mu.Unlock()
	l.done <- struct{}{}
}

// rig is a swarm on loopback.
type rig struct {
	t       testing.TB
	hub     *Hub
	gateway *Gateway
	meter   *ledger
	log     *logbook
	hubAt   string // ws://… or wss://…
	gateAt  string

	mu    sync.Mutex
	conns []io.Closer // to be closed at last
}

// later closes connections when gateway and hub are closed: then nobody waits for a Close frame.
func (r *rig) later(c ...io.Closer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, c...)
}

type rigConfig struct {
	hubTLS, gateTLS bool
	hub             HubConfig
	limits          Limits
	gateDial        func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newRig(t testing.TB, c rigConfig) *rig {
	t.Helper()
	r := &rig{t: t, meter: newLedger(), log: &logbook{}}
	t.Cleanup(func() {
		for _, c := range r.conns {
			_ = c.Close()
		}
	})
	h := c.hub
	h.Key, h.Root, h.Plain, h.Limits, h.Log = seal.NewKey(), root.Public(), !c.hubTLS, c.limits, r.log.logger()
	if h.Meter == nil {
		h.Meter = r.meter
	}
	var err error
	if r.hub, err = NewHub(h); err != nil {
		t.Fatal(err)
	}
	hubAddr := listen4(t, r.hub.Serve, r.hub.Close)
	key := seal.NewKey()
	r.gateway, err = NewGateway(GatewayConfig{Routes: []Route{{Hub: r.hub.ID(), Addr: hubAddr, TLS: c.hubTLS}},
		Plain: !c.gateTLS, Dial: c.gateDial, Key: key, Grant: granted(t, key, seal.Gateway), Limits: c.limits, Log: r.log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	gateAddr := listen4(t, r.gateway.Serve, r.gateway.Close)
	scheme := map[bool]string{false: "ws://", true: "wss://"}
	r.hubAt, r.gateAt = scheme[c.hubTLS]+hubAddr, scheme[c.gateTLS]+gateAddr
	return r
}

// listen4 serves on a port of loopback until the test ends.
func listen4(t testing.TB, serve func(net.Listener) error, stop func()) string {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

func granted(t testing.TB, k seal.Key, role seal.Role) seal.Grant {
	t.Helper()
	g, err := seal.SignGrant(root, seal.Grant{Role: role, Key: k.Public(), Issued: time.Now(), Name: role.String()})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (r *rig) token(change func(*seal.Token)) seal.Token {
	r.t.Helper()
	tok := seal.Token{Role: seal.Worker, Issued: time.Now().Add(-time.Hour), Hub: r.hub.ID()}
	if change != nil {
		change(&tok)
	}
	tok, err := seal.SignToken(root, tok)
	if err != nil {
		r.t.Fatal(err)
	}
	return tok
}

// worker returns the settings of a new worker that dials at.
func (r *rig) worker(at string) WorkerConfig {
	r.t.Helper()
	return WorkerConfig{Address: at, Key: seal.NewKey(),
		Join: seal.Join{Host: "test", Token: r.token(nil), Root: root.Public()}}
}

// backbone starts a backbone that reaches the hub at at.
func (r *rig) backbone(at string, change func(*BackboneConfig)) *Backbone {
	r.t.Helper()
	k := seal.NewKey()
	c := BackboneConfig{Key: k, Grant: granted(r.t, k, seal.Backbone), Root: root.Public(), Want: Want{Workers: 1000},
		Hubs: []Target{{Address: at, Hub: r.hub.ID()}}, Log: r.log.logger(), Backoff: Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}}
	if change != nil {
		change(&c)
	}
	b, err := NewBackbone(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(b.Close)
	return b
}

// pair dials a worker and accepts it.
func (r *rig) pair(b *Backbone, at string) (*Paired, *Accepted) {
	r.t.Helper()
	return r.join(b, r.worker(at))
}

func (r *rig) join(b *Backbone, w WorkerConfig) (*Paired, *Accepted) {
	r.t.Helper()
	ctx := within(r.t)
	type result struct {
		p   *Paired
		err error
	}
	got := make(chan result, 1)
	go func() {
		p, err := DialWorker(ctx, w)
		got <- result{p, err}
	}()
	a, err := b.Accept(ctx)
	if err != nil {
		r.t.Fatalf("accept: %v\n%s", err, r.log)
	}
	g := <-got
	if g.err != nil {
		r.t.Fatalf("dial worker: %v\n%s", g.err, r.log)
	}
	if g.p.Session != a.Session || a.Worker.Key != w.Key.Public() || g.p.Grant.Key != b.c.Key.Public() {
		r.t.Fatalf("worker has session %s with %s, backbone has %s with %s", g.p.Session, g.p.Grant.Key.Short(),
			a.Session, a.Worker.Key.Short())
	}
	r.later(g.p.Conn, a.Conn)
	return g.p, a
}

// wanted tells whether a hub has heard from its backbones, in their order, that they want so many workers each.
// A backbone is there before it says so.
func wanted(h *Hub, workers ...int) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.EqualFunc(h.desks, workers, func(d *desk, n int) bool { return d.asked && d.want.Workers == n })
	}
}

// until waits for ok, looking again and again.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx := within(t)
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("still not: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// exchange sends random traffic both ways at once, and compares.
func exchange(t testing.TB, a, b net.Conn, seed uint64, frames int) {
	t.Helper()
	var wg sync.WaitGroup
	send := func(to, from net.Conn, seed uint64) {
		sum := 0
		source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		r := rand.New(source)
		sizes := make([]int, frames)
		for i := range sizes {
			sizes[i] = r.IntN(64<<10 + 1)
			if r.IntN(4) > 0 {
				sizes[i] = r.IntN(1 << 10)
			}
			sum += sizes[i]
		}
		want := make([]byte, sum)
		_, _ = source.Read(want) // never returns an error
		wg.Go(func() {
			p := want
			for _, n := range sizes {
				if _, err := to.Write(p[:n]); err != nil {
					t.Errorf("seed %d: write: %v", seed, err)
					return
				}
				p = p[n:]
			}
		})
		wg.Go(func() {
			got := make([]byte, sum)
			if n, err := io.ReadFull(from, got); err != nil {
				t.Errorf("seed %d: read: %v after %d of %d", seed, err, n, sum)
			} else if !bytes.Equal(got, want) {
				t.Errorf("seed %d: bytes differ", seed)
			}
		})
	}
	limit := time.Now().Add(patience)
	_, _ = a.SetDeadline(limit), b.SetDeadline(limit)
	send(a, b, seed)
	send(b, a, seed+1000)
	wg.Wait()
	_, _ = a.SetDeadline(time.Time{}), b.SetDeadline(time.Time{})
}

// oneLine fails the test unless err is want, in one line that says each of the words.
func oneLine(t testing.TB, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	for _, w := range words {
		if s := err.Error(); strings.ContainsAny(s, "\r\n") || len(s) > 500 || !strings.Contains(s, w) {
			t.Errorf("%q: not one short line with %q", s, w)
		}
	}
}
