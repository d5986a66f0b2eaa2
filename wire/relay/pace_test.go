package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// returning is workers that knock at a hub's pace until they are in.
type returning struct {
	p     *pace
	wg    sync.WaitGroup
	begun time.Time

	mu      sync.Mutex
	taken   []time.Duration // when one was let in
	longest time.Duration   // wait in the line
	tries   int
}

// knock lets a worker come after d, and again in its slots; Retry-After has whole seconds only.
func (r *returning) knock(t *testing.T, d time.Duration) {
	r.wg.Go(func() {
		time.Sleep(d)
		for {
			came := time.Now()
			wait, err := r.p.enter(t.Context())
			r.mu.Lock()
			r.tries++
			if err == nil {
				r.taken = append(r.taken, time.Since(r.begun))
				r.longest = max(r.longest, time.Since(came))
			}
			r.mu.Unlock()
			if err == nil {
				return
			}
			if !errors.Is(err, errTooOften) {
				t.Error(err)
				return
			}
			time.Sleep(time.Duration(wholeSeconds(wait)) * time.Second)
		}
	})
}

// most is how many were let in within a second.
func (r *returning) most() int {
	slices.Sort(r.taken)
	most, first := 0, 0
	for i, at := range r.taken {
		for at-r.taken[first] >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// A hub begins again under 2,000 workers: they come at once, or as full jitter spreads them, or while
// newcomers take the rest of the places. A machine under load wakes who waits too late, in the last rows at
// the end of a 20th or a third of a second: that takes no longer, and within no second are more than 100 let
// in either.
func TestPaceBringsThousandsBackInTime(t *testing.T) {
	for _, c := range []struct {
		name      string
		spread    time.Duration
		newcomers int           // a second
		late      time.Duration // wake-ups are at multiples of it; 0: when they are due
	}{
		{"at once", 0, 0, 0}, {"within 100 ms", 100 * time.Millisecond, 0, 0}, {"within a second", time.Second, 0, 0},
		{"within 16 s", 16 * time.Second, 0, 0}, {"within a second, and newcomers", time.Second, 8, 0},
		{"at once, woken late", 0, 0, 50 * time.Millisecond},
		{"within a second, woken very late", time.Second, 0, 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const workers, seed = 2000, 42
				random := rand.New(rand.NewPCG(seed, 1))
				r := &returning{p: newPace(Limits{}.withDefaults().Pace), begun: time.Now()}
				if c.late > 0 {
					r.p.sleep = func(ctx context.Context, d time.Duration) {
						due := time.Since(r.begun) + d
						sleep(ctx, d+(c.late-due%c.late)%c.late)
					}
				}
				for range workers {
					r.knock(t, time.Duration(random.Float64()*float64(c.spread)))
				}
				for i := range 100 * c.newcomers {
					r.knock(t, time.Duration(i)*time.Second/time.Duration(c.newcomers))
				}
				r.wg.Wait()
				most, last := r.most(), r.taken[workers-1]
				t.Logf("%d were in after %v, at most %d within a second; %d tries, the longest wait in the line %v",
					workers, last, most, r.tries, r.longest)
				if len(r.taken) != workers+100*c.newcomers || most > 100 {
					t.Errorf("seed %d: %d let in, %d of them within a second", seed, len(r.taken), most)
				}
				if last > 45*time.Second || c.late == 0 && (r.tries > 2*len(r.taken) || r.longest > pacePatience+time.Millisecond) {
					t.Errorf("seed %d: too long, or too many tries", seed)
				}
			})
		})
	}
}
