package pages

import (
	"fmt"
	"strings"

	"kvasir/bench"
)

// paths is the page of dispatch, expert and decode.
func (p *Page) paths(s *bench.Stored) error {
	var r bench.Report
	if err := read(s, &r); err != nil {
		return err
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench "+p.Scenario, r.Settings.Kernel, r.Settings.Threads) + "\n" + kept(r.Results) + "\n\n" + pathTable(&r)
	p.Plots = plotsOf(p.Scenario, []*bench.Report{&r})
	return nil
}

// kept says how many rounds count.
func kept(results []bench.Result) string {
	pairs, dropped, noisy := 0, 0, 0
	for i := range results {
		x := &results[i]
		pairs, dropped = pairs+x.Pairs, dropped+x.Dropped
		if x.Pairs > 0 && x.Pairs-x.Dropped < min(3, x.Pairs) {
			noisy++
		}
	}
	if pairs == 0 {
		return ""
	}
	text := fmt.Sprintf("Medians; in brackets between what the median is. %d of %d rounds were dropped because the machine changed meanwhile.", dropped, pairs)
	if noisy > 0 {
		text += fmt.Sprintf(" A noisy machine: at %d of %d points fewer than three were left, and all count.", noisy, len(results))
	}
	return text
}

// wayOf names the way of a result.
func wayOf(x *bench.Result) string {
	switch {
	case x.RTT == nil:
		return "local"
	case x.Flights > 0:
		return fmt.Sprintf("%v ms, %d under way", *x.RTT, x.Flights)
	}
	return fmt.Sprintf("%v ms", *x.RTT)
}

func pathTable(r *bench.Report) string {
	ms := "ms a dispatch"
	if r.Settings.Scenario == bench.DecodeName {
		ms = "ms a step"
	}
	t := &table{}
	t.head("batch", "path", ms, "tokens/s", "x batch 1", "RTT costs", "bytes out a row", "back", "of the roofline", "bound by", "same bits")
	for i := range r.Results {
		x := &r.Results[i]
		took := digits(x.Ms)
		if x.MsLow > 0 {
			took += fmt.Sprintf(" (%s to %s)", digits(x.MsLow), digits(x.MsHigh))
		}
		t.row(fmt.Sprint(x.Batch), wayOf(x), took, digits(x.TokensPerS), digits(x.XVsBatch1), percent(x.RTTOverhead),
			digits(x.BytesOut), digits(x.BytesBack), share(x.Roofline), x.Bound, yes(x.Identical))
	}
	return t.b.String()
}

// bars is the page of all bars of paths.
func (p *Page) bars(s *bench.Stored) error {
	var r bench.BarsReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("what", "workers, line", "figure", "bar", "measured", "verdict")
	for i := range r.Bars {
		b := &r.Bars[i]
		what := fmt.Sprintf("batch %d at %v ms", b.Batch, b.RTT)
		if b.Pipelined {
			what += ", pipelined"
		}
		line := b.Worker
		if b.Up > 0 {
			line += fmt.Sprintf(", %vbit/s", bench.Rate(b.Up))
		}
		side := "at least "
		if b.AtMost {
			side = "at most "
		}
		t.row(what, line, "`"+b.Of+"`", side+fmt.Sprint(b.Want), fmt.Sprint(b.Got), b.Verdict)
	}
	kernel, threads := "", 0
	if len(r.Runs) > 0 {
		kernel, threads = r.Runs[0].Settings.Kernel, r.Runs[0].Settings.Threads
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench bars", kernel, threads) + "\n\n" + t.b.String()
	for _, x := range r.Runs {
		p.Text += fmt.Sprintf("\nWorkers: %s; line: %s.\n%s\n\n%s", x.Settings.Worker, lineOf(&x.Settings), kept(x.Results), pathTable(x))
	}
	p.Plots = plotsOf(p.Scenario, r.Runs)
	return nil
}

// lineOf says what limits a line.
func lineOf(s *bench.Settings) string {
	if s.Up == 0 && s.Down == 0 {
		return "no limit"
	}
	return fmt.Sprintf("%vbit/s from each worker, %vbit/s to each", bench.Rate(s.Up), bench.Rate(s.Down))
}

// reference is the page of published figures.
func (p *Page) reference(s *bench.Stored) error {
	var r bench.ReferenceReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("", "what", "RTT", "ms a token, measured", "tokens/s, measured", "costs, arithmetic", "sum in ms, arithmetic", "x batch 1, measured", "published")
	for i := range r.Results {
		x := &r.Results[i]
		rtt := ""
		if x.RTT != nil {
			rtt = fmt.Sprintf("%v ms", *x.RTT)
		}
		t.row(x.Figure, x.What, rtt, digits(x.Ms), digits(x.Tokens), percent(x.Costs), digits(x.Sum), digits(x.XVsBatch1), x.Published)
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench reference", r.Settings.Kernel, r.Settings.Threads) + "\n\n" + t.b.String() + "\n" +
		strings.Join(append(r.Remarks(), r.Words()...), "\n") + "\n"
	return nil
}

// kernels is the page of the kernels.
func (p *Page) kernels(s *bench.Stored) error {
	var r bench.KernelsReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("layer", "rows", "ms a dispatch", "tokens/s", "GOP/s", "of int8 peak", "of read rate", "pairs kept", "same bits")
	for i := range r.Results {
		x := &r.Results[i]
		layer := x.Quant
		if x.Picks != "uniform" {
			layer += ", " + x.Picks
		}
		if x.Kernel != r.Settings.Kernel {
			layer += ", " + x.Kernel
		}
		t.row(layer, fmt.Sprint(x.Batch), digits(x.Ms), digits(x.TokensPerS), digits(x.Gops), share(x.PeakShare), share(x.ReadShare),
			fmt.Sprintf("%d of %d", x.Pairs-x.Dropped, x.Pairs), yes(x.Identical))
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench kernels", r.Settings.Kernel, r.Settings.Threads) + "\n\n" + t.b.String()
	if x, ok := roofline(&r); ok {
		p.Plots = append(p.Plots, x)
	}
	return nil
}

// model is the page of a whole model.
func (p *Page) model(s *bench.Stored) error {
	var r bench.ModelReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("", "rows", "ms a step", "tokens/s", "x 1 row", "of int8 peak", "of read rate", "pairs kept", "same tokens")
	for i := range r.Results {
		x := &r.Results[i]
		t.row(x.Kind, fmt.Sprint(x.Batch), digits(x.Ms), digits(x.TokensPerS), digits(x.XVsBatch1), share(x.PeakShare), share(x.ReadShare),
			fmt.Sprintf("%d of %d", x.Pairs-x.Dropped, x.Pairs), yes(x.Identical))
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench model", r.Settings.Kernel, r.Settings.Threads) + "\n\n" + t.b.String()
	if x, ok := together(&r); ok {
		p.Plots = append(p.Plots, x)
	}
	for i := range r.Bars {
		b := &r.Bars[i]
		p.Text += fmt.Sprintf("\nBar: %s of %d rows, %s tokens/s wanted here, %s measured: %s.", b.Kind, b.Batch, digits(b.Want), digits(b.Got), b.Verdict)
	}
	return nil
}

// wire is the page of the path without computing.
func (p *Page) wire(s *bench.Stored) error {
	var r bench.WireReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("path", "way", "GB/s", "ours/this", "CPU s a GB and end", "allocations a chunk")
	for i := range r.Results {
		x := &r.Results[i]
		t.row(x.Path, x.Way, digits(x.GBps), digits(x.XVs), digits(x.CPU), fmt.Sprintf("%.2f", x.Allocs))
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench wire", "", 0) + "\n\n" + t.b.String()
	return nil
}
