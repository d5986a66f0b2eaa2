package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"kvasir/engine/experts"
	"kvasir/internal/machine"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// KernelsName is the name of the scenario Kernels.
const KernelsName = "kernels"

// Kernels measures the experts of one layer on this machine alone, against what the machine could do at
// best: against multiplications of int8 with nothing else to do, and against reading the weights with
// nothing else to do.
type Kernels struct {
	Experts, TopK int
	Hidden, FFN   int
	Batch         int           // the largest
	Pairs         int           // of every point; 0: as many as it takes, and as Budget allows
	Budget        time.Duration // for the whole run
	Seed          uint64        // of weights, rows and picks

	least time.Duration // that a limit is measured, and a point
}

// DefaultKernels is one layer of Qwen3.5-122B-A10B.
func DefaultKernels() Kernels {
	return Kernels{
		Experts: 256, TopK: 8, Hidden: 3072, FFN: 1024, Batch: 512,
		Budget: 150 * time.Second, Seed: 1, least: 300 * time.Millisecond,
	}
}

// QuickKernels is a small layer, measured for a moment. It shows that everything works, and not how quick
// it is.
func QuickKernels() Kernels {
	k := DefaultKernels()
	k.Experts, k.Hidden, k.FFN, k.Batch = 16, 1024, 256, 64
	k.Budget, k.least = 8*time.Second, 20*time.Millisecond
	return k
}

// Name says what the layer is, in words.
func (k Kernels) Name() string { return layerName(k.Experts, k.TopK, k.Hidden, k.FFN) }

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (k Kernels) Check() error {
	// The rest has the limits that it has in Dispatch.
	d := DefaultDispatch()
	d.Experts, d.TopK, d.Hidden, d.FFN, d.Batch = k.Experts, k.TopK, k.Hidden, k.FFN, k.Batch
	d.Repeat, d.Budget = k.Pairs, k.Budget
	return d.Check()
}

// usual reports whether the layer is the one that bars are set for.
func (k Kernels) usual() bool {
	return usualLayer(k.Experts, k.TopK, k.Hidden, k.FFN) && k.least == DefaultKernels().least
}

// Kinds of picks.
const (
	picksUniform = "uniform"    // experts are equally likely
	picksHot     = "hot"        // most rows pick one of them, beside others
	picksDense   = "one expert" // the layer has no other
)

// point is one thing to measure.
type point struct {
	format quant.Format
	kernel variant.Variant
	picks  string
	rows   int
}

// memoryRows is up to how many rows reading the weights takes longer than computing.
const memoryRows = 64

// reads reports whether memory is what bounds the point.
func (p *point) reads() bool { return p.picks == picksUniform && p.rows <= memoryRows }

// layer names what is measured; active is the variant that goes without saying.
func (p *point) layer(active variant.Variant) string {
	name := p.format.String()
	switch p.picks {
	case picksHot:
		name += " hot"
	case picksDense:
		name += " dense"
	}
	if p.kernel != active {
		name += " " + p.kernel.String()
	}
	return name
}

// points lists what is measured. Those of one layer follow each other.
func (k Kernels) points(active variant.Variant, available []variant.Variant) []point {
	var list []point
	add := func(f quant.Format, v variant.Variant, picks string, rows int) {
		list = append(list, point{f, v, picks, min(rows, k.Batch)})
	}
	for _, rows := range []int{1, 8, 64, 128} {
		if rows < k.Batch {
			add(quant.Q4K, active, picksUniform, rows)
		}
	}
	add(quant.Q4K, active, picksUniform, k.Batch)
	if k.Experts > k.TopK && k.Batch > 1 {
		add(quant.Q4K, active, picksHot, k.Batch)
	}
	add(quant.Q5K, active, picksUniform, k.Batch)
	add(quant.Q6K, active, picksUniform, k.Batch)
	add(quant.Q4K, active, picksDense, 64)
	add(quant.Q8_0, active, picksDense, 64)
	for _, v := range slices.Backward(available) {
		if v < active && v != variant.Portable {
			add(quant.Q4K, v, picksUniform, k.Batch)
		}
	}
	return list
}

// checkMemory refuses what this machine has no room for: the largest layer, repacked, and the answers.
func (k Kernels) checkMemory(available uint64) error {
	largest := 0
	for _, f := range []quant.Format{quant.Q4K, quant.Q5K, quant.Q6K} {
		n, err := experts.SyntheticShape{Hidden: k.Hidden, FFN: k.FFN, Experts: k.Experts, Format: f}.Bytes()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSettings, err)
		}
		largest = max(largest, n)
	}
	// Beside the layer: the experts that are compared with, as they were; answers; the h of every pick.
	besides := largest/k.Experts*min(k.Experts, distinct) + 4*k.Batch*k.Hidden*8 + hBytes(k.Batch*k.TopK, k.FFN)
	return checkMemory(k.Experts, largest, besides, available)
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (k Kernels) Run(ctx context.Context, o Observer[KernelsReport, KernelsResult]) (*KernelsReport, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	if err := k.checkMemory(machine.Read().Available); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	if k.least == 0 {
		k.least = DefaultKernels().least
	}
	threads := runtime.GOMAXPROCS(0)
	r := &kernelsRun{k: k, o: o, start: time.Now(), variant: kernel.Variant, active: cpu.New(kernel.Variant, threads)}
	defer r.active.Close()
	r.report = KernelsReport{Machine: ReadMachine(), Results: []KernelsResult{}, Settings: KernelsSettings{
		Scenario: KernelsName, Experts: k.Experts, TopK: k.TopK, Hidden: k.Hidden, FFN: k.FFN, Seed: k.Seed,
		Kernel: kernel.Variant.String(), Threads: threads, Budget: k.Budget.Seconds(), Pairs: k.Pairs,
	}}
	if k.Pairs > 0 {
		r.report.Settings.Budget = 0
	}
	o.begin(&r.report)
	err = r.measure(ctx, k.points(kernel.Variant, variant.Available()))
	r.finish()
	return &r.report, err
}

// kernelsRun is a Run under way. One goroutine owns it.
type kernelsRun struct {
	k      Kernels
	o      Observer[KernelsReport, KernelsResult]
	start  time.Time
	report KernelsReport

	variant variant.Variant
	active  *cpu.Backend // of it; its peak is the limit, also of plainer variants

	subject *subject
	peaks   []float64 // all that were measured
	reads   []float64
}

func (r *kernelsRun) measure(ctx context.Context, points []point) error {
	for i := range points {
		p := &points[i]
		done := float64(i) / float64(len(points))
		name := pointName(p.layer(r.variant), p.rows)
		if err := r.take(ctx, p, done); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		now := time.Since(r.start)
		m := &pointRun{
			r: r, p: p, name: name, done: done,
			schedule: pairsSchedule{fixed: r.k.Pairs, until: now + (r.k.Budget-now)/time.Duration(len(points)-i)},
		}
		pairs, err := m.pairs(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		x := r.result(p, pairs)
		x.Identical = new(m.identical)
		r.report.Results = append(r.report.Results, x)
		r.o.row(x)
	}
	r.subject.close()
	r.o.progress(1, "done")
	return nil
}

// take makes the layer of a point, unless it is there from the point before.
func (r *kernelsRun) take(ctx context.Context, p *point, done float64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s := r.subject; s != nil && s.format == p.format && s.kernel == p.kernel && s.dense == (p.picks == picksDense) {
		return nil
	}
	r.subject.close()
	r.subject = nil
	r.o.progress(done, fmt.Sprintf("%s, making the weights", p.layer(r.variant)))
	s, err := r.k.newSubject(ctx, p, r.active.Threads())
	r.subject = s
	return err
}

// finish fills in what is known at the end.
func (r *kernelsRun) finish() {
	m := &r.report.Machine
	m.atBest(r.peaks, r.reads)
	r.report.Bars = r.judge()
}

// errFaulted: the definition itself has no answer for a row that was made up.
var errFaulted = errors.New("a row has no answer; use another --seed")

// pointName is Q4_K at 8 rows.
func pointName(layer string, rows int) string {
	if rows == 1 {
		return layer + " at 1 row"
	}
	return fmt.Sprintf("%s at %d rows", layer, rows)
}

func giga(v float64) float64 { return v / 1e9 }
