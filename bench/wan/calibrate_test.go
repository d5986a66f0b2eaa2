//go:build gate && unix

package wan

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestCalibrateRoundTrip asserts on time, so it runs only with the gate: go test -tags gate -run
// Calibrate -v ./bench/wan, on a machine that does nothing else.
func TestCalibrateRoundTrip(t *testing.T) {
	t.Logf("%8s %6s %8s %8s %8s %8s %8s %12s",
		"asked", "conns", "min", "p50", "p95", "p99", "max", "cpu/trip")
	for _, conns := range []int{1, 4} {
		for _, asked := range []time.Duration{0, 1, 13, 50, 80, 92} {
			rtt := asked * time.Millisecond
			count := 400
			if rtt > 20*time.Millisecond {
				count = 100
			}
			trips, cpu := calibrate(t, rtt, conns, count)
			p50, p95 := quantile(trips, 0.5), quantile(trips, 0.95)
			t.Logf("%8v %6d %8s %8s %8s %8s %8s %12v", rtt, conns, ms(trips[0]), ms(p50), ms(p95),
				ms(quantile(trips, 0.99)), ms(trips[len(trips)-1]), cpu)
			tolerance := max(300*time.Microsecond, rtt/200)
			for _, got := range []time.Duration{p50, p95} {
				if got < rtt-tolerance || got > rtt+tolerance {
					t.Errorf("%v asked, %d connections: p50 %v, p95 %v, want within %v", rtt, conns, p50, p95, tolerance)
					break
				}
			}
		}
	}
}

// calibrate pings over the first connection while the others are busy with pings of 8 KiB.
func calibrate(t *testing.T, rtt time.Duration, conns, count int) ([]time.Duration, time.Duration) {
	l, near := proxied(t, Profile{RTT: rtt}, echoServer(t), conns)
	defer shutAll(l)
	var busy sync.WaitGroup
	stop := make(chan struct{})
	for _, c := range near[1:] {
		busy.Go(func() { chatter(c, stop) })
	}
	start := cpuTime()
	trips, err := ping(near[0], count, 3*time.Millisecond)
	cpu := (cpuTime() - start) / time.Duration(count+2)
	close(stop)
	busy.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return trips, cpu
}

// chatter exchanges messages of 8 KiB, 2 ms apart.
func chatter(c net.Conn, stop <-chan struct{}) {
	msg := make([]byte, 8<<10)
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		if _, err := c.Write(msg); err != nil {
			return
		}
		if _, err := io.ReadFull(c, msg); err != nil {
			return
		}
	}
}

// TestCalibrateBusyProcess shows what happens to the round trip when the process that the link
// lives in also computes: a goroutine that has become ready waits for a processor of the runtime,
// 10 ms at worst. With more of them than cores the kernel's scheduler decides, which prefers those
// who have slept.
func TestCalibrateBusyProcess(t *testing.T) {
	cores := runtime.NumCPU()
	for _, procs := range []int{cores, cores + 2, 2 * cores, 4 * cores} {
		old := runtime.GOMAXPROCS(procs)
		stop := make(chan struct{})
		var hogs sync.WaitGroup
		for range cores {
			hogs.Go(func() {
				for x := 0; ; x++ {
					if x&0xFFFFF == 0 && isDone(stop) {
						return
					}
				}
			})
		}
		trips, _ := calibrate(t, 13*time.Millisecond, 1, 100)
		close(stop)
		hogs.Wait()
		runtime.GOMAXPROCS(old)
		t.Logf("%d cores, as many busy goroutines, GOMAXPROCS %d: p50 %s, p95 %s, max %s ms", cores, procs,
			ms(quantile(trips, 0.5)), ms(quantile(trips, 0.95)), ms(trips[len(trips)-1]))
	}
}

func TestCalibrateRate(t *testing.T) {
	for _, rate := range []int64{5e6, 20e6, 100e6, 1000e6} {
		p := Profile{RTT: 13 * time.Millisecond, Up: rate, Down: rate}
		size := max(7<<20, int(rate/16)) // half a second at least
		for _, way := range []string{"up", "down"} {
			took, cpu := transfer(t, p, size, way)
			got := float64(size*8) / (took - p.RTT/2).Seconds()
			t.Logf("%-4s asked %6.1f Mbit/s, got %8.2f, %d bytes in %v, cpu %v",
				way, float64(rate)/1e6, got/1e6, size, took.Round(time.Millisecond), cpu.Round(time.Millisecond))
			// A queue of 64 KiB is half a millisecond at 1 Gbit/s: a process that is put aside for
			// longer leaves the link idle. That rate is shown, not promised.
			if rate > 100e6 {
				continue
			}
			if got < 0.98*float64(rate) || got > 1.02*float64(rate) {
				t.Errorf("%s: %.2f Mbit/s, want %.2f", way, got/1e6, float64(rate)/1e6)
			}
		}
	}
	took, cpu := transfer(t, Profile{RTT: 13 * time.Millisecond}, 64<<20, "up")
	t.Logf("up   unlimited, got %8.2f Mbit/s, cpu %v", float64(64<<20*8)/took.Seconds()/1e6, cpu)
}

// transfer returns how long size bytes take one way through a proxy, until the last has arrived.
func transfer(t *testing.T, p Profile, size int, way string) (took, cpu time.Duration) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(ln)
	l, near := proxied(t, p, ln.Addr().String(), 1)
	defer shutAll(l)
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(far)
	time.Sleep(2 * p.RTT) // until the handshake is over
	from, to := near[0], far
	if way == "down" {
		from, to = to, from
	}
	start, cpuStart := time.Now(), cpuTime()
	var task sync.WaitGroup
	task.Go(func() { _, _ = from.Write(make([]byte, size)) })
	if _, err := io.CopyN(io.Discard, to, int64(size)); err != nil {
		t.Fatal(err)
	}
	took, cpu = time.Since(start), cpuTime()-cpuStart
	task.Wait()
	return took, cpu
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()*1000) }
