package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"kvasir/engine/synth"
	"kvasir/internal/machine"
	"kvasir/kernels/variant"
)

// ModelName is the name of the scenario Model.
const ModelName = "model"

// Model measures a whole model on this machine alone: the tokens that many sequences together make in a
// second, and how quickly a prompt is read.
type Model struct {
	Path      string // of the model file; empty: one with random weights is made, like Like
	Like      string // a preset of package synth
	Sequences []int  // decoded together; one point for each, ascending
	Prompt    int    // random tokens before those that are counted
	Tokens    int    // of each sequence, counted
	Prefill   int    // tokens of the prompt that is read in one go
	Pairs     int    // of every point; 0: as many as it takes, and as Budget allows
	Budget    time.Duration
	Seed      uint64 // of weights and prompts

	least time.Duration // that a limit is measured, and a point
}

// DefaultModel is the model on which others were measured, at the same points.
func DefaultModel() Model {
	return Model{
		Like: "anchor", Sequences: []int{1, 8, 64, 256, 512}, Prompt: 16, Tokens: 16, Prefill: 512,
		Budget: 4 * time.Minute, Seed: 1, least: 300 * time.Millisecond,
	}
}

// QuickModel is a tiny model, measured for a moment. It shows that everything works, and not how quick it
// is.
func QuickModel() Model {
	m := DefaultModel()
	m.Like, m.Sequences, m.Prefill = "mini", []int{1, 8}, 64
	m.Budget, m.least = 10*time.Second, 20*time.Millisecond
	return m
}

// Name says what the model is, in words.
func (m Model) Name() string {
	if m.Path != "" {
		return filepath.Base(m.Path)
	}
	return "random weights, dimensions of " + m.Like
}

// sequencesMost is how many sequences may be asked for.
const (
	sequencesMost = 4096
	tokensMost    = 1 << 16
)

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (m Model) Check() error {
	if m.Path == "" {
		if _, err := synth.Like(m.Like); err != nil {
			return fmt.Errorf("%w: --like: %w", ErrSettings, err)
		}
	}
	if len(m.Sequences) > 0 && !ascending(m.Sequences, sequencesMost) {
		return fmt.Errorf("%w: --sequences %s, want ascending numbers of 1 to %d", ErrSettings, commas(m.Sequences), sequencesMost)
	}
	for _, s := range []struct {
		name           string
		value, lo, top int
	}{
		{"prompt", m.Prompt, 1, tokensMost},
		{"tokens", m.Tokens, 1, tokensMost},
		{"prefill", m.Prefill, 0, tokensMost},
		{"repeat", m.Pairs, 0, repeatMax},
	} {
		if s.value < s.lo || s.value > s.top {
			return fmt.Errorf("%w: --%s %d, want %d to %d", ErrSettings, s.name, s.value, s.lo, s.top)
		}
	}
	if len(m.Sequences) == 0 && m.Prefill == 0 {
		return fmt.Errorf("%w: --sequences 0 leaves nothing to measure; want one number or more", ErrSettings)
	}
	if m.Budget < budgetLeast || m.Budget > budgetMost {
		return fmt.Errorf("%w: --budget %v, want %v to %v", ErrSettings, m.Budget, budgetLeast, budgetMost)
	}
	return nil
}

// usual reports whether the points are those that bars are set for.
func (m Model) usual() bool {
	d := DefaultModel()
	return m.Path == "" && m.Like == d.Like && m.Prompt == d.Prompt && m.Tokens == d.Tokens && m.least == d.least
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (m Model) Run(ctx context.Context, o Observer[ModelReport, ModelResult]) (*ModelReport, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	if m.least == 0 {
		m.least = DefaultModel().least
	}
	r := &modelRun{m: m, o: o, start: time.Now()}
	r.report = ModelReport{Machine: ReadMachine(), Results: []ModelResult{}, Settings: ModelSettings{
		Scenario: ModelName, Model: m.Name(), Prompt: m.Prompt, Tokens: m.Tokens, Prefill: m.Prefill, Seed: m.Seed,
		Kernel: kernel.Variant.String(), Threads: runtime.GOMAXPROCS(0), Budget: m.Budget.Seconds(), Pairs: m.Pairs,
	}}
	if m.Pairs > 0 {
		r.report.Settings.Budget = 0
	}
	if r.rig, err = m.open(ctx, o.progress); err != nil {
		return &r.report, err
	}
	defer r.rig.close()
	r.rig.settings(&r.report.Settings)
	o.begin(&r.report)
	err = r.measure(ctx)
	r.finish()
	return &r.report, err
}

// open makes the model ready, from its file or one that is made for this run.
func (m Model) open(ctx context.Context, progress func(float64, string)) (*modelRig, error) {
	path, remove, err := m.file(ctx, progress)
	if err != nil {
		return nil, err
	}
	rig, err := loadModel(path)
	if err != nil {
		remove()
		return nil, err
	}
	rig.remove = remove
	return rig, nil
}

// file returns the model file, and what removes it if it was made for this run.
func (m Model) file(ctx context.Context, progress func(float64, string)) (path string, remove func(), err error) {
	if m.Path != "" {
		return m.Path, func() {}, nil
	}
	shape, err := synth.Like(m.Like)
	if err != nil {
		return "", nil, err
	}
	plan, err := shape.Plan()
	if err != nil {
		return "", nil, err
	}
	if err := checkModelMemory(m.Like, plan.Size, machine.Read().Available); err != nil {
		return "", nil, err
	}
	folder, err := os.MkdirTemp("", "kvasir-bench-*")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) } // it was asked to be temporary
	path = filepath.Join(folder, m.Like+".gguf")
	progress(0, fmt.Sprintf("making the weights, %.2f GB", giga(float64(plan.Size))))
	if err := plan.Write(ctx, path, synth.Options{Seed: m.Seed}); err != nil {
		remove()
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return path, remove, nil
}
