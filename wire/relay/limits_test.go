package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

func TestTableHoldsRateAndSessions(t *testing.T) {
	tab := newTable[string](Quota{Rate: 2, Burst: 3, Sessions: 4}, 10)
	now := time.Unix(1_000_000, 0)
	enter := func(k string, want error, wantWait time.Duration) {
		t.Helper()
		if _, wait, err := tab.enter(k, now); !errors.Is(err, want) || wait != wantWait {
			t.Errorf("%s at %v: %v, wait %v; want %v, %v", k, now.Sub(time.Unix(1_000_000, 0)), err, wait, want, wantWait)
		}
	}
	for range 3 {
		enter("a", nil, 0)
	}
	enter("a", errTooOften, 500*time.Millisecond)
	enter("b", nil, 0) // another is not touched
	now = now.Add(250 * time.Millisecond)
	enter("a", errTooOften, 250*time.Millisecond)
	now = now.Add(250 * time.Millisecond)
	enter("a", nil, 0) // the fourth session
	now = now.Add(time.Hour)
	enter("a", errTooMany, 0)
	tab.leave("a")
	enter("a", nil, 0)
	now = now.Add(-time.Hour) // a clock that is set back gives nothing away
	tab.leave("a")
	enter("a", nil, 0)
	tab.leave("a")
	enter("a", errTooOften, 500*time.Millisecond)
}

func TestTableForgetsWhoWasAwayForLongest(t *testing.T) {
	const most = 100
	tab := newTable[int](Quota{Rate: 1, Burst: 1, Sessions: 5}, most)
	now := time.Unix(1_000_000, 0)
	for k := range 10 { // stay
		_, _, _ = tab.enter(k, now)
	}
	for k := 1000; k < 101_000; k++ {
		if _, _, err := tab.enter(k, now); err != nil {
			t.Fatal(err)
		}
		tab.leave(k)
		if n := tab.len(); n > most {
			t.Fatalf("%d accounts, limit %d", n, most)
		}
		_, _, _ = tab.enter(1000, now) // knocks again and again, and is remembered for it
	}
	for _, k := range []int{0, 9, 1000, 100_999, 100_950} {
		if _, _, err := tab.enter(k, now); !errors.Is(err, errTooOften) {
			t.Errorf("%d is forgotten: %v", k, err)
		}
	}
	if _, _, err := tab.enter(1001, now); err != nil {
		t.Errorf("an old account is not forgotten: %v", err)
	}
}

func TestTollAsksForWhatIsTooMuch(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	tl := &toll{rate: 1000}
	want := func(n int, wait time.Duration) {
		t.Helper()
		if got := tl.take(n, now); got != wait {
			t.Errorf("after %d bytes: wait %v, want %v", n, got, wait)
		}
	}
	want(sliceMin+100, 0) // what may go at once
	want(1000, time.Second)
	want(500, 1500*time.Millisecond) // of another session
	now = now.Add(1400 * time.Millisecond)
	want(0, 100*time.Millisecond)
	now = now.Add(time.Hour)
	want(sliceMin+200, 100*time.Millisecond)
}

func TestKeepObeysRetryAfterExactly(t *testing.T) {
	var waits []time.Duration
	ctx, cancel := context.WithCancel(context.Background())
	b := Backoff{
		Rand: func() float64 { return 1 },
		Now:  func() time.Time { return time.Unix(0, 0) },
		Sleep: func(_ context.Context, d time.Duration) {
			if waits = append(waits, d); len(waits) == 4 {
				cancel()
			}
		},
	}
	_ = Keep(ctx, b, func(context.Context) error {
		if len(waits)%2 == 0 {
			return ErrNotThere
		}
		return &ws.StatusError{Status: 503, Header: http.Header{"Retry-After": {"1"}}}
	}, nil)
	if got := fmt.Sprint(waits); got != "[1s 1s 4s 1s]" { // the limit doubles on meanwhile
		t.Errorf("waits %s", got)
	}
}

func TestAddressesAreLimitedAsCustomersHaveThem(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7":                  "192.0.2.7/32",
		"::ffff:192.0.2.7":           "192.0.2.7/32",
		"2001:db8:1:2:3:4:5:6":       "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::1":       "2001:db8:1:2::/64",
		"fe80::1%eth0":               "fe80::/64",
		"2001:db8:1:3:ffff:0:0:ffff": "2001:db8:1:3::/64",
	} {
		ap := netip.AddrPortFrom(netip.MustParseAddr(addr), 1)
		if got := addressOf(fakeAddr{remote: net.TCPAddrFromAddrPort(ap)}); got.String() != want {
			t.Errorf("%s: %v, want %s", addr, got, want)
		}
	}
	if p := addressOf(fakeAddr{remote: &net.UnixAddr{Name: "x"}}); p.IsValid() {
		t.Errorf("no address: %v", p)
	}
	o := Limits{}.withDefaults()
	if !o.trusts(netip.MustParsePrefix("127.0.0.9/32")) || o.trusts(netip.MustParsePrefix("192.0.2.1/32")) || !o.trusts(netip.Prefix{}) {
		t.Error("not loopback alone is behind a gateway")
	}
}

type fakeAddr struct {
	net.Conn
	remote net.Addr
}

func (f fakeAddr) RemoteAddr() net.Addr { return f.remote }

// dialFrom returns a connection from an address of loopback.
func dialFrom(t *testing.T, ip, addr string) net.Conn {
	t.Helper()
	nc, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp", addr)
	if err != nil {
		t.Skipf("this system has no second address on loopback: %v", err)
	}
	t.Cleanup(func() { sever(nc) })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return nc
}

func TestAddressesOverTheirLimitAreTurnedAway(t *testing.T) {
	for _, c := range []struct {
		reason string
		quota  Quota
	}{
		{"rate", Quota{Rate: 0.001, Burst: 3, Sessions: -1}},
		{"sessions", Quota{Rate: -1, Sessions: 3}},
	} {
		r := newRig(t, rigConfig{limits: Limits{Address: c.quota, Behind: []netip.Prefix{}, Greet: patience}})
		for _, at := range []string{r.hubAt, r.gateAt} {
			addr := strings.TrimPrefix(at, "ws://")
			f := r.hub.f
			if at == r.gateAt {
				f = r.gateway.f
			}
			for range 3 {
				dialFrom(t, "127.0.0.1", addr)
			}
			until(t, "three are in", func() bool { return f.active() == 3 })
			if n, err := dialFrom(t, "127.0.0.1", addr).Read(make([]byte, 1)); err == nil || n > 0 {
				t.Errorf("%s: the fourth was let in", c.reason)
			}
			nc := dialFrom(t, "127.0.0.2", addr) // another address is not touched
			_, _ = io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			if b, _ := io.ReadAll(nc); !strings.Contains(string(b), "200 OK") {
				t.Errorf("%s: another address got %q", c.reason, b)
			}
			until(t, "it is counted once", func() bool { return f.tally.counts()["refused_"+c.reason] == 1 })
		}
		if n := strings.Count(r.log.String(), "reason="+c.reason); n != 2 || !strings.Contains(r.log.String(), "from 127.0.0.1/32") {
			t.Errorf("%s: %d lines:\n%s", c.reason, n, r.log)
		}
	}
}

// Who proves a key has not used up what its address may do: many may come through one gateway.
func TestProofsGiveHandshakesBack(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Address: Quota{Rate: 0.001, Burst: 2}, Behind: []netip.Prefix{}}})
	b := r.backbone(r.hubAt, nil)
	for range 5 {
		r.pair(b, r.hubAt)
	}
	addr := strings.TrimPrefix(r.hubAt, "ws://")
	for range 2 {
		dialFrom(t, "127.0.0.1", addr)
	}
	if n, err := dialFrom(t, "127.0.0.1", addr).Read(make([]byte, 1)); err == nil || n > 0 {
		t.Error("the third stranger was let in")
	}
}

func TestKeysThatComeTooOftenAreToldWhenToReturn(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Key: Quota{Rate: 0.005, Burst: 2}}}) // one in 200 s
	b := r.backbone(r.hubAt, nil)
	w := r.worker(r.gateAt)
	r.join(b, w)
	r.join(b, w)
	_, err := DialWorker(within(t), w)
	if d := retryAfter(err); err == nil || Final(err) || d < 200*time.Second-patience || d > 200*time.Second {
		t.Errorf("the third time: %v, again in %v", err, d)
	}
	oneLine(t, err, err, "comes too often")
	until(t, "it is counted", func() bool { return r.hub.Counts()["refused_key"] == 1 })
	r.join(b, r.worker(r.gateAt)) // another key
}

func TestBackboneGetsNoMoreWorkersThanItsKeyMay(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Key: Quota{Sessions: 2}}})
	b := r.backbone(r.hubAt, nil) // that wants 1,000
	r.pair(b, r.gateAt)
	r.pair(b, r.gateAt)
	s, _, _ := r.wait(r.worker(r.gateAt))
	until(t, "told that there are enough", s.has("all the workers they want (2)"))
}

// Slots are a little further apart than places. When the hub gives them, a busy machine decides; where they lie, not.
func TestWorkersBeyondThePaceGetASlot(t *testing.T) {
	const place, slot, whole = 50 * time.Second, 56250 * time.Millisecond, time.Second // Retry-After is rounded up
	r := newRig(t, rigConfig{limits: Limits{Pace: 0.02}})
	begun := time.Now()
	s, _, _ := r.wait(r.worker(r.gateAt))
	until(t, "the first is in", s.has("no backbone"))
	in := time.Now()
	for i := range 3 {
		asked := time.Now()
		_, err := DialWorker(within(t), r.worker(r.gateAt))
		told := time.Now()
		oneLine(t, err, err, "many workers come at once")
		first, last := begun.Add(place+time.Duration(i)*slot), in.Add(place+time.Duration(i)*slot)
		d := retryAfter(err)
		if Final(err) || told.Add(d).Before(first) || asked.Add(d-whole).After(last) {
			t.Errorf("number %d: %v, again %v after %v, want the slot at %v to %v", i+2, err, d, told.Sub(begun), first.Sub(begun), last.Sub(begun))
		}
	}
	until(t, "all three are counted", func() bool { return r.hub.Counts()["refused_busy"] == 3 })
	r.backbone(r.hubAt, nil) // the pace is for workers
	until(t, "a backbone came", func() bool { return r.hub.Status().Backbones == 1 })
}

// A splice that pays for its bytes ends all the same when one side does, and both legs pay.
func TestTollsAreTakenAndDoNotHoldAnEnd(t *testing.T) {
	a, ain := tcpPair(t, false)
	b, bin := tcpPair(t, false)
	one, two := &toll{rate: 1000}, &toll{rate: 1e9}
	done := make(chan spliced, 1)
	go func() {
		up, down, err := splice(leg{nc: ain, tolls: []*toll{one}}, leg{nc: bin, tolls: []*toll{two}},
			Limits{Tick: 10 * time.Millisecond, Linger: 30 * time.Millisecond}.withDefaults(), nil)
		done <- spliced{up, down, err}
	}()
	const size = 40 << 10 // more than half a minute's worth
	if _, err := a.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	until(t, "the bytes are taken into account", func() bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		two.mu.Lock()
		defer two.mu.Unlock()
		return one.b.level < 0 && !two.b.at.IsZero()
	})
	_ = a.Close()
	if s := <-done; s.up != size {
		t.Errorf("%+v", s)
	}
}

func TestFaultsOfKnownPeersAreCounted(t *testing.T) {
	r := newRig(t, rigConfig{limits: Limits{Tick: 10 * time.Millisecond, Idle: 50 * time.Millisecond}})
	b := r.backbone(r.hubAt, nil)
	r.pair(b, r.hubAt) // and neither says a word
	until(t, "the idle session is cut", func() bool { return r.hub.Counts()["cut_idle"] == 1 })

	w := r.worker(r.gateAt)
	b.SetWant(Want{})
	until(t, "the hub knows that nobody is wanted", wanted(r.hub, 0))
	reached, err := w.Dialer.run(within(t), errand{address: w.Address, hub: r.hub.ID(), root: root.Public(), path: workerPath,
		proto: ws.WebSocket, prove: func(ch seal.Challenge, path string) (seal.Proof, error) {
			return seal.ProveToken(w.Key, w.Join.Token, ch, path)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer sever(reached.nc)
	_, _ = reached.nc.Write([]byte{0x81, 0x02, 'n', 'o'}) // a client masks
	until(t, "the fault is counted", func() bool { return r.hub.Counts()["refused_protocol"] == 1 })
}

func TestPanicEndsOneVisitorOnly(t *testing.T) {
	log := &logbook{}
	f, err := newFront(Limits{Pending: 4, Linger: 20 * time.Millisecond}.withDefaults(), nil, log.logger(), func(v *visitor) func() {
		var b [1]byte
		_, _ = io.ReadFull(v.nc, b[:])
		if b[0] == '!' {
			panic("a fault of our own")
		}
		v.answer(http.StatusOK, "fine")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, f.serve, f.close)
	for _, c := range []struct{ say, want string }{{"!", ""}, {"!", ""}, {"!", ""}, {"!", ""}, {"!", ""}, {".", "fine"}} {
		nc := dialRaw(t, addr, false)
		_, _ = io.WriteString(nc, c.say)
		if b, _ := io.ReadAll(nc); !strings.Contains(string(b), c.want) {
			t.Errorf("%q: %q", c.say, b)
		}
	}
	until(t, "all have left", func() bool { return f.active() == 0 && f.waiting.Load() == 0 })
	if n := f.tally.counts()["bugs"]; n != 5 || strings.Count(log.String(), "a fault of our own") != 5 {
		t.Errorf("%d bugs:\n%s", n, log)
	}
}

// No endpoint of a hub does anything without a proof, but /healthz.
func TestHubAnswersNobodyWithoutAProof(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick, hub: HubConfig{Ledger: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the ledger was asked")
	}), Report: func(context.Context, seal.Grant, []byte) ([]byte, error) {
		t.Error("a report was taken")
		return nil, nil
	}, Statement: func(context.Context, seal.Proof, []byte) ([]byte, error) {
		t.Error("a statement was taken")
		return nil, nil
	}}})
	addr, id := strings.TrimPrefix(r.hubAt, "ws://"), r.hub.ID()
	paths := []string{"/", "/healthz/", "/healthz/x", "//healthz", "/worker", "/statements", "/backbone", "/session/", "/session/" + newID(), "/ledger",
		"/ledger/", "/ledger/receipts", "/ledger/../healthz", "/metrics", "/debug/pprof/", "/x", "*"}
	upgrades := []string{"", ws.WebSocket, controlProtocol, sessionProtocol, "h2c"}
	for _, path := range paths {
		for _, prefix := range []string{"", "/" + id, "/other"} {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI", "kv"} {
				for _, up := range upgrades {
					if n := askRaw(t, addr, method, prefix+path, up); n/100 == 1 || n/100 == 2 || n/100 == 3 {
						t.Errorf("%s %s with Upgrade %q: %d", method, prefix+path, up, n)
					}
				}
			}
		}
	}
	for method, want := range map[string]int{"GET": 200, "POST": 404, "HEAD": 404, "DELETE": 404} {
		if n := askRaw(t, addr, method, "/healthz", ""); n != want {
			t.Errorf("%s /healthz: %d, want %d", method, n, want)
		}
	}
	if s := r.hub.Status(); s.Waiting != 0 || s.Backbones != 0 || s.Sessions != 0 {
		t.Errorf("somebody got in: %+v", s)
	}
}

// askRaw sends a request and returns the status of the answer, 0 where there is none.
func askRaw(t *testing.T, addr, method, path, upgrade string) int {
	t.Helper()
	nc := dialRaw(t, addr, false)
	defer sever(nc)
	head := method + " " + path + " HTTP/1.1\r\nHost: x\r\n"
	if upgrade != "" {
		head += "Connection: Upgrade\r\nUpgrade: " + upgrade + "\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	}
	_, _ = io.WriteString(nc, head+"\r\n")
	res, err := http.ReadResponse(bufio.NewReader(nc), &http.Request{Method: method})
	if err != nil {
		return 0
	}
	_ = res.Body.Close() // of a test
	return res.StatusCode
}

// Whoever has not proved anything costs less than 1 MiB, whatever he sends.
func TestStrangersCostLittleMemory(t *testing.T) {
	const strangers = 30
	head := "GET /worker HTTP/1.1\r\nHost: x\r\n"
	for name, say := range map[string][]byte{
		"a head without end": []byte(head + strings.Repeat("A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n", 450)),
		"a body":             append([]byte("POST /ledger HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"), make([]byte, 500<<10)...),
		"a huge hello":       append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, 16<<10)...),
		"a control message":  append([]byte("GET /backbone HTTP/1.1\r\nHost: x\r\n\r\n"), binary.BigEndian.AppendUint32(nil, maxTalk)...),
		"frames already":     append([]byte(head+"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), bytes.Repeat([]byte{0x82, 0x80, 0, 0, 0, 0}, 50_000)...),
	} {
		for _, secure := range []bool{false, true} {
			r := newRig(t, rigConfig{hubTLS: secure, limits: Limits{Linger: 20 * time.Millisecond}})
			addr := r.hubAt[strings.Index(r.hubAt, "//")+2:]
			before := heapInUse()
			for range strangers {
				nc := dialRaw(t, addr, secure && name != "a huge hello")
				_ = nc.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)) // it may not be read
				_, _ = nc.Write(say)
			}
			after := heapInUse()
			if each := (after - before) / strangers; each > 256<<10 { // both ends are in this process
				t.Errorf("%s, TLS %v: %d bytes each", name, secure, each)
			}
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
