package main

import (
	"context"
	"fmt"
	"time"

	"kvasir/bench"
)

// swarmFlags are those of what is simulated.
var swarmFlags = []string{
	"rtt", "up", "down", "workers", "worker", "flights", "layers", "churn", "spread", "memory", "backbone", "simulate", "check",
}

// simulated is the grammar of what only simulated swarms have.
type simulated struct {
	Churn    decimal  `help:"Share of the workers that leave in an hour, and come back a minute later (default 0.1)." placeholder:"X" group:"swarm"`
	Spread   decimal  `help:"How much workers differ from the middle one in speed, memory, round trip and lines: two thirds of them by a factor of up to 1 + X (default 0.5)." placeholder:"X" group:"swarm"`
	Memory   decimal  `help:"Of the middle worker, in GB (default 16)." placeholder:"GB" group:"swarm"`
	Backbone duration `help:"That the backbone takes for a layer of a micro-batch (default 4ms)." placeholder:"TIME" group:"swarm"`
	Simulate duration `help:"On the simulated clock (default 1m, with --quick 10s)." placeholder:"TIME" group:"swarm"`
	Check    bool     `help:"Run 4 workers over loopback that take as long and compute nothing, simulate the same, and compare." group:"swarm"`
}

// swarm makes settings of flags.
func (c *cli) swarm() (bench.Swarm, error) {
	s := bench.DefaultSwarm()
	if c.Quick {
		s.Simulate = 10 * time.Second
	}
	if c.Preset != "" {
		if err := s.Like(c.Preset); err != nil {
			return s, settings(err)
		}
	}
	if c.RTT.given {
		if len(c.RTT.list) > 1 {
			return s, usagef("swarm takes one --rtt, that of the middle worker")
		}
		s.RTT = 0
		if len(c.RTT.list) == 1 {
			s.RTT = c.RTT.list[0]
		}
	}
	for _, x := range []struct {
		from number
		to   *int
	}{
		{c.Workers, &s.Workers}, {c.Layers, &s.Layers}, {c.Experts, &s.Experts}, {c.TopK, &s.TopK},
		{c.Hidden, &s.Hidden}, {c.FFN, &s.FFN}, {c.Batch, &s.Batch}, {c.Flights, &s.Flights},
	} {
		x.from.or(x.to)
	}
	if c.Up.given {
		s.Up = c.Up.Rate
	}
	if c.Down.given {
		s.Down = c.Down.Rate
	}
	if c.Worker.given {
		s.Speed = c.Worker.Speed
	}
	c.Churn.or(&s.Churn)
	c.Spread.or(&s.Spread)
	c.Memory.or(&s.Memory)
	c.Backbone.or(&s.Own)
	c.Simulate.or(&s.Simulate)
	if c.Seed.given {
		s.Seed = uint64(c.Seed.n)
	}
	return s, nil
}

// simulate runs the scenario swarm.
func (a *app) simulate(ctx context.Context, c *cli) error {
	s, err := c.swarm()
	if err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return settings(err)
	}
	run := s.Run
	if c.Check {
		run = s.Compare
	}
	var report *bench.SwarmReport
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		var err error
		report, err = run(ctx, bench.SwarmObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.SwarmReport) { v.begin(swarmHead(r), false, func() error { return nil }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	if p := report.Real; p != nil && c.Judge && !p.Near() {
		return fmt.Errorf("missed: the simulation is %.1f %% off what was measured, bar 15 %%", 100*p.Off)
	}
	return nil
}

// swarmHead says what is simulated.
func swarmHead(r *bench.SwarmReport) []string {
	s := &r.Settings
	return []string{
		fmt.Sprintf("simulated: %d workers; %d layers of %d experts, top-%d, hidden %d, FFN %d; micro-batches of %d rows",
			s.Workers, s.Layers, s.Experts, s.TopK, s.Hidden, s.FFN, s.Batch),
		fmt.Sprintf("the middle worker: %s, %v GB, round trip %v ms, up %v, down %v bits/s; spread %v, churn %v an hour, seed %d",
			s.Worker, s.Memory, s.RTT, s.Up, s.Down, s.Spread, s.Churn, s.Seed),
	}
}
