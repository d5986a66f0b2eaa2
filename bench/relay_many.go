package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"kvasir/wire/relay"
	"kvasir/wire/ws"
)

// comeAtOnce is how many workers join at the same time: more than there are processors to do their handshakes.
const comeAtOnce = 16

// host keeps many workers at a swarm, each of which comes back when it is cut.
type host struct {
	s      *relaySwarm
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	away   []sentAway // under mu, as is what follows
	silent int        // 503 without Retry-After
}

// sentAway is when a worker was told to come back, and for when.
type sentAway struct{ at, back time.Time }

// gather starts n workers, some at a time, and returns when each has a session.
func (s *relaySwarm) gather(n int) (*host, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	h := &host{s: s, cancel: cancel}
	places := make(chan struct{}, comeAtOnce)
	for i := range n {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return h, ctx.Err()
		}
		w := s.worker(dialFrom(i))
		h.wg.Go(func() {
			labelled(endWorker, func() {
				err := relay.Keep(ctx, relay.Backoff{}, func(ctx context.Context) error { return h.note(w.work(ctx)) }, nil)
				if ctx.Err() == nil {
					s.fail(fmt.Errorf("worker %d: %w", i, err))
				}
			})
		})
		h.wg.Go(func() {
			defer func() { <-places }()
			_ = s.wait("a session", func() bool { return s.live[w.key.Public()] != nil }) // all says why not
		})
	}
	return h, s.all(n)
}

// note keeps what a worker was told that was sent away.
func (h *host) note(err error) error {
	var refused *ws.StatusError
	if !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable {
		return err
	}
	now := time.Now()
	wait, perr := strconv.Atoi(refused.Header.Get("Retry-After"))
	h.mu.Lock()
	defer h.mu.Unlock()
	if perr != nil || wait < 1 {
		h.silent++
	}
	h.away = append(h.away, sentAway{now, now.Add(time.Duration(wait) * time.Second)})
	return err
}

// release ends the workers, and with them the swarm.
func (h *host) release() {
	h.cancel()
	h.s.close()
	h.wg.Wait()
}

// many measures sessions that come, rest, and come back.
func (r *relayRun) many(ctx context.Context) error {
	r.o.progress(0, "the first session")
	s, err := newRelaySwarm(ctx, &relaySwarm{hidden: 64, limits: unhurried()})
	if err != nil {
		return err
	}
	warm, err := s.gather(1) // what is there once
	warm.release()
	if err != nil {
		return err
	}
	if s, err = newRelaySwarm(ctx, &relaySwarm{hidden: 64, limits: unhurried()}); err != nil {
		return err
	}
	before, err := hold()
	if err != nil {
		s.close()
		return err
	}
	r.o.progress(0.05, fmt.Sprintf("%d sessions come", r.x.Sessions))
	cpu, start := processCPU(), time.Now()
	h, err := s.gather(r.x.Sessions)
	defer h.release()
	if err != nil {
		return err
	}
	r.come(time.Since(start), processCPU()-cpu)
	if err := r.idle(ctx, s, before); err != nil {
		return err
	}
	return r.restart(ctx, h)
}

// come tells how quickly sessions were made.
func (r *relayRun) come(took, cpu time.Duration) {
	n := float64(r.x.Sessions)
	const part = "handshakes"
	r.add(RelayResult{Part: part, Figure: "handshakes_per_s", Text: "sessions that begin, TLS outside and within", Unit: "/s", Got: n / took.Seconds(), Of: r.x.Sessions})
	if cpu > 0 {
		r.add(RelayResult{Part: part, Figure: "cpu_ms_per_handshake", Text: "processor time of one, all ends", Unit: "ms", Got: 1e3 * cpu.Seconds() / n, Of: r.x.Sessions})
	}
}

// idle tells what sessions cost that are only there.
func (r *relayRun) idle(ctx context.Context, s *relaySwarm, before heldNow) error {
	r.o.progress(0.15, fmt.Sprintf("%d sessions rest", r.x.Sessions))
	after, err := rested(ctx, r.x.Idle)
	if err != nil {
		return err
	}
	n := r.x.Sessions
	each := func(bytes int64) float64 { return float64(bytes) / float64(n) / float64(len(relayEnds)) / 1024 }
	const part = "idle"
	r.add(RelayResult{Part: part, Figure: "kib_per_session_end", Text: "heap and stacks, a session and end", Unit: "KiB",
		Got: each(int64(after.memory) - int64(before.memory)), Of: n, Want: new(64.0), Most: true, few: n < relayIdleLeast})
	if after.resident > 0 {
		r.add(RelayResult{Part: part, Figure: "resident_kib_per_session_end", Text: "resident, a session and end", Unit: "KiB",
			Got: each(after.resident - before.resident), Of: n})
	}
	for _, end := range relayEnds {
		r.add(RelayResult{Part: part, Figure: "goroutines_" + end, Text: "goroutines of a session at the " + end,
			Got: float64(after.ends[end]-before.ends[end]) / float64(n), Of: n, Want: new(4.0), Most: true})
	}
	bad := 0
	for i, x := range s.sessions() {
		same, err := askWide(ctx, x, s.hidden, 2, i)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || !same {
			bad++
		}
		if err == nil && !same {
			r.report.Wrong++
		}
	}
	s.mu.Lock()
	lost := n - len(s.live) + bad
	s.mu.Unlock()
	r.add(RelayResult{Part: part, Figure: "lost", Text: "sessions that do not answer after that", Got: float64(lost), Of: n, Want: new(0.0), Most: true})
	return nil
}

// rested is what this process uses after a while, once no goroutine comes or goes: what only began sessions is on
// its way out then.
func rested(ctx context.Context, idle time.Duration) (now heldNow, err error) {
	for wait := idle; ; wait = quiet {
		last := now
		if err := until(ctx, time.Now().Add(wait)); err != nil {
			return now, err
		}
		if now, err = hold(); err != nil || maps.Equal(now.ends, last.ends) {
			return now, err
		}
	}
}

// restart ends the hub under all sessions and starts it again, at its own pace.
func (r *relayRun) restart(ctx context.Context, h *host) error {
	s, n := h.s, r.x.Sessions
	r.o.progress(0.3, fmt.Sprintf("the hub begins again under %d sessions", n))
	h.mu.Lock()
	h.away, h.silent = nil, 0
	h.mu.Unlock()
	s.hub.Close()
	if err := s.wait("all sessions are gone", func() bool { return len(s.live) == 0 }); err != nil {
		return err
	}
	// Most have noticed, and knock.
	if err := until(ctx, time.Now().Add(200*time.Millisecond)); err != nil {
		return err
	}
	s.limits = relay.Limits{Pace: r.x.Pace}
	start := time.Now()
	if err := s.startHub(); err != nil {
		return err
	}
	if err := s.all(n); err != nil {
		return err
	}
	took := time.Since(start)
	came := s.came.since(start)
	if workers := s.hub.Counts()["workers"]; len(came) < n || uint64(len(came)) > workers {
		return fmt.Errorf("the hub has counted %d workers and has logged %d", workers, len(came))
	}
	h.mu.Lock()
	away, silent := slices.Clone(h.away), h.silent
	h.mu.Unlock()
	const part = "hub restart"
	r.add(RelayResult{Part: part, Figure: "back_s", Text: "until all are back", Unit: "s", Got: took.Seconds(), Of: n, Want: new(90.0), Most: true})
	r.add(RelayResult{Part: part, Figure: "accepted_within_1s", Text: "accepted within a second, at most", Got: float64(crowd(came, time.Second)),
		Of: len(came), Want: new(100.0), Most: true})
	r.add(RelayResult{Part: part, Figure: "sent_away", Text: "times that one was sent away, 503", Got: float64(len(away)), Of: n})
	r.add(RelayResult{Part: part, Figure: "sent_away_without_slot", Text: "of these without Retry-After", Got: float64(silent), Of: len(away),
		Want: new(0.0), Most: true})
	if v, ok := slotsASecond(away); ok {
		r.add(RelayResult{Part: part, Figure: "slots_per_s", Text: "slots that they were told", Unit: "/s", Got: v, Of: len(away)})
	}
	return nil
}

// slotsASecond is how many slots lie in a second of the time that they span. They are told in whole seconds, so
// few say nothing.
func slotsASecond(away []sentAway) (float64, bool) {
	if len(away) < 2 {
		return 0, false
	}
	first, last := away[0].back, away[0].back
	for _, a := range away {
		if a.back.Before(first) {
			first = a.back
		}
		if a.back.After(last) {
			last = a.back
		}
	}
	span := last.Sub(first).Seconds()
	return float64(len(away)) / (span + 1), span >= 3
}
