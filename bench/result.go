package bench

import (
	"math"
	"time"

	"golang.org/x/perf/benchmath"

	"kvasir/internal/moe"
)

// Bounds of a dispatch, by name.
const (
	boundWork   = "the experts"
	boundOut    = "the line to the worker"
	boundBack   = "the line from the worker"
	boundPeak   = "multiplying"
	boundMemory = "reading memory"
)

// slowest is the slowest part of a path: the shortest time from one answer to the next, however many dispatches are
// under way.
type slowest struct {
	took time.Duration
	who  string
}

// part is one that takes so long.
func (s *slowest) part(took time.Duration, who string) {
	if took > s.took {
		s.took, s.who = took, who
	}
}

// lines are those of each worker, on which so many rows travel.
func (s *slowest) lines(p Path, rows, outRow, backRow float64) {
	line := func(bytes float64, rate Rate, who string) {
		if rate > 0 {
			s.part(time.Duration(8*bytes*rows/float64(rate)*float64(time.Second)), who)
		}
	}
	line(outRow, p.Down, boundOut)
	line(backRow, p.Up, boundBack)
}

// boundOf is the slowest part of a dispatch of n rows. compute is what the experts took here, and with stubs not used.
func (r *dispatchRun) boundOf(n int, compute time.Duration, outRow, backRow float64) slowest {
	d := &r.d
	s := slowest{compute, boundWork}
	if d.Worker != (Speed{}) {
		s.took = d.Worker.of((n*d.TopK+d.Workers-1)/d.Workers, d.TopK)
	}
	// Workers hold the same share of the experts, and so get the same share of the bytes.
	s.lines(d.Path, float64(n)/float64(d.Workers), outRow, backRow)
	return s
}

// add makes results of the rounds of a batch.
func (r *dispatchRun) add(work workload, m *measuring, n int) {
	kept, noisy := m.kept()
	for k, w := range m.ways {
		x := r.result(w, n, &m.tallies[k], kept)
		x.Pairs, x.Dropped, x.noisy = len(m.pairs), len(m.pairs)-len(keep(m.pairs, m.reads)), noisy
		work.bounded(&x, m, k, kept)
		if w.kind == far {
			x.RTTOverhead = r.overhead(m, k, kept)
		}
		r.report.Results = append(r.report.Results, x)
		r.o.row(x)
	}
}

func (r *dispatchRun) bounded(x *Result, m *measuring, k int, kept []int) {
	if m.ways[k].kind == local {
		r.machineShares(x, m, kept)
		return
	}
	x.share(m, k, kept, func(home time.Duration) slowest { return r.boundOf(x.Batch, home, x.BytesOut, x.BytesBack) })
}

// share says how near the k-th way came to what its slowest part allows, which follows from the time here.
func (r *Result) share(m *measuring, k int, kept []int, bound func(home time.Duration) slowest) {
	var list []float64
	for _, i := range kept {
		s := bound(m.tallies[0].times[i])
		r.Bound = s.who
		list = append(list, s.took.Seconds()/m.tallies[k].times[i].Seconds())
	}
	r.Roofline = round(middle(list))
}

// result makes figures of a tally.
func (r *dispatchRun) result(w *way, n int, t *tally, kept []int) Result {
	var times []time.Duration
	for _, i := range kept {
		times = append(times, t.times[i])
	}
	times = sorted(times)
	m := median(times)
	x := Result{
		Scenario: r.d.scenario(), Batch: n, times: times, Ms: milliseconds(m),
		Pipelined: new(w.piped), TokensPerS: round(float64(n) / m.Seconds()),
	}
	x.MsLow, x.MsHigh = interval(times)
	if w.kind == local && t.dispatches > 1 {
		x.Allocs = new(round(float64(t.allocs) / float64(n)))
	}
	if w.kind != local {
		rows := float64(t.rows)
		x.Workers, x.RTT, x.Identical = r.d.Workers, new(milliseconds(w.rtt)), new(t.identical)
		x.BytesOut, x.BytesBack = round(float64(t.out)/rows), round(float64(t.back)/rows)
	}
	if w.piped {
		x.Flights = w.flights
	}
	if t.measured > 0 {
		x.Measuring = new(math.Ceil(1e6*t.measuring/t.measured) / 1e6)
	}
	if n == 1 && !w.piped {
		x.XVsBatch1 = 1
	} else if one := r.report.one(x.RTT); one != nil {
		x.XVsBatch1 = round(x.TokensPerS / one.TokensPerS)
	}
	return x
}

// machineShares says how near the experts came to what the machine can do.
func (r *dispatchRun) machineShares(x *Result, m *measuring, kept []int) {
	if r.d.Worker != (Speed{}) {
		return
	}
	d := &r.d
	products := float64(x.Batch) * float64(d.TopK) * 3 * float64(d.Hidden) * float64(d.FFN)
	bytes := float64(touched(r.batch) * r.reach)
	var peak, read, roof []float64
	for _, i := range kept {
		l, s := m.pairs[i].limits(), m.tallies[0].times[i].Seconds()
		least := 0.0
		if l.peak > 0 {
			least = products / l.peak
			peak = append(peak, least/s)
		}
		if l.read > 0 {
			read = append(read, bytes/l.read/s)
			least = max(least, bytes/l.read)
		}
		if l.peak > 0 {
			roof = append(roof, least/s)
		}
	}
	x.PeakShare, x.ReadShare, x.Roofline = round(middle(peak)), round(middle(read)), round(middle(roof))
	if x.Bound = boundPeak; x.ReadShare > x.PeakShare {
		x.Bound = boundMemory
	}
	if x.Roofline == 0 {
		x.Bound = ""
	}
}

// touched counts the experts that a batch picks.
func touched(b *moe.Batch) int {
	seen := map[uint16]struct{}{}
	for _, e := range b.Expert {
		seen[e] = struct{}{}
	}
	return len(seen)
}

// overhead is what a round trip costs over 0 ms in the same rounds, in percent.
func (r *dispatchRun) overhead(m *measuring, k int, kept []int) *float64 {
	for j, w := range m.ways {
		if w.kind != near || w.piped != m.ways[k].piped {
			continue
		}
		var ratio []float64
		for _, i := range kept {
			ratio = append(ratio, float64(m.tallies[k].times[i])/float64(m.tallies[j].times[i]))
		}
		return new(round(100 * (middle(ratio) - 1)))
	}
	return nil
}

// confidence of intervals: five rounds can have it.
const confidence = 0.9

// interval returns, in milliseconds, between what the median of so many rounds is; 0 and 0: too few to tell.
func interval(times []time.Duration) (low, high float64) {
	var list []float64
	for _, t := range times {
		list = append(list, milliseconds(t))
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(list, &benchmath.DefaultThresholds), confidence)
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		return 0, 0
	}
	return s.Lo, s.Hi
}
