package main

import (
	"context"
	"fmt"

	"kvasir/bench"
)

// audit runs the scenario of that name.
func (a *app) audit(ctx context.Context, c *cli) error {
	s := bench.DefaultAudit()
	if c.Quick {
		s = bench.QuickAudit()
	}
	if c.Preset != "" {
		if err := s.Layer.Like(c.Preset); err != nil {
			return settings(err)
		}
	}
	c.layer(&s.Layer)
	if err := s.Check(); err != nil {
		return settings(err)
	}
	var report *bench.AuditReport
	err := a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewAuditTable(v.w)
		var err error
		report, err = s.Run(ctx, bench.AuditObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.AuditReport) { v.begin(auditHead(r), c.Quick, t.Head) },
			Row:      func(x bench.AuditResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return missed(report, c.Judge)
}

// auditHead says what is measured, and on what.
func auditHead(r *bench.AuditReport) []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("%s; turns of %d rows in batches of %d, with one row in %d checked in groups of %d, and with none",
			s.Layer, s.Rows, s.Batch, s.Every, s.Group),
		fmt.Sprintf("%s, %d cores, %s", r.Machine.CPU, r.Machine.Cores, r.Machine.Go),
	}
}
