package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"kvasir/internal/machine"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
)

// ErrBits: this machine computed the same thing twice and got different bits.
var ErrBits = errors.New("bench: different bits from the same work; run kvasir doctor")

// tally is what the rounds of one batch on one way have come to.
type tally struct {
	times      []time.Duration // of a dispatch, one a round, in their order
	rows       int             // of all that out and back count
	out, back  int64
	identical  bool
	allocs     uint64 // of a dispatch here, the fewest: the swarms allocate meanwhile
	dispatches int
	measuring  float64 // seconds of processor time of the times' own, of all rounds
	measured   float64 // seconds of processor time that there were meanwhile
}

// workload is what takes turns within a batch: dispatches of a layer, or steps of a whole model.
type workload interface {
	name(n int) string // of a batch, in words
	// begin readies a batch, and returns the ways that it goes.
	begin(ctx context.Context, n int) ([]*way, error)
	end() // gives up what begin has made
	// take measures a way once.
	take(ctx context.Context, w *way, n int, t *tally) error
	// readable reports whether the weights are too large for caches, and are read here.
	readable() bool
	// bounded says in x how near the k-th way came to what its slowest part allows.
	bounded(x *Result, m *measuring, k int, kept []int)
}

// measure runs all batches.
func (r *dispatchRun) measure(ctx context.Context, work workload) error {
	s := &r.schedule
	for i, n := range s.batches {
		if s.skip(n, r.elapsed()) {
			r.report.Settings.LeftOut = append(r.report.Settings.LeftOut, n)
			continue
		}
		if err := r.measureBatch(ctx, work, i, n); err != nil {
			return fmt.Errorf("%s: %w", work.name(n), err)
		}
	}
	r.o.progress(1, "done")
	return nil
}

// measureBatch runs the rounds of the i-th batch and adds its results.
func (r *dispatchRun) measureBatch(ctx context.Context, work workload, i, n int) error {
	s := &r.schedule
	defer work.end()
	r.o.progress(s.share(i), work.name(n)+", warming up")
	ways, err := work.begin(ctx, n)
	if err != nil {
		return err
	}
	m := &measuring{ways: ways, tallies: make([]tally, len(ways)), reads: n <= memoryRows && work.readable()}
	for k := range m.tallies {
		m.tallies[k].identical = true
	}
	before := r.limits(m.reads)
	var last time.Duration
	for round := 0; s.again(n, round, last, r.elapsed()) && !m.settled(s.repeat); round++ {
		start := time.Now()
		for turn := range ways {
			k := (round + turn) % len(ways) // nobody is always the first
			done := s.share(i) + (s.share(i+1)-s.share(i))*r.fraction(i)
			r.o.progress(done, fmt.Sprintf("%s, round %d, %s", work.name(n), round+1, ways[k].label()))
			if err := work.take(ctx, ways[k], n, &m.tallies[k]); err != nil {
				return err
			}
		}
		after := r.limits(m.reads)
		m.pairs = append(m.pairs, pair{before: before, after: after})
		before, last = after, time.Since(start)
	}
	s.done(n, last)
	r.report.Settings.Batches = append(r.report.Settings.Batches, n)
	r.report.Settings.Rounds = append(r.report.Settings.Rounds, len(m.pairs))
	r.add(work, m, n)
	return nil
}

func (r *dispatchRun) name(n int) string { return fmt.Sprintf("batch %d", n) }

func (r *dispatchRun) begin(ctx context.Context, n int) ([]*way, error) {
	copyRows(r.batch, r.rows, 0, n)
	// Garbage of the batch before is not this one's to clear.
	runtime.GC()
	r.want.Reset(0, r.d.Hidden)
	var ways []*way
	for _, w := range r.ways {
		if !w.piped || r.pipes(n) {
			ways = append(ways, w)
		}
	}
	return ways, r.warmUp(ctx, n, ways)
}

func (r *dispatchRun) end() {}

// pipes reports whether a batch is also sent with others under way.
func (r *dispatchRun) pipes(batch int) bool {
	return batch == r.schedule.batches[len(r.schedule.batches)-1]
}

// measuring is a batch under way: its rounds, each with the limits before and after it.
type measuring struct {
	ways    []*way
	tallies []tally
	reads   bool // memory is what bounds the batch
	pairs   []pair
}

// settled reports whether enough rounds were kept, where their number is not set.
func (m *measuring) settled(fixed int) bool {
	return fixed == 0 && len(keep(m.pairs, m.reads)) >= pairsLeast
}

// kept lists the rounds that count: those in which the machine stayed the same, or all where those are too few.
func (m *measuring) kept() (list []int, noisy bool) {
	for i := range m.pairs {
		if m.pairs[i].steady(m.reads) {
			list = append(list, i)
		}
	}
	if len(list) >= min(pairsKept, len(m.pairs)) {
		return list, false
	}
	list = list[:0]
	for i := range m.pairs {
		list = append(list, i)
	}
	return list, true
}

func (r *dispatchRun) readable() bool {
	return r.d.Worker == Speed{} && r.d.Experts*r.reach >= readLeast
}

// limits measures what the machine can do now.
func (r *dispatchRun) limits(reads bool) (l limits) {
	b, err := cpu.Default()
	if err != nil || r.d.least == 0 {
		return l
	}
	if l.peak = b.PeakRate(r.d.least); l.peak > 0 {
		r.peaks = append(r.peaks, l.peak)
	}
	if reads {
		if l.read = machine.ReadRate(b.Threads(), r.d.least); l.read > 0 {
			r.reads = append(r.reads, l.read)
		}
	}
	return l
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
// batch, here and on the other ways. It tells how many dispatches hide a way.
func (r *dispatchRun) warmUp(ctx context.Context, n int, ways []*way) error {
	if !r.schedule.warm(n) && !r.pipes(n) {
		return nil
	}
	var alone, compute time.Duration
	var out, back float64 // bytes a row
	for _, w := range ways {
		if w.piped {
			w.flights = r.d.flightsFor(alone, r.boundOf(n, compute, out, back).took)
			continue
		}
		var t tally
		if err := r.once(ctx, w, &t); err != nil {
			return err
		}
		alone = t.times[0]
		if w.kind == local {
			compute = alone
			continue
		}
		rows := float64(t.rows)
		out, back = float64(t.out)/rows, float64(t.back)/rows
	}
	return nil
}

// take measures a way once: so many dispatches, one by one or together, that a limit would be measured as long.
func (r *dispatchRun) take(ctx context.Context, w *way, _ int, t *tally) error {
	if w.piped {
		p := &pipeline{w: w, batch: r.batch, want: &r.want, least: r.d.least}
		if err := p.run(ctx); err != nil {
			return err
		}
		t.times = append(t.times, p.took/time.Duration(p.counted))
		t.out, t.back, t.rows = t.out+p.out, t.back+p.back, t.rows+p.answers*r.batch.Rows
		t.identical = t.identical && !p.different
		t.spent(p.compared+time.Duration(p.counted)*clockCost(), p.took)
		return nil
	}
	first := len(t.times)
	sum := time.Duration(0)
	for n := 1; ; n++ {
		if err := r.once(ctx, w, t); err != nil {
			return err
		}
		sum += t.times[first]
		t.times = t.times[:first]
		if sum >= r.d.least {
			t.times = append(t.times, sum/time.Duration(n))
			return nil
		}
	}
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
	if w.kind == local {
		runtime.ReadMemStats(&before)
	}
	start := time.Now()
	err := w.x.Forward(ctx, r.batch, answer)
	took := time.Since(start)
	if w.kind == local {
		runtime.ReadMemStats(&after)
	}
	if allocs := after.Mallocs - before.Mallocs; t.dispatches == 0 || allocs < t.allocs {
		t.allocs = allocs
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.label(), err)
	}
	if w.traffic != nil {
		o, b := w.traffic.load()
		t.out += o - out
		t.back += b - back
		t.rows += r.batch.Rows
	}
	t.times = append(t.times, took)
	t.dispatches++
	t.spent(clockCost(), took)
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

// spent counts what measuring has taken of a time that is counted, in which every core could have computed.
func (t *tally) spent(measuring, took time.Duration) {
	t.measuring += measuring.Seconds()
	t.measured += took.Seconds() * float64(runtime.NumCPU())
}

// clockCost is what the two looks at the clock take that every time is between: at the quickest of several
// times, for others may have the processor at the rest.
var clockCost = sync.OnceValue(func() time.Duration {
	const times, looks = 20, 100
	least := time.Hour
	for range times {
		start := time.Now()
		for range looks {
			_ = time.Since(start)
		}
		least = min(least, time.Since(start))
	}
	return 2 * least / looks
})

// sound refuses answers with faulted rows: they are zeros, and being equal would say nothing.
func sound(p *moe.Partials) error {
	for i, s := range p.Status {
		if s != moe.OK {
			return fmt.Errorf("row %d has status %s; use another --seed", i, s)
		}
	}
	return nil
}

func equal(a, b *moe.Partials) bool { return equalRows(a, b, 0, a.Rows) }

// equalRows compares shapes, statuses, and the sums of some rows.
func equalRows(a, b *moe.Partials, from, to int) bool {
	return a.Rows == b.Rows && a.Hidden == b.Hidden && slices.Equal(a.Status, b.Status) &&
		slices.Equal(a.Sum[from*a.Hidden:to*a.Hidden], b.Sum[from*b.Hidden:to*b.Hidden])
}

// label names a way in the table and in errors.
func (w *way) label() string {
	if w.kind == local {
		return "local"
	}
	if w.piped {
		return wayName(milliseconds(w.rtt), w.flights)
	}
	return pathName(milliseconds(w.rtt))
}
