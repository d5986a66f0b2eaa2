package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"kvasir/engine"
	batching "kvasir/engine/schedule"
	"kvasir/engine/tiny"
	"kvasir/kernels/cpu"
	"kvasir/kernels/variant"
)

// ServeName is the name of the scenario Serve.
const ServeName = "serve"

// Serve measures what HTTP costs: the same engine called directly and asked over loopback by streams, in turns.
// Or, with Load, how it holds more than it can do; and with Vanish, what is left of clients that go.
type Serve struct {
	Path      string // of the model file; empty: one like Like is made
	Like      string // a preset of package synth; empty: kvasir-tiny
	Sequences []int  // streams at once; one point for each, ascending
	Tokens    int    // of each
	Pairs     int    // rounds of every point; 0: as many as it takes, and as Budget allows
	Budget    time.Duration
	Seed      uint64
	Load      time.Duration // three times of what it can do, for so long; 0: not measured
	Vanish    int           // clients that go; 0: not measured
	// Client is the command that runs ServeClient; empty: it runs in this process, and no processor time is told.
	Client []string

	least   time.Duration // that a limit is measured
	running int           // sequences at once under load
	waiting int           // requests that wait under load
}

// DefaultServe is the model and the points that bars are set for.
func DefaultServe() Serve {
	return Serve{
		Like: "anchor", Sequences: []int{64, 256}, Tokens: 32, Budget: 4 * time.Minute, Seed: 1,
		least: 300 * time.Millisecond, running: 64, waiting: 256,
	}
}

// QuickServe is kvasir-tiny, measured for a moment.
func QuickServe() Serve {
	s := DefaultServe()
	// A single stream of fewer tokens would be over before its client, another process, has said that it began.
	s.Like, s.Sequences, s.Tokens, s.Budget, s.least = "", []int{1, 8}, 256, 8*time.Second, 20*time.Millisecond
	return s
}

// vanishMost is how many clients may go: each takes two files of this machine.
const vanishMost = 10_000

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (s Serve) Check() error {
	m := Model{
		Path: s.Path, Like: s.Like, Sequences: s.Sequences, Prompt: 1, Tokens: s.Tokens, Pairs: s.Pairs, Budget: s.Budget, Seed: s.Seed,
	}
	if m.Path == "" && m.Like == "" {
		m.Path = tiny.Name // it is there
	}
	if err := m.Check(); err != nil {
		return err
	}
	switch {
	case len(s.Sequences) == 0:
		return fmt.Errorf("%w: --sequences 0, want at least one number", ErrSettings)
	case s.Load != 0 && (s.Load < time.Second || s.Load > 24*time.Hour):
		return fmt.Errorf("%w: --load %v, want 1s to 24h", ErrSettings, s.Load)
	case s.Load != 0 && s.Vanish != 0:
		return fmt.Errorf("%w: --load and --vanish are measured one at a time", ErrSettings)
	case s.Vanish < 0 || s.Vanish > vanishMost:
		return fmt.Errorf("%w: --vanish %d, want 1 to %d", ErrSettings, s.Vanish, vanishMost)
	}
	return nil
}

// Name says what the model is, in words.
func (s Serve) Name() string {
	switch {
	case s.Path != "":
		return filepath.Base(s.Path)
	case s.Like == "":
		return tiny.Name
	}
	return "random weights, dimensions of " + s.Like
}

// usual reports whether the points are those that bars are set for.
func (s Serve) usual() bool {
	d := DefaultServe()
	return s.Path == "" && s.Like == d.Like && s.least == d.least
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (s Serve) Run(ctx context.Context, o Observer[ServeReport, ServeResult]) (*ServeReport, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	s.least, s.running, s.waiting = max(s.least, time.Millisecond), max(s.running, 1), max(s.waiting, 1)
	if s.Load > 0 || s.Vanish > 0 {
		s.Sequences = nil
	}
	r := &serveRun{s: s, o: o, start: time.Now()}
	r.report = ServeReport{Machine: ReadMachine(), Results: []ServeResult{}, Settings: ServeSettings{
		Scenario: ServeName, Model: s.Name(), Tokens: s.Tokens, Seed: s.Seed, Kernel: kernel.Variant.String(),
		Threads: runtime.GOMAXPROCS(0), Budget: s.Budget.Seconds(), Pairs: s.Pairs, Apart: len(s.Client) > 0,
	}}
	if s.Pairs > 0 {
		r.report.Settings.Budget = 0
	}
	if r.backend, err = cpu.Default(); err != nil {
		return &r.report, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(r.backend.Threads() + 1)) // as kvasir serve does
	path, remove := s.Path, func() {}
	if s.Like != "" && s.Path == "" {
		made := Model{Like: s.Like, Seed: s.Seed}
		if path, remove, err = made.file(ctx, r.o.progress); err != nil {
			return &r.report, err
		}
	}
	defer remove()
	if err := r.open(path); err != nil {
		return &r.report, err
	}
	o.begin(&r.report)
	err = errors.Join(r.measure(ctx), r.close())
	r.finish()
	return &r.report, err
}

// open has a node serve the model, on loopback.
func (r *serveRun) open(path string) error {
	o := engine.ServeOptions{Listen: "127.0.0.1:0"}
	o.Path = path
	switch {
	case r.s.Vanish > 0:
		o.Sequences = r.s.Vanish // all are in the middle of their streams
	case r.s.Load > 0:
		o.Sequences, o.Waiting = r.s.running, r.s.waiting
	default:
		o.Sequences = r.s.Sequences[len(r.s.Sequences)-1]
	}
	r.places = o.Sequences + cmp.Or(o.Waiting, batching.DefaultWaiting)
	var err error
	if r.node, err = engine.NewServeNode(o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.node.Run(ctx) }() // ends with close
	r.close = func() error {
		cancel()
		return <-ended
	}
	return nil
}
