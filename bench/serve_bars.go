package bench

import (
	"fmt"
)

// ServeBar is a figure beside its bar.
type ServeBar struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit,omitempty"`
	Want    float64 `json:"want,omitempty"`
	Most    bool    `json:"at_most"` // the figure may be that, and no more
	Got     float64 `json:"got"`
	Verdict string  `json:"verdict"`
}

// What is asked for.
const (
	ratioBar    = 0.95 // of the engine called directly
	ratioRows   = 256
	doorBar     = 20 // microseconds a token
	goodputBar  = 0.9
	refusalBar  = 50 // ms
	growthBar   = 1.03
	heldLeast   = 60 // s of load, below which memory that still grows says nothing
	answersBar  = 0  // refusals without Retry-After, and failures
	loadUsually = 10 // s of load, below which the queue is not even full
)

// serveRates are tokens a second through HTTP on the anchor. On another machine the same share of the limit is
// asked for that bounds the model there, as modelBars tells.
var serveRates = []modelBar{
	{decoding, 64, 1100, ofRead},
	{decoding, 256, 1400, ofPeak},
}

// finish fills in what is known at the end.
func (r *serveRun) finish() {
	m := &r.report.Machine
	m.atBest(r.peaks, r.reads)
	r.report.judge(r.s.usual())
}

// judge compares what was measured with the bars. The usual points alone have bars of speed.
func (r *ServeReport) judge(usual bool) {
	for i := range r.Results {
		if x := &r.Results[i]; usual {
			r.judgeSpeed(x)
		}
	}
	if x := r.Load; x != nil {
		long := x.Seconds >= loadUsually
		r.bar(long && !x.noisy(), ServeBar{Name: "tokens/s at 3 x capacity, of the best", Want: goodputBar, Got: x.Share})
		if x.Refused > 0 {
			r.bar(long, ServeBar{Name: "p99 of refusals", Unit: "ms", Want: refusalBar, Most: true, Got: x.RefusedP99})
		}
		r.bar(true, ServeBar{Name: "failures, and refusals without Retry-After", Want: answersBar, Most: true, Got: float64(x.Failed + x.Silent)})
		if x.Early > 0 {
			r.bar(x.Seconds >= heldLeast, ServeBar{Name: "resident memory, late by early", Want: growthBar, Most: true, Got: round(x.Late / x.Early)})
		}
	}
	if x := r.Vanish; x != nil {
		v := ServeBar{Name: "until nothing is left of clients that went", Unit: "s", Want: vanishBar.Seconds(), Most: true, Got: x.Seconds}
		r.bar(true, v)
		if !x.Clean {
			r.Bars[len(r.Bars)-1].Verdict = missed
		}
	}
}

func (r *ServeReport) judgeSpeed(x *ServeResult) {
	sure := x.Pairs >= pairsLeast && !x.noisy()
	for _, b := range serveRates {
		if b.rows != x.Streams {
			continue
		}
		want := round(b.want * r.Machine.Int8Peak / anchorPeak)
		if b.limit == ofRead {
			want = round(b.want * r.Machine.Read / anchorRead)
		}
		r.bar(sure && want > 0, ServeBar{Name: fmt.Sprintf("%d streams through HTTP", x.Streams), Unit: "tokens/s", Want: want, Got: x.HTTP})
	}
	if x.Streams != ratioRows {
		return
	}
	r.bar(sure, ServeBar{Name: fmt.Sprintf("%d streams, HTTP by direct", x.Streams), Want: ratioBar, Got: x.Ratio})
	if x.Door != nil {
		r.bar(true, ServeBar{Name: "server beyond the model, a token", Unit: "us", Want: doorBar, Most: true, Got: *x.Door})
	}
}

// bar adds a bar; where it is not sure what the figure says, without a verdict.
func (r *ServeReport) bar(sure bool, b ServeBar) {
	switch {
	case !sure:
		b.Verdict = few
	case b.Most && b.Got <= b.Want, !b.Most && b.Got >= b.Want:
		b.Verdict = met
	default:
		b.Verdict = missed
	}
	r.Bars = append(r.Bars, b)
}

// Missed returns the bars that were missed, in words.
func (r *ServeReport) Missed() []string {
	var list []string
	for i := range r.Bars {
		if b := &r.Bars[i]; b.Verdict == missed {
			list = append(list, fmt.Sprintf("%s: %s %s, bar %s", b.Name, digits(b.Got), b.Unit, digits(b.Want)))
		}
	}
	return list
}

// Words are the bars as lines of a table.
func (r *ServeReport) Words() []string {
	if r.Empty() {
		return nil
	}
	if len(r.Bars) == 0 {
		return []string{"Bars of speed are set for --like anchor, not for this."}
	}
	const format = "%-44s%14s%12s  %s"
	lines := []string{fmt.Sprintf(format, "", "wanted here", "measured", "verdict")}
	for i := range r.Bars {
		b := &r.Bars[i]
		sign := ">="
		if b.Most {
			sign = "<="
		}
		name := b.Name
		if b.Unit != "" {
			name += ", " + b.Unit
		}
		lines = append(lines, fmt.Sprintf(format, name, sign+" "+digits(b.Want), digits(b.Got), b.Verdict))
	}
	return lines
}
