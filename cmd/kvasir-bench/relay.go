package main

import (
	"context"
	"fmt"

	"kvasir/bench"
)

// relay makes settings of flags.
func (c *cli) relay() bench.Relay {
	x := bench.DefaultRelay()
	if c.Quick {
		x = bench.QuickRelay()
	}
	c.Sessions.or(&x.Sessions)
	return x
}

// relay runs the scenario of that name.
func (a *app) relay(ctx context.Context, c *cli) error {
	x := c.relay()
	if err := x.Check(); err != nil {
		return settings(err)
	}
	var report *bench.RelayReport
	err := a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewRelayTable(v.w)
		var err error
		report, err = x.Run(ctx, bench.RelayObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.RelayReport) { v.begin(wireHead(x.Name(), &r.Machine), c.Quick, t.Head) },
			Row:      func(x bench.RelayResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	if n := report.Different(); n > 0 {
		return fmt.Errorf("%d sessions answered with other bits than they should", n)
	}
	return missed(report, c.Judge)
}
