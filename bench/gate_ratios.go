package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
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
	kernelRoom = 0.1
	pathRoom   = 0.3
)

// ratios lists what is compared, in the order of the report.
func (g Gate) ratios() []gateRatio {
	list := []gateRatio{
		{"kernel_of_peak", fmt.Sprintf("Q4_K, %d rows an expert, against the bare int8 products", g.kernels.Batch), "", kernelRoom, ofTurns(peakSlice, largeSlice)},
		{"kernel_of_read", "Q4_K, 1 row an expert, against reading memory", "", kernelRoom, ofTurns(readSlice, smallSlice)},
		{"batch_of_one", fmt.Sprintf("picks a second, %d rows an expert against 1", g.kernels.Batch), "x", kernelRoom, ofTurns(smallSlice, largeSlice)},
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
	if len(g.Ratios) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(x gateRatio) bool { return !slices.Contains(g.Ratios, x.name) })
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

// ownLeast is how much of the processors has to be ours while limits are measured. With less, others take
// caches and memory too, and ratios of processor time are not what they are alone.
const ownLeast = 0.9

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
