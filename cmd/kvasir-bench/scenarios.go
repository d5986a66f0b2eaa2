package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"kvasir/bench"
)

// dispatch runs the scenario of that name.
func (a *app) dispatch(ctx context.Context, c *cli) error {
	d, err := c.dispatch()
	if err != nil {
		return err
	}
	return measure(ctx, a, c, d, looks[bench.Report, bench.Result]{layerHead(d.Name()), bench.NewTable})
}

// expert runs the scenario of that name.
func (a *app) expert(ctx context.Context, c *cli) error {
	d, err := c.expert()
	if err != nil {
		return err
	}
	return measure(ctx, a, c, d, looks[bench.Report, bench.Result]{layerHead(d.Name()), bench.NewTable})
}

// bars runs the scenario of that name.
func (a *app) bars(ctx context.Context, c *cli) error {
	b := sized(c, bench.DefaultBars, bench.QuickBars)
	head := func(r *bench.Report) []string { return dispatchHead(r.Name(), r) }
	return measure(ctx, a, c, b, looks[bench.Report, bench.Result]{head, bench.NewTable})
}

// reference runs the scenario of that name.
func (a *app) reference(ctx context.Context, c *cli) error {
	x := sized(c, bench.DefaultReference, bench.QuickReference)
	head := func(r *bench.ReferenceReport) []string {
		return []string{x.Layer.Name(), machineLine(&r.Machine, r.Settings.Kernel)}
	}
	return measure(ctx, a, c, x, looks[bench.ReferenceReport, bench.ReferenceResult]{head, bench.NewReferenceTable})
}

// decode runs the scenario of that name.
func (a *app) decode(ctx context.Context, c *cli) error {
	d, err := c.decode()
	if err != nil {
		return err
	}
	head := func(r *bench.Report) []string { return dispatchHead(decodeName(r), r) }
	return measure(ctx, a, c, d, looks[bench.Report, bench.Result]{head, bench.NewStepTable})
}

// kernels runs the scenario of that name.
func (a *app) kernels(ctx context.Context, c *cli) error {
	k, err := c.kernels()
	if err != nil {
		return err
	}
	head := func(r *bench.KernelsReport) []string { return kernelsHead(k.Name(), r) }
	return measure(ctx, a, c, k, looks[bench.KernelsReport, bench.KernelsResult]{head, bench.NewKernelsTable})
}

// model runs the scenario of that name.
func (a *app) model(ctx context.Context, c *cli) error {
	m, err := c.model()
	if err != nil {
		return err
	}
	return measure(ctx, a, c, m, looks[bench.ModelReport, bench.ModelResult]{modelHead, bench.NewModelTable})
}

// serve runs the scenario of that name, with its client in another process of this program.
func (a *app) serve(ctx context.Context, c *cli) error {
	s, err := c.serve()
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the client is another process of this program: %w", err)
	}
	s.Client = []string{own, bench.ServeClientName}
	l := looks[bench.ServeReport, bench.ServeResult]{serveHead, bench.NewServeTable}
	if s.Load > 0 || s.Vanish > 0 {
		l.table = nil // there are no rows
	}
	return measure(ctx, a, c, s, l)
}

// wire runs the scenario of that name.
func (a *app) wire(ctx context.Context, c *cli) error {
	w := c.wire()
	head := func(r *bench.WireReport) []string { return []string{w.Name(), machineLine(&r.Machine, "")} }
	return measure(ctx, a, c, w, looks[bench.WireReport, bench.WireResult]{head, bench.NewWireTable})
}

// relay runs the scenario of that name.
func (a *app) relay(ctx context.Context, c *cli) error {
	x := c.relay()
	head := func(r *bench.RelayReport) []string { return []string{x.Name(), machineLine(&r.Machine, "")} }
	return measure(ctx, a, c, x, looks[bench.RelayReport, bench.RelayResult]{head, bench.NewRelayTable})
}

// audit runs the scenario of that name.
func (a *app) audit(ctx context.Context, c *cli) error {
	s, err := c.audit()
	if err != nil {
		return err
	}
	return measure(ctx, a, c, s, looks[bench.AuditReport, bench.AuditResult]{auditHead, bench.NewAuditTable})
}

// besides is a simulated swarm beside one that is run.
type besides struct{ bench.Swarm }

// Run runs both.
func (b besides) Run(ctx context.Context, o bench.Observer[bench.SwarmReport, bench.SwarmResult]) (*bench.SwarmReport, error) {
	return b.Compare(ctx, o)
}

// swarm runs the scenario of that name.
func (a *app) swarm(ctx context.Context, c *cli) error {
	s, err := c.swarm()
	if err != nil {
		return err
	}
	l := looks[bench.SwarmReport, bench.SwarmResult]{head: swarmHead} // there are no rows
	if c.Check {
		return measure(ctx, a, c, besides{s}, l)
	}
	return measure(ctx, a, c, s, l)
}

// looks is how a scenario is shown.
type looks[R, X any] struct {
	head  func(*R) []string
	table func(io.Writer) *bench.Table[X] // nil: its words say it all
}

// scenario is settings that can be checked and run. P is what comes of it, R what an observer is shown first.
type scenario[R, X any, P measured] interface {
	Check() error
	Run(context.Context, bench.Observer[R, X]) (P, error)
}

// measure checks settings, runs them, and prints what comes of it as it comes.
func measure[R, X any, P measured](ctx context.Context, a *app, c *cli, s scenario[R, X, P], l looks[R, X]) error {
	if err := s.Check(); err != nil {
		return settings(err)
	}
	var report P
	err := a.run(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		o := bench.Observer[R, X]{Progress: v.progress.show}
		var head func() error
		if l.table != nil {
			t := l.table(v.w)
			head = t.Head
			o.Row = func(x X) { v.do(func() error { return t.Row(x) }) }
		}
		o.Begin = func(r *R) { v.begin(l.head(r), c.Quick && c.Scenario != bench.SwarmName, head) }
		var err error
		report, err = s.Run(ctx, o)
		return report, err
	})
	if err != nil {
		return err
	}
	return verdict(report, c.Judge)
}
