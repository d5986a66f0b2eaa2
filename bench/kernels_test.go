package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// smallKernels is a layer that takes microseconds.
func smallKernels() Kernels {
	return Kernels{
		Experts: 10, TopK: 2, Hidden: 512, FFN: 256, Batch: 9,
		Pairs: 2, Budget: time.Hour, Seed: 7, least: time.Millisecond,
	}
}

func TestKernelsMeasuresEveryPoint(t *testing.T) {
	var began bool
	var rows []KernelsResult
	var doing []string
	r, err := smallKernels().Run(t.Context(), Observer[KernelsReport, KernelsResult]{
		Begin:    func(r *KernelsReport) { began = r.Empty() && r.Machine.CPU != "" },
		Progress: func(_ float64, what string) { doing = append(doing, what) },
		Row:      func(x KernelsResult) { rows = append(rows, x) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !began || len(rows) != len(r.Results) || !slices.Contains(doing, "Q4_K dense at 9 rows, pair 2") {
		t.Errorf("began %v, %d rows told of %d, progress %q", began, len(rows), len(r.Results), doing)
	}
	want := []string{
		"Q4_K at 1 row", "Q4_K at 8 rows", "Q4_K at 9 rows", "Q4_K hot at 9 rows", "Q5_K at 9 rows",
		"Q6_K at 9 rows", "Q4_K dense at 9 rows", "Q8_0 dense at 9 rows",
	}
	for _, v := range variant.Available()[1:max(1, len(variant.Available())-1)] {
		want = slices.Insert(want, 8, "Q4_K "+v.String()+" at 9 rows") // the best of the plainer ones first
	}
	peak := variant.Available()[len(variant.Available())-1] != variant.Portable
	for i := range r.Results {
		x := &r.Results[i]
		if i >= len(want) || x.name() != want[i] {
			t.Fatalf("point %d is %s, want one of %q", i, x.name(), want)
		}
		if x.Pairs != 2 || x.TokensPerS <= 0 || x.Ms <= 0 || x.Gops <= 0 || !*x.Identical || x.Weights <= 0 || x.Touched < 1 {
			t.Errorf("%s: %+v", x.name(), x)
		}
		if x.ReadShare != 0 || !x.noisy() && (x.PeakShare > 0) != peak {
			t.Errorf("%s: shares %v and %v", x.name(), x.PeakShare, x.ReadShare)
		}
	}
	if len(r.Results) != len(want) || r.Bars != nil || (r.Machine.Int8Peak > 0) != peak {
		t.Errorf("%d results, bars %v, machine %+v", len(r.Results), r.Bars, r.Machine)
	}
	for _, line := range append(r.Remarks(), r.Words()...) {
		for wrapped := range strings.Lines(Wrap(line)) {
			if utf8.RuneCountInString(wrapped) > Columns+1 {
				t.Errorf("a wide line: %q", wrapped)
			}
		}
	}
}

func TestKernelsCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := smallKernels().Run(ctx, Observer[KernelsReport, KernelsResult]{Row: func(KernelsResult) { cancel() }})
	if !errors.Is(err, context.Canceled) || len(r.Results) != 1 {
		t.Errorf("error %v, report %+v", err, r)
	}
	cancel()
	if r, err = smallKernels().Run(ctx, Observer[KernelsReport, KernelsResult]{}); !errors.Is(err, context.Canceled) || !r.Empty() || r.Words() != nil || r.Remarks() != nil {
		t.Errorf("cancelled before it began: error %v, report %+v", err, r)
	}
}

func TestKernelsRefusesSettings(t *testing.T) {
	for _, k := range []Kernels{DefaultKernels(), QuickKernels(), smallKernels()} {
		if err := k.Check(); err != nil {
			t.Errorf("%+v: %v", k, err)
		}
	}
	k := smallKernels()
	k.Hidden = 300
	if r, err := k.Run(t.Context(), Observer[KernelsReport, KernelsResult]{}); r != nil || !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "--hidden 300") {
		t.Errorf("report %v, error %v", r, err)
	}
	k = DefaultKernels()
	if err := k.checkMemory(1 << 30); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "lower --experts") {
		t.Errorf("in 1 GiB: %v", err)
	}
	if err := k.checkMemory(5 << 29); err != nil {
		t.Errorf("in 2.5 GiB: %v", err)
	}
}

func TestPointsOfOneLayerFollowEachOther(t *testing.T) {
	k := DefaultKernels()
	points := k.points(variant.AVX512VNNI, []variant.Variant{variant.Portable, variant.AVX2, variant.AVXVNNI, variant.AVX512VNNI})
	var got []string
	for i := range points {
		p := &points[i]
		got = append(got, pointName(p.layer(variant.AVX512VNNI), p.rows))
	}
	want := []string{
		"Q4_K at 1 row", "Q4_K at 8 rows", "Q4_K at 64 rows", "Q4_K at 128 rows", "Q4_K at 512 rows",
		"Q4_K hot at 512 rows", "Q5_K at 512 rows", "Q6_K at 512 rows", "Q4_K dense at 64 rows",
		"Q8_0 dense at 64 rows", "Q4_K avxvnni at 512 rows", "Q4_K avx2 at 512 rows",
	}
	if !slices.Equal(got, want) {
		t.Errorf("points %q, want %q", got, want)
	}
	k.Batch, k.TopK = 1, k.Experts
	if points = k.points(variant.Portable, []variant.Variant{variant.Portable}); len(points) != 5 {
		t.Errorf("%d points of one row: %+v", len(points), points)
	}
}

func TestHotExpertIsPickedByMostRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	pick, hot := oneHot(256, 8, hotRows(512)), 0
	for row := range 512 {
		list := pick(rng, row)
		if slices.Contains(list, 0) {
			hot++
		}
		slices.Sort(list)
		if len(slices.Compact(list)) != 8 || list[0] < 0 || list[7] > 255 {
			t.Fatalf("row %d picks %v", row, list)
		}
	}
	if hot != 400 {
		t.Errorf("%d rows pick the hot expert, want 400", hot)
	}
}

// newSmallSubject returns a layer with its rows.
func newSmallSubject(t *testing.T, k Kernels) *subject {
	t.Helper()
	s, err := k.newSubject(t.Context(), &point{format: quant.Q4K, picks: picksUniform, rows: k.Batch}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestPoolTakesOtherRowsEveryTime(t *testing.T) {
	k := smallKernels()
	s := newSmallSubject(t, k)
	q := s.uniform
	if err := q.use(4); err != nil {
		t.Fatal(err)
	}
	var at []int
	for range 4 {
		if _, err := s.once(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		at = append(at, q.at)
		if !q.same(&s.answer, q.at) || !slices.Equal(q.part.Row(3).Q, q.all.Row(q.at+3).Q) {
			t.Errorf("rows from %d on are others, or have other answers", q.at)
		}
	}
	if !slices.Equal(at, []int{4, 0, 4, 0}) {
		t.Errorf("turns begin at rows %v, want 4, 0, 4, 0", at)
	}
	q.want.Sum[4*k.Hidden+5]++
	if q.same(&s.answer, 4) {
		t.Error("another sum is not seen")
	}
	if err := q.use(k.Batch); err != nil || q.part != q.all {
		t.Errorf("all rows are copied, error %v", err)
	}
}

func TestAnswersAreComparedWithTheDefinition(t *testing.T) {
	k := smallKernels()
	s := newSmallSubject(t, k)
	l, err := k.reference(quant.Q4K)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.uniform.check(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	s.uniform.want.Sum[(k.Batch-1)*k.Hidden]++
	if err := s.uniform.check(t.Context(), l); !errors.Is(err, ErrBits) {
		t.Errorf("one sum is another: %v", err)
	}
	s.uniform.want.Sum[(k.Batch-1)*k.Hidden]--
	k.Seed++
	if l, err = k.reference(quant.Q4K); err != nil {
		t.Fatal(err)
	}
	if err := s.uniform.check(t.Context(), l); !errors.Is(err, ErrBits) {
		t.Errorf("other weights: %v", err)
	}
}

// TestWrongAnswerWhileMeasuringIsSeen changes what a batch has to be.
func TestWrongAnswerWhileMeasuringIsSeen(t *testing.T) {
	r := &kernelsRun{k: smallKernels(), start: time.Now()}
	r.subject = newSmallSubject(t, r.k)
	r.active = r.subject.backend
	for _, wrong := range []bool{false, true} {
		p := &point{format: quant.Q4K, picks: picksUniform, rows: r.k.Batch}
		if wrong {
			r.subject.uniform.want.Sum[17]++
		}
		m := &pointRun{r: r, p: p, schedule: pairsSchedule{fixed: 1}}
		if _, err := m.pairs(t.Context()); err != nil || m.identical == wrong {
			t.Errorf("identical %v, want %v; error %v", m.identical, !wrong, err)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if variant.Available()[len(variant.Available())-1] == variant.Portable {
		t.Skip("the portable kernels are not held to it")
	}
	k := smallKernels()
	s := newSmallSubject(t, k)
	for _, rows := range []int{1, k.Batch} {
		if err := s.uniform.use(rows); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(5, func() {
			if _, err := s.once(context.Background(), s.uniform); err != nil {
				t.Fatal(err)
			}
			s.touched(s.uniform.part)
		}); n != 0 {
			t.Errorf("%v allocations a dispatch of %d rows", n, rows)
		}
	}
}

func TestTouchedCountsExperts(t *testing.T) {
	s := &subject{seen: make([]bool, 9)}
	for range 2 {
		if n := s.touched(&moe.Batch{Expert: []uint16{3, 8, 3, 0}}); n != 3 {
			t.Errorf("%d experts, want 3", n)
		}
	}
}

// TestKernelsJSONNames holds every name, and that what was not measured is absent and not 0.
func TestKernelsJSONNames(t *testing.T) {
	r := KernelsReport{
		Machine:  Machine{CPU: "x", Cores: 2, Features: []string{}, Go: "go1.26.0", Int8Peak: 1817, Read: 59.5},
		Settings: KernelsSettings{Scenario: KernelsName, Experts: 256, TopK: 8, Hidden: 3072, FFN: 1024, Seed: 1, Kernel: "avx2", Threads: 2, Pairs: 5},
		Results: []KernelsResult{
			{Scenario: KernelsName, Batch: 1, Quant: "Q4_K", Kernel: "avx2", Picks: "uniform", TokensPerS: 9, Ms: 2, XVsBatch1: 1,
				Gops: 3, Touched: 8, Weights: 77, PeakShare: 0.1, ReadShare: 0.9, Pairs: 7, Dropped: 2, Identical: new(true)},
			{Scenario: KernelsName, Batch: 512, Quant: "Q4_K", Kernel: "avx2", Picks: "hot", TokensPerS: 9, Ms: 2, XVsUniform: 1.1,
				Gops: 3, Touched: 256, Weights: 77, Pairs: 2, Dropped: 2, Identical: new(true)},
		},
		Bars: []BarResult{{Quant: "Q4_K", Kernel: "avx2", Picks: "uniform", Batch: 1, Of: ofTokens, Want: 1200, Got: 9, Verdict: reported}},
	}
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"machine":{"cpu":"x","cores":2,"features":[],"go":"go1.26.0","int8_peak_gops":1817,"read_gbps":59.5},` +
		`"settings":{"scenario":"kernels","experts":256,"topk":8,"hidden":3072,"ffn":1024,"seed":1,"kernel":"avx2","threads":2,"repeat":5},` +
		`"results":[{"scenario":"kernels","batch":1,"quant":"Q4_K","kernel":"avx2","picks":"uniform","tokens_per_s":9,"ms_per_dispatch":2,` +
		`"x_vs_batch_1":1,"gops":3,"experts_touched":8,"expert_bytes":77,"int8_peak_share":0.1,"read_share":0.9,"allocs_per_row":0,` +
		`"pairs":7,"pairs_dropped":2,"identical":true},` +
		`{"scenario":"kernels","batch":512,"quant":"Q4_K","kernel":"avx2","picks":"hot","tokens_per_s":9,"ms_per_dispatch":2,` +
		`"x_vs_uniform":1.1,"gops":3,"experts_touched":256,"expert_bytes":77,"allocs_per_row":0,"pairs":2,"pairs_dropped":2,"identical":true}],` +
		`"bars":[{"quant":"Q4_K","kernel":"avx2","picks":"uniform","batch":1,"of":"tokens_per_s","want":1200,"got":9,"verdict":"reported"}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKernelsTableIsAlignedAndNarrow(t *testing.T) {
	var b strings.Builder
	table := NewKernelsTable(&b)
	for _, err := range []error{
		table.Head(),
		table.Row(KernelsResult{layer: "Q4_K", Batch: 1, Ms: 0.7361, TokensPerS: 1358.4, Gops: 205.1, PeakShare: 0.113, ReadShare: 0.987, Pairs: 5, Identical: new(true)}),
		table.Row(KernelsResult{layer: "Q4_K portable", Batch: 4096, Ms: 1e6, TokensPerS: 123456, Gops: 12345.6, PeakShare: 1, Pairs: 15, Dropped: 2, Identical: new(false)}),
		table.Row(KernelsResult{layer: "Q8_0 dense", Batch: 64, Ms: 2.345, TokensPerS: 27300, Gops: 515.1, PeakShare: 0.3, Pairs: 15, Dropped: 13, Identical: new(true)}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := `
layer          rows  ms/dispatch  tokens/s   GOP/s  of int8 peak  of read rate     pairs  identical
Q4_K              1        0.736      1358   205.1          11 %          99 %    5 of 5        yes
Q4_K portable  4096      1000000    123456   12346         100 %             -  13 of 15         NO
Q8_0 dense       64        2.345     27300   515.1         noisy         noisy   2 of 15        yes
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got%swant%s", got, want)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > Columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestThreadsAreThoseOfGo(t *testing.T) {
	k := smallKernels()
	r, err := k.Run(t.Context(), Observer[KernelsReport, KernelsResult]{Row: func(KernelsResult) {}})
	if err != nil || r.Settings.Threads != runtime.GOMAXPROCS(0) || r.Settings.Pairs != 2 || r.Settings.Budget != 0 {
		t.Errorf("error %v, settings %+v", err, r.Settings)
	}
}
