package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// gateRatio is a comparison of times within one run. More is better.
type gateRatio struct {
	name string // in baselines
	text string // for people
	unit string
	room float64 // that its bound leaves at least, as a part of the median
	// measure returns the ratio of each pair that is kept, and how many were tried.
	measure func(ctx context.Context, r *gateRun, again bool) (kept []float64, tried int, err error)
}

// Room that bounds leave: for what the same build spreads from run to run, and little enough for a kernel that
// has lost a fifth of its rate to be below.
const (
	kernelRoom = 0.13
	pathRoom   = 0.3
)

// ratios lists what is compared, in the order of the report.
func (g Gate) ratios() []gateRatio {
	list := []gateRatio{
		{"kernel_of_peak", fmt.Sprintf("Q4_K at %d rows against the bare int8 products", g.kernels.Batch), "", kernelRoom, ofKernels(kernelOfPeak)},
		{"kernel_of_read", "Q4_K at 1 row against reading memory", "", kernelRoom, ofKernels(kernelOfRead)},
		{"batch_of_one", fmt.Sprintf("rows a second, %d at a time against 1", g.kernels.Batch), "x", kernelRoom, ofKernels(batchOfOne)},
		{"pipelined", "4 dispatches at once against one by one, over a round trip", "x", pathRoom, pipelined},
	}
	for _, p := range wirePoints() {
		if p.chunk != 0 {
			continue // small frames: nobody sends them one after the other
		}
		against := 1 // the barest; package ws has gobwas' beside it
		list = append(list, gateRatio{
			wireRatioName(p.name), fmt.Sprintf("%s against %s, bytes a CPU second", p.ways[0].name, p.ways[against].name), "x", pathRoom,
			func(ctx context.Context, r *gateRun, _ bool) ([]float64, int, error) { return r.wire(ctx, &p, against) },
		})
	}
	var wanted []gateRatio
	for _, x := range list {
		if g.wanted(x.name) {
			wanted = append(wanted, x)
		}
	}
	return wanted
}

func wireRatioName(point string) string {
	switch point {
	case "frames":
		return "frames_of_tcp"
	case "sealed":
		return "sealed_of_tcp"
	case "gateway, plain":
		return "splice_of_copy"
	case "gateway, TLS":
		return "tls_splice_of_copy"
	}
	panic("BUG: no name for " + point)
}

// ratio measures one and judges it. One that is below its bound is measured again: what is slower is so
// every time, and what was disturbed is not.
func (r *gateRun) ratio(ctx context.Context, x *gateRatio) error {
	var line GateLine
	for try := 1; try <= max(1, r.g.Tries); try++ {
		r.progress(x.text)
		kept, tried, err := x.measure(ctx, r, try > 1)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		line = r.base.judgeRatio(x, kept, tried)
		line.Tries = try
		if line.Verdict != missed {
			break
		}
	}
	r.line(line)
	return nil
}

// gatePoint is the point of Kernels that is measured.
func (g *Gate) gatePoint(v variant.Variant) *point {
	return &point{quant.Q4K, v, picksUniform, g.kernels.Batch}
}

// kernelPair is a large batch and small ones, with the limits around them. Rates are those of a second of
// processor time, of which others on the machine take none, unless the system does not tell it.
type kernelPair struct {
	before, between, after limits
	large, small           float64 // seconds a dispatch
	touched                float64 // experts of a small one
}

// kernelsBudget is how long pairs are collected at most, three of them aside.
const kernelsBudget = 20 * time.Second

// ofKernels makes a figure of each pair of kernels. Several ratios are of the same pairs, unless they are to be
// measured again.
func ofKernels(figure func(*gateRun, *kernelPair) (v float64, steady bool)) func(context.Context, *gateRun, bool) ([]float64, int, error) {
	return func(ctx context.Context, r *gateRun, again bool) ([]float64, int, error) {
		if err := r.makeSubject(ctx); err != nil {
			return nil, 0, err
		}
		if r.pairs == nil || again {
			r.progress("kernels against bare loops")
			if err := r.collectKernels(ctx); err != nil {
				return nil, 0, err
			}
		}
		var kept []float64
		for _, p := range r.pairs {
			if v, steady := figure(r, p); steady {
				kept = append(kept, v)
			}
		}
		return kept, len(r.pairs), nil
	}
}

// collectKernels measures pairs. What comes after one is what comes before the next.
func (r *gateRun) collectKernels(ctx context.Context) error {
	r.pairs = nil
	start := time.Now()
	before := r.limits()
	for len(r.pairs) < r.g.Rounds && (len(r.pairs) < gatePairsLeast || time.Since(start) < kernelsBudget) {
		p, err := r.kernelPair(ctx, before)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		r.pairs = append(r.pairs, p)
		before = p.after
	}
	return nil
}

func (r *gateRun) makeSubject(ctx context.Context) (err error) {
	if r.subject != nil {
		return nil
	}
	kernel, err := variant.Active()
	if err != nil {
		return err
	}
	r.progress("making the weights")
	r.subject, err = r.g.kernels.newSubject(ctx, r.g.gatePoint(kernel.Variant), r.report.Settings.Threads)
	return err
}

// ownLeast is how much of the processors has to be ours while limits are measured. With less, others take
// caches and memory too, and ratios of processor time are not what they are alone.
const ownLeast = 0.9

// limits measures what the machine can do now. It is nothing where others use it too.
func (r *gateRun) limits() limits {
	s, d := r.subject, r.g.kernels.least/2
	rate := func(measure func() float64) float64 {
		t := startTimer()
		v := measure()
		wall, cpu := time.Since(t.wall).Seconds(), t.took().Seconds()
		if t.cpu == 0 {
			return v
		}
		if cpu < r.g.own*wall*float64(s.backend.Threads()) {
			return 0
		}
		return float64(v*wall) * float64(s.backend.Threads()) / cpu
	}
	return limits{
		peak: rate(func() float64 { return s.backend.PeakRate(d) }),
		read: rate(func() float64 { return s.backend.ReadRate(s.arena, d) }),
	}
}

// probe is how long it is tried whether the processors are ours.
const probe = 10 * time.Millisecond

// alone reports whether nobody else uses the processors.
func (r *gateRun) alone() bool {
	threads := r.report.Settings.Threads
	t := startTimer()
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			for time.Since(t.wall) < probe {
			}
		})
	}
	wg.Wait()
	return t.cpu == 0 || t.took().Seconds() >= r.g.own*time.Since(t.wall).Seconds()*float64(threads)
}

// timer measures processor time, by the thread; wall time where the system does not tell the other.
type timer struct {
	wall time.Time
	cpu  time.Duration
}

func startTimer() timer { return timer{time.Now(), processCPU()} }

func (t timer) took() time.Duration {
	if cpu := processCPU() - t.cpu; cpu > 0 {
		return cpu
	}
	return time.Since(t.wall)
}

// kernelPair computes a large batch, and then small ones for as long as the limits are measured.
func (r *gateRun) kernelPair(ctx context.Context, before limits) (*kernelPair, error) {
	s := r.subject
	p := &kernelPair{before: before}
	if err := s.uniform.use(r.g.kernels.Batch); err != nil {
		return nil, err
	}
	var err error
	if p.large, _, err = r.timed(ctx); err != nil {
		return nil, err
	}
	p.between = r.limits()
	if err := s.uniform.use(1); err != nil {
		return nil, err
	}
	if p.small, p.touched, err = r.timed(ctx); err != nil {
		return nil, err
	}
	p.after = r.limits()
	return p, nil
}

// timed computes batches for a while and returns the seconds and the experts of one.
func (r *gateRun) timed(ctx context.Context) (seconds, touched float64, err error) {
	s := r.subject
	n := 0
	t := startTimer()
	for n == 0 || time.Since(t.wall) < r.g.kernels.least {
		one := startTimer()
		if _, err := s.once(ctx, s.uniform); err != nil {
			return 0, 0, err
		}
		if r.g.slow > 0 {
			burn(time.Duration(r.g.slow * float64(one.took())))
		}
		touched += float64(s.touched(s.uniform.part))
		n++
	}
	seconds = t.took().Seconds() / float64(n)
	if t.cpu > 0 {
		seconds /= float64(s.backend.Threads())
	}
	return seconds, touched / float64(n), nil
}

// burn takes so much processor time.
func burn(d time.Duration) {
	t := startTimer()
	for t.took() < d {
		runtime.Gosched()
	}
}

// share compares a rate with the limits before and after it, unless they differ.
func share(rate, before, after float64) (v float64, steady bool) {
	if before == 0 || after == 0 || max(before, after)-min(before, after) > peakDrift*max(before, after) {
		return 0, false
	}
	return rate / ((before + after) / 2), true
}

func kernelOfPeak(r *gateRun, p *kernelPair) (v float64, steady bool) {
	k := &r.g.kernels
	products := float64(k.Batch*k.TopK) * 3 * float64(k.Hidden) * float64(k.FFN)
	return share(products/p.large, p.before.peak, p.between.peak)
}

func kernelOfRead(r *gateRun, p *kernelPair) (v float64, steady bool) {
	return share(p.touched*float64(r.subject.expert)/p.small, p.between.read, p.after.read)
}

func batchOfOne(r *gateRun, p *kernelPair) (v float64, steady bool) {
	if _, steady = share(1, p.before.peak, p.after.peak); !steady {
		return 0, false
	}
	return float64(r.g.kernels.Batch) * p.small / p.large, true
}

// wire moves bytes over the ways of a point in turns, and compares the processor time of ours with that of
// the barest.
func (r *gateRun) wire(ctx context.Context, p *wirePoint, against int) ([]float64, int, error) {
	q := *p
	q.ways = []wireWay{p.ways[0], p.ways[against]}
	var alone []bool // before each round, and after the last
	rounds, err := Wire{Bytes: r.g.bytes, Rounds: r.g.Rounds}.rounds(ctx, &q, time.Time{}, func(int) {
		alone = append(alone, r.alone())
	})
	if err != nil {
		return nil, 0, err
	}
	alone = append(alone, r.alone())
	var kept []float64
	for i := range r.g.Rounds {
		ours, theirs := rounds[0][i], rounds[1][i]
		v := float64(theirs.took) / float64(ours.took)
		if ours.cpu > 0 && theirs.cpu > 0 {
			v = float64(theirs.cpu) / float64(ours.cpu)
		}
		if alone[i] && alone[i+1] {
			kept = append(kept, v)
		}
	}
	return kept, r.g.Rounds, nil
}

// pipelinedRows of a dispatch, and how many dispatches are under way: so few rows that the round trip is
// nearly all of the time.
const pipelinedRows, pipelinedFlights = 1, 4

// pipelined sends dispatches over a sealed session with an emulated round trip, one by one and then all at once.
func pipelined(ctx context.Context, r *gateRun, _ bool) ([]float64, int, error) {
	l, err := newGateLayer(ctx, r.g.sends, nil)
	if err != nil {
		return nil, 0, err
	}
	path, err := wan.NewLink(wan.Profile{RTT: r.g.rtt})
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = path.Close() }() // always nil
	p, err := l.openSessionOver(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	defer p.close()
	var kept []float64
	before := r.alone()
	for range r.g.Rounds {
		serial, err := l.flights(ctx, p.x, 1)
		if err != nil {
			return nil, 0, err
		}
		together, err := l.flights(ctx, p.x, pipelinedFlights)
		if err != nil {
			return nil, 0, err
		}
		after := r.alone()
		if before && after {
			kept = append(kept, float64(serial)/float64(together))
		}
		before = after
	}
	return kept, r.g.Rounds, nil
}

// flights sends as many dispatches as pipelinedFlights, so many at once, and returns how long all took.
func (l *gateLayer) flights(ctx context.Context, x moe.Experts, atOnce int) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, atOnce)
	start := time.Now()
	for i := range atOnce {
		wg.Go(func() {
			var answer moe.Partials
			for range pipelinedFlights / atOnce {
				if err := x.Forward(ctx, l.batches[pipelinedRows], &answer); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}
