package pages

import (
	"fmt"
	"strings"

	"kvasir/bench"
)

// serve is the page of the HTTP endpoint.
func (p *Page) serve(s *bench.Stored) error {
	var r bench.ServeReport
	if err := read(s, &r); err != nil {
		return err
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench serve", r.Settings.Kernel, r.Settings.Threads) + " Model: " + r.Settings.Model + ".\n"
	if len(r.Results) > 0 {
		t := &table{}
		t.head("streams", "direct, tokens/s", "HTTP, tokens/s", "HTTP by direct", "server beyond the model, us a token", "rounds kept", "same text")
		for i := range r.Results {
			x := &r.Results[i]
			door := ""
			if x.Door != nil {
				door = digits(*x.Door)
			}
			t.row(fmt.Sprint(x.Streams), digits(x.Direct), digits(x.HTTP), share(x.Ratio), door,
				fmt.Sprintf("%d of %d", x.Pairs-x.Dropped, x.Pairs), yes(x.Identical))
		}
		p.Text += "\n" + t.b.String()
	}
	p.Text += "\n" + strings.Join(r.Remarks(), "\n") + "\n"
	if len(r.Bars) > 0 {
		t := &table{}
		t.head("bar", "wanted here", "measured", "verdict")
		for i := range r.Bars {
			b := &r.Bars[i]
			side := "at least "
			if b.Most {
				side = "at most "
			}
			t.row(b.Name, strings.TrimSpace(fmt.Sprintf("%s%g %s", side, b.Want, b.Unit)), fmt.Sprint(b.Got), b.Verdict)
		}
		p.Text += "\n" + t.b.String()
	}
	return nil
}

// relay is the page of many sessions.
func (p *Page) relay(s *bench.Stored) error {
	var r bench.RelayReport
	if err := read(s, &r); err != nil {
		return err
	}
	t := &table{}
	t.head("", "what", "measured", "bar", "verdict")
	for i := range r.Results {
		x := &r.Results[i]
		bar := ""
		if x.Want != nil {
			bar = fmt.Sprintf("at least %g", *x.Want)
			if x.Most {
				bar = fmt.Sprintf("at most %g", *x.Want)
			}
		}
		t.row(x.Part, x.Text, strings.TrimSpace(fmt.Sprintf("%g %s", x.Got, x.Unit)), bar, x.Verdict)
	}
	p.Text = measuredOn(&r.Machine, fmt.Sprintf("kvasir-bench relay --sessions %d", r.Settings.Sessions), "", 0) + "\n\n" + t.b.String() + "\n" +
		strings.Join(r.Remarks(), "\n") + "\n"
	return nil
}

// audit is the page of what checking costs.
func (p *Page) audit(s *bench.Stored) error {
	var r bench.AuditReport
	if err := read(s, &r); err != nil {
		return err
	}
	x := &r.Settings
	p.Text = measuredOn(&r.Machine, "kvasir-bench audit", "", 0) + fmt.Sprintf(" Layer: %s; a turn is %d rows in batches of %d.\n\n", x.Layer, x.Rows, x.Batch)
	t := &table{}
	t.head("pair", "rows/s, unchecked", "rows/s, checked", "cost, %", "judge, %", "rows checked")
	for i := range r.Results {
		x := &r.Results[i]
		t.row(fmt.Sprint(i+1), digits(x.Off), digits(x.On), fmt.Sprintf("%.2f", x.Cost), fmt.Sprintf("%.2f", x.Judge), fmt.Sprint(x.Checked))
	}
	p.Text += t.b.String() + "\n" + strings.Join(append(r.Words(), r.Remarks()...), "\n") + "\n"
	return nil
}

// swarm is the page of a simulated swarm.
func (p *Page) swarm(s *bench.Stored) error {
	var r bench.SwarmReport
	if err := read(s, &r); err != nil {
		return err
	}
	x := &r.Settings
	p.Text = fmt.Sprintf("%d workers, %d layers of %d experts, top-%d, hidden %d, FFN %d, micro-batches of %d rows; the middle worker `%s`, %g GB, "+
		"%g ms, %vbit/s up and %vbit/s down. Simulated on %s, %d cores.\n\n", x.Workers, x.Layers, x.Experts, x.TopK, x.Hidden, x.FFN, x.Batch,
		x.Worker, x.Memory, x.RTT, x.Up, x.Down, r.Machine.CPU, r.Machine.Cores)
	p.Text += strings.Join(append(r.Words(), r.Remarks()...), "\n") + "\n"
	return nil
}

// gate is the page of what is counted and compared with baselines.
func (p *Page) gate(s *bench.Stored) error {
	var r bench.GateReport
	if err := read(s, &r); err != nil {
		return err
	}
	p.Text = measuredOn(&r.Machine, "kvasir-bench gate", r.Settings.Kernel, r.Settings.Threads) + "\n\n"
	t := &table{}
	t.head("", "measured", "bound", "verdict")
	for i := range r.Lines {
		x := &r.Lines[i]
		got, bound := strings.TrimSpace(fmt.Sprintf("%g %s", x.Got, x.Unit)), ""
		if x.Bound != nil {
			bound = fmt.Sprint(*x.Bound)
		}
		switch {
		case x.Low > 0:
			got += fmt.Sprintf(" (%g to %g)", x.Low, x.High)
		case x.Bound == nil || x.Verdict == "noisy machine" || x.Verdict == "not measured":
			if x.Kind == "ratio" {
				got = "–"
			}
		}
		t.row(x.Text, got, bound, x.Verdict)
	}
	p.Text += t.b.String() + "\n" + strings.Join(append(r.Words(), r.Remarks()...), "\n") + "\n"
	return nil
}

// Merge makes one page of all those of a scenario, in their order.
func Merge(list []*Page) []*Page {
	var merged []*Page
	by := map[string]*Page{}
	for _, p := range list {
		first := by[p.Scenario]
		if first == nil {
			by[p.Scenario] = p
			merged = append(merged, p)
			continue
		}
		first.Text = strings.TrimRight(first.Text, "\n") + "\n\n" + p.Text
		first.Plots = append(first.Plots, p.Plots...)
	}
	return merged
}
