package main

import (
	"context"
	"fmt"
	"strings"

	"kvasir/bench"
)

// gate runs the scenario of that name, and writes new baselines where that is asked for.
func (a *app) gate(ctx context.Context, c *cli) error {
	g, err := c.gate()
	if err != nil {
		return err
	}
	if err := g.Check(); err != nil {
		return settings(err)
	}
	var report *bench.GateReport
	err = a.run(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		var err error
		report, err = g.Run(ctx, bench.Observer[bench.GateReport, bench.GateLine]{
			Progress: v.progress.show,
			Begin:    func(r *bench.GateReport) { v.begin(gateHead(r), false, func() error { return nil }) },
			Row: func(x bench.GateLine) {
				v.do(func() error {
					_, err := fmt.Fprintln(v.w, x.Sentence())
					return err
				})
			},
		})
		return report, err
	})
	if err != nil {
		return err
	}
	if c.Update {
		return a.updateBaselines(report, c)
	}
	if bad := report.Failed(); len(bad) > 0 {
		return fmt.Errorf("worse than the baseline: %s; if it is to be so, kvasir-bench gate --update --why TEXT", strings.Join(bad, "; "))
	}
	return nil
}

// updateBaselines writes what the run has come to.
func (a *app) updateBaselines(r *bench.GateReport, c *cli) error {
	dir := c.Baselines
	if dir == "" {
		dir = "bench/baselines"
	}
	files, err := r.Update(dir, strings.TrimSpace(c.Why))
	for _, name := range files {
		if _, err := fmt.Fprintf(a.stderr, "wrote %s/%s\n", dir, name); err != nil {
			return err
		}
	}
	return settings(err)
}

// gateHead says what is measured.
func gateHead(r *bench.GateReport) []string {
	return []string{
		"what a dispatch costs, counted, and ratios of times, measured in turns; both against baselines",
		machineLine(&r.Machine, r.Settings.Kernel),
	}
}
