package batcher

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// TestCoreIsFair offers calls of many callers and classes and checks what every batch owes them.
func TestCoreIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := Limits{Rows: rapid.IntRange(1, 300).Draw(t, "rows"), QueueRows: 1 << 20}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		c, now := core{Limits: l}, time.Unix(0, 0)
		waits := map[Caller]int{}
		next := map[*ticket]int{}
		passed := 0
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "step") < 2 {
				tk := newTicket(0, rapid.IntRange(1, 150).Draw(t, "rows"), 1)
				tk.caller = Caller{ID: uint64(rapid.IntRange(0, 3).Draw(t, "caller")), Class: Class(rapid.IntRange(0, 1).Draw(t, "class"))}
				if c.offer(now, tk) == nil {
					waits[tk.caller] += tk.rows()
					next[tk] = 0
				}
				continue
			}
			got := map[Caller]int{}
			rows := 0
			for _, p := range c.next(now, nil) {
				if next[p.t] != p.lo || p.hi <= p.lo {
					t.Fatalf("rows %d to %d of a call of which %d were next", p.lo, p.hi, next[p.t])
				}
				next[p.t] = p.hi
				got[p.t.caller] += p.hi - p.lo
				rows += p.hi - p.lo
			}
			all, bulk, first := 0, 0, Interactive
			for who, n := range waits {
				all += n
				if who.Class == Bulk {
					bulk += n
				}
			}
			if rows != min(all, l.Rows) {
				t.Fatalf("a batch of %d rows while %d wait", rows, all)
			}
			if passed == maxPassed {
				first = Bulk
			}
			checkShares(t, waits, got, first, l.Rows)
			if passed++; bulk == 0 || got[Caller{0, Bulk}]+got[Caller{1, Bulk}]+got[Caller{2, Bulk}]+got[Caller{3, Bulk}] > 0 {
				passed = 0
			}
			for who, n := range got {
				waits[who] -= n
			}
		}
	})
}

// checkShares holds that within a class nobody has a quantum more than another who still waits, and that
// nobody of the other class has any while one of the first waits.
func checkShares(t *rapid.T, waits, got map[Caller]int, first Class, limit int) {
	t.Helper()
	for a, n := range waits {
		if n == got[a] {
			continue // all of it is in the batch
		}
		for b, m := range got {
			if b.Class == a.Class && m > got[a]+quantum {
				t.Fatalf("caller %v has %d rows of a batch of %d, and %v, who waits, %d", b, m, limit, a, got[a])
			}
			if a.Class == first && b.Class != first {
				t.Fatalf("caller %v has %d rows, while %v waits", b, m, a)
			}
		}
	}
}

func TestFitFindsWhatADispatchCosts(t *testing.T) {
	var f fit
	if f.fixed() != 0 {
		t.Error("a cost without dispatches")
	}
	rng := seeded(t, 1)
	for range 20 {
		f.add(64, 5*time.Millisecond)
	}
	if f.fixed() != 0 {
		t.Error("a cost from dispatches of one size")
	}
	for range 300 {
		rows := 1 + rng.IntN(512)
		f.add(rows, 1450*time.Microsecond+time.Duration(rows)*16*time.Microsecond)
	}
	if got := f.fixed(); math.Abs(float64(got-1450*time.Microsecond)) > float64(20*time.Microsecond) {
		t.Errorf("a dispatch costs %v, want 1.45ms", got)
	}
}

// near is an executor that tells how far away it is.
type near struct {
	*stub
}

func (n near) RTT() time.Duration { return n.rtt }

func TestLaneTellsWhereTheTimeGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane := newLane(t, near{newStub(10*time.Millisecond, 3*time.Millisecond, 0)}, Limits{Rows: 8}, 1)
		defer lane.Close()
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				var got Times
				if err := lane.ForwardTimed(t.Context(), smallBatch(8), &moe.Partials{}, &got); err != nil {
					t.Error(err)
				}
				want := Times{Out: 5 * time.Millisecond, Work: 3 * time.Millisecond, Back: 5 * time.Millisecond}
				if i == 1 {
					want.Lane = 12 * time.Millisecond // behind the first
				}
				if got != want {
					t.Errorf("call %d: %+v, want %+v", i, got, want)
				}
			})
		}
		all.Wait()
	})
}

func TestLaneServesCallersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane := newLane(t, newStub(0, time.Millisecond, 0), Limits{Rows: 64}, 1)
		defer lane.Close()
		ctx := WithCaller(t.Context(), Caller{ID: 1, Class: Bulk})
		big := start(ctx, lane, smallBatch(2048))
		synctest.Wait()
		began := time.Now()
		small := start(WithCaller(context.Background(), Caller{ID: 2}), lane, smallBatch(16))
		if r := <-small; r.err != nil || r.at.Sub(began) > 2*time.Millisecond {
			t.Errorf("16 rows took %v behind a caller of 2,048: %v", r.at.Sub(began), r.err)
		}
		if r := <-big; r.err != nil {
			t.Error(r.err)
		}
	})
}
