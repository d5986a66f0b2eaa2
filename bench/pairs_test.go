package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// madePair is a pair of one dispatch that took a second.
func madePair(before, after float64) pair {
	return pair{limits{before, before}, limits{after, after}, sample{dispatches: 1, took: time.Second, touched: 1}}
}

func TestPairsAreDroppedWhereTheMachineChanged(t *testing.T) {
	f := func(p pair, reads, want bool) {
		t.Helper()
		if p.steady(reads) != want {
			t.Errorf("%v to %v, reads %v: steady %v", p.before, p.after, reads, !want)
		}
	}
	f(madePair(100, 100), true, true)
	f(madePair(100, 95), true, true)
	f(madePair(95, 100), true, true)
	f(madePair(100, 94.9), true, false)
	f(madePair(94.9, 100), true, false)
	f(madePair(0, 0), true, true) // no limits are known
	rate := pair{before: limits{100, 100}, after: limits{100, 50}}
	f(rate, true, false)
	f(rate, false, true)
	if kept := keep([]pair{madePair(100, 90), madePair(90, 91), madePair(91, 120)}, true); len(kept) != 1 || kept[0].before.peak != 90 {
		t.Errorf("kept %v", kept)
	}
}

// collectWith collects pairs on a machine whose peaks are these, one after the other, round and round. A pair
// takes a second.
func collectWith(t *testing.T, s pairsSchedule, peaks ...float64) (pairs []pair, measured int) {
	t.Helper()
	var now time.Duration
	pairs, err := collect(t.Context(), meter{
		limits: func() limits { measured++; v := peaks[(measured-1)%len(peaks)]; return limits{v, v} },
		run: func(_ context.Context, n int) (sample, error) {
			now += time.Second
			return sample{dispatches: n, took: time.Second}, nil
		},
		now: func() time.Duration { return now },
	}, s, false)
	if err != nil {
		t.Fatal(err)
	}
	return pairs, measured
}

func TestPairsAreMeasuredUntilEnoughAreKept(t *testing.T) {
	for _, tt := range []struct {
		name        string
		s           pairsSchedule
		peaks       []float64
		tried, kept int
	}{
		{"quiet", pairsSchedule{until: time.Hour}, []float64{100, 101, 99}, 5, 5},
		{"every second one is bad", pairsSchedule{until: time.Hour}, []float64{100, 100, 80, 80}, 9, 5},
		{"noise", pairsSchedule{until: time.Hour}, []float64{100, 80}, 15, 0},
		{"no time for more", pairsSchedule{until: 7 * time.Second}, []float64{100, 80}, 8, 0},
		{"no time at all", pairsSchedule{until: -time.Second}, []float64{100, 100}, 1, 1},
		{"as many as asked for", pairsSchedule{fixed: 3, until: time.Hour}, []float64{100, 80}, 3, 0},
		{"more than it takes", pairsSchedule{fixed: 20}, []float64{100}, 20, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pairs, measured := collectWith(t, tt.s, tt.peaks...)
			if kept := keep(pairs, false); len(pairs) != tt.tried || len(kept) != tt.kept || measured != tt.tried+1 {
				t.Errorf("%d pairs, %d kept, limits measured %d times; want %d, %d, %d",
					len(pairs), len(kept), measured, tt.tried, tt.kept, tt.tried+1)
			}
			for i, p := range pairs {
				if p.run.dispatches != i+1 || i > 0 && p.before != pairs[i-1].after {
					t.Errorf("pair %d: %+v", i, p)
				}
			}
		})
	}
}

func TestCollectEndsWithItsContextAndWithErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("broken")
	m := meter{
		limits: func() limits { return limits{} },
		run:    func(context.Context, int) (sample, error) { cancel(); return sample{}, nil },
		now:    func() time.Duration { return 0 },
	}
	if _, err := collect(ctx, m, pairsSchedule{fixed: 2}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	m.run = func(context.Context, int) (sample, error) { return sample{}, broken }
	if _, err := collect(t.Context(), m, pairsSchedule{fixed: 2}, false); !errors.Is(err, broken) {
		t.Errorf("broken: %v", err)
	}
}

// TestFiguresAreMediansOfKeptPairs: 10 experts of 512 x 256, 2 a row, 9 rows are 7,077,888 products.
func TestFiguresAreMediansOfKeptPairs(t *testing.T) {
	const products = 9 * 2 * 3 * 512 * 256
	r := &kernelsRun{k: smallKernels(), subject: &subject{expert: 1000, read: true}}
	p := &point{format: quant.Q4K, picks: picksUniform, rows: 9}
	quick := madePair(2*products, 2*products) // half the peak
	quick.run = sample{dispatches: 2, took: 2 * time.Second, touched: 14, allocs: 18}
	slow := madePair(4*products, 4*products)
	slow.run = sample{dispatches: 1, took: 2 * time.Second, touched: 10, allocs: 9} // an eighth
	bad := madePair(2*products, products)
	bad.run = sample{dispatches: 100, took: time.Second, touched: 700}
	quick.before.read, quick.after.read = 14000, 14000
	x := r.result(p, []pair{bad, quick, bad, slow, quick})
	if x.Pairs != 5 || x.Dropped != 2 || x.noisy() || x.Ms != 1000 || x.TokensPerS != 9 || x.PeakShare != 0.5 || x.ReadShare != 0.5 {
		t.Errorf("%+v", x)
	}
	if x.Gops != round(2*products/1e9) || x.Touched != 8 || x.Allocs != 1 || x.XVsUniform != 0 {
		t.Errorf("%+v", x)
	}
	x = r.result(p, []pair{bad, quick, bad, bad, quick})
	if !x.noisy() || x.PeakShare != 0 || x.ReadShare != 0 || x.Ms != 10 {
		t.Errorf("two are left of five: %+v", x)
	}
	r.subject.dense = true
	if x = r.result(&point{format: quant.Q4K, picks: picksDense, rows: 9}, []pair{quick, quick, quick}); x.PeakShare != 0.25 {
		t.Errorf("one expert a row: %+v", x)
	}
}

func TestHotPicksAreComparedWithUniformOnes(t *testing.T) {
	r := &kernelsRun{k: smallKernels(), subject: &subject{expert: 1000}}
	p := &point{format: quant.Q4K, picks: picksHot, rows: 9}
	var pairs []pair
	for _, ms := range []int{980, 1000, 1020} {
		m := madePair(100, 100)
		m.run.against = time.Duration(ms) * time.Millisecond
		pairs = append(pairs, m)
	}
	if x := r.result(p, pairs); x.XVsUniform != 1 || math.Abs(x.spread-0.04) > 0.001 {
		t.Errorf("%v x, spread %v", x.XVsUniform, x.spread)
	}
}

func TestSingleRowsAreWhatBatchesAreComparedWith(t *testing.T) {
	r := &KernelsReport{Results: []KernelsResult{
		{layer: "Q4_K", Picks: picksUniform, Batch: 1, TokensPerS: 10}, {layer: "Q4_K", Picks: picksUniform, Batch: 8, TokensPerS: 20},
	}}
	if y := r.batch1(&KernelsResult{layer: "Q4_K", Picks: picksUniform, Batch: 64}); y != &r.Results[0] {
		t.Errorf("got %+v", y)
	}
	for _, x := range []KernelsResult{{layer: "Q5_K", Picks: picksUniform, Batch: 64}, {layer: "Q4_K", Picks: picksHot, Batch: 64}} {
		if y := r.batch1(&x); y != nil {
			t.Errorf("%+v is compared with %+v", x, y)
		}
	}
}

func TestMiddle(t *testing.T) {
	list := []float64{3, 1, 2}
	if middle(list) != 2 || !slices.Equal(list, []float64{3, 1, 2}) || middle([]float64{4, 1, 2, 3}) != 2.5 || middle(nil) != 0 {
		t.Error("not the median")
	}
}

// madeBars is a report of the layer of the bars, on the anchor, with all bars met.
func madeBars() (*KernelsReport, variant.Variant) {
	r := &KernelsReport{
		Machine:  Machine{CPU: "AMD EPYC 9R45", Int8Peak: 1817},
		Settings: KernelsSettings{Kernel: judged.String(), Threads: 2},
	}
	for _, b := range bars {
		kernel := judged
		if b.kernel != 0 {
			kernel = b.kernel
		}
		x := r.at(&b, judged)
		if x == nil {
			r.Results = append(r.Results, KernelsResult{
				Quant: b.format.String(), Kernel: kernel.String(), Picks: b.picks, Batch: b.rows, Pairs: 5, layer: b.format.String(),
			})
			x = &r.Results[len(r.Results)-1]
		}
		switch b.of {
		case ofTokens:
			x.TokensPerS = b.want
		case ofPeak:
			x.PeakShare = b.want
		case ofRead:
			x.ReadShare = b.want
		case ofUniform:
			x.XVsUniform = b.want
		}
	}
	return r, judged
}

func TestBarsAreJudgedWhereTheyAreSet(t *testing.T) {
	count := func(list []BarResult, verdict string) (n int) {
		for _, v := range list {
			if v.Verdict == verdict {
				n++
			}
		}
		return n
	}
	anchors := 0 // bars that are set for one machine
	for _, b := range bars {
		if b.of == ofTokens || b.of == ofPeak {
			anchors++
		}
	}
	for _, tt := range []struct {
		name    string
		spoil   func(*KernelsReport)
		active  variant.Variant
		verdict string
		n, all  int
	}{
		{"anchor", func(*KernelsReport) {}, judged, met, len(bars), len(bars)},
		{"other processor", func(r *KernelsReport) { r.Machine.CPU = "Intel Xeon" }, judged, reported, anchors, len(bars)},
		{"older processor", func(r *KernelsReport) { r.Machine.Int8Peak = 950 }, judged, reported, anchors, len(bars)},
		{"more threads", func(r *KernelsReport) { r.Settings.Threads = 4 }, judged, reported, anchors, len(bars)},
		{"other kernels", func(r *KernelsReport) {
			for i := range r.Results {
				r.Results[i].Kernel = variant.AVX2.String()
			}
		}, variant.AVX2, reported, len(bars) - 1, len(bars) - 1}, // it has no plainer variant
		{"slow", func(r *KernelsReport) { r.Results[0].TokensPerS = 1199 }, judged, missed, 1, len(bars)},
		{"noise", func(r *KernelsReport) { r.Results[0].Dropped = 3 }, judged, noisy, 2, len(bars)},
		{"three are left", func(r *KernelsReport) { r.Results[0].Dropped = 2 }, judged, met, len(bars), len(bars)},
		{"no time", func(r *KernelsReport) { r.Results[0].Pairs = 4 }, judged, few, 2, len(bars)},
		{"no rate", func(r *KernelsReport) { r.Results[0].ReadShare = 0 }, judged, unknown, 1, len(bars)},
		{"interrupted", func(r *KernelsReport) { r.Results = r.Results[:1] }, judged, met, 2, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := madeBars()
			tt.spoil(r)
			r.Bars = judge(r, tt.active)
			if got := count(r.Bars, tt.verdict); got != tt.n || len(r.Bars) != tt.all {
				t.Errorf("%d of %d are %s, want %d of %d: %+v", got, len(r.Bars), tt.verdict, tt.n, tt.all, r.Bars)
			}
			if got := len(r.Missed()); got != count(r.Bars, missed) {
				t.Errorf("%d bars are said to be missed", got)
			}
			for _, line := range r.verdicts() {
				if n := utf8.RuneCountInString(line); n > Columns && strings.Contains(line, "  ") {
					t.Errorf("%d columns: %q", n, line)
				}
			}
		})
	}
}

func TestHotPicksMayBeSlowerByTheSpread(t *testing.T) {
	for _, tt := range []struct {
		spread, got float64
		want        string
	}{{0, 1, met}, {0, 0.999, missed}, {0.03, 0.97, met}, {0.03, 0.96, missed}, {0.5, 0.95, met}, {0.5, 0.94, missed}} {
		r, active := madeBars()
		for i := range r.Results {
			if x := &r.Results[i]; x.Picks == picksHot {
				x.spread, x.XVsUniform = tt.spread, tt.got
			}
		}
		for _, v := range judge(r, active) {
			if v.Of == ofUniform && v.Verdict != tt.want {
				t.Errorf("%v x with a spread of %v is %s, want %s", tt.got, tt.spread, v.Verdict, tt.want)
			}
		}
	}
}

func TestMissedBarsAreNamedInOneLine(t *testing.T) {
	r, active := madeBars()
	r.Results[0].TokensPerS, r.Results[0].ReadShare = 1100, 0.849
	r.Bars = judge(r, active)
	want := []string{
		"Q4_K at 1 row: 1100 tokens/s, bar 1200 tokens/s",
		"Q4_K at 1 row: 84.9 % of what memory allows, bar 85.0 % of what memory allows",
	}
	if got := r.Missed(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKernelsWordsFollowTheFigures(t *testing.T) {
	says := func(r *KernelsReport, want ...string) {
		t.Helper()
		text := strings.Join(append(r.Remarks(), r.Words()...), "\n")
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is not said:\n%s", w, text)
			}
		}
	}
	r, active := madeBars()
	r.Bars = judge(r, active)
	r.Results[3].XVsBatch1 = 5.56
	r.Machine.Read = 59.1
	r.Results[1].Dropped = 1
	says(r, "This machine at best: 1817 GOP/s of int8 with avx512vnni, and memory read at 59.10 GB/s.",
		"1 of ", "differed by more than 5 %", "up to 5.6 x", "Nothing is allocated.", "met")
	if text := strings.Join(r.Words(), "\n"); strings.Contains(text, "reported") || strings.Contains(text, "Noisy") {
		t.Errorf("on the anchor:\n%s", text)
	}
	r.Settings.Threads, r.Results[0].Pairs, r.Results[0].Dropped, r.Results[0].Allocs = 4, 15, 13, 0.5
	r.Bars = judge(r, active)
	says(r, "two cores of a Zen 5", "Noisy machine: at 1 of ", "Up to 0.500 allocations a row.", "noisy machine")
	r.Settings.Kernel, r.Bars, r.Machine = "avx2", judge(r, variant.AVX2), Machine{}
	says(r, "have no loop that tells the peak")
	r.Bars = nil
	says(r, "not for this one")
}
