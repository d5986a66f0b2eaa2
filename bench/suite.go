package bench

import (
	"context"
	"fmt"
	"time"
)

// BarsName is the name of the scenario Bars.
const BarsName = "bars"

// Bars measures all that the bars of paths are set for: one remote layer on workers that compute, and on stubs of
// a GPU's speed behind lines of different length and rate.
type Bars struct {
	Runs []Dispatch
}

// DefaultBars takes about four minutes.
func DefaultBars() Bars {
	ms := func(list ...int) (rtts []time.Duration) {
		for _, n := range list {
			rtts = append(rtts, time.Duration(n)*time.Millisecond)
		}
		return rtts
	}
	run := func(budget time.Duration, only []int, rtts []time.Duration, speed Speed, rate Rate) Dispatch {
		d := DefaultDispatch()
		d.Budget, d.Only, d.RTTs, d.Worker, d.Path = budget, only, rtts, speed, Path{Up: rate, Down: rate}
		return d
	}
	return Bars{[]Dispatch{
		run(60*time.Second, []int{1, 512}, ms(13), Speed{}, 0),
		run(20*time.Second, []int{1, 512}, ms(13), GPU, 0),
		run(40*time.Second, []int{1, 512}, ms(13, 50, 80), GPU, 1e9),
		run(100*time.Second, []int{512}, ms(13, 50, 80), GPU, 1e8),
	}}
}

// QuickBars shows that everything works, on a small layer for which no bar is set.
func QuickBars() Bars {
	b := DefaultBars()
	q := QuickDispatch()
	for i := range b.Runs {
		d := &b.Runs[i]
		d.Experts, d.Hidden, d.FFN, d.Only, d.Batch = q.Experts, q.Hidden, q.FFN, []int{1, 8}, 8
		d.RTTs, d.Budget, d.least = d.RTTs[:1], time.Second, q.least
	}
	return b
}

// BarsReport is what Bars has measured: the reports of its runs, and all their bars.
type BarsReport struct {
	Machine  Machine      `json:"machine"`
	Settings BarsSettings `json:"settings"`
	Runs     []*Report    `json:"runs"`
	Bars     []PathBar    `json:"bars"`
}

// BarsSettings are what was run.
type BarsSettings struct {
	Scenario string `json:"scenario"`
}

// Run measures. o.Begin is called for each run.
func (b Bars) Run(ctx context.Context, o Observer[Report, Result]) (*BarsReport, error) {
	r := &BarsReport{Machine: ReadMachine(), Settings: BarsSettings{BarsName}, Runs: []*Report{}, Bars: []PathBar{}}
	for i, d := range b.Runs {
		part := o
		part.Progress = func(done float64, doing string) {
			o.progress((float64(i)+done)/float64(len(b.Runs)), fmt.Sprintf("%d of %d: %s", i+1, len(b.Runs), doing))
		}
		x, err := d.Run(ctx, part)
		if x != nil && len(x.Results) > 0 {
			r.Runs = append(r.Runs, x)
			r.Bars = append(r.Bars, x.Bars...)
			r.Machine = x.Machine
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (b Bars) Check() error {
	for _, d := range b.Runs {
		if err := d.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Empty reports whether nothing was measured.
func (r *BarsReport) Empty() bool { return r == nil || len(r.Runs) == 0 }

// Remarks says what has to be known beside the tables.
func (r *BarsReport) Remarks() []string {
	var lines []string
	for _, x := range r.Runs {
		lines = append(lines, x.Remarks()...)
	}
	return lines
}

// Words are the bars as lines of a table.
func (r *BarsReport) Words() []string {
	if len(r.Bars) == 0 {
		return []string{"Bars are set for the layer of Qwen3.5-122B-A10B, not for this one."}
	}
	return pathVerdicts(r.Bars)
}

// Missed returns the bars that were missed, in words.
func (r *BarsReport) Missed() []string { return missedBars(r.Bars) }

// Mistaken says where workers gave other bits than this machine; empty: nowhere.
func (r *BarsReport) Mistaken() string { return differing(r.Different()) }

// Different returns the batches whose answers from workers were not those computed here.
func (r *BarsReport) Different() []int {
	var list []int
	for _, x := range r.Runs {
		list = append(list, x.Different()...)
	}
	return list
}
