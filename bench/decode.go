package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"kvasir/engine"
	"kvasir/engine/synth"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/kernels/variant"
)

// DecodeName is the name of the scenario Decode.
const DecodeName = "decode"

// Decode measures a whole model whose experts are on workers behind gateway and hub: sequences make tokens
// together, one micro-batch at a time, and with as many under way as hide the way. The same model here alone,
// and the same workers at 0 ms, take turns with it.
type Decode struct {
	Model       // its Sequences are those of one micro-batch; there is no prefill
	Layers  int // that are on workers, those in the middle; 0: all
	RTTs    []time.Duration
	Line    Path // what else lies between
	Workers int
	Worker  Speed // of stubs; zero: workers compute
	Flights int   // micro-batches under way where they overlap; 0: as many as hide the way
}

// DefaultDecode is the model of DefaultModel.
func DefaultDecode() Decode {
	m := DefaultModel()
	m.Sequences, m.Prefill, m.Budget, m.Prompt = []int{1, 8, 64}, 0, 100*time.Second, 4
	m.least = 100 * time.Millisecond
	return Decode{Model: m, RTTs: []time.Duration{13 * time.Millisecond}, Workers: 1}
}

// QuickDecode is a tiny model, measured for a moment.
func QuickDecode() Decode {
	d, m := DefaultDecode(), QuickModel()
	d.Like, d.Sequences, d.Budget, d.least = m.Like, m.Sequences, m.Budget, m.least
	return d
}

// decodeFlights is the most micro-batches that are under way unless more are asked for: each has sequences of
// its own, and they have memory.
const decodeFlights = 8

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (d Decode) Check() error {
	if len(d.Sequences) == 0 {
		return fmt.Errorf("%w: --sequences 0, want at least one", ErrSettings)
	}
	if err := d.Model.Check(); err != nil {
		return err
	}
	// The path has the limits that it has in Dispatch.
	x := d.dispatch()
	x.Experts = max(x.Experts, d.Workers)
	if err := x.Check(); err != nil {
		return err
	}
	if most := max(d.Flights, 1) * d.Sequences[len(d.Sequences)-1]; most > sequencesMost {
		return fmt.Errorf("%w: --flights %d of --sequences %d is %d sequences, want at most %d", ErrSettings, d.Flights,
			d.Sequences[len(d.Sequences)-1], most, sequencesMost)
	}
	if d.Path == "" { // what a file has is known when it is read
		m, err := synth.Like(d.Like)
		if err != nil {
			return fmt.Errorf("%w: --like: %w", ErrSettings, err)
		}
		return d.fits(m.Layers)
	}
	return nil
}

// fits refuses more layers or workers than a model has layers.
func (d Decode) fits(layers int) error {
	if d.Layers < 0 || d.Layers > layers {
		return fmt.Errorf("%w: --layers %d, want 0 (all) to %d, which the model has", ErrSettings, d.Layers, layers)
	}
	if d.Workers > layers {
		return fmt.Errorf("%w: --workers %d for %d layers; lower --workers", ErrSettings, d.Workers, layers)
	}
	return nil
}

// dispatch is the settings of the path, for what Decode has in common with Dispatch.
func (d Decode) dispatch() Dispatch {
	x := DefaultDispatch()
	x.scene, x.RTTs, x.Path, x.Workers, x.Worker, x.Flights = DecodeName, d.RTTs, d.Line, d.Workers, d.Worker, d.Flights
	x.Budget, x.Repeat, x.Seed, x.least = d.Budget, d.Pairs, d.Seed, d.least
	return x
}

// decodeRun is a run of Decode under way.
type decodeRun struct {
	dispatchRun
	m      Decode
	rig    *modelRig
	lo, hi int // layers that are on workers

	prompts [][]int32
	made    [][]int32 // by the first that had the prompt
	rng     *rand.Rand
	fed     map[*way]*decoder
}

// decoder is a way for a model's sequences.
type decoder struct {
	x     *counter
	turns *scheduled
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (d Decode) Run(ctx context.Context, o Observer[Report, Result]) (*Report, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	threads := runtime.GOMAXPROCS(0)
	r := &decodeRun{m: d, rng: rand.New(rand.NewPCG(d.Seed, 1)), fed: map[*way]*decoder{}}
	r.d, r.o, r.start = d.dispatch(), o, time.Now()
	r.schedule = schedule{batches: d.Sequences, repeat: d.Pairs, budget: d.Budget}
	r.report = Report{Machine: ReadMachine(), Results: []Result{}, Settings: Settings{
		Scenario: DecodeName, Seed: d.Seed, Kernel: kernel.Variant.String(), Threads: threads, Model: d.Name(),
		Prompt: d.Prompt, Tokens: d.Tokens, Workers: d.Workers, Worker: d.Worker.String(), Budget: d.Budget.Seconds(),
		Repeat: d.Pairs, Batches: []int{}, Rounds: []int{},
	}}
	r.d.settings(&r.report.Settings)
	if r.rig, err = d.open(ctx, o.progress); err != nil {
		return &r.report, err
	}
	defer r.rig.close()
	if err := r.describe(); err != nil {
		return &r.report, err
	}
	o.begin(&r.report)
	defer r.close()
	if err := r.open(ctx, threads); err != nil {
		return &r.report, err
	}
	r.schedule.begin(r.elapsed())
	r.start = time.Now()
	err = r.measure(ctx, r)
	r.finish()
	return &r.report, err
}

// describe fills in what the model is, and which layers go to workers.
func (r *decodeRun) describe() error {
	c, s := &r.rig.model.Config, &r.report.Settings
	if err := r.m.fits(c.Layers); err != nil {
		return err
	}
	n := r.m.Layers
	if n == 0 {
		n = c.Layers
	}
	r.lo = (c.Layers - n) / 2
	r.hi = r.lo + n
	s.Layers, s.Remote = c.Layers, n
	s.Hidden, s.Experts, s.TopK, s.FFN, s.Quant = c.Hidden, c.Experts, c.TopK, c.FFN, r.rig.cost.format.String()
	s.Weights = int(r.rig.file.Size)
	r.d.TopK = c.TopK
	return nil
}

// open starts the swarms.
func (r *decodeRun) open(ctx context.Context, threads int) error {
	c := &r.rig.model.Config
	far := r.rig.experts.Experts
	if r.m.Worker != (Speed{}) {
		far = newStub(r.m.Worker, c.TopK, c.Hidden, r.m.Seed)
	}
	r.procs = runtime.GOMAXPROCS(threads + 2)
	home := far
	if s, ok := far.(*stub); ok {
		home = s.another()
	}
	r.ways = append(r.ways, &way{kind: local, x: home})
	r.place = engine.ByLayer(c.Layers, c.Experts)
	err := r.swarms(ctx, worker.Model{
		Experts: far, Layers: c.Layers, PerLayer: c.Experts, Hidden: c.Hidden, Hash: r.d.hash(),
	})
	if err != nil {
		return err
	}
	for range r.m.Sequences[len(r.m.Sequences)-1] * max(decodeFlights, r.m.Flights) {
		r.prompts = append(r.prompts, r.prompt())
	}
	r.made = make([][]int32, len(r.prompts))
	return nil
}

// prompt draws tokens.
func (r *decodeRun) prompt() []int32 {
	p := make([]int32, r.m.Prompt)
	for i := range p {
		p[i] = r.rng.Int32N(int32(r.rig.model.Vocab))
	}
	return p
}

// split sends the layers from lo to hi-1 one way and the others another.
type split struct {
	lo, hi    int
	far, here moe.Experts
}

// Forward implements moe.Experts.
func (s *split) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if b.Layer >= s.lo && b.Layer < s.hi {
		return s.far.Forward(ctx, b, out)
	}
	return s.here.Forward(ctx, b, out)
}

// decoderOf makes the scheduler of a way for micro-batches of n sequences.
func (r *decodeRun) decoderOf(w *way, n int) (*decoder, error) {
	x := &counter{Experts: &split{r.lo, r.hi, w.x, r.rig.experts.Experts}}
	turns, err := newScheduled(r.rig, scheduledConfig{
		experts: x, rows: n, flights: max(1, w.flights), sequences: n * max(1, w.flights), tokens: r.m.Prompt + r.m.Tokens + 1,
	})
	if err != nil {
		return nil, err
	}
	d := &decoder{x, turns}
	r.fed[w] = d
	return d, nil
}

func (r *decodeRun) name(n int) string { return modelPointName(decoding, n) }

func (r *decodeRun) begin(ctx context.Context, n int) ([]*way, error) { return r.ways, r.warm(ctx, n) }

func (r *decodeRun) end() {
	for _, d := range r.fed {
		d.turns.close()
	}
	clear(r.fed)
}

func (r *decodeRun) readable() bool { return r.m.Worker == Speed{} && r.rig.file.Size >= readLeast }

// warm runs each way once, and finds out how many micro-batches hide it.
func (r *decodeRun) warm(ctx context.Context, n int) error {
	var home, alone time.Duration
	for _, w := range r.ways {
		if w.piped {
			if w.flights = r.m.Flights; w.flights == 0 {
				x := r.d
				w.flights = min(decodeFlights, x.flightsFor(alone-home+r.stubTime(n), home))
			}
		}
		if _, err := r.decoderOf(w, n); err != nil {
			return err
		}
		var t tally
		if err := r.take(ctx, w, n, &t); err != nil {
			return err
		}
		if alone = t.times[0]; w.kind == local {
			home = alone
		}
	}
	return nil
}

// take has the sequences of a way make tokens, once.
func (r *decodeRun) take(ctx context.Context, w *way, n int, t *tally) error {
	d := r.fed[w]
	prompts := r.prompts[:n*max(1, w.flights)]
	var out, back int64
	if w.traffic != nil {
		out, back = w.traffic.load()
	}
	g, err := d.turns.generate(ctx, prompts, r.m.Tokens)
	if err != nil {
		return fmt.Errorf("%s: %w", w.label(), err)
	}
	if g.decoded == 0 {
		return fmt.Errorf("%w: --tokens %d are too few to count any", ErrSettings, r.m.Tokens)
	}
	if w.traffic != nil {
		o, b := w.traffic.load()
		t.out, t.back = t.out+o-out, t.back+b-back
		// All that travelled counts: the rows of the prompts, and those of the tokens.
		t.rows += len(prompts) * (r.m.Prompt + r.m.Tokens) * (r.hi - r.lo)
	}
	t.times = append(t.times, time.Duration(float64(g.decode)*float64(n)/float64(g.decoded)))
	t.dispatches++
	for i, made := range g.tokens {
		if r.made[i] == nil {
			r.made[i] = made
		}
		if !slices.Equal(made, r.made[i]) {
			t.identical = false
		}
	}
	return nil
}

// stubTime is what a step takes on one stub that has all layers that are away; 0: workers compute.
func (r *decodeRun) stubTime(n int) time.Duration {
	if r.m.Worker == (Speed{}) {
		return 0
	}
	return time.Duration(r.hi-r.lo) * r.m.Worker.of(n*r.d.TopK, r.d.TopK)
}

func (r *decodeRun) bounded(x *Result, m *measuring, k int, kept []int) {
	x.Allocs = nil // the scheduler's are among them
	if !m.tallies[k].identical {
		x.Identical = new(false)
	}
	if m.ways[k].kind != local {
		x.share(m, k, kept, func(home time.Duration) slowest { return r.stepBound(x.Batch, home, x.BytesOut, x.BytesBack) })
	}
}

// Bounds of a step beside those of a dispatch.
const boundBackbone = "the backbone"

// stepBound is the slowest part of a step of a micro-batch. A step here, with all experts, takes home. Workers that
// compute share this machine's processors with the backbone: together they cannot take less.
func (r *decodeRun) stepBound(n int, home time.Duration, outRow, backRow float64) slowest {
	s := slowest{home, "this machine's processors"}
	if stubs := r.stubTime(n); stubs > 0 {
		s = slowest{max(0, home-stubs), boundBackbone}
		s.part(stubs/time.Duration(r.m.Workers), boundWork)
	}
	s.lines(r.m.Line, float64(n*(r.hi-r.lo))/float64(r.m.Workers), outRow, backRow)
	return s
}

// checkModelMemory refuses a model that this machine has no room for.
func checkModelMemory(like string, size int64, available uint64) error {
	need := uint64(size) + uint64(size)/16 + 256<<20
	if available > 0 && need > available {
		return fmt.Errorf("%w: a model like %s needs %.1f GB of memory, %.1f GB are available; use --preset tiny or --like anchor",
			ErrSettings, like, float64(need)/1e9, float64(available)/1e9)
	}
	return nil
}
