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
	"kvasir/kernels/matmul"
	"kvasir/kernels/variant"
)

// smallGate counts a few dispatches, and measures nothing.
func smallGate() Gate {
	g := DefaultGate()
	g.sends, g.Counters = 41, true
	return g
}

func mustRunGate(t *testing.T, g Gate) *GateReport {
	t.Helper()
	r, err := g.Run(t.Context(), Observer[GateReport, GateLine]{})
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
	g.Update = true
	if _, err := mustRunGate(t, g).Update(dir, "as it is"); err != nil {
		t.Fatal(err)
	}
	g.Update, g.Baselines = false, os.DirFS(dir)
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

// The gate measures this build's kernel, and the same kernel with a fifth of its rate lost, and fails the second by
// the bounds that it makes of the first. Turns of both take turns, so that a machine that changes changes both.
func TestGateCatchesASlowedKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("it computes for seconds, and with the race detector for minutes")
	}
	kernel, err := variant.Active()
	if err != nil {
		t.Fatal(err)
	}
	s, err := DefaultGate().kernels.newGateSubject(t.Context(), kernel.Variant)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const kept, patience = 30, 20 * time.Second
	as, slowed, parts := s.newTurns(), s.newTurns(), s.slices(t.Context())
	for start := time.Now(); time.Since(start) < patience; {
		for n := range 2 * kept {
			to := []*turns{as, slowed}[n%2]
			s.slow = 0.25 * float64(n%2)
			x, err := takeTurn(parts)
			if err != nil {
				t.Fatal(err)
			}
			to.list = append(to.list, x)
		}
		as.best = bestLook(slices.Concat(as.list, slowed.list))
		slowed.best = as.best
		if as.enough(kept) && slowed.enough(kept) {
			break
		}
	}
	for i, x := range DefaultGate().ratios()[:2] {
		first, second := gateTurnRatios[i][0], gateTurnRatios[i][1]
		if first == peakSlice && s.bare == nil {
			continue // there is nothing to compare with
		}
		a, b := as.ratio(first, second), slowed.ratio(first, second)
		if len(a) < gatePairsLeast || len(b) < gatePairsLeast {
			t.Skipf("others had a part of this core in all of %v but %d turns", patience, min(len(a), len(b)))
		}
		before := (&baselines{}).judgeRatio(&x, a, len(as.list))
		base := &baselines{ratios: ratioBaselines{Ratios: map[string]ratioBound{x.name: before.newBound()}}}
		is, after := base.judgeRatio(&x, a, len(as.list)), base.judgeRatio(&x, b, len(slowed.list))
		t.Logf("as it is: %s; slowed: %s", is.Sentence(), after.Sentence())
		if is.Verdict != met || after.Verdict != missed {
			t.Errorf("%s: %q as it is and %q slowed, want %q and %q", x.name, is.Verdict, after.Verdict, met, missed)
		}
	}
}

// gateTurns are turns of a core that adds 3 and 12 times a nanosecond, on a machine whose rates drift.
func gateTurns(n int, times float64) *turns {
	t := &turns{best: look{3e9, 12e9}, perByte: 2}
	for i := range n {
		x := turn{rates: [slicesATurn]float64{
			peakSlice: 200e9, largeSlice: 90e9 / times, smallSlice: 16e9 / times, readSlice: 20e9,
		}}
		for k := range x.rates {
			x.rates[k] *= 1 + 0.002*float64(i)
		}
		for k := range x.looks {
			x.looks[k] = t.best
		}
		t.list = append(t.list, x)
	}
	return t
}

// The same without a clock: of what turns say to the verdict.
func TestGateFailsAKernelThatIsAFifthSlower(t *testing.T) {
	g := DefaultGate()
	r := &gateRun{g: g, subject: &gateSubject{bare: &matmul.Kernel{}}}
	for _, x := range g.ratios()[:2] {
		verdict := func(b *baselines, times float64) GateLine {
			r.base, r.turns = b, gateTurns(9, times)
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

func TestTurnsCountWhereTheCoreWasOursAlone(t *testing.T) {
	f := func(want int, first, second int, change func(*turns)) {
		t.Helper()
		x := gateTurns(3, 1)
		change(x)
		if got := x.ratio(first, second); len(got) != want {
			t.Errorf("%v, want %d of them", got, want)
		}
	}
	same := func(*turns) {}
	f(3, peakSlice, largeSlice, same)
	f(3, readSlice, smallSlice, same)
	f(3, smallSlice, largeSlice, same)
	shared := func(at int) func(*turns) { return func(x *turns) { x.list[1].looks[at].free = 8e9 } }
	f(2, peakSlice, largeSlice, shared(0))
	f(2, peakSlice, largeSlice, shared(1))
	f(2, peakSlice, largeSlice, shared(2))
	f(3, peakSlice, largeSlice, shared(3)) // that was after both
	f(3, readSlice, smallSlice, shared(1)) // before
	f(2, readSlice, smallSlice, shared(4))
	f(2, peakSlice, largeSlice, func(x *turns) { x.list[2].looks[1].chain = 2e9 })
	f(0, peakSlice, largeSlice, func(x *turns) { x.best.free = 14e9 }) // it never was
	f(2, peakSlice, largeSlice, func(x *turns) { x.list[0].rates[peakSlice] = 0 })

	x := gateTurns(1, 1)
	if got := x.ratio(smallSlice, largeSlice); len(got) != 1 || got[0] != 90e9/(16e9*2) {
		t.Errorf("picks a second: %v, want %v", got, 90e9/(16e9*2))
	}
}

// A clock that was set right makes a few looks too quick: they are not what the core does.
func TestBestLookIsNotAnAccident(t *testing.T) {
	x := gateTurns(100, 1)
	for i := range 9 {
		x.list[i].looks[0] = look{30e9, 90e9}
	}
	if best := bestLook(x.list); best != (look{3e9, 12e9}) {
		t.Errorf("best of 500 looks, 9 of them too quick: %+v", best)
	}
	if best := bestLook(nil); best != (look{}) {
		t.Errorf("best of none: %+v", best)
	}
}

// A core adds in a fixed number of cycles: more of what does not wait than of what does.
func TestLooksSeeTheCore(t *testing.T) {
	if x := lookAtCore(); x.chain <= 0 || x.free <= 0 {
		t.Errorf("it adds nothing: %+v", x)
	}
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
	if x := b.judgeRatio(&gateRatio{name: "r"}, nil, 0); x.Verdict != unknown {
		t.Errorf("nothing was tried: %q, want %q", x.Verdict, unknown)
	}
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
		{Name: "n", Kind: gateCounted, Got: 4, bound: 4}, {Name: "pipelined", Kind: gateTimed, Got: 0.5, Low: 0.49, High: 0.51, Verdict: met, room: 0.1},
	}}
	if _, err := first.Update(dir, "first"); err != nil {
		t.Fatal(err)
	}
	second := &GateReport{Settings: GateSettings{Kernel: "avx2"}, Lines: []GateLine{
		{Name: "n", Kind: gateCounted, Got: 2, bound: 3}, {Name: "pipelined", Kind: gateTimed, Verdict: noisy},
		{Name: "kernel_of_read", Kind: gateTimed, Got: 2, Low: 1.9, High: 2.1, Verdict: bare, room: 0.2},
	}}
	files, err := second.Update(dir, "second")
	if err != nil || !slices.Equal(files, []string{countersFile, "ratios-avx2.json"}) {
		t.Fatalf("wrote %v: %v", files, err)
	}
	b, err := readBaselines(os.DirFS(dir), "avx2")
	if err != nil {
		t.Fatal(err)
	}
	if b.counters.Most["n"] != 3 || b.ratios.Ratios["pipelined"].Least != 0.45 || b.ratios.Ratios["kernel_of_read"].Least != 1.6 {
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
