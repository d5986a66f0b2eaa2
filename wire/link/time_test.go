package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// These tests run in a synctest bubble, where time stands still while anybody computes: what they say
// about times is exact.

func TestAControlMessageOvertakesBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 1 MB/s and no delay: a full chunk takes 16 ms. The path's buffer holds four chunks, and the
		// pace lets eight leave before the worker's Credit is back.
		a, b := path(1_000_000, 0)
		var got sync.Map
		started := make(chan *Peer, 1)
		r := join(t, a, b, Worker{Experts: hashes{}, Started: func(p *Peer) { started <- p }}, Options{},
			Options{Receipt: func(rc wire.Receipt) { got.Store(rc.Sequence, time.Now()) }})
		<-started
		synctest.Wait()
		begin := time.Now()
		done := make(chan error, 1)
		go func() { done <- check(r.Session, big(t, 1)) }()
		time.Sleep(200 * time.Millisecond) // in the middle of it
		asked := time.Now()
		if err := r.SendReceipt(wire.Receipt{Sequence: 7, Signed: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		at, ok := got.Load(uint64(7))
		if !ok {
			t.Fatal("the receipt has not come")
		}
		// In front of it are at most the 64 KiB in the path's buffer and the chunk that waits to enter it.
		if wait, most := at.(time.Time).Sub(asked), (64<<10+2*wire.MaxChunk)*time.Microsecond; wait > most {
			t.Errorf("a control message waited %v behind bulk, want at most %v", wait, most)
		}
		if at.(time.Time).Sub(begin) > 400*time.Millisecond || time.Since(begin) < 500*time.Millisecond {
			t.Errorf("it came after %v of %v", at.(time.Time).Sub(begin), time.Since(begin))
		}
		_ = r.end()
	})
}

func TestTheWriteAfterTheOneUnderWayIsTheControlMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		tap := newTap(a)
		r := join(t, tap, b, Worker{Experts: hashes{}}, Options{}, Options{})
		synctest.Wait()
		tap.hold()
		done := make(chan error, 1)
		go func() { done <- check(r.Session, big(t, 1)) }()
		synctest.Wait() // the first chunk is in a write that does not end
		seen := len(tap.writes()) - 1
		if err := r.SendReceipt(wire.Receipt{Sequence: 7, Signed: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
		tap.release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		after := tap.writes()[seen:]
		if h, err := wire.ParseHeader(after[1]); err != nil || h.Type != wire.TypeReceipt {
			t.Errorf("the second write is %v, %v, want the receipt", h, err)
		}
		if n := len(after[0]); n != wire.MaxChunk {
			t.Errorf("the first write has %d bytes, want a full chunk of the dispatch", n)
		}
		_ = r.end()
	})
}

func TestWritesAreChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		taps := []*tap{newTap(a), newTap(b)}
		r := join(t, taps[0], taps[1], Worker{Experts: hashes{}}, Options{}, Options{})
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				batch := big(t, uint64(i))
				if i%2 == 0 {
					batch = small(t, uint64(i), 1)
				}
				if err := check(r.Session, batch); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		_ = r.end()
		for side, tap := range taps {
			left := map[string]int{}
			for i, p := range tap.writes() {
				if len(p) > wire.MaxChunk {
					t.Fatalf("side %d, write %d: %d bytes", side, i, len(p))
				}
				whole := len(p)
				for len(p) > 0 {
					h, err := wire.ParseHeader(p)
					if err != nil {
						t.Fatalf("side %d, write %d: %v", side, i, err)
					}
					key := fmt.Sprint(h.Type, h.Call)
					if h.Type.Bulk() {
						if _, ok := left[key]; !ok {
							left[key] = h.Length
						}
						if left[key] -= h.Size; left[key] > 0 && whole != wire.MaxChunk {
							t.Errorf("side %d, write %d: %d bytes in a chunk of %s that is not its last", side, i, h.Size, key)
						}
					}
					p = p[wire.HeaderLen+h.Size:]
				}
			}
			for key, n := range left {
				if n != 0 {
					t.Errorf("side %d: %d bytes of %s are missing", side, n, key)
				}
			}
		}
	})
}

func TestRoundTripsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1<<40, 6500*time.Microsecond)
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
		time.Sleep(time.Second)
		if got := r.RTT().Round(time.Microsecond); got != 13*time.Millisecond {
			t.Errorf("round trip %v, want 13ms", got)
		}
		_ = r.end()
	})
}

func TestAnIdleSessionLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := piped(t)
		time.Sleep(time.Second)
		before := r.Stats()
		time.Sleep(10 * time.Minute)
		after := r.Stats()
		if err := r.Err(); err != nil {
			t.Fatalf("after ten minutes: %v", err)
		}
		// 30 pings and 30 pongs each way.
		if n := after.BytesOut - before.BytesOut; n != 60*smallChunk {
			t.Errorf("%d bytes in ten minutes, want %d", n, 60*smallChunk)
		}
		if err := check(r.Session, small(t, 1, 3)); err != nil {
			t.Error(err)
		}
		_ = r.end()
	})
}

func TestASilentPeerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1_000_000, time.Millisecond)
		r := join(t, a, b, Worker{Experts: waits(nil)}, Options{}, Options{})
		time.Sleep(time.Second)
		call := make(chan error, 1)
		go func() { call <- r.Forward(context.Background(), small(t, 1, 3), &moe.Partials{}) }()
		time.Sleep(5 * time.Second)
		a.halt() // nothing arrives any more; nobody is told
		begin := time.Now()
		err := <-call
		if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrSilent) {
			t.Errorf("%v, want ErrClosed for ErrSilent", err)
		}
		if took := time.Since(begin); took < 39*time.Second || took > 45*time.Second {
			t.Errorf("given up after %v, want 45s after the last byte", took)
		}
		if err := r.end(); !errors.Is(err, ErrSilent) && !errors.Is(err, ErrStalled) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// raw is a peer that does the handshake, and then what the test does.
func raw(t *testing.T, conn net.Conn, role wire.Role) *mux {
	t.Helper()
	o := Options{Hello: hello()}
	m, err := connect(context.Background(), conn, o, role)
	if err != nil {
		t.Error(err)
	}
	return m
}

func TestAPeerThatTakesNothingIsCut(t *testing.T) {
	for name, takes := range map[string]bool{"does not read": false, "reads and acknowledges nothing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := path(100_000_000, time.Millisecond)
				go func() {
					raw(t, b, wire.RoleWorker)
					for p := make([]byte, 1<<16); takes; {
						if _, err := b.Read(p); err != nil {
							return
						}
					}
				}()
				s, err := Open(context.Background(), a, Options{Hello: hello()})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = s.Forward(context.Background(), big(t, 1), &moe.Partials{})
				if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrStalled) {
					t.Errorf("%v, want ErrClosed for ErrStalled", err)
				}
				if took := time.Since(begin); took < 10*time.Second || took > 10100*time.Millisecond {
					t.Errorf("cut after %v, want 10s", took)
				}
				if err := s.Close(); err != nil || !errors.Is(s.Err(), ErrStalled) {
					t.Errorf("%v, %v", err, s.Err())
				}
				_ = b.Close()
			})
		})
	}
}

func TestASlowPathIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(20_000, 300*time.Millisecond) // 20 kB/s
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
		begin := time.Now()
		if err := check(r.Session, big(t, 1)); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) < 60*time.Second {
			t.Errorf("took only %v", time.Since(begin))
		}
		_ = r.end()
	})
}

func TestThePaceFollowsThePath(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rate     int
		delay    time.Duration
		min, max int
	}{
		{"20 Mbit/s, 13 ms", 2_500_000, 6500 * time.Microsecond, paceMin, paceMin},
		{"100 Mbit/s, 100 ms", 12_500_000, 50 * time.Millisecond, 2_300_000, 2_700_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := path(tt.rate, tt.delay)
				a.out.buffer, b.out.buffer = 1<<30, 1<<30 // the pace alone holds back
				wo := Options{}
				wo.Hello.Calls, wo.Hello.Window = 64, 1<<30
				small := fakes(func(_ context.Context, b *moe.Batch, out *moe.Partials) error {
					out.Reset(b.Rows, b.Hidden)
					return nil
				})
				r := join(t, a, b, Worker{Experts: small}, Options{Answers: 1 << 30}, wo)
				time.Sleep(time.Second)
				var wg sync.WaitGroup
				batch := big(t, 1)
				for range 2 * tt.rate / 500_000 { // two seconds of them
					wg.Go(func() {
						if err := r.Forward(context.Background(), batch, &moe.Partials{}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				most := r.Stats().Pace
				if most < tt.min || most > tt.max {
					t.Errorf("the bound is %d, want %d to %d", most, tt.min, tt.max)
				}
				_ = r.end()
			})
		})
	}
}

func TestTheRateOfAnswersIsThatOfThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 2_500_000
		a, b := path(rate, 6500*time.Microsecond)
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
		if got := r.Stats().InRate; got != 0 {
			t.Errorf("%.0f bytes a second before the first answer, want 0", got)
		}
		for n := range uint64(3) {
			if err := r.Forward(context.Background(), big(t, n), &moe.Partials{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.Stats().InRate; got < 0.95*rate || got > 1.05*rate {
			t.Errorf("answers come at %.0f bytes a second over a path of %d", got, rate)
		}
		_ = r.end()
	})
}

func TestTheHandshakeIsBounded(t *testing.T) {
	for name, write := range map[string]func(net.Conn){
		"silence":          func(net.Conn) {},
		"a byte a second":  func(c net.Conn) { trickle(c) },
		"unknown for ever": func(c net.Conn) { flood(c, wire.Header{Type: 99, Size: 9000, Length: 9000}) },
		"an HTTP request":  func(c net.Conn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) },
		"a huge claim": func(c net.Conn) {
			flood(c, wire.Header{Type: wire.TypeDispatch, Flags: wire.Bulk, Size: 15984, Length: 1 << 29})
		},
		"a bulk message":    func(c net.Conn) { flood(c, wire.Header{Type: 99, Flags: wire.Bulk, Size: 100, Length: 1 << 31}) },
		"the wrong message": func(c net.Conn) { flood(c, wire.Header{Type: wire.TypePing, Size: 8, Length: 8}) },
	} {
		for _, role := range []wire.Role{wire.RoleBackbone, wire.RoleWorker} {
			t.Run(name+" to a "+role.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := net.Pipe()
					peer := &counter{Conn: b}
					var wg sync.WaitGroup
					wg.Go(func() { drainConn(peer) })
					wg.Go(func() { write(peer) })
					begin := time.Now()
					m, err := connect(context.Background(), a, Options{Hello: hello()}, role)
					if m != nil || !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrSilent) {
						t.Errorf("%v, want ErrProtocol or ErrSilent", err)
					}
					if time.Since(begin) > handshakeWait {
						t.Errorf("took %v", time.Since(begin))
					}
					if n := peer.count(); n > handshakeBytes {
						t.Errorf("read %d bytes", n)
					}
					_ = b.Close()
					wg.Wait()
				})
			})
		}
	}
}

func TestAHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if _, err := Open(ctx, a, Options{Hello: hello()}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
		if _, err := b.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is open still")
		}
	})
}

func TestMismatchesAreRefusedOnBothSidesInTheSameWords(t *testing.T) {
	for _, tt := range []struct {
		name             string
		worker, backbone func(*wire.Hello)
		want             string
	}{
		{"model", func(h *wire.Hello) { h.Model = wire.Hash{9} }, nil, "the worker has model 0900000000000000, the backbone 0100000000000000: use the same model file"},
		{"profile", nil, func(h *wire.Hello) { h.Profile = wire.Hash{7} }, "arithmetic profile 0200000000000000, the backbone 0700000000000000"},
		{"arithmetic", func(h *wire.Hello) { h.Arithmetic = 2 }, nil, "the worker has arithmetic version 2, the backbone 1: update the older side"},
		{"class", func(h *wire.Hello) { h.Class = wire.Close }, nil, "the worker is of class close, the backbone of class exact"},
		{"shape", func(h *wire.Hello) { h.Hidden = 64 }, nil, "hidden size 64, the backbone 4, 256 and 0"},
		{"no model and no fetching", func(h *wire.Hello) { h.Model, h.Agent = wire.Hash{}, []byte("bare") }, nil, "give the worker the model file"},
		{"fetching from one who does not send", func(h *wire.Hello) {
			h.Model, h.Features = wire.Hash{}, wire.FeatureFetch
		}, nil, "one side does not fetch"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				bh, wh := hello(), hello()
				if tt.worker != nil {
					tt.worker(&wh)
				}
				if tt.backbone != nil {
					tt.backbone(&bh)
				}
				var logs [2]logged
				served := make(chan error, 1)
				go func() {
					served <- Serve(context.Background(), b, Worker{Experts: hashes{}}, Options{Hello: wh, Name: "bb", Log: logs[0].logger()})
				}()
				_, err := Open(context.Background(), a, Options{Hello: bh, Name: "ww", Log: logs[1].logger()})
				for side, err := range []error{<-served, err} {
					if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("side %d: %v, want ErrRefused with %q", side, err, tt.want)
					}
					if n := strings.Count(logs[side].String(), "\n"); n != 1 || !strings.Contains(logs[side].String(), tt.want) {
						t.Errorf("side %d logs %d lines: %s", side, n, logs[side].String())
					}
				}
			})
		})
	}
}
