package bench

import (
	"context"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"time"

	"kvasir/internal/moe"
	"kvasir/kernels/variant"
)

// GateName is the name of the scenario Gate.
const GateName = "gate"

// Gate holds what has been reached: it counts and measures, and compares with baselines.
//
// Counters are exact, whatever the machine does besides: allocations, bytes on the wire, frames, system
// calls and copies of a dispatch. More than the baseline is a failure. Times are judged only as ratios of
// two things that take turns within the run: a kernel and the bare loop of its instructions, many rows of an
// expert and one, on one core; our bytes and bare ones. The bound of a ratio leaves room for how far it was seen to
// spread. Where the machine changes under the run there is no verdict on a ratio, and the report says so.
type Gate struct {
	Baselines fs.FS    // nil: those that were built in
	Rounds    int      // pairs of a ratio
	Tries     int      // times that a ratio below its bound is measured, before it counts as missed
	Counters  bool     // these alone: seconds
	Ratios    []string // these alone, and no counters; nil: all
	Update    bool     // new baselines are to come of it: everything is counted as often as may be

	kernels Kernels                       // the layer of the kernels' ratios
	bytes   int64                         // of a way and round of the wire's ratios
	rtt     time.Duration                 // of the path on which dispatches are pipelined
	own     float64                       // ownLeast
	sends   int                           // of each batch that is counted
	slow    float64                       // by which part the kernels are slowed down, for tests
	wrap    func(moe.Experts) moe.Experts // of the worker's executor, for tests
}

// DefaultGate is what changes have to pass.
func DefaultGate() Gate {
	k := DefaultKernels()
	// A slice of 64 rows takes a millisecond, what all experts have is much more than caches hold.
	k.Hidden, k.FFN, k.Batch = 1024, 512, 64
	return Gate{Rounds: 9, Tries: 3, kernels: k, bytes: 32 << 20, rtt: 20 * time.Millisecond, own: ownLeast, sends: gateDispatches}
}

// Limits of Gate.
const (
	gateRoundsMost = 100
	gatePairsLeast = 3 // fewer that are kept: the machine is too noisy to tell
)

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (g Gate) Check() error {
	if g.Rounds < gatePairsLeast || g.Rounds > gateRoundsMost {
		return fmt.Errorf("%w: --repeat %d, want %d to %d pairs", ErrSettings, g.Rounds, gatePairsLeast, gateRoundsMost)
	}
	if g.Counters && len(g.Ratios) > 0 {
		return fmt.Errorf("%w: --ratios with --quick, which measures none", ErrSettings)
	}
	names := Gate{}.names()
	for _, name := range g.Ratios {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: --ratios %s, want some of %s", ErrSettings, name, strings.Join(names, ","))
		}
	}
	return nil
}

// gateRun is a Run under way. One goroutine owns it.
type gateRun struct {
	g      Gate
	o      Observer[GateReport, GateLine]
	base   *baselines
	report GateReport

	subject *gateSubject // of the kernels' ratios; nil: not made yet
	turns   *turns       // of them, the last that were measured
	done    int          // lines
	all     int          // lines that there will be
}

// Run counts, measures and judges. When ctx ends it returns what is finished together with ctx's error.
func (g Gate) Run(ctx context.Context, o Observer[GateReport, GateLine]) (*GateReport, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	kernel, err := variant.Active()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variant.Env, err)
	}
	r := &gateRun{g: g, o: o}
	if r.base, err = readBaselines(g.Baselines, kernel.Variant.String()); err != nil {
		return nil, err
	}
	defer func() { r.subject.close() }()
	r.report = GateReport{Machine: ReadMachine(), Lines: []GateLine{}, Settings: GateSettings{
		Scenario: GateName, Kernel: kernel.Variant.String(), Threads: runtime.GOMAXPROCS(0), Rounds: g.Rounds,
		Baselines: r.base.level,
	}}
	o.begin(&r.report)
	ratios := g.ratios()
	if g.Counters {
		ratios = nil
	}
	r.all = len(ratios)
	if len(g.Ratios) == 0 {
		r.all += len(gateCounters())
	}
	if err := r.counters(ctx); err != nil {
		return &r.report, err
	}
	for i := range ratios {
		if err := r.ratio(ctx, &ratios[i]); err != nil {
			return &r.report, fmt.Errorf("%s: %w", ratios[i].text, err)
		}
	}
	return &r.report, ctx.Err()
}

func (r *gateRun) progress(doing string) {
	r.o.progress(float64(r.done)/float64(r.all), doing)
}

func (r *gateRun) line(x GateLine) {
	r.done++
	r.report.Lines = append(r.report.Lines, x)
	r.o.row(x)
}

// names lists the ratios that are measured.
func (g Gate) names() []string {
	var list []string
	for _, x := range g.ratios() {
		list = append(list, x.name)
	}
	return list
}
