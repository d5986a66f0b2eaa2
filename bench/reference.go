package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync"
	"time"

	"kvasir/engine/experts"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
)

// ReferenceName is the name of the scenario Reference.
const ReferenceName = "reference"

// Reference restates three figures that were published of expert offloading, with their conditions:
//
//	(a) the experts of one layer without a network: batch 512 is 77 x batch 1, on a GPU
//	(b) one layer of 48 remote, for one stream of 237 ms a token: a path of 13 ms costs 1.2 %, one through a
//	    CDN, 92 ms more, 28 %
//	(c) all layers remote, one after the other
//
// Here the experts are computed by this machine's processors, and the path between workers and gateway is
// emulated. The backbone is not computed: it takes the time that was published, as one device does, so that
// what is measured is what the path adds to it.
type Reference struct {
	Layers  int
	Token   time.Duration // of one stream with all layers at home
	Direct  time.Duration // round trip
	CDN     time.Duration // that a CDN adds to it
	Streams int           // that overlap where all layers are remote
	Tokens  int           // of each stream, counted
	Layer   Dispatch      // one layer, for its dimensions
}

// DefaultReference is as it was published.
func DefaultReference() Reference {
	d := DefaultExpert()
	d.Only, d.Budget = []int{1, 512}, 30*time.Second
	return Reference{
		Layers: 48, Token: 237 * time.Millisecond, Direct: 13 * time.Millisecond, CDN: 92 * time.Millisecond,
		Streams: 16, Tokens: 3, Layer: d,
	}
}

// QuickReference shows that everything works, on a small layer.
func QuickReference() Reference {
	r, d := DefaultReference(), QuickExpert()
	d.Only, d.Batch, d.Budget = []int{1, 8}, 8, time.Second
	r.Layers, r.Token, r.Streams, r.Tokens, r.Layer = 4, 20*time.Millisecond, 4, 2, d
	r.CDN = 20 * time.Millisecond
	return r
}

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (r Reference) Check() error { return r.Layer.Check() }

// ReferenceReport is what Reference has measured.
type ReferenceReport struct {
	Machine  Machine           `json:"machine"`
	Settings ReferenceSettings `json:"settings"`
	Results  []ReferenceResult `json:"results"`
}

// ReferenceSettings are what was run.
type ReferenceSettings struct {
	Scenario string  `json:"scenario"`
	Experts  int     `json:"experts"`
	TopK     int     `json:"topk"`
	Hidden   int     `json:"hidden"`
	FFN      int     `json:"ffn"`
	Quant    string  `json:"quant"`
	Layers   int     `json:"layers"`
	Token    float64 `json:"token_ms"`
	Direct   float64 `json:"direct_ms"`
	CDN      float64 `json:"cdn_ms"`
	Streams  int     `json:"streams"`
	Tokens   int     `json:"tokens"`
	Kernel   string  `json:"kernel"`
	Threads  int     `json:"threads"`
}

// ReferenceResult is one line: a figure here, and what was published.
type ReferenceResult struct {
	Scenario  string   `json:"scenario"`
	Figure    string   `json:"figure"` // a, b, c
	What      string   `json:"what"`
	RTT       *float64 `json:"rtt_ms,omitempty"`
	Remote    int      `json:"layers_remote,omitempty"`
	Streams   int      `json:"streams,omitempty"`      // under way
	Ms        float64  `json:"ms_per_token,omitempty"` // measured: from one token, of any stream, to the next
	Tokens    float64  `json:"tokens_per_s,omitempty"` // measured
	XVsBatch1 float64  `json:"x_vs_batch_1,omitempty"`
	Costs     *float64 `json:"costs_pct,omitempty"`     // over token_ms: arithmetic
	Sum       float64  `json:"arithmetic_ms,omitempty"` // token_ms, and for each remote layer one dispatch alone less the experts here
	Published string   `json:"published,omitempty"`
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (r Reference) Run(ctx context.Context, o Observer[ReferenceReport, ReferenceResult]) (*ReferenceReport, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	d := r.Layer
	x := &referenceRun{r: r, o: o, report: ReferenceReport{
		Machine: ReadMachine(), Results: []ReferenceResult{}, Settings: ReferenceSettings{
			Scenario: ReferenceName, Experts: d.Experts, TopK: d.TopK, Hidden: d.Hidden, FFN: d.FFN, Quant: d.Quant.String(),
			Layers: r.Layers, Token: milliseconds(r.Token), Direct: milliseconds(r.Direct), CDN: milliseconds(r.CDN),
			Streams: r.Streams, Tokens: r.Tokens, Threads: runtime.GOMAXPROCS(0),
		},
	}}
	err := x.run(ctx)
	return &x.report, err
}

type referenceRun struct {
	r      Reference
	o      Observer[ReferenceReport, ReferenceResult]
	report ReferenceReport
}

func (x *referenceRun) add(res ReferenceResult) {
	res.Scenario = ReferenceName
	x.report.Results = append(x.report.Results, res)
	x.o.row(res)
}

func (x *referenceRun) run(ctx context.Context) error {
	x.o.begin(&x.report)
	a, err := x.r.Layer.Run(ctx, Observer[Report, Result]{Progress: func(done float64, doing string) { x.o.progress(done/4, "(a) "+doing) }})
	if a != nil && len(a.Results) > 0 {
		x.report.Machine, x.report.Settings.Kernel = a.Machine, a.Settings.Kernel
	}
	if err != nil {
		return err
	}
	first, last := a.Results[0], a.Results[len(a.Results)-1]
	x.add(ReferenceResult{
		Figure: "a", What: fmt.Sprintf("experts here, batch %d against %d", last.Batch, first.Batch), XVsBatch1: last.XVsBatch1,
		Published: "77 x, on a GPU",
	})
	return x.remote(ctx)
}

// remote measures (b) and (c).
func (x *referenceRun) remote(ctx context.Context) error {
	run := &dispatchRun{d: x.r.Layer, start: time.Now()}
	run.d.Only, run.d.Batch = nil, 1
	defer run.close()
	x.o.progress(0.25, "(b) making the weights")
	layer, format, profile, err := run.layer(ctx)
	if err != nil {
		return err
	}
	row, err := run.d.makeRows(format)
	if err != nil {
		return err
	}
	run.procs = runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	home, err := best(ctx, layer, row)
	if err != nil {
		return err
	}
	m := worker.Model{
		Experts: layer, Layers: 1, PerLayer: run.d.Experts, Hidden: run.d.Hidden, Hash: run.d.hash(), Profile: experts.HashProfile(profile),
	}
	for i, rtt := range []time.Duration{x.r.Direct, x.r.Direct + x.r.CDN} {
		w, err := newSwarmWay(ctx, swarmConfig{kind: far, rtt: rtt, workers: 1, model: m})
		if err != nil {
			return err
		}
		run.ways = append(run.ways, w)
		alone, err := best(ctx, w.x, row)
		if err != nil {
			return err
		}
		for j, s := range x.points(i) {
			x.o.progress(0.3+0.35*float64(i)+0.08*float64(j), fmt.Sprintf("(%s) %v, %s", s.Figure, rtt, streams(s.Streams)))
			s.RTT = new(milliseconds(rtt))
			b := &backbone{own: x.r.Token/time.Duration(x.r.Layers) - home, layers: x.r.Layers, remote: s.Remote, home: home}
			took, err := b.tokens(ctx, w.x, row, s.Streams, x.r.Tokens)
			if err != nil {
				return err
			}
			s.Ms, s.Tokens = milliseconds(took), round(1/took.Seconds())
			s.Costs = new(round(100 * (took.Seconds()/x.r.Token.Seconds() - 1)))
			s.Sum = milliseconds(x.r.Token + time.Duration(s.Remote)*(alone-home))
			x.add(s)
		}
	}
	x.o.progress(1, "done")
	return nil
}

// points are what is measured over the direct path (0) and over the CDN (1).
func (x *referenceRun) points(i int) []ReferenceResult {
	path, published := "direct", "1.2 %"
	if i > 0 {
		path, published = "over a CDN", "28 %"
	}
	return []ReferenceResult{
		{Figure: "b", What: "one layer remote, " + path, Remote: 1, Streams: 1, Published: published},
		{Figure: "b", What: "the same, two streams overlap", Remote: 1, Streams: 2},
		{Figure: "c", What: "all layers remote, " + path, Remote: x.r.Layers, Streams: 1},
		{Figure: "c", What: "the same, streams overlap", Remote: x.r.Layers, Streams: x.r.Streams},
	}
}

// best returns the shortest time that a row takes, of some.
func best(ctx context.Context, x moe.Experts, row *moe.Batch) (time.Duration, error) {
	var out moe.Partials
	least := time.Duration(0)
	for i := range 6 {
		start := time.Now()
		if err := x.Forward(ctx, row, &out); err != nil {
			return 0, err
		}
		if took := time.Since(start); i == 1 || i > 1 && took < least { // the first one grows memory
			least = took
		}
	}
	return least, nil
}

// backbone takes its time and computes nothing. It does so for one stream at a time.
type backbone struct {
	own    time.Duration // for a layer, without its experts
	home   time.Duration // for the experts of a layer at home
	layers int
	remote int // of them, the first

	mu   sync.Mutex
	free time.Time // under mu
}

// use waits until the backbone has spent so long on this stream.
func (b *backbone) use(ctx context.Context, long time.Duration) error {
	b.mu.Lock()
	if now := time.Now(); now.After(b.free) {
		b.free = now
	}
	b.free = b.free.Add(long)
	done := b.free
	b.mu.Unlock()
	return until(ctx, done)
}

// token takes one token of one stream through all layers.
func (b *backbone) token(ctx context.Context, x moe.Experts, row *moe.Batch, out *moe.Partials) error {
	for range b.remote {
		if err := b.use(ctx, b.own); err != nil {
			return err
		}
		if err := x.Forward(ctx, row, out); err != nil {
			return err
		}
	}
	return b.use(ctx, time.Duration(b.layers-b.remote)*(b.own+b.home))
}

// tokens returns the time from one token, of any stream, to the next: each stream makes one that is not counted,
// and then so many.
func (b *backbone) tokens(ctx context.Context, x moe.Experts, row *moe.Batch, streams, tokens int) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var made int
	var start, end time.Time
	errs := make([]error, streams)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			var out moe.Partials
			for {
				if errs[i] = b.token(ctx, x, row, &out); errs[i] != nil {
					cancel()
					return
				}
				mu.Lock()
				now := time.Now()
				switch made++; {
				case made == streams:
					start = now
				case made == streams*(tokens+1):
					end = now
				}
				over := made >= streams*(tokens+1)
				mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	wg.Wait()
	return end.Sub(start) / time.Duration(streams*tokens), errors.Join(errs...)
}

// referenceColumns of the table of Reference. With two spaces between them they fit Columns.
var referenceColumns = []column[ReferenceResult]{
	{"", -1, func(r *ReferenceResult) string { return r.Figure }},
	{"what", -34, func(r *ReferenceResult) string { return r.What }},
	{"RTT, ms", 7, func(r *ReferenceResult) string {
		if r.RTT == nil {
			return "-"
		}
		return strconv.FormatFloat(*r.RTT, 'f', -1, 64)
	}},
	{"ms/token", 8, func(r *ReferenceResult) string { return filled(r.Ms) }},
	{"costs", 8, func(r *ReferenceResult) string {
		if r.Costs == nil {
			return digits(r.XVsBatch1) + " x"
		}
		return percent(*r.Costs)
	}},
	{"sum, ms", 8, func(r *ReferenceResult) string { return filled(r.Sum) }},
	{"published", -15, func(r *ReferenceResult) string { return r.Published }},
}

// NewReferenceTable returns a table of the results of Reference that prints to w.
func NewReferenceTable(w io.Writer) *Table[ReferenceResult] {
	return &Table[ReferenceResult]{w, referenceColumns}
}

// Empty reports whether nothing was measured.
func (r *ReferenceReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Remarks says what is measured and what is not.
func (r *ReferenceReport) Remarks() []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("Measured: (a); ms/token of (b) and (c), over real gateway, hub and worker with an emulated path, experts of one row on this machine's processors. Not computed: the backbone, which takes %v ms a token less the experts, for one stream at a time; the same layer stands for all %d.",
			s.Token, s.Layers),
		fmt.Sprintf("Arithmetic: costs, ms/token over %v less 1; sum, %v and for each remote layer the time of one dispatch alone less that of its experts here.",
			s.Token, s.Token),
	}
}

// Words says what the figures mean.
func (r *ReferenceReport) Words() []string {
	if len(r.Results) < 9 {
		return nil
	}
	x := r.Results
	return []string{
		fmt.Sprintf("(a) depends on what computes: a GPU leaves most of itself idle at batch 1, these processors do not, so %s x is not to be held against 77 x.", digits(x[0].XVsBatch1)),
		fmt.Sprintf("(b) One stream waits for the whole round trip of its one remote layer: %s direct, %s over the CDN. With a second stream the backbone has work meanwhile: %s and %s.",
			percent(*x[1].Costs), percent(*x[5].Costs), percent(*x[2].Costs), percent(*x[6].Costs)),
		fmt.Sprintf("(c) One stream pays for %d round trips a token, %s and %s tokens/s; %d streams that overlap make %s and %s, and the backbone alone would make %s.",
			r.Settings.Layers, digits(x[3].Tokens), digits(x[7].Tokens), r.Settings.Streams, digits(x[4].Tokens), digits(x[8].Tokens), digits(1000/r.Settings.Token)),
	}
}
