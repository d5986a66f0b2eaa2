package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/engine/synth"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// smallModel is a model that takes milliseconds.
func smallModel() Model {
	return Model{
		Like: "mini", Sequences: []int{1, 5}, Prompt: 3, Tokens: 4, Prefill: 20, Pairs: 2, Budget: time.Hour, Seed: 7,
		least: time.Millisecond,
	}
}

func TestModelMeasuresEveryPoint(t *testing.T) {
	before, err := filepath.Glob(filepath.Join(os.TempDir(), "kvasir-bench-*"))
	if err != nil {
		t.Fatal(err)
	}
	var began bool
	var rows []ModelResult
	var doing []string
	r, err := smallModel().Run(t.Context(), Observer[ModelReport, ModelResult]{
		Begin:    func(r *ModelReport) { began = r.Empty() && r.Settings.File > 0 },
		Progress: func(_ float64, what string) { doing = append(doing, what) },
		Row:      func(x ModelResult) { rows = append(rows, x) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !began || len(rows) != 3 || len(r.Results) != 3 || !slices.Contains(doing, "5 sequences, pair 2") {
		t.Errorf("began %v, rows %+v, progress %q", began, rows, doing)
	}
	for i, want := range []modelPoint{{decoding, 1}, {decoding, 5}, {reading, 20}} {
		x := &r.Results[i]
		if x.Kind != want.kind || x.Batch != want.rows || x.TokensPerS <= 0 || x.Ms <= 0 || x.Gops <= 0 || x.Bytes <= 0 || x.Pairs != 2 {
			t.Errorf("result %d is %+v, want one of %+v", i, x, want)
		}
		if x.Identical == nil || !*x.Identical {
			t.Errorf("%s: tokens differ between runs", want.name())
		}
	}
	if r.Results[1].XVsBatch1 == 0 || r.Results[2].XVsBatch1 != 0 {
		t.Errorf("x_vs_batch_1 is %v and %v", r.Results[1].XVsBatch1, r.Results[2].XVsBatch1)
	}
	if s := &r.Settings; s.Load <= 0 || s.Experts != 16 || s.Quant != "Q4_K" || s.Arch != synth.Qwen35MoE {
		t.Errorf("settings %+v", s)
	}
	if r.Bars != nil || r.Missed() != nil || r.Different() != nil {
		t.Errorf("bars of a small model: %+v", r.Bars)
	}
	after, err := filepath.Glob(filepath.Join(os.TempDir(), "kvasir-bench-*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(after) > len(before) {
		t.Errorf("the model that was made is left behind: %q", after)
	}
	wantModelPrinted(t, r)
}

// wantModelPrinted looks at what is printed of a report.
func wantModelPrinted(t *testing.T, r *ModelReport) {
	t.Helper()
	var b bytes.Buffer
	table := NewModelTable(&b)
	if err := table.Head(); err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Results {
		if err := table.Row(x); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(b.String()) {
		if utf8.RuneCountInString(line) > Columns+1 {
			t.Errorf("a line of more than %d columns: %q", Columns, line)
		}
	}
	if words := strings.Join(r.Words(), "\n"); !strings.Contains(words, "Loading ") {
		t.Errorf("words %q", words)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// Tokens of every architecture in every format are made, depend on the seed, and are the same alone and
// together.
func TestModelsOfRandomWeightsMakeTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector half a minute")
	}
	for _, like := range []string{"anchor", "mini"} {
		for _, format := range []quant.Format{quant.F32, quant.F16, quant.Q8_0, quant.Q4K, quant.Q6K, quant.MXFP4} {
			one, two := madeBy(t, like, format, 1), madeBy(t, like, format, 2)
			if slices.Equal(one, two) {
				t.Errorf("%s in %s: seeds 1 and 2 make the same tokens %v", like, format, one)
			}
		}
	}
}

// madeBy returns 16 tokens of a small model, which it makes.
func madeBy(t *testing.T, like string, format quant.Format, seed uint64) []int32 {
	t.Helper()
	s, err := synth.Like(like)
	if err != nil {
		t.Fatal(err)
	}
	s.Layers, s.Hidden, s.FFN, s.Experts, s.TopK, s.Format = 4, 256, 256, 8, 2, format
	rig := rigOf(t, s, seed)
	prompts := [][]int32{{72, 101, 108}, {300, 7}, {9}}
	gen, err := newScheduled(rig, scheduledConfig{experts: rig.experts, sequences: len(prompts), tokens: 19})
	if err != nil {
		t.Fatal(err)
	}
	defer gen.close()
	together, err := gen.generate(t.Context(), prompts, 15)
	if err != nil {
		t.Fatalf("%s in %s, seed %d: %v", like, format, seed, err)
	}
	var all []int32
	for i, p := range prompts {
		alone, err := gen.generate(t.Context(), [][]int32{p}, 15)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(alone.tokens[0], together.tokens[i]) || len(together.tokens[i]) != 16 {
			t.Errorf("%s in %s: prompt %d makes %v alone and %v beside others", like, format, i, alone.tokens[0], together.tokens[i])
		}
		all = append(all, together.tokens[i]...)
	}
	wantSaneLogits(t, rig, prompts[0])
	return all
}

// rigOf makes a model and loads it.
func rigOf(t *testing.T, s synth.Shape, seed uint64) *modelRig {
	t.Helper()
	plan, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := plan.Write(t.Context(), path, synth.Options{Seed: seed}); err != nil {
		t.Fatal(err)
	}
	rig, err := loadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rig.close)
	return rig
}

// wantSaneLogits holds the logits after a prompt to what those of any model are like.
func wantSaneLogits(t *testing.T, rig *modelRig, prompt []int32) {
	t.Helper()
	seq, err := rig.model.NewMemory(0).NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Free()
	step := &model.Step{Seq: seq, Tokens: prompt}
	if err := rig.model.Forward(t.Context(), rig.experts, []*model.Step{step}); err != nil || step.Err != nil {
		t.Fatal(err, step.Err)
	}
	sum, square := 0.0, 0.0
	for _, v := range step.Logits {
		sum += float64(v)
		square += float64(v) * float64(v)
	}
	n := float64(len(step.Logits))
	if d := math.Sqrt(square/n - sum/n*sum/n); !(d > 0.05 && d < 20) {
		t.Errorf("logits have a deviation of %v", d)
	}
}

func TestCostOfTheAnchorIsWhatItsBarsAreDerivedFrom(t *testing.T) {
	s, err := synth.Like("anchor")
	if err != nil {
		t.Fatal(err)
	}
	s.Layers, s.Experts = 1, 8 // the rest follows
	rig := rigOf(t, s, 1)
	k := costOfFile(t, rig)
	near := func(what string, got, want int64) {
		t.Helper()
		if got < want*97/100 || got > want*103/100 {
			t.Errorf("%s: %d, want about %d", what, got, want)
		}
	}
	near("products of a pick", k.expertProducts, 3*2048*768)
	near("products of attention and router", k.denseProducts, 10_485_760+2048*8)
	near("products of the head", k.headProducts, 2048*512)
	near("bytes of an expert", k.expert, 3*2048*768*144/256)
	near("bytes that are dense", k.dense, 10_485_760*144/256+2048*8*4)
	near("bytes of a batch that picks all", int64(k.bytes(counts{calls: 1, touched: 8})), k.dense+k.head+8*k.expert)
	near("products of two tokens, one wanted", int64(k.products(2, 1, counts{picks: 16})), 2*k.denseProducts+16*k.expertProducts+k.headProducts)
}

// costOfFile is the cost with weights as they are in the file.
func costOfFile(t *testing.T, rig *modelRig) modelCost {
	t.Helper()
	k, err := costOf(rig.file, &rig.model.Config, variant.Portable)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestCostLeavesOutMTP(t *testing.T) {
	s, err := synth.Like("mini")
	if err != nil {
		t.Fatal(err)
	}
	without := costOfFile(t, rigOf(t, s, 1))
	s.MTP = 1
	if with := costOfFile(t, rigOf(t, s, 1)); with != without {
		t.Errorf("cost %+v with an MTP block, %+v without", with, without)
	}
}

func TestModelBarsScaleWithTheLimits(t *testing.T) {
	report := func(peak, read, rate float64) *ModelReport {
		r := &ModelReport{Machine: Machine{Int8Peak: peak, Read: read}}
		for _, n := range []int{1, 64, 256, 512} {
			r.Results = append(r.Results, ModelResult{Kind: decoding, Batch: n, TokensPerS: rate, Pairs: 5})
		}
		r.Results = append(r.Results, ModelResult{Kind: reading, Batch: 512, TokensPerS: rate, Pairs: 5})
		r.Bars = judgeModel(r)
		return r
	}
	f := func(name string, r *ModelReport, want ...string) {
		t.Helper()
		var got []string
		for _, v := range r.Bars {
			got = append(got, v.Verdict)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	f("the anchor", report(anchorPeak, anchorRead, 1500), met, met, met, met, missed)
	f("half of its peak", report(anchorPeak/2, anchorRead, 1100), met, missed, met, met, met)
	f("half of its rate of memory", report(anchorPeak, anchorRead/2, 600), met, met, missed, missed, missed)
	f("no peak", report(0, anchorRead, 1500), met, met, unknown, unknown, unknown)
	noise := report(anchorPeak, anchorRead, 10)
	if n := len(noise.Missed()); n != 5 {
		t.Errorf("%d bars are missed, want 5", n)
	}
	for i := range noise.Results {
		noise.Results[i].Dropped = 3
	}
	noise.Results[0].Pairs = 4
	noise.Bars = judgeModel(noise)
	f("noise", noise, few, noisy, noisy, noisy, noisy)
	for _, line := range noise.verdicts()[1:] {
		if utf8.RuneCountInString(line) > Columns {
			t.Errorf("a line of more than %d columns: %q", Columns, line)
		}
	}
}

func TestModelSettingsThatCannotBe(t *testing.T) {
	f := func(want string, change func(*Model)) {
		t.Helper()
		m := smallModel()
		change(&m)
		_, err := m.Run(t.Context(), Observer[ModelReport, ModelResult]{})
		if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	f("--like", func(m *Model) { m.Like = "gpt" })
	f("--sequences 8,1", func(m *Model) { m.Sequences = []int{8, 1} })
	f("--sequences 0", func(m *Model) { m.Sequences = []int{0} })
	f("--sequences 5000", func(m *Model) { m.Sequences = []int{5000} })
	f("--prompt 0", func(m *Model) { m.Prompt = 0 })
	f("--tokens 0", func(m *Model) { m.Tokens = 0 })
	f("--prefill -1", func(m *Model) { m.Prefill = -1 })
	f("--sequences 0 leaves nothing", func(m *Model) { m.Sequences, m.Prefill = nil, 0 })
	f("--budget", func(m *Model) { m.Budget = 0 })
	m := smallModel()
	m.Path = filepath.Join(t.TempDir(), "none.gguf")
	if _, err := m.Run(t.Context(), Observer[ModelReport, ModelResult]{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v without a file", err)
	}
	m.Path = filepath.Join(t.TempDir(), "text.gguf")
	if err := os.WriteFile(m.Path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Run(t.Context(), Observer[ModelReport, ModelResult]{}); !errors.Is(err, gguf.ErrNotGGUF) {
		t.Errorf("error %v with text for a model", err)
	}
}

func TestModelLeavesOutWhatHasNoRoom(t *testing.T) {
	m := smallModel()
	m.Prefill = 5000 // the context is 4096
	r, err := m.Run(t.Context(), Observer[ModelReport, ModelResult]{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 2 || !slices.Equal(r.Settings.LeftOut, []string{"prefill of 5000 tokens"}) {
		t.Errorf("%d results, left out %q", len(r.Results), r.Settings.LeftOut)
	}
}

func TestModelEndsWhenItIsAskedTo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, err := smallModel().Run(ctx, Observer[ModelReport, ModelResult]{Row: func(ModelResult) { cancel() }})
	if !errors.Is(err, context.Canceled) || len(r.Results) != 1 {
		t.Errorf("error %v with %d results", err, len(r.Results))
	}
}
