package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"time"

	"kvasir/engine"
	"kvasir/engine/experts"
	"kvasir/engine/worker"
	"kvasir/internal/machine"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// Run measures. Results come in the order of batches, those of one batch in the order local, 0 ms, round
// trips; and at each of these one dispatch at a time first.
func (d Dispatch) Run(ctx context.Context, o Observer[Report, Result]) (*Report, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	weights, err := d.shape().Bytes()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	if err := d.checkMemory(weights, machine.Read().Available); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	threads := runtime.GOMAXPROCS(0)
	r := &dispatchRun{d: d, o: o, start: time.Now(), schedule: schedule{
		batches: d.batches(), repeat: d.Repeat, budget: d.Budget,
	}}
	r.report = Report{name: d.Name(), Machine: ReadMachine(), Results: []Result{}, Settings: Settings{
		Scenario: d.scenario(), Experts: d.Experts, TopK: d.TopK, Hidden: d.Hidden, FFN: d.FFN,
		Quant: d.Quant.String(), Seed: d.Seed, Weights: weights, Kernel: kernel.Variant.String(), Threads: threads,
		Workers: d.Workers, Worker: d.Worker.String(), Budget: d.Budget.Seconds(), Repeat: d.Repeat,
		Batches: []int{}, Rounds: []int{},
	}}
	d.settings(&r.report.Settings)
	o.begin(&r.report)
	defer r.close()
	if err := r.setUp(ctx, threads); err != nil {
		return &r.report, err
	}
	r.schedule.begin(r.elapsed())
	r.start = time.Now()
	err = r.measure(ctx, r)
	r.finish()
	return &r.report, err
}

// settings fills in what only some runs have.
func (d Dispatch) settings(s *Settings) {
	if d.Repeat > 0 {
		s.Budget = 0
	}
	if far := d.far(); len(far) > 0 {
		s.RTT = milliseconds(far[0])
	}
	if d.Worker != (Speed{}) {
		s.Weights = 0
	}
	s.Jitter, s.Up, s.Down = milliseconds(d.Path.Jitter), int64(d.Path.Up), int64(d.Path.Down)
	if d.Path.Stall.For > 0 {
		s.Stall = d.Path.Stall.String()
	}
}

// dispatchRun is a Run under way. One goroutine owns it.
type dispatchRun struct {
	d        Dispatch
	o        Observer[Report, Result]
	report   Report
	schedule schedule
	start    time.Time

	place engine.Placement // of the experts; nil: each worker has the same share
	ways  []*way           // in the order of results
	paths []*calibrated
	procs int // GOMAXPROCS as it was; 0: not changed
	peaks []float64
	reads []float64
	reach int // bytes of one expert, as they are read

	rows, batch *moe.Batch // all rows, and the first of them
	want, got   moe.Partials
}

func (r *dispatchRun) elapsed() time.Duration { return time.Since(r.start) }

// tuneRows is how many rows the exponent of the layer is measured over.
const tuneRows = 16

// tune gives the layer the exponent of a profile, on which the bytes of its answers depend. Its rows are
// the same for every --batch.
func (d Dispatch) tune(ctx context.Context, s *experts.Store) (*experts.Store, ref.Profile, error) {
	d.Batch = tuneRows
	b, err := d.makeRows(s.RowFormat(0))
	if err != nil {
		return nil, ref.Profile{}, err
	}
	return s.Tune(ctx, b)
}

// finish fills in what is known at the end.
func (r *dispatchRun) finish() {
	m := &r.report.Machine
	m.atBest(r.peaks, r.reads)
	if n := len(r.peaks); n > 1 {
		r.report.drift = r.peaks[n-1]/r.peaks[0] - 1
	}
	for i, c := range r.paths {
		r.report.Settings.Paths[i].Got = c.pinger.pings()
	}
	for _, p := range r.report.Settings.Paths {
		if p.RTT > 0 && p.RTT == r.report.Settings.RTT {
			r.report.Settings.Got = p.Got
		}
	}
	r.report.Bars = judgeDispatch(&r.report)
}

// layer makes what computes the layer, and how its rows are stored.
func (r *dispatchRun) layer(ctx context.Context) (x moe.Experts, format moe.RowFormat, profile ref.Profile, err error) {
	d := r.d
	if d.Worker != (Speed{}) {
		return newStub(d.Worker, d.TopK, d.Hidden, d.Seed), stubFormat(d.Quant), ref.DefaultProfile(1), nil
	}
	r.o.progress(0, "making the weights")
	store, err := experts.Synthetic(d.shape(), d.Seed)
	if err != nil {
		return nil, 0, profile, err
	}
	format = store.RowFormat(0)
	if err := ctx.Err(); err != nil {
		return nil, 0, profile, err
	}
	if store, profile, err = d.tune(ctx, store); err != nil {
		return nil, 0, profile, err
	}
	return experts.NewLocal(store), format, profile, nil
}

// stubFormat is how rows for weights of a format are stored.
func stubFormat(f quant.Format) moe.RowFormat {
	switch {
	case f.IsK():
		return moe.RowQ8K
	case f.IsBlock32():
		return moe.RowQ8
	}
	return moe.RowF32
}

func (r *dispatchRun) setUp(ctx context.Context, threads int) error {
	d := r.d
	x, format, profile, err := r.layer(ctx)
	if err != nil {
		return err
	}
	if r.rows, err = d.makeRows(format); err != nil {
		return err
	}
	if r.batch, err = moe.NewBatch(r.rows.Shape, d.Batch, d.Batch*d.TopK); err != nil {
		return err
	}
	if r.reach, err = d.expertBytes(); err != nil {
		return err
	}
	// What has slept must find a processor of the runtime at once: with one for each goroutine that
	// computes, the emulated path would be up to 10 ms late.
	r.procs = runtime.GOMAXPROCS(threads + 2)
	r.ways = append(r.ways, &way{kind: local, x: x})
	if d.Alone {
		return ctx.Err()
	}
	return r.swarms(ctx, worker.Model{
		Experts: x, Layers: 1, PerLayer: d.Experts, Hidden: d.Hidden,
		Hash: d.hash(), Profile: experts.HashProfile(profile),
	})
}

// swarms starts one at 0 ms and one at each round trip; each has two ways, of which one keeps several
// dispatches under way.
func (r *dispatchRun) swarms(ctx context.Context, m worker.Model) error {
	d := r.d
	r.o.progress(0, "starting gateways, hubs and workers")
	for _, rtt := range append([]time.Duration{0}, d.far()...) {
		c := swarmConfig{kind: near, rtt: rtt, path: d.Path, workers: d.Workers, place: r.place, wrap: d.wrap, model: m}
		if rtt > 0 {
			c.kind = far
		}
		if s, ok := m.Experts.(*stub); ok {
			c.wrap = func(moe.Experts) moe.Experts {
				device := s.another()
				return d.wrapped(device)
			}
		}
		w, err := newSwarmWay(ctx, c)
		if err != nil {
			return err
		}
		piped := *w
		piped.piped, piped.swarm, piped.links = true, nil, nil // the other way closes them
		r.ways = append(r.ways, w, &piped)
		if rtt == 0 && d.Path.Up == 0 && d.Path.Down == 0 {
			continue
		}
		r.o.progress(0, fmt.Sprintf("calibrating the path of %v", rtt))
		p, err := calibrate(ctx, w.links[0], rtt, d.Path)
		if err != nil {
			return err
		}
		r.report.Settings.Paths = append(r.report.Settings.Paths, p.settings)
		r.paths = append(r.paths, p)
	}
	return nil
}

func (d Dispatch) wrapped(x moe.Experts) moe.Experts {
	if d.wrap != nil {
		return d.wrap(x)
	}
	return x
}

// expertBytes is what computing with one expert reads, as its weights lie in memory.
func (d Dispatch) expertBytes() (int, error) {
	b, err := cpu.Default()
	if err != nil {
		return 0, err
	}
	k := Kernels{Experts: 1, TopK: 1, Hidden: d.Hidden, FFN: d.FFN, Batch: 1, Seed: d.Seed}
	l, err := k.reference(d.Quant)
	if err != nil {
		return 0, err
	}
	return expertBytes(l.Experts[0], b.Variant()), nil
}

// hash names the random model: whoever has the same shape and seed has the same weights.
func (d Dispatch) hash() [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "kvasir synthetic layer %d %d %d %s %d %v", d.Experts, d.Hidden, d.FFN, d.Quant, d.Seed, d.Worker))
}

func (r *dispatchRun) close() {
	for _, p := range r.paths {
		p.pinger.close()
	}
	for _, w := range r.ways {
		w.close()
	}
	if r.procs > 0 {
		runtime.GOMAXPROCS(r.procs)
	}
}

// makeRows returns the largest batch.
func (d Dispatch) makeRows(format moe.RowFormat) (*moe.Batch, error) {
	return makeRows(moe.Shape{Hidden: d.Hidden, Format: format}, d.Batch, d.Seed, uniform(d.Experts, d.TopK))
}
