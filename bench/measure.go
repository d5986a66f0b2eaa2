package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"kvasir/internal/moe"
)

// ErrBits: this machine computed the same thing twice and got different bits.
var ErrBits = errors.New("bench: different bits from the same work; run kvasir doctor")

// tally is what the rounds of one batch on one way have come to.
type tally struct {
	times     []time.Duration
	out, back int64
	identical bool
	allocs    uint64 // of a dispatch here, the fewest: the swarms allocate meanwhile
}

func (r *dispatchRun) measure(ctx context.Context) error {
	s := &r.schedule
	for i, n := range s.batches {
		if s.skip(n, r.elapsed()) {
			r.report.Settings.LeftOut = append(r.report.Settings.LeftOut, n)
			continue
		}
		if err := r.measureBatch(ctx, i, n); err != nil {
			return fmt.Errorf("batch %d: %w", n, err)
		}
	}
	r.o.progress(1, "done")
	return nil
}

// measureBatch runs the rounds of the i-th batch and adds its results.
func (r *dispatchRun) measureBatch(ctx context.Context, i, n int) error {
	s := &r.schedule
	copyRows(r.batch, r.rows, 0, n)
	// Garbage of the batch before is not this one's to clear.
	runtime.GC()
	r.want.Reset(0, r.d.Hidden)
	if err := r.warmUp(ctx, i, n); err != nil {
		return err
	}
	tallies := make([]tally, len(r.ways))
	for k := range tallies {
		tallies[k].identical = true
	}
	var last time.Duration
	for round := 0; s.again(n, round, last, r.elapsed()); round++ {
		start := time.Now()
		for turn := range r.ways {
			k := (round + turn) % len(r.ways) // nobody is always the first
			done := s.share(i) + (s.share(i+1)-s.share(i))*r.fraction(i)
			r.o.progress(done, fmt.Sprintf("batch %d, round %d, %s", n, round+1, r.ways[k].label()))
			if err := r.once(ctx, r.ways[k], &tallies[k]); err != nil {
				return err
			}
		}
		last = time.Since(start)
	}
	s.done(n, last)
	r.report.Settings.Batches = append(r.report.Settings.Batches, n)
	r.report.Settings.Rounds = append(r.report.Settings.Rounds, len(tallies[0].times))
	for k, w := range r.ways {
		r.report.Results = append(r.report.Results, r.result(w, n, &tallies[k]))
		r.o.row(r.report.Results[len(r.report.Results)-1])
	}
	return nil
}

// fraction guesses how far the i-th batch is, by the clock.
func (r *dispatchRun) fraction(i int) float64 {
	s := &r.schedule
	from, to := s.share(i), s.share(i+1)
	if s.budget <= 0 {
		return 0
	}
	return max(0, min(1, (float64(r.elapsed())/float64(s.budget)-from)/(to-from)))
}

// warmUp runs a round that is not counted, where there is time for it: memory grows to the size of the
// batch, here and on the other ways.
func (r *dispatchRun) warmUp(ctx context.Context, i, n int) error {
	if !r.schedule.warm(n) {
		return nil
	}
	r.o.progress(r.schedule.share(i), fmt.Sprintf("batch %d, warming up", n))
	for _, w := range r.ways {
		if err := r.once(ctx, w, &tally{}); err != nil {
			return err
		}
	}
	return nil
}

// once sends the batch over one way, and compares what comes back with what the first has computed,
// which was here.
func (r *dispatchRun) once(ctx context.Context, w *way, t *tally) error {
	first := r.want.Rows == 0
	answer := &r.got
	if first {
		answer = &r.want
	}
	var out, back int64
	if w.traffic != nil {
		out, back = w.traffic.load()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := w.x.Forward(ctx, r.batch, answer)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if allocs := after.Mallocs - before.Mallocs; len(t.times) == 0 || allocs < t.allocs {
		t.allocs = allocs
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.label(), err)
	}
	if w.traffic != nil {
		o, b := w.traffic.load()
		t.out += o - out
		t.back += b - back
	}
	t.times = append(t.times, took)
	if first {
		return sound(answer)
	}
	if !equal(answer, &r.want) {
		t.identical = false
		if w.kind == local {
			return fmt.Errorf("%w: the same batch twice", ErrBits)
		}
	}
	return nil
}

// sound refuses answers with faulted rows: they are zeros, and being equal would say nothing.
func sound(p *moe.Partials) error {
	for i, s := range p.Status {
		if s != moe.OK {
			return fmt.Errorf("row %d has status %s; use another --seed", i, s)
		}
	}
	return nil
}

func equal(a, b *moe.Partials) bool {
	if a.Rows != b.Rows || a.Hidden != b.Hidden {
		return false
	}
	for i, s := range a.Status {
		if s != b.Status[i] {
			return false
		}
	}
	for i, v := range a.Sum {
		if v != b.Sum[i] {
			return false
		}
	}
	return true
}

// result makes figures of a tally.
func (r *dispatchRun) result(w *way, n int, t *tally) Result {
	times := sorted(t.times)
	m := median(times)
	x := Result{
		Scenario: DispatchName, Batch: n, times: times, Ms: milliseconds(m),
		Pipelined: new(false), TokensPerS: round(float64(n) / m.Seconds()),
	}
	if w.kind == local && len(times) > 1 {
		x.Allocs = new(round(float64(t.allocs) / float64(n)))
	}
	if w.kind != local {
		rows := float64(n * len(times))
		x.Workers, x.RTT, x.Identical = r.d.Workers, new(milliseconds(w.rtt)), new(t.identical)
		x.BytesOut, x.BytesBack = round(float64(t.out)/rows), round(float64(t.back)/rows)
	}
	if n == 1 {
		x.XVsBatch1 = 1
	} else if one := r.report.find(1, w.kind); one != nil {
		x.XVsBatch1 = round(x.TokensPerS / one.TokensPerS)
	}
	if w.kind == far {
		zero := r.report.find(n, near)
		x.RTTOverhead = new(round(100 * (float64(m)/float64(median(zero.times)) - 1)))
	}
	return x
}

// label names a way in the table and in errors.
func (w *way) label() string {
	if w.kind == local {
		return "local"
	}
	return pathName(milliseconds(w.rtt))
}
