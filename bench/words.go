package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// enough is the share of the best rate from which on a batch counts as large enough.
const enough = 0.9

// Words says in three lines what the figures mean: what bounds a dispatch, what batch is enough, and what
// the round trip costs. All of it is computed from the results; with none there are no words. The bars that
// are set for the run follow.
func (r *Report) Words() []string {
	if len(r.Results) == 0 {
		return nil
	}
	var lines []string
	switch r.Settings.Scenario {
	case ExpertName:
		lines = []string{r.boundHere(), r.enough()}
	case DecodeName:
		lines = []string{r.boundSteps(), r.enough(), r.cost()}
	default:
		lines = []string{r.bound(), r.enough(), r.cost()}
	}
	if r.noisy() {
		lines = append(lines, "Noisy machine: at some batches fewer than three rounds were kept, and nothing is judged there. Close what keeps this machine busy, and run it again.")
	}
	return append(lines, pathVerdicts(r.Bars)...)
}

// noisy reports whether somewhere too few rounds were kept.
func (r *Report) noisy() bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.noisy })
}

// path is the way that the words are about.
func (r *Report) path() kind {
	switch {
	case r.Settings.Scenario == ExpertName:
		return local
	case r.Settings.RTT > 0:
		return far
	}
	return near
}

// boundSteps says what bounds a step of a model, at the largest micro-batch.
func (r *Report) boundSteps() string {
	n := r.Results[len(r.Results)-1].Batch
	l, f := r.find(n, local), r.find(n, r.path())
	text := fmt.Sprintf("A step of %d sequences takes %s ms here and %s ms with %d of %d layers away", n, digits(l.Ms), digits(f.Ms),
		r.Settings.Remote, r.Settings.Layers)
	if x := r.at(n, *f.RTT, true); x != nil {
		text += fmt.Sprintf("; with %d micro-batches under way one ends every %s ms. What bounds it is %s: it is at %s of what that allows",
			x.Flights, digits(x.Ms), x.Bound, percent(100*x.Roofline))
	}
	return text + "."
}

// boundHere says what bounds the experts alone, at the largest batch.
func (r *Report) boundHere() string {
	x := &r.Results[len(r.Results)-1]
	if x.Bound == "" {
		return "What bounds the experts is not known: the limits of this machine were not measured."
	}
	return fmt.Sprintf("%s%s is the bound at batch %d: %s of what this machine can do at best.",
		strings.ToUpper(x.Bound[:1]), x.Bound[1:], x.Batch, percent(100*x.Roofline))
}

// bound says which part of a dispatch takes longest, at the largest batch.
func (r *Report) bound() string {
	n := r.Results[len(r.Results)-1].Batch
	l, z, f := r.find(n, local), r.find(n, near), r.find(n, r.path())
	compute, path := l.Ms, max(0, z.Ms-l.Ms)
	trip := max(0, f.Ms-z.Ms)
	share := func(ms float64) string { return percent(100 * ms / f.Ms) }

	text := fmt.Sprintf("At batch %d the experts compute for %s of the %s ms of a dispatch (%s)", n,
		digits(compute), digits(f.Ms), share(compute))
	if compute > f.Ms { // noise: a batch took longer without the network than with it
		text = fmt.Sprintf("At batch %d the experts compute for all of the %s ms of a dispatch", n, digits(f.Ms))
	}
	if separate(l, z) {
		text += fmt.Sprintf(", the path at 0 ms adds %s", share(path))
	} else {
		text += ", the path at 0 ms adds less than this run can tell"
	}
	if f.kind() == far {
		if separate(z, f) {
			text += fmt.Sprintf(", the round trip %s", share(trip))
		} else {
			text += ", the round trip less than this run can tell"
		}
	}
	if len(f.times) < 2 {
		text += ", as far as one round tells"
	}
	switch {
	case compute >= path && compute >= trip:
		text = "Computing is the bound. " + text
	case path >= trip && (r.Settings.Up > 0 || r.Settings.Down > 0):
		text = "The path itself is the bound: its rate, framing, both TLS layers, relaying. " + text
	case path >= trip:
		text = "The path itself is the bound: framing, both TLS layers, relaying. " + text
	default:
		text = "The round trip is the bound. " + text
	}
	if x := r.at(n, *f.RTT, true); x != nil && x.Roofline > 0 {
		text += fmt.Sprintf(". With %d under way an answer comes every %s ms, %s of what %s allow", x.Flights, digits(x.Ms),
			percent(100*x.Roofline), x.Bound)
		if x.Bound != boundWork {
			text += "s"
		}
	}
	return text + "."
}

// enough names the smallest batch that comes near the best rate.
func (r *Report) enough() string {
	var list []*Result
	for i := range r.Results {
		x := &r.Results[i]
		if x == r.find(x.Batch, r.path()) {
			list = append(list, x)
		}
	}
	flag := "--batch"
	if r.Settings.Scenario == DecodeName {
		flag = "--sequences"
	}
	if len(list) == 1 {
		return "One batch size was measured: what batch is enough takes more of them (" + flag + ")."
	}
	best := slices.MaxFunc(list, func(a, b *Result) int { return compare(a.TokensPerS, b.TokensPerS) })
	i := slices.IndexFunc(list, func(x *Result) bool { return x.TokensPerS >= enough*best.TokensPerS })
	x := list[i]
	if i == len(list)-1 {
		before := list[i-1]
		return fmt.Sprintf("No batch measured is large enough: %s batch %d gives %s tokens/s, %.2f x those of batch %d; try a larger %s.",
			x.place(), x.Batch, digits(x.TokensPerS), x.TokensPerS/before.TokensPerS, before.Batch, flag)
	}
	if x == best {
		return fmt.Sprintf("Batch %d is enough: %s it gives %s tokens/s, the most that was measured.",
			x.Batch, x.place(), digits(x.TokensPerS))
	}
	return fmt.Sprintf("Batch %d is enough: %s it gives %s tokens/s, %s of the best, which is %s at batch %d.",
		x.Batch, x.place(), digits(x.TokensPerS), percent(100*x.TokensPerS/best.TokensPerS),
		digits(best.TokensPerS), best.Batch)
}

// place says where a result was measured.
func (r *Result) place() string {
	if r.RTT == nil {
		return "here"
	}
	return "at " + pathName(*r.RTT)
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// cost says what the round trip costs at the smallest and at the largest batch.
func (r *Report) cost() string {
	if r.path() != far {
		return "No round trip was asked for (--rtt), so this run does not tell what one costs."
	}
	text := fmt.Sprintf("A round trip of %s costs %s", pathName(r.Settings.RTT), r.costAt(r.Results[0].Batch))
	if last := r.Results[len(r.Results)-1].Batch; last != r.Results[0].Batch {
		text += " and " + r.costAt(last)
	}
	for i := range r.Results {
		x, last := &r.Results[i], r.Results[len(r.Results)-1].Batch
		if x.Batch != last || x.kind() != far || x.RTTOverhead == nil || !x.piped() && *x.RTT == r.Settings.RTT {
			continue
		}
		text += fmt.Sprintf("; %s at batch %d", percent(max(0, *x.RTTOverhead)), x.Batch)
		if *x.RTT != r.Settings.RTT {
			text += fmt.Sprintf(" and %s", pathName(*x.RTT))
		}
		if x.piped() {
			text += fmt.Sprintf(" with %d under way", x.Flights)
		}
	}
	got := r.Settings.Got
	if got == nil {
		return text + "."
	}
	text += fmt.Sprintf("; the emulated path delivered %.1f ms (median of %d pings, 95 %% below %.1f ms).",
		got.Median, got.Count, got.P95)
	if off := got.Median - r.Settings.RTT; off > tolerance(r.Settings.RTT) || off < -tolerance(r.Settings.RTT) {
		text += " That is not what was asked for: this machine is too busy to emulate a network beside the computing, and the run is best repeated."
	}
	return text
}

// tolerance is how far the delivered round trip may be from the one asked for, in milliseconds.
func tolerance(ms float64) float64 { return max(0.5, 0.03*ms) }

func (r *Report) costAt(batch int) string {
	z, f := r.find(batch, near), r.find(batch, far)
	switch {
	case len(f.times) < 2 && *f.RTTOverhead < 0:
		return fmt.Sprintf("less than one round can tell at batch %d", batch)
	case len(f.times) < 2:
		return fmt.Sprintf("%s at batch %d (one round)", percent(*f.RTTOverhead), batch)
	case !separate(z, f):
		return fmt.Sprintf("less than this run can tell at batch %d, where times of the same work differ by up to %s", batch,
			percent(100*max(spread(z), spread(f))))
	}
	return fmt.Sprintf("%s at batch %d", percent(*f.RTTOverhead), batch)
}

// separate reports whether the slower way was slower in every round than the other in any: else the
// difference of their medians may be chance. With one round of each it may be so all the same; who asks says how many there were.
func separate(fast, slow *Result) bool {
	return fast.times[len(fast.times)-1] < slow.times[0]
}

// spread is how much the rounds differ, as a part of their median.
func spread(r *Result) float64 {
	n := len(r.times)
	return float64(r.times[n-1]-r.times[0]) / float64(median(r.times))
}

// percent writes a share: 0.4 %, 98 %.
func percent(v float64) string {
	if v < 9.95 && v > -9.95 {
		return strconv.FormatFloat(v, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " %"
}

// Remarks says what has to be known beside the table: how often was measured, and what was not.
func (r *Report) Remarks() []string {
	s := &r.Settings
	if len(s.Rounds) == 0 {
		return nil
	}
	turns := []string{"local", "0 ms"}
	for _, p := range s.Paths {
		if p.RTT > 0 {
			turns = append(turns, pathName(p.RTT))
		}
	}
	if len(s.Paths) == 0 && s.RTT > 0 {
		turns = append(turns, pathName(s.RTT))
	}
	text := fmt.Sprintf("Medians of %s a batch", rounds(s.Rounds))
	if s.Scenario != ExpertName {
		last := len(turns) - 1
		text += fmt.Sprintf("; %s and %s took turns", strings.Join(turns[:last], ", "), turns[last])
	}
	tried, dropped := 0, 0
	for i := range r.Results {
		if x := &r.Results[i]; x.kind() == local {
			tried, dropped = tried+x.Pairs, dropped+x.Dropped
		}
	}
	if tried > 0 {
		text += fmt.Sprintf("; %d of %d rounds dropped", dropped, tried)
	}
	if dropped > 0 {
		text += ", because the machine changed by more than 5 % meanwhile"
	}
	lines := append([]string{text + "."}, s.delivered()...)
	if len(s.LeftOut) > 0 {
		var list []string
		for _, n := range s.LeftOut {
			list = append(list, strconv.Itoa(n))
		}
		lines = append(lines, fmt.Sprintf("Left out: batch %s, for which %v is too short on this machine (--budget).",
			strings.Join(list, ", "), time.Duration(s.Budget*float64(time.Second))))
	}
	if peak := r.Machine.Int8Peak; r.drift < -peakDrift || r.drift > peakDrift {
		lines = append(lines, fmt.Sprintf("The machine is not what it was at the beginning: its int8 peak went from %s to %s GOP/s. The run is best repeated.",
			digits(peak/(1+r.drift/2)), digits(peak*(1+r.drift)/(1+r.drift/2))))
	}
	return lines
}

// delivered says what the emulation delivered before anything else used it.
func (s *Settings) delivered() []string {
	var parts []string
	for i := range s.Paths {
		p := &s.Paths[i]
		if p.Idle == nil {
			continue
		}
		text := fmt.Sprintf("for %s it gave %s ms", pathName(p.RTT), digits(p.Idle.Median))
		if p.UpGot > 0 {
			text += fmt.Sprintf(", for %v up %s Mbit/s", Rate(s.Up), digits(p.UpGot/1e6))
		}
		if p.DownGot > 0 {
			text += fmt.Sprintf(", for %v down %s Mbit/s", Rate(s.Down), digits(p.DownGot/1e6))
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{"The emulation, with nothing else on the way: " + strings.Join(parts, "; ") + "."}
}

func rounds(list []int) string {
	lo, hi := slices.Min(list), slices.Max(list)
	switch {
	case hi == 1:
		return "1 round"
	case lo == hi:
		return fmt.Sprintf("%d rounds", hi)
	}
	return fmt.Sprintf("%d to %d rounds", lo, hi)
}

// Mistaken says where workers gave other bits than this machine; empty: nowhere.
func (r *Report) Mistaken() string { return differing(r.Different()) }

// differing says at which batch answers of workers differed first.
func differing(batches []int) string {
	if len(batches) == 0 {
		return ""
	}
	return fmt.Sprintf("workers' answers differ from those computed here, first at batch %d; run kvasir doctor", batches[0])
}

// Different returns the batches whose answers from workers were not those computed here.
func (r *Report) Different() []int {
	var list []int
	for _, x := range r.Results {
		if x.Identical != nil && !*x.Identical {
			list = append(list, x.Batch)
		}
	}
	return slices.Compact(list)
}
