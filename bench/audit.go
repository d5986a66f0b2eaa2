package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"kvasir/engine/audit"
	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// AuditName is the name of the scenario Audit.
const AuditName = "audit"

// What is checked: one row of auditEvery, in groups of auditGroup.
const (
	auditEvery = 512
	auditGroup = 64
)

// Audit measures what it costs to check answers at the default rate. A layer is computed here in batches, with
// nobody looking and with every answer looked at, in turns, each as many rows as one group is drawn of; that is
// judged by the same processor. So this is a backbone that has to do with one machine what its
// workers do: the dearest case.
type Audit struct {
	Layer Dispatch // its paths and rounds aside
}

// DefaultAudit is the layer of DefaultDispatch.
func DefaultAudit() Audit {
	d := DefaultExpert()
	d.Budget = 5 * time.Minute
	return Audit{d}
}

// QuickAudit is a layer so small that the many rows of its turns take seconds.
func QuickAudit() Audit {
	d := QuickExpert()
	d.TopK, d.Hidden, d.FFN, d.Budget = 4, 256, 256, 5*time.Second
	return Audit{d}
}

// AuditReport is what Audit has measured.
type AuditReport struct {
	Machine  Machine       `json:"machine"`
	Settings AuditSettings `json:"settings"`
	Results  []AuditResult `json:"results"`
	Bars     []AuditBar    `json:"bars,omitempty"`
}

// AuditSettings are what was run.
type AuditSettings struct {
	Scenario string  `json:"scenario"`
	Layer    string  `json:"layer"`
	Batch    int     `json:"batch"`
	Rows     int     `json:"rows"`  // of a turn
	Every    int     `json:"every"` // rows of which one is looked at
	Group    int     `json:"group"`
	Budget   float64 `json:"budget_s,omitempty"`
	Rounds   int     `json:"repeat,omitempty"`
}

// AuditResult is a pair of turns.
type AuditResult struct {
	Scenario string  `json:"scenario"`
	Off      float64 `json:"off_rows_per_s"`
	On       float64 `json:"on_rows_per_s"`
	Cost     float64 `json:"cost_pct"`  // of the throughput
	Judge    float64 `json:"judge_pct"` // time in the judge, of that of the turn without
	Checked  int64   `json:"checked"`
}

// AuditBar is a figure beside its bar.
type AuditBar struct {
	Of      string  `json:"of"`
	Want    float64 `json:"want"`
	Got     float64 `json:"got"`
	Verdict string  `json:"verdict"`
}

// auditCost is what checking may take of the throughput, in percent.
const auditCost = 1

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (a Audit) Check() error { return a.Layer.Check() }

// auditRun is a run of Audit.
type auditRun struct {
	x     moe.Experts
	b     *moe.Batch
	out   moe.Partials
	times int // batches of a turn
}

// Run measures. When ctx ends it returns what is finished together with ctx's error.
func (a Audit) Run(ctx context.Context, o Observer[AuditReport, AuditResult]) (*AuditReport, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	d := a.Layer
	run := &auditRun{times: max(1, auditEvery*auditGroup/d.Batch)}
	r := &AuditReport{Machine: ReadMachine(), Settings: AuditSettings{
		Scenario: AuditName, Layer: d.Name(), Batch: d.Batch, Rows: run.times * d.Batch, Every: auditEvery, Group: auditGroup, Rounds: d.Repeat,
	}, Results: []AuditResult{}}
	if d.Repeat == 0 {
		r.Settings.Budget = d.Budget.Seconds()
	}
	o.begin(r)
	store, err := experts.Synthetic(d.shape(), d.Seed)
	if err != nil {
		return r, err
	}
	if run.b, err = d.makeRows(store.RowFormat(0)); err != nil {
		return r, err
	}
	run.x = experts.NewLocal(store)
	if err := run.x.Forward(ctx, run.b, &run.out); err != nil { // what is done once
		return r, err
	}
	start := time.Now()
	for n := 0; cmp.Or(d.Repeat, pairsLeast) > n || d.Repeat == 0 && time.Since(start) < d.Budget; n++ {
		o.progress(float64(n)/float64(cmp.Or(d.Repeat, pairsLeast)), fmt.Sprintf("pair %d", n+1))
		x, err := run.pair(ctx)
		if err != nil {
			return r, err
		}
		r.Results = append(r.Results, x)
		r.Bars = []AuditBar{r.judge(d.usual())}
		o.row(x)
	}
	return r, nil
}

// pair is a turn with nobody looking and one with every answer looked at: their batches take turns, which of two is
// first as well, so that what others do to the machine meets both. What was drawn is judged at the end.
func (r *auditRun) pair(ctx context.Context) (AuditResult, error) {
	x := AuditResult{Scenario: AuditName}
	var spent, wrong atomic.Int64
	own := timedExperts{r.x, &spent}
	a := audit.New(audit.Options{
		Judge: func(int, []seal.PublicKey) (audit.Judge, bool) { return audit.Judge{Experts: own}, true },
		Found: func(audit.Finding) { wrong.Add(1) },
		Every: auditEvery, Group: auditGroup, Hold: time.Millisecond, Share: 1,
	})
	w := a.Worker(seal.PublicKey{1}, audit.NewRecord(auditEvery, 0))
	var took [2]time.Duration // without, with
	for i := range 2 * r.times {
		looked := (i + i/2) % 2
		start := time.Now()
		if err := r.x.Forward(ctx, r.b, &r.out); err != nil {
			return x, err
		}
		if looked == 1 {
			w.Answer(r.b, &r.out)
		}
		took[looked] += time.Since(start)
	}
	start := time.Now()
	judging, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); a.Run(judging) }()
	for w.Open() > 0 && ctx.Err() == nil {
		time.Sleep(100 * time.Microsecond)
	}
	took[1] += time.Since(start)
	stop()
	<-done
	if n := wrong.Load(); n > 0 {
		return x, fmt.Errorf("%d rows were found wrong, of experts that judged themselves: %w", n, ErrBits)
	}
	rows, off, on := float64(r.times*r.b.Rows), took[0].Seconds(), took[1].Seconds()
	x.Off, x.On, x.Checked = round(rows/off), round(rows/on), w.Counts().Checked
	x.Cost = round(100 * (1 - off/on))
	x.Judge = round(100 * time.Duration(spent.Load()).Seconds() / off)
	return x, ctx.Err()
}

// timedExperts adds up the time that is spent in an executor.
type timedExperts struct {
	moe.Experts
	spent *atomic.Int64
}

func (x timedExperts) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	start := time.Now()
	defer func() { x.spent.Add(int64(time.Since(start))) }()
	return x.Experts.Forward(ctx, b, out)
}

// judge compares the median cost with its bar, which is set for the usual layer.
func (r *AuditReport) judge(usual bool) AuditBar {
	var cost []float64
	for i := range r.Results {
		cost = append(cost, r.Results[i].Cost)
	}
	b := AuditBar{Of: "cost_pct", Want: auditCost, Got: round(middle(cost)), Verdict: missed}
	switch {
	case len(cost) < pairsKept:
		b.Verdict = few
	case !usual:
		b.Verdict = reported
	case b.Got <= b.Want:
		b.Verdict = met
	}
	return b
}

// auditColumns of the table of Audit.
var auditColumns = []column[AuditResult]{
	{"rows/s, unchecked", 17, func(r *AuditResult) string { return digits(r.Off) }},
	{"rows/s, checked", 15, func(r *AuditResult) string { return digits(r.On) }},
	{"cost %", 7, func(r *AuditResult) string { return strconv.FormatFloat(r.Cost, 'f', 2, 64) }},
	{"judge %", 7, func(r *AuditResult) string { return strconv.FormatFloat(r.Judge, 'f', 2, 64) }},
	{"rows checked", 12, func(r *AuditResult) string { return strconv.FormatInt(r.Checked, 10) }},
}

// NewAuditTable returns a table of the results of Audit that prints to t.w.
func NewAuditTable(w io.Writer) *Table[AuditResult] { return &Table[AuditResult]{w, auditColumns} }

// Empty reports whether nothing was measured.
func (r *AuditReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Remarks says what holds for the figures.
func (r *AuditReport) Remarks() []string {
	return []string{"Of a pair the batches take turns. judge is the time in the judge, which the processor of the work spends beside it."}
}

// Words are the bars.
func (r *AuditReport) Words() []string {
	var lines []string
	for _, b := range r.Bars {
		lines = append(lines, fmt.Sprintf("one row in %d checked: at most %.0f %% of throughput, median %.2f %%: %s",
			r.Settings.Every, b.Want, b.Got, b.Verdict))
	}
	return lines
}

// Missed returns the bars that were missed, in words.
func (r *AuditReport) Missed() []string {
	if slices.ContainsFunc(r.Bars, func(b AuditBar) bool { return b.Verdict == missed }) {
		return r.Words()
	}
	return nil
}
