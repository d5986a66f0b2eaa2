package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/perf/benchmath"

	"kvasir/internal/moe"
	"kvasir/kernels/variant"
)

// smallGate measures the counters and one kernel, with a small layer.
func smallGate() Gate {
	g := DefaultGate()
	g.kernels.Experts, g.kernels.Hidden, g.kernels.FFN, g.kernels.Batch = 8, 1024, 512, 64
	g.kernels.least = 40 * time.Millisecond
	g.sends = 21
	g.only = func(name string) bool { return name == "counters" || name == "kernel_of_peak" }
	return g
}

func mustRunGate(t *testing.T, g Gate) *GateReport {
	t.Helper()
	r, err := g.Run(t.Context(), GateObserver{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// careless allocates once a call.
type careless struct{ moe.Experts }

var sink *[16]byte

func (c careless) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	sink = new([16]byte)
	return c.Experts.Forward(ctx, b, out)
}

// The gate is shown this build, and then the same with one more allocation.
func TestGateCatchesAPlantedAllocation(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector minutes")
	}
	dir := t.TempDir()
	g := smallGate()
	g.only = func(name string) bool { return name == "counters" }
	if _, err := mustRunGate(t, g).Update(dir, "as it is"); err != nil {
		t.Fatal(err)
	}
	g.Baselines = os.DirFS(dir)
	if bad := mustRunGate(t, g).Failed(); len(bad) > 0 {
		t.Errorf("nothing has changed, and it says: %s", strings.Join(bad, "; "))
	}
	g.wrap = func(x moe.Experts) moe.Experts { return careless{x} }
	after := mustRunGate(t, g)
	for _, name := range []string{"session_1_allocs", "session_64_allocs", "swarm_1_allocs", "swarm_64_allocs"} {
		if x := after.find(name); x == nil || x.Verdict != grew {
			t.Errorf("one allocation more: %s is %+v, want %q", name, x, grew)
		}
	}
	if x := after.find("swarm_64_out_bytes"); x == nil || x.Verdict != met {
		t.Errorf("as many bytes: %+v, want %q", x, met)
	}
}

// plantedTries is how often the slowed kernel is measured before the machine counts as too noisy to tell.
const plantedTries = 5

// The gate measures this build's kernel, and the same kernel with a fifth of its time lost, and fails the second by
// the bound that it makes of the first. Pairs of both take turns, so that a machine that changes changes both. More are
// measured until the median of the slowed ones is surely on one side of the bound.
func TestGateCatchesASlowedKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("it computes for seconds, and with the race detector for minutes")
	}
	g := smallGate()
	g.own = 0 // rates are those of processor time: others may use the processors, as far as they leave them steady
	kernel, err := variant.Active()
	if err != nil {
		t.Fatal(err)
	}
	r := &gateRun{g: g, report: GateReport{Settings: GateSettings{Threads: runtime.GOMAXPROCS(0), Kernel: kernel.Variant.String()}}}
	defer func() { r.subject.close() }()
	if err := r.makeSubject(t.Context()); err != nil {
		t.Fatal(err)
	}
	x := g.ratios()[0]
	if x.name != "kernel_of_peak" {
		t.Fatalf("the first ratio is %s", x.name)
	}
	if r.limits().peak == 0 {
		t.Skipf("%s kernels have no peak to be measured against", kernel.Variant)
	}
	var as, slowed []float64
	var last string
	for range plantedTries {
		more, moreSlowed := r.plant(t, 0.25)
		as, slowed = append(as, more...), append(slowed, moreSlowed...)
		before := (&baselines{}).judgeRatio(&x, as, len(as))
		b := &baselines{ratios: ratioBaselines{Ratios: map[string]ratioBound{x.name: before.newBound()}}}
		is, after := b.judgeRatio(&x, as, len(as)), b.judgeRatio(&x, slowed, len(slowed))
		last = fmt.Sprintf("as it is: %s, %d pairs; slowed: %s, %d pairs", is.Sentence(), len(as), after.Sentence(), len(slowed))
		if len(as) < pairsLeast || len(slowed) < pairsLeast {
			continue
		}
		a, s := medianOf(as), medianOf(slowed)
		if bound := *after.Bound; a.Hi-a.Lo > 0.15*a.Center || s.Lo < bound && bound < s.Hi {
			continue
		}
		t.Log(last)
		if is.Verdict != met || after.Verdict != missed {
			t.Errorf("%s: want %q as it is, and %q slowed", last, met, missed)
		}
		return
	}
	t.Skipf("the machine is too noisy, after %d times, to tell a kernel from one that is a fifth slower: %s", plantedTries, last)
}

// medianOf says between what the median of ratios is, with a confidence of 95 %.
func medianOf(list []float64) benchmath.Summary {
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(list, &benchmath.DefaultThresholds), 0.95)
}

// plant measures pairs of the kernel as it is and slowed, in turns, and returns the ratios of those that were steady.
func (r *gateRun) plant(t *testing.T, slow float64) (as, slowed []float64) {
	t.Helper()
	before := r.limits()
	for n := range 2 * r.g.Rounds {
		r.g.slow = slow * float64(n%2)
		p, err := r.kernelPair(t.Context(), before)
		if err != nil {
			t.Fatal(err)
		}
		before = p.after
		v, steady := kernelOfPeak(r, p)
		switch {
		case !steady:
		case n%2 == 0:
			as = append(as, v)
		default:
			slowed = append(slowed, v)
		}
	}
	return as, slowed
}

// The same without a clock: of what pairs say to the verdict.
func TestGateFailsAKernelThatIsAFifthSlower(t *testing.T) {
	g := DefaultGate()
	r := &gateRun{g: g, subject: &subject{expert: 5 << 20}}
	pairs := func(times float64) (list []*kernelPair) {
		for i := range g.Rounds {
			l := limits{peak: 200e9 * (1 + 0.002*float64(i)), read: 20e9}
			list = append(list, &kernelPair{before: l, between: l, after: l, large: 0.5 * times, small: 0.003 * times, touched: 8})
		}
		return list
	}
	for _, x := range g.ratios()[:2] {
		verdict := func(b *baselines, times float64) GateLine {
			r.base, r.pairs = b, pairs(times)
			kept, tried, err := x.measure(t.Context(), r, false)
			if err != nil {
				t.Fatal(err)
			}
			return b.judgeRatio(&x, kept, tried)
		}
		before := verdict(&baselines{}, 1)
		b := &baselines{ratios: ratioBaselines{Ratios: map[string]ratioBound{x.name: before.newBound()}}}
		for times, want := range map[float64]string{1: met, 1.05: met, 1.2: missed, 1.25: missed} {
			if line := verdict(b, times); line.Verdict != want {
				t.Errorf("%v times as long: %s, want %s", times, line.Sentence(), want)
			}
		}
	}
}

func TestLimitsThatDriftAreNotComparedWith(t *testing.T) {
	f := func(before, after float64, want bool) {
		t.Helper()
		if _, steady := share(1, before, after); steady != want {
			t.Errorf("%v and %v: steady %v, want %v", before, after, steady, want)
		}
	}
	f(100, 100, true)
	f(100, 95, true)
	f(95, 100, true)
	f(100, 94, false)
	f(0, 100, false) // others used the processors
	f(100, 0, false)
}

func TestGateJudgesCounters(t *testing.T) {
	b := &baselines{counters: counterBaselines{Most: map[string]float64{"n": 4}}}
	f := func(name string, got float64, want string) {
		t.Helper()
		if x := b.judgeCounter(gateCounter{name: name}, got); x.Verdict != want {
			t.Errorf("%s %v: %q, want %q", name, got, x.Verdict, want)
		}
	}
	f("n", 4, met)
	f("n", 4.01, grew)
	f("n", 5, grew)
	f("n", 3, fewer)
	f("m", 3, bare)
}

func TestGateJudgesRatios(t *testing.T) {
	b := &baselines{ratios: ratioBaselines{Ratios: map[string]ratioBound{"r": {Least: 0.4}}}}
	f := func(name string, want string, kept ...float64) {
		t.Helper()
		if x := b.judgeRatio(&gateRatio{name: name}, kept, 9); x.Verdict != want {
			t.Errorf("%s %v: %q, want %q", name, kept, x.Verdict, want)
		}
	}
	f("r", met, 0.39, 0.4, 0.41)
	f("r", missed, 0.38, 0.39, 0.41)
	f("r", missed, 0.3, 0.32, 0.33, 0.32, 0.31)
	f("r", noisy, 0.5, 0.5)           // too few
	f("r", noisy, 0.1, 0.2, 0.5)      // too far apart to say that it is less
	f("r", met, 0.2, 0.5, 0.6)        // but enough
	f("other", bare, 0.2, 0.21, 0.22) // nothing to compare with
}

func TestGateMeasuresAgainWhatIsBelowItsBound(t *testing.T) {
	g := Gate{Tries: 3}
	f := func(want string, tries int, medians ...float64) {
		t.Helper()
		r := &gateRun{g: g, base: &baselines{ratios: ratioBaselines{Ratios: map[string]ratioBound{"r": {Least: 0.4}}}}}
		n := 0
		err := r.ratio(t.Context(), &gateRatio{name: "r", measure: func(_ context.Context, _ *gateRun, again bool) ([]float64, int, error) {
			if again != (n > 0) {
				t.Errorf("try %d is told again: %v", n+1, again)
			}
			n++
			return []float64{medians[n-1], medians[n-1], medians[n-1]}, 3, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if x := r.report.Lines[0]; x.Verdict != want || n != tries || x.Tries != tries {
			t.Errorf("%v: %q after %d tries, want %q after %d", medians, x.Verdict, n, want, tries)
		}
	}
	f(met, 1, 0.5)
	f(met, 2, 0.3, 0.5)
	f(missed, 3, 0.3, 0.3, 0.3)
}

func TestBaselinesThatMakeNoSenseAreRefused(t *testing.T) {
	f := func(want string, files fstest.MapFS) {
		t.Helper()
		_, err := readBaselines(files, "avx2")
		if !errors.Is(err, ErrBaseline) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrBaseline with %q", err, want)
		}
	}
	f(countersFile, fstest.MapFS{countersFile: {Data: []byte("{")}})
	f("ratios-avx2.json", fstest.MapFS{"ratios-avx2.json": {Data: []byte(`{"ratios": 3}`)}})
	f("at most", fstest.MapFS{countersFile: {Data: make([]byte, maxBaseline+1)}})
	b, err := readBaselines(fstest.MapFS{}, "avx2")
	if err != nil || b.level != "" {
		t.Errorf("no files: level %q, error %v", b.level, err)
	}
}

func TestUpdateKeepsWhatItWasNotShown(t *testing.T) {
	dir := t.TempDir()
	first := &GateReport{Settings: GateSettings{Kernel: "avx2"}, Lines: []GateLine{
		{Name: "n", Kind: gateCounted, Got: 4}, {Name: "r", Kind: gateTimed, Got: 0.5, Low: 0.49, High: 0.51, Verdict: met, room: 0.1},
	}}
	if _, err := first.Update(dir, "first"); err != nil {
		t.Fatal(err)
	}
	second := &GateReport{Settings: GateSettings{Kernel: "avx2"}, Lines: []GateLine{
		{Name: "n", Kind: gateCounted, Got: 3}, {Name: "r", Kind: gateTimed, Verdict: noisy},
		{Name: "s", Kind: gateTimed, Got: 2, Low: 1.9, High: 2.1, Verdict: bare, room: 0.2},
	}}
	files, err := second.Update(dir, "second")
	if err != nil || !slices.Equal(files, []string{countersFile, "ratios-avx2.json"}) {
		t.Fatalf("wrote %v: %v", files, err)
	}
	b, err := readBaselines(os.DirFS(dir), "avx2")
	if err != nil {
		t.Fatal(err)
	}
	if b.counters.Most["n"] != 3 || b.ratios.Ratios["r"].Least != 0.45 || b.ratios.Ratios["s"].Least != 1.6 {
		t.Errorf("baselines are %+v and %+v", b.counters.Most, b.ratios.Ratios)
	}
	if w := b.counters.Why; len(w) != 2 || w[0].Why != "first" || w[1].Why != "second" {
		t.Errorf("reasons are %+v", w)
	}
	if _, err := second.Update(filepath.Join(dir, "absent"), "x"); !errors.Is(err, ErrSettings) {
		t.Errorf("no folder: %v, want ErrSettings", err)
	}
}

// What is built in speaks of what is measured, and says why.
func TestBaselinesNameWhatIsMeasured(t *testing.T) {
	b, err := readBaselines(nil, "avx2")
	if err != nil {
		t.Fatal(err)
	}
	if len(b.counters.Why) == 0 {
		t.Error("nobody says why the counters are what they are")
	}
	want := map[string]bool{}
	for _, c := range gateCounters() {
		want[c.name] = true
		if _, ok := b.counters.Most[c.name]; !ok {
			t.Errorf("counter %s has no baseline", c.name)
		}
	}
	for name := range b.counters.Most {
		if !want[name] {
			t.Errorf("nothing counts %s", name)
		}
	}
	files, err := fs.Glob(built, "baselines/ratios-*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("files of ratios: %v, %v", files, err)
	}
	names := map[string]bool{}
	for _, x := range DefaultGate().ratios() {
		names[x.name] = true
	}
	for _, file := range files {
		var ratios ratioBaselines
		if _, err := readBaseline(built, file, &ratios); err != nil {
			t.Fatal(err)
		}
		for name := range ratios.Ratios {
			if !names[name] {
				t.Errorf("%s: nothing measures %s", file, name)
			}
		}
	}
}
