package relay

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/wire/ws"
)

// hurry is how fast a hub takes workers: by its limits, in slots that it hands out to those it sends
// away, and at most within any second. The first is what Limits.Pace is unless it is set.
type hurry struct {
	pace        float64
	slots, most int
}

// TestAHubThatRestartsGetsAllItsWorkersBack closes a hub under many sessions and starts it again at
// once, so that all come at once. All workers are back within 90 s of that, with the waits of Keep; those that are too
// many at once get 503 and a slot to come back in, 80 slots a second; and within no second are more than
// 100 accepted. Short and exact in the bubble, and 2,000 sessions on sockets in the long form.
func TestAHubThatRestartsGetsAllItsWorkersBack(t *testing.T) {
	if soaking() {
		restart(t, 2000, swarmConfig{direct: true}, hurry{0, 80, 100})
		return
	}
	n, h := 400, hurry{0, 80, 100}
	if testing.Short() { // with the race detector handshakes take long
		n, h = 80, hurry{18, 16, 20}
	}
	synctest.Test(t, func(t *testing.T) { restart(t, n, swarmConfig{memory: true, limits: Limits{Pace: h.pace}}, h) })
}

// away is a worker that was sent away, and the time it is to come back.
type away struct{ at, back time.Time }

func restart(t *testing.T, n int, c swarmConfig, pace hurry) {
	s := newSwarm(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	var ends sync.WaitGroup
	defer func() {
		cancel()
		s.close()
		ends.Wait()
	}()
	var mu sync.Mutex
	var sent []away
	other := map[string]int{}
	for i := range n {
		h := s.newHand(s.hop)
		if c.direct {
			h.dial = from(i)
		}
		try := func(ctx context.Context) error {
			err := h.work(ctx)
			var refused *ws.StatusError
			mu.Lock()
			defer mu.Unlock()
			if errors.As(err, &refused) && refused.Status == 503 {
				sent = append(sent, away{time.Now(), time.Now().Add(retryAfter(err))})
			} else if err != nil && ctx.Err() == nil {
				other[kindOf(err)]++
			}
			return err
		}
		ends.Go(func() {
			sleep(ctx, time.Duration(i)*time.Second/time.Duration(pace.slots)) // slower than the pace
			_ = Keep(ctx, Backoff{}, try, nil)
		})
	}
	s.until(5*time.Minute, "all are there", func() bool { return len(s.live) == n })
	if len(sent) != 0 {
		t.Errorf("%d were sent away though they came slower than the pace", len(sent))
	}
	time.Sleep(35 * time.Second) // each has lived for long enough to begin anew
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()

	s.hub.Close()
	s.until(time.Minute, "all sessions are gone", func() bool { return len(s.live) == 0 })
	time.Sleep(200 * time.Millisecond)
	s.startHub()
	back := time.Now()
	s.until(5*time.Minute, "all are back", func() bool { return len(s.live) == n })
	took := time.Since(back)

	mu.Lock()
	defer mu.Unlock()
	came := s.accepted(back)
	most := crowd(came, time.Second)
	t.Logf("%d sessions are back after %v (%d begun anew); %d accepted, at most %d within a second; %d times sent away; else %v",
		n, took.Round(time.Millisecond), s.begun-begun, len(came), most, len(sent), other)
	if took > 90*time.Second {
		t.Errorf("back after %v, want at most 90s", took)
	}
	if most > pace.most {
		t.Errorf("%d were accepted within a second, want at most %d", most, pace.most)
	}
	if s.begun-begun != n {
		t.Errorf("%d sessions began for %d workers", s.begun-begun, n)
	}
	checkSlots(t, sent, pace.slots)
}

// checkSlots checks that those sent away were told when to come back, so many a second.
func checkSlots(t *testing.T, sent []away, slotsASecond int) {
	t.Helper()
	if len(sent) == 0 {
		t.Error("nobody was sent away: that is no test of the slots")
		return
	}
	var slots []time.Time
	for _, a := range sent {
		if a.back.Sub(a.at) < time.Second {
			t.Error("sent away without Retry-After")
			return
		}
		slots = append(slots, a.back)
	}
	slices.SortFunc(slots, time.Time.Compare)
	// A slot is told in whole seconds, rounded up, so the ends may lie a second closer.
	span := slots[len(slots)-1].Sub(slots[0]).Seconds() + 1
	least := float64(len(slots)-1) / float64(slotsASecond)
	t.Logf("%d slots over %.1f s, %.1f a second", len(slots), span, float64(len(slots))/span)
	if span < least || span > 2*least+2 {
		t.Errorf("%d slots over %.1f s, want %d a second", len(slots), span, slotsASecond)
	}
}

var lineOfAcceptance = regexp.MustCompile(`(?m)^time=(\S+) level=INFO msg="worker came"`)

// accepted lists when workers came into the lobby, as the hub's log has it.
func (s *swarm) accepted(since time.Time) (at []time.Time) {
	for _, m := range lineOfAcceptance.FindAllStringSubmatch(s.log.String(), -1) {
		w, err := time.Parse("2006-01-02T15:04:05.999Z07:00", m[1])
		if err != nil {
			s.t.Fatal(err)
		}
		if !w.Before(since.Truncate(time.Millisecond)) {
			at = append(at, w)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// crowd is how many of some times, which are sorted, lie within d at most.
func crowd(at []time.Time, d time.Duration) int {
	most, first := 0, 0
	for i, w := range at {
		for w.Sub(at[first]) >= d {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
