package relay

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A gauge is what this process uses.
type gauge struct{ heap, stack, sys, resident uint64 }

func measure() (g gauge) {
	runtime.GC() // pools let go of theirs in two steps
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	g = gauge{heap: m.HeapInuse, stack: m.StackInuse, sys: m.Sys}
	if p, err := os.ReadFile("/proc/self/statm"); err == nil { // of Linux
		if f := strings.Fields(string(p)); len(f) > 1 {
			pages, _ := strconv.ParseUint(f[1], 10, 64)
			g.resident = pages * uint64(os.Getpagesize())
		}
	}
	return g
}

func (g gauge) minus(o gauge) gauge {
	sub := func(a, b uint64) uint64 { return max(a, b) - b }
	return gauge{sub(g.heap, o.heap), sub(g.stack, o.stack), sub(g.sys, o.sys), sub(g.resident, o.resident)}
}

var (
	profileCount = regexp.MustCompile(`^(\d+) @`)
	profileEnd   = regexp.MustCompile(`"end":"(\w+)"`)
)

// goroutines counts goroutines by whose they are.
func goroutines() map[string]int {
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // to memory
	by, n := map[string]int{}, 0
	for line := range strings.SplitSeq(b.String(), "\n") {
		if m := profileCount.FindStringSubmatch(line); m != nil {
			n, _ = strconv.Atoi(m[1])
		} else if m := profileEnd.FindStringSubmatch(line); m != nil {
			by[m[1]] += n
		}
	}
	return by
}

// from dials from one of many addresses of this machine.
func from(i int) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%100))}}
	return d.DialContext
}

// gather starts n workers, some at a time, and returns when each has a session. Whoever is not let in on a busy
// machine in the time that a handshake may take comes again. release ends them.
func (s *swarm) gather(n int) (hands []*hand, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ends, watches sync.WaitGroup
	places := make(chan struct{}, longer(4, 32))
	for i := range n {
		h := s.newHand(nil)
		h.dial = from(i)
		hands = append(hands, h)
		places <- struct{}{}
		ends.Go(func() {
			labelled("worker", func() {
				if err := Keep(ctx, Backoff{}, h.work, nil); ctx.Err() == nil {
					s.t.Errorf("worker %d: %v", i, err)
				}
			})
		})
		watches.Go(func() {
			defer func() { <-places }()
			s.soon(patience, func() bool { return s.live[h.key.Public()] != nil })
		})
	}
	s.until(longer(patience, 10*time.Minute), fmt.Sprintf("%d sessions", n), func() bool { return len(s.live) == n })
	watches.Wait()
	return hands, func() {
		cancel()
		s.close()
		ends.Wait()
	}
}

// TestIdleSessionsCostLittle keeps many idle sessions: TLS outside of gateway and hub, TLS within, pings
// as they fall due. What is bounded is a session's cost at each of its four ends (worker, gateway, hub,
// backbone), all of which are in this process: at most 4 goroutines each, counted end by end, and 64 KiB
// each, heap and stacks of all four divided by four. None is dropped.
func TestIdleSessionsCostLittle(t *testing.T) {
	n, length := longer(200, 2000), longer(5*time.Second, 10*time.Minute)
	if testing.Short() { // with the race detector handshakes take long
		n, length = 30, time.Second
	}
	s := newSwarm(t, swarmConfig{direct: true, tls: true, limits: unhurried()})
	_, release := s.gather(1) // what is there once
	release()
	s = newSwarm(t, swarmConfig{direct: true, tls: true, limits: unhurried()})
	s.until(patience, "the backbone is there", func() bool { return s.online == 1 })
	idle, none := measure(), goroutines()
	begun := time.Now()
	hands, release := s.gather(n)
	t.Logf("%d sessions in %v", n, time.Since(begun).Round(time.Millisecond))
	s.mu.Lock()
	made := s.begun
	s.mu.Unlock()
	time.Sleep(length)

	after, by := measure().minus(idle), goroutines()
	for _, end := range []string{"worker", "gate", "hub", "backbone"} {
		got := float64(by[end]-none[end]) / float64(n)
		t.Logf("%s: %.2f goroutines a session", end, got)
		if by[end]-none[end] > 4*n || got == 0 {
			t.Errorf("%s: %.2f goroutines a session, want at most 4", end, got)
		}
	}
	each := func(b uint64) float64 { return float64(b) / float64(n) / 4 / 1024 }
	t.Logf("KiB a session and end: %.1f heap and %.1f stack in use, %.1f from the system, %.1f resident",
		each(after.heap), each(after.stack), each(after.sys), each(after.resident))
	if soaking() && each(after.heap+after.stack) > 64 {
		t.Errorf("%.1f KiB a session and end, want at most 64", each(after.heap+after.stack))
	}
	s.mu.Lock()
	live, more := len(s.live), s.begun-made
	s.mu.Unlock()
	if live != n || more != 0 {
		t.Errorf("%d sessions are left of %d, and %d began anew", live, n, more)
	}
	for i, h := range hands {
		if err := ask(s.of(h.key.Public()), soakBatch(t, 64, 2, i)); err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	release()
}

// unhurried is limits for tests in which more come at once than a hub takes from strangers.
func unhurried() Limits { return Limits{Pace: -1} }
