package bench

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"kvasir/internal/moe"
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

// The gate is shown this build, and then the same with one more allocation and a kernel that does in a
// second four fifths of what it did.
func TestGateCatchesWhatIsPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector minutes")
	}
	dir := t.TempDir()
	before := mustRunGate(t, smallGate())
	if bad := before.Failed(); len(bad) > 0 {
		t.Fatalf("without baselines: %s", bad)
	}
	if _, err := before.Update(dir, "as it is"); err != nil {
		t.Fatal(err)
	}
	g := smallGate()
	g.Baselines = os.DirFS(dir)
	if bad := mustRunGate(t, g).Failed(); len(bad) > 0 {
		t.Errorf("nothing has changed, and it says: %s", strings.Join(bad, "; "))
	}
	g.slow = 0.25
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
	was, is := before.find("kernel_of_peak"), after.find("kernel_of_peak")
	switch {
	case was.Pairs < gatePairsLeast || is.Pairs < gatePairsLeast:
		t.Logf("others use this machine, so the slower kernel was not judged: %s", is.Sentence())
	case is.Verdict != missed:
		t.Errorf("a kernel a fifth slower: %s", is.Sentence())
	}
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
