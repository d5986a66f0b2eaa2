package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"kvasir/engine/experts"
	"kvasir/engine/worker"
	"kvasir/internal/machine"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// DispatchName is the name of the scenario Dispatch.
const DispatchName = "dispatch"

// ErrSettings: a setting is out of its limits, or does not go with another.
var ErrSettings = errors.New("bench: bad setting")

// Limits of settings.
const (
	workersMax  = 64
	rttMax      = 10 * time.Second
	repeatMax   = 10_000
	ffnMax      = 1 << 16
	budgetLeast = time.Second
	budgetMost  = 24 * time.Hour
)

// Dispatch measures one layer of experts with random weights in batches of 1, 2, 4 … rows: computed here
// by a function call, by workers behind gateway and hub at 0 ms, and by the same at a round trip. One
// batch is under way at a time.
type Dispatch struct {
	Experts, TopK int
	Hidden, FFN   int
	Batch         int           // the largest
	RTT           time.Duration // between workers and gateway; 0: the path at 0 ms only
	Workers       int
	Repeat        int           // rounds of every batch; 0: as many as Budget allows
	Budget        time.Duration // for the whole run
	Seed          uint64        // of weights, rows and picks

	least time.Duration                 // that the limits of the machine are measured; 0: they are not
	wrap  func(moe.Experts) moe.Experts // of the workers' executors, for tests
}

// DefaultDispatch is one layer of Qwen3.5-122B-A10B.
func DefaultDispatch() Dispatch {
	return Dispatch{
		Experts: 256, TopK: 8, Hidden: 3072, FFN: 1024, Batch: 512,
		RTT: 13 * time.Millisecond, Workers: 1, Budget: 110 * time.Second, Seed: 1,
		least: 300 * time.Millisecond,
	}
}

// QuickDispatch is a small layer that takes seconds. What it tells of a large one is how the parts work
// together, not how quick they are.
func QuickDispatch() Dispatch {
	d := DefaultDispatch()
	d.Experts, d.Hidden, d.FFN, d.Batch, d.Budget = 16, 1024, 256, 64, 10*time.Second
	d.least = 100 * time.Millisecond
	return d
}

// Name says what the layer is, in words.
func (d Dispatch) Name() string {
	return fmt.Sprintf("%s, %s", layerName(d.Experts, d.TopK, d.Hidden, d.FFN), quant.Q4K)
}

// layerName says what dimensions a layer has.
func layerName(experts, topK, hidden, ffn int) string {
	name := "one layer"
	if x := DefaultDispatch(); experts == x.Experts && topK == x.TopK && hidden == x.Hidden && ffn == x.FFN {
		name += " of Qwen3.5-122B-A10B"
	}
	return fmt.Sprintf("%s: %d experts, top-%d, hidden %d, FFN %d", name, experts, topK, hidden, ffn)
}

func (d Dispatch) shape() experts.SyntheticShape {
	return experts.SyntheticShape{Hidden: d.Hidden, FFN: d.FFN, Experts: d.Experts, Format: quant.Q4K}
}

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (d Dispatch) Check() error {
	for _, s := range []struct {
		name           string
		value, lo, top int
	}{
		{"experts", d.Experts, 1, moe.MaxExperts},
		{"topk", d.TopK, 1, moe.MaxTopK},
		{"hidden", d.Hidden, 256, moe.MaxHidden},
		{"ffn", d.FFN, 256, ffnMax},
		{"batch", d.Batch, 1, moe.MaxRows},
		{"workers", d.Workers, 1, workersMax},
		{"repeat", d.Repeat, 0, repeatMax},
	} {
		if s.value < s.lo || s.value > s.top {
			return fmt.Errorf("%w: --%s %d, want %d to %d", ErrSettings, s.name, s.value, s.lo, s.top)
		}
	}
	switch {
	case d.TopK > d.Experts:
		return fmt.Errorf("%w: --topk %d of %d experts; lower --topk or raise --experts", ErrSettings, d.TopK, d.Experts)
	case d.Workers > d.Experts:
		return fmt.Errorf("%w: --workers %d for %d experts; lower --workers", ErrSettings, d.Workers, d.Experts)
	case d.Hidden%256 != 0:
		return fmt.Errorf("%w: --hidden %d, want a multiple of 256, the block of %s", ErrSettings, d.Hidden, quant.Q4K)
	case d.FFN%256 != 0:
		return fmt.Errorf("%w: --ffn %d, want a multiple of 256, the block of %s", ErrSettings, d.FFN, quant.Q4K)
	case d.RTT < 0 || d.RTT > rttMax:
		return fmt.Errorf("%w: --rtt %v, want 0 to %v", ErrSettings, d.RTT, rttMax)
	case d.Budget < budgetLeast || d.Budget > budgetMost:
		return fmt.Errorf("%w: --budget %v, want %v to %v", ErrSettings, d.Budget, budgetLeast, budgetMost)
	}
	return nil
}

// checkMemory refuses what this machine has no room for.
func (d Dispatch) checkMemory(weights int, available uint64) error {
	// Beside the layer: the answers to the largest batch, as 8-byte sums, those that are kept here and those
	// on the way, of which 6 were seen at once; the h of every pick; and what the rate of memory is measured on.
	return checkMemory(d.Experts, weights, d.Batch*d.Hidden*8*8+hBytes(d.Batch*d.TopK, d.FFN)+256<<20, available)
}

// hBytes returns how much memory the h of so many picks takes while a batch is computed.
func hBytes(picks, ffn int) int { return matmul.RecordsBytes(ffn, picks) }

// checkMemory refuses a layer with so many bytes of weights, and of what a run needs besides, that this
// machine has no room for. 0 bytes available: the system does not tell.
func checkMemory(experts, weights, besides int, available uint64) error {
	// Repacked weights are a little larger, and beside them are a few experts as they were, and the program.
	need := uint64(weights) + uint64(weights)/32 + 4*uint64(weights/experts) + uint64(besides) + 256<<20
	if available > 0 && need > available {
		return fmt.Errorf("%w: a layer of %d experts needs %.1f GB of memory, %.1f GB are available; lower --experts, or use --quick",
			ErrSettings, experts, float64(need)/1e9, float64(available)/1e9)
	}
	return nil
}

// Run measures. Results come in the order of batches, those of one batch in the order local, 0 ms, round
// trip.
func (d Dispatch) Run(ctx context.Context, o Observer) (*Report, error) {
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
		batches: batchesUpTo(d.Batch), repeat: d.Repeat, budget: d.Budget,
	}}
	r.report = Report{Machine: ReadMachine(), Results: []Result{}, Settings: Settings{
		Scenario: DispatchName, Experts: d.Experts, TopK: d.TopK, Hidden: d.Hidden, FFN: d.FFN,
		Quant: quant.Q4K.String(), Seed: d.Seed, Weights: weights, Kernel: kernel.Variant.String(), Threads: threads,
		Workers: d.Workers, RTT: milliseconds(d.RTT), Budget: d.Budget.Seconds(), Repeat: d.Repeat,
		Batches: []int{}, Rounds: []int{},
	}}
	if d.Repeat > 0 {
		r.report.Settings.Budget = 0
	}
	o.begin(&r.report)
	defer r.close()
	if err := r.setUp(ctx, threads); err != nil {
		return &r.report, err
	}
	err = r.measure(ctx)
	r.limits()
	if r.pinger != nil {
		r.report.Settings.Got = r.pinger.pings()
	}
	return &r.report, err
}

// dispatchRun is a Run under way. One goroutine owns it.
type dispatchRun struct {
	d        Dispatch
	o        Observer
	report   Report
	schedule schedule
	start    time.Time

	ways   []*way // in the order of results
	pinger *pinger
	procs  int // GOMAXPROCS as it was; 0: not changed
	peaks  []float64
	reads  []float64

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

// limits measures what the machine can do now, and tells what it could do on the whole.
func (r *dispatchRun) limits() {
	b, err := cpu.Default()
	if err != nil || r.d.least == 0 {
		return
	}
	m := &r.report.Machine
	if peak := b.PeakRate(r.d.least); peak > 0 {
		r.peaks = append(r.peaks, peak)
		m.Int8Peak = round(giga(2 * middle(r.peaks)))
	}
	if read := machine.ReadRate(b.Threads(), r.d.least); read > 0 {
		r.reads = append(r.reads, read)
		m.Read = round(giga(middle(r.reads)))
	}
	if n := len(r.peaks); n > 1 {
		r.report.drift = r.peaks[n-1]/r.peaks[0] - 1
	}
}

func (r *dispatchRun) setUp(ctx context.Context, threads int) error {
	d := r.d
	r.o.progress(0, "making the weights")
	store, err := experts.Synthetic(d.shape(), d.Seed)
	if err != nil {
		return err
	}
	if r.rows, err = d.makeRows(store.RowFormat(0)); err != nil {
		return err
	}
	if r.batch, err = moe.NewBatch(r.rows.Shape, d.Batch, d.Batch*d.TopK); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	store, profile, err := d.tune(ctx, store)
	if err != nil {
		return err
	}
	r.limits()
	x := experts.NewLocal(store)

	// What has slept must find a processor of the runtime at once: with one for each goroutine that
	// computes, the emulated path would be up to 10 ms late.
	r.procs = runtime.GOMAXPROCS(threads + 2)
	r.ways = append(r.ways, &way{kind: local, x: x})
	r.o.progress(0, "starting gateways, hubs and workers")
	c := swarmConfig{kind: near, workers: d.Workers, wrap: d.wrap, model: worker.Model{
		Experts: x, Layers: 1, PerLayer: d.Experts, Hidden: d.Hidden,
		Hash: d.hash(), Profile: experts.HashProfile(profile),
	}}
	for _, rtt := range slices.Compact([]time.Duration{0, d.RTT}) {
		if c.rtt = rtt; rtt > 0 {
			c.kind = far
		}
		w, err := newSwarmWay(ctx, c)
		if err != nil {
			return err
		}
		r.ways = append(r.ways, w)
	}
	if d.RTT > 0 {
		r.pinger, err = startPinger(ctx, r.ways[len(r.ways)-1].links[0])
	}
	return err
}

// hash names the random model: whoever has the same shape and seed has the same weights.
func (d Dispatch) hash() [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "kvasir synthetic layer %d %d %d %s %d", d.Experts, d.Hidden, d.FFN, quant.Q4K, d.Seed))
}

func (r *dispatchRun) close() {
	if r.pinger != nil {
		r.pinger.close()
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
