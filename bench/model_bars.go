package bench

import (
	"fmt"
)

// modelBar is how many tokens a second a point of DefaultModel has to come to on the anchor, and what bounds
// it there.
type modelBar struct {
	kind  string
	rows  int
	want  float64 // tokens a second
	limit string
}

// modelBars. On another machine a bar is scaled by the limit that bounds the point on the anchor, so that
// the same share of that limit is asked for. Which limit it is:
//
// A token takes 195e6 products: 4 layers of 8 experts of 3 x 2048 x 768, of 10.5e6 for attention and of
// 0.26e6 for the router, and the head. At the anchor's peak of 1817 GOP/s, two operations a product, that is
// 0.21 ms. A step reads 29 MB of dense weights and 2.65 MB for each expert that is picked, of which 4 layers
// have, with uniform picks, 4 x 128 x (1 - (1 - 8/128)^rows): 32 for one row, 504 for 64, all 512 from 128
// on. At 63.5 GB/s, the middle of what was measured there, that is 1.8 ms for one row, 21.5 for 64, 21.8
// beyond. So:
//
//	rows  read, ms  peak, ms  bar, ms a step
//	   1       1.8       0.2             3.3  53 % of the rate of memory
//	  64      21.5      13.7            53.3  40 % of the rate of memory
//	 256      21.8      54.9           170.7  32 % of the peak
//	 512      21.8     109.9           341.3  32 % of the peak
//	 512      21.8     109.9           256.0  43 % of the peak, in prefill
var modelBars = []modelBar{
	{decoding, 1, 300, ofRead},
	{decoding, 64, 1200, ofRead},
	{decoding, 256, 1500, ofPeak},
	{decoding, 512, 1500, ofPeak},
	{reading, 512, 2000, ofPeak},
}

// Limits of the anchor.
const (
	anchorPeak = 1817.0 // GOP/s
	anchorRead = 63.5   // GB/s
)

// ModelBar is a figure beside its bar.
type ModelBar struct {
	Kind    string  `json:"kind"`
	Batch   int     `json:"batch"`
	Anchor  float64 `json:"anchor_tokens_per_s"`
	By      string  `json:"scaled_by"`       // the share that stays the same
	Want    float64 `json:"want,omitempty"`  // tokens a second here
	Got     float64 `json:"got"`             // the same
	Share   float64 `json:"share,omitempty"` // of the limit, measured
	Verdict string  `json:"verdict"`
}

// judgeModel compares the results with the bars.
func judgeModel(r *ModelReport) []ModelBar {
	var list []ModelBar
	for i := range modelBars {
		b := &modelBars[i]
		x := r.at(b.kind, b.rows)
		if x == nil {
			continue
		}
		v := ModelBar{Kind: b.kind, Batch: b.rows, Anchor: b.want, By: b.limit, Got: x.TokensPerS}
		v.Share, v.Want = x.PeakShare, round(b.want*r.Machine.Int8Peak/anchorPeak)
		if b.limit == ofRead {
			v.Share, v.Want = x.ReadShare, round(b.want*r.Machine.Read/anchorRead)
		}
		v.Verdict = pairsVerdict(x.Pairs, x.noisy(), v.Got, v.Want)
		if v.Want == 0 && v.Verdict == met {
			v.Verdict = unknown // there is no limit to compare with
		}
		list = append(list, v)
	}
	return list
}

// Missed returns the bars that were missed, in words.
func (r *ModelReport) Missed() []string {
	var list []string
	for i := range r.Bars {
		if v := &r.Bars[i]; v.Verdict == missed {
			list = append(list, fmt.Sprintf("%s: %s tokens/s, bar %s", modelPointName(v.Kind, v.Batch), digits(v.Got), digits(v.Want)))
		}
	}
	return list
}

// modelBarsFormat is a line of the table of bars, at most Columns wide.
const modelBarsFormat = "%-24s%12s%22s%12s  %s"

// verdicts are the bars as lines of a table.
func (r *ModelReport) verdicts() []string {
	if len(r.Bars) == 0 {
		return []string{"Bars are set for --like anchor with the usual prompts, not for this."}
	}
	lines := []string{
		fmt.Sprintf("Bars are the same shares of this machine's limits as those that were set for a machine of %.0f GOP/s and %.1f GB/s.",
			anchorPeak, anchorRead),
		fmt.Sprintf(modelBarsFormat, "tokens/s", "there", "wanted here", "measured", "verdict"),
	}
	for i := range r.Bars {
		v := &r.Bars[i]
		want := "-"
		if v.Want > 0 {
			by := "peak"
			if v.By == ofRead {
				by = "read rate"
			}
			want = fmt.Sprintf("%s by %s", digits(v.Want), by)
		}
		lines = append(lines, fmt.Sprintf(modelBarsFormat, modelPointName(v.Kind, v.Batch), digits(v.Anchor), want, digits(v.Got), v.Verdict))
	}
	return lines
}
