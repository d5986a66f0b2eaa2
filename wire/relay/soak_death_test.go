package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/bench/wan"
	"kvasir/wire/link"
	"kvasir/wire/seal"
)

// farewells is what an end may take beyond the notice: last words, and the close of each layer.
const farewells = 6 * time.Second

// TestTheSilentDeathOfAnyHopIsNoticedOnBothSides makes a hop swallow everything, while a session is idle
// and while it works. Both ends notice within 45 s, and gateway and hub are left with nothing. The times
// are those of the bubble; the long form does the same with sockets.
func TestTheSilentDeathOfAnyHopIsNoticedOnBothSides(t *testing.T) {
	for _, hop := range []string{"worker to gateway", "gateway to hub", "backbone to hub"} {
		for way, name := range map[wan.Way]string{wan.Up: "up", wan.Down: "down", wan.Both: "both ways"} {
			for _, busy := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, busy %v", hop, name, busy), func(t *testing.T) {
					if soaking() {
						t.Parallel()
						silentDeath(t, hop, way, busy, false)
						return
					}
					synctest.Test(t, func(t *testing.T) { silentDeath(t, hop, way, busy, true) })
				})
			}
		}
	}
}

func silentDeath(t *testing.T, hop string, way wan.Way, busy, inMemory bool) {
	s := newSwarm(t, swarmConfig{memory: inMemory})
	path := newPath(t, wan.Profile{})
	defer path.Close() //nolint:errcheck // always nil
	h := s.newHand(path)
	h.x = slower{time.Second, sums{}}
	ended := make(chan error, 1)
	go func() { ended <- h.work(context.Background()) }()
	x := s.of(h.key.Public())
	if err := ask(x, soakBatch(t, 64, 100, 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(25 * time.Second) // a ping has gone both ways
	call := make(chan error, 1)
	if busy {
		go func() { call <- ask(x, soakBatch(t, 64, 500, 2)) }()
		time.Sleep(100 * time.Millisecond) // it is computed; the answer finds no way
	}
	dead := map[string]*wan.Link{"worker to gateway": path, "gateway to hub": s.hop, "backbone to hub": s.own}[hop]
	dead.BlackHole(way)
	died := time.Now()
	<-x.Done()
	backboneTook := time.Since(died)
	if err := <-ended; !errors.Is(err, link.ErrClosed) {
		t.Errorf("the worker ended with %v", err)
	}
	workerTook := h.noticed.Sub(died)
	if busy {
		if err := <-call; !errors.Is(err, link.ErrClosed) && (err != nil || way == wan.Both) { // one way may be the answer's
			t.Errorf("the call under way ended with %v", err)
		}
	}
	t.Logf("noticed after %v by the backbone, %v by the worker", backboneTook, workerTook)
	if limit := 45*time.Second + time.Second; backboneTook > limit || workerTook > limit {
		t.Errorf("want at most 45s")
	}
	if hop == "backbone to hub" { // the control connection went with it
		s.until(time.Minute, "the backbone has noticed that its hub is silent", func() bool { return len(s.offline) > 0 })
		if took := s.offline[0].Sub(died); took > 46*time.Second {
			t.Errorf("the backbone noticed the silence of the hub after %v, want at most 45s", took)
		}
	}
	time.Sleep(farewells)
	if st := s.hub.Status(); st.Sessions != 0 || s.gateway.Active() != 0 || hop == "backbone to hub" && st.Backbones != 0 {
		t.Errorf("left over %v after the death: %+v, %d at the gateway\n%s", time.Since(died), st, s.gateway.Active(), s.log)
	}
	dead.Heal(wan.Both)
	if hop == "backbone to hub" {
		s.until(2*time.Minute, "the backbone is back", func() bool { return s.online == 2 })
	}
}

// TestAWorkerIsBackAtOnceWithTheSameKey lets a worker come again one second after its path died without
// a word: nobody has noticed yet, and the new session stands all the same, while the old one ends.
func TestAWorkerIsBackAtOnceWithTheSameKey(t *testing.T) {
	for _, hop := range []string{"worker to gateway", "gateway to hub"} {
		t.Run(hop, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSwarm(t, swarmConfig{memory: true})
				path := newPath(t, wan.Profile{RTT: 30 * time.Millisecond})
				defer path.Close() //nolint:errcheck // always nil
				h := s.newHand(path)
				ended := make(chan error, 2)
				go func() { ended <- h.work(context.Background()) }()
				first := s.of(h.key.Public())
				dead := map[string]*wan.Link{"worker to gateway": path, "gateway to hub": s.hop}[hop]
				dead.BlackHole(wan.Both)
				time.Sleep(time.Second)
				dead.Heal(wan.Both) // for new connections
				back := time.Now()
				again := s.newHand(path)
				again.key = h.key
				go func() { ended <- again.work(context.Background()) }()
				<-first.Done()
				t.Logf("the old session ended %v after the return: %v", time.Since(back), first.Err())
				s.until(time.Minute, "the new session stands", func() bool {
					return s.live[h.key.Public()] != nil && s.live[h.key.Public()] != first
				})
				if took := time.Since(back); took > time.Second {
					t.Errorf("back after %v, want within some round trips of 30ms", took)
				}
				if err := ask(s.of(h.key.Public()), soakBatch(t, 64, 10, 1)); err != nil {
					t.Error(err)
				}
				if st := s.hub.Status(); st.Sessions != 1 {
					t.Errorf("%+v, want one session", st)
				}
				_ = s.of(h.key.Public()).Close()
				for range 2 {
					<-ended // the old worker notices its silence
				}
			})
		})
	}
}

// TestABackboneIsBackAtOnceWithTheSameKey is the same for a control connection.
func TestABackboneIsBackAtOnceWithTheSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwarm(t, swarmConfig{memory: true})
		s.until(time.Minute, "the backbone is there", func() bool { return s.online == 1 })
		s.own.BlackHole(wan.Both)
		time.Sleep(time.Second)
		s.own.Heal(wan.Both)
		again, err := NewBackbone(BackboneConfig{Key: s.bbKey, Grant: granted(t, s.bbKey, seal.Backbone), Root: root.Public(),
			Want: Want{Workers: 1}, Hubs: []Target{{Address: s.scheme() + s.hubAddr, Hub: s.hub.ID()}},
			Online: s.onOnline, Dialer: Dialer{NetDial: s.dial(s.own)}})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		back := time.Now()
		s.until(time.Minute, "the new one is connected", func() bool { return s.online == 2 })
		if took, st := time.Since(back), s.hub.Status(); took > time.Second || st.Backbones != 1 {
			t.Errorf("after %v: %+v, want one backbone at once", took, st)
		}
	})
}

// TestAHubThatIsNotReachedInTimeIsNamed has a gateway dial its hub for as long as a visitor has time: who comes is
// told why, under TLS as without, though that time is over then.
func TestAHubThatIsNotReachedInTimeIsNamed(t *testing.T) {
	for _, secure := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSwarm(t, swarmConfig{memory: true, tls: secure})
			key := seal.NewKey()
			g, err := NewGateway(GatewayConfig{Routes: []Route{{Hub: s.hub.ID(), Addr: s.hubAddr}}, Plain: !secure, Key: key,
				Grant: granted(t, key, seal.Gateway), Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}})
			if err != nil {
				t.Fatal(err)
			}
			s.gateAddr = s.serve(g.Serve, "far.test:3")
			defer g.Close()
			path := newPath(t, wan.Profile{RTT: 30 * time.Millisecond})
			defer path.Close() //nolint:errcheck // always nil
			begun := time.Now()
			err = s.newHand(path).work(t.Context())
			t.Logf("TLS %v: after %v: %v", secure, time.Since(begun), err)
			oneLine(t, err, ErrNotThere, "cannot reach the hub")
		})
	}
}
