package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// jerky stalls before some of its reads and writes, for a random time below a second.
type jerky struct {
	net.Conn
	mu  sync.Mutex
	rng *rand.Rand
}

func (j *jerky) stall() {
	j.mu.Lock()
	d := time.Duration(0)
	if j.rng.IntN(4) == 0 {
		d = time.Duration(j.rng.IntN(1000)) * time.Millisecond
	}
	j.mu.Unlock()
	time.Sleep(d)
}

func (j *jerky) Read(p []byte) (int, error) {
	j.stall()
	return j.Conn.Read(p)
}

func (j *jerky) Write(p []byte) (int, error) {
	j.stall()
	return j.Conn.Write(p)
}

// TestNoOrderOfEventsStopsASession searches for a deadlock: windows that hold one or two calls,
// connections without a buffer that stall, calls that are given up, an executor that takes its time.
// Time moves whenever everybody waits, so a session that is stuck ends by its limits, with an error.
func TestNoOrderOfEventsStopsASession(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() { // with the race detector this takes long
		seeds = 15
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			a, b := net.Pipe()
			ends := [2]net.Conn{
				&jerky{Conn: a, rng: rand.New(rand.NewPCG(seed, 2))},
				&jerky{Conn: b, rng: rand.New(rand.NewPCG(seed, 3))},
			}
			slow := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				select {
				case <-time.After(time.Duration(b.Layer) * 50 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				return hashes{}.Forward(ctx, b, out)
			})
			wo := Options{Parallel: 1 + rng.IntN(3)}
			wo.Hello.Calls, wo.Hello.Window = 1+rng.IntN(4), 40_000+rng.IntN(60_000)
			bo := Options{Answers: wire.PartialsBound(300, 100) * (1 + rng.IntN(3))}
			books := shelf{{1}: make([]byte, 300_000)}
			bo.Slices = books.read
			w := Worker{Experts: slow, Assign: func(ctx context.Context, _ wire.Assign, fetch SliceReader) (moe.Experts, error) {
				_, err := fetchAll(ctx, fetch, wire.Hash{1}, 0)
				return slow, err
			}}
			r := join(t, ends[0], ends[1], w, bo, wo)
			var wg sync.WaitGroup
			for range 30 {
				batch := newBatch(t, rng, moe.Shape{Layer: rng.IntN(4), Hidden: 100, Format: moe.RowQ8K}, 1+rng.IntN(250))
				limit := time.Duration(1+rng.IntN(40)) * 100 * time.Millisecond
				given := rng.IntN(3) == 0
				late := time.Duration(rng.IntN(20)) * time.Second
				wg.Go(func() {
					time.Sleep(late)
					if !given {
						if err := check(r.Session, batch); err != nil {
							t.Errorf("seed %d: %v", seed, err)
						}
						return
					}
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					defer cancel()
					out := &moe.Partials{}
					if err := r.Forward(ctx, batch, out); err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("seed %d: given up: %v", seed, err)
					}
					spoil(batch, out)
				})
			}
			wg.Go(func() {
				if err := r.Assign(context.Background(), []wire.Slice{{Hi: 1}}); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
			wg.Wait()
			if err := r.Drain(context.Background(), wire.GoAway{Reason: wire.Stopping}); err != nil {
				t.Errorf("seed %d: Drain: %v", seed, err)
			}
			var away *Away
			if err := <-r.served; !errors.As(err, &away) {
				t.Errorf("seed %d: Serve: %v", seed, err)
			}
			if st := r.Stats(); st.Calls != 0 || st.Jobs != 0 {
				t.Errorf("seed %d: left over: %+v", seed, st)
			}
			r.stop()
		})
	}
}

// TestThePaceNeverStopsAndNeverLeads holds a pace against a path that delivers what it likes, when it
// likes.
func TestThePaceNeverStopsAndNeverLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPace()
		now := time.Unix(1000, 0)
		var way []int // chunks on the way
		var received uint64
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50_000).Draw(t, "µs")) * time.Microsecond)
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0, 1:
				n := rapid.IntRange(17, wire.MaxChunk).Draw(t, "chunk")
				if p.room(n) {
					p.send(n, now)
					way = append(way, n)
				} else if len(way) == 0 {
					t.Fatal("nothing is on the way, and there is no room")
				}
			case 2:
				for k := rapid.IntRange(0, len(way)).Draw(t, "arrive"); k > 0; k-- {
					received += uint64(way[0])
					way = way[1:]
				}
				if err := p.ack(received, now); err != nil {
					t.Fatal(err)
				}
			case 3:
				p.tripped(time.Duration(rapid.IntRange(0, 200_000).Draw(t, "rtt")) * time.Microsecond)
			}
			sum := uint64(0)
			for _, n := range way {
				sum += uint64(n)
			}
			if p.unacked() < sum || p.window < paceMin || p.window > paceMax {
				t.Fatalf("unacked %d of %d on the way, window %d", p.unacked(), sum, p.window)
			}
			if d := p.deadline(); d.IsZero() != (p.unacked() == 0) {
				t.Fatalf("deadline %v with %d unacknowledged", d, p.unacked())
			}
		}
	})
}

func TestAPaceGivesWayWhenThePathNarrows(t *testing.T) {
	p := newPace()
	now := time.Unix(1000, 0)
	p.tripped(100 * time.Millisecond)
	flow := func(rate int) { // the sender sends what it may; the path delivers a rate
		for range 40 {
			for p.room(wire.MaxChunk) {
				p.send(wire.MaxChunk, now)
			}
			now = now.Add(100 * time.Millisecond)
			if err := p.ack(min(p.sent, p.acked+uint64(rate/10)), now); err != nil {
				t.Fatal(err)
			}
		}
	}
	flow(50_000_000)
	if p.window != 10_000_000 {
		t.Errorf("at 50 MB/s and 100 ms the bound is %d, want 10000000", p.window)
	}
	flow(5_000_000)
	if p.window != 1_000_000 {
		t.Errorf("at 5 MB/s and 100 ms the bound is %d, want 1000000", p.window)
	}
	for range 40 { // an idle sender measures nothing
		p.send(100, now)
		now = now.Add(time.Second)
		if err := p.ack(p.sent, now); err != nil {
			t.Fatal(err)
		}
	}
	if p.window != 1_000_000 {
		t.Errorf("after an idle time the bound is %d, want 1000000", p.window)
	}
}

func TestAQueueKnowsItsBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var in []*message
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(in) == 0 || rapid.Bool().Draw(t, "push") {
				msg := &message{}
				msg.begin(wire.TypePartials, rapid.IntRange(1, 50_000).Draw(t, "length"), 1, frame{})
				q.push(msg)
				in = append(in, msg)
				continue
			}
			i := rapid.IntRange(0, len(in)-1).Draw(t, "remove")
			in[i].remove()
			in[i].remove() // once is enough
			in = append(in[:i], in[i+1:]...)
		}
		sum, at := 0, q.head
		for _, msg := range in {
			if at != msg {
				t.Fatal("out of order")
			}
			sum, at = sum+msg.head.Length, at.next
		}
		if q.count != len(in) || q.bytes != sum || at != nil {
			t.Fatalf("%d messages of %d bytes, want %d of %d", q.count, q.bytes, len(in), sum)
		}
	})
}

func TestAnswersThatCannotLeaveHoldTheWorkerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		tap := newTap(b)
		computed := 0
		x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			computed++ // by one goroutine
			return hashes{}.Forward(ctx, b, out)
		})
		r := join(t, a, tap, Worker{Experts: x}, Options{}, Options{Parallel: 1, queued: 1000})
		synctest.Wait()
		tap.hold()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := check(r.Session, small(t, uint64(i), 5)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if computed < 1 || computed > 8 {
			t.Errorf("%d answers were computed, and none could leave", computed)
		}
		tap.release()
		wg.Wait()
		_ = r.end()
	})
}

func TestAPaceRefusesFalseCredit(t *testing.T) {
	p := newPace()
	now := time.Unix(1000, 0)
	p.send(1000, now)
	if err := p.ack(1001, now); !errors.Is(err, ErrProtocol) {
		t.Errorf("more than was sent: %v", err)
	}
	if err := p.ack(600, now); err != nil || p.unacked() != 400 {
		t.Errorf("%v, %d unacknowledged", err, p.unacked())
	}
	if err := p.ack(599, now); !errors.Is(err, ErrProtocol) {
		t.Errorf("less than before: %v", err)
	}
	if got := p.deadline(); !got.Equal(now.Add(stall)) {
		t.Errorf("deadline %v", got)
	}
}

func TestForwardAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := loopback(t)
	x := fakes(func(_ context.Context, b *moe.Batch, out *moe.Partials) error {
		out.Reset(b.Rows, b.Hidden)
		return nil
	})
	r := join(t, a, b, Worker{Experts: x}, Options{}, Options{})
	batch, out := big(t, 1), &moe.Partials{}
	one := func() {
		if err := r.Forward(context.Background(), batch, out); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		one()
	}
	// Both sides together: the worker makes a context (2) for what it computes.
	if n := testing.AllocsPerRun(100, one); n > 2 {
		t.Errorf("a dispatch of %d rows allocates %v times on both sides together, want at most 2", batch.Rows, n)
	}
	_ = r.end()
}

func BenchmarkForward(b *testing.B) {
	x := fakes(func(_ context.Context, b *moe.Batch, out *moe.Partials) error {
		out.Reset(b.Rows, b.Hidden)
		return nil
	})
	for _, rows := range []int{1, 512} {
		b.Run(map[int]string{1: "1", 512: "512"}[rows], func(b *testing.B) {
			p, q := loopback(b)
			r := join(b, p, q, Worker{Experts: x}, Options{}, Options{})
			batch, out := newBatch(b, seeded(1), moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, rows), &moe.Partials{}
			b.SetBytes(int64(wire.DispatchSize(batch.Shape, rows, len(batch.Expert))))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Forward(context.Background(), batch, out); err != nil {
					b.Fatal(err)
				}
			}
			_ = r.end()
		})
	}
}
