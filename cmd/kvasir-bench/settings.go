package main

import (
	"errors"
	"os"
	"strings"
	"time"

	"kvasir/bench"
)

// settings makes an error of settings one of usage.
func settings(err error) error {
	if errors.Is(err, bench.ErrSettings) {
		return usagef("%s", strings.TrimPrefix(err.Error(), bench.ErrSettings.Error()+": "))
	}
	return err
}

// sized is the usual settings of a scenario, or with --quick the small ones.
func sized[T any](c *cli, usual, quick func() T) T {
	if c.Quick {
		return quick()
	}
	return usual()
}

// shape sets the dimensions of a layer: those of a preset, and then what is said of each.
func (c *cli) shape(experts, topK, hidden, ffn *int) error {
	if c.Preset != "" {
		var err error
		if *experts, *topK, *hidden, *ffn, err = bench.PresetLayer(c.Preset); err != nil {
			return settings(err)
		}
	}
	c.Experts.or(experts)
	c.TopK.or(topK)
	c.Hidden.or(hidden)
	c.FFN.or(ffn)
	return nil
}

// rounds sets how often is measured, how long, and what random numbers follow from.
func (c *cli) rounds(repeat *int, budget *time.Duration, seed *uint64) {
	c.Repeat.or(repeat)
	c.Budget.or(budget)
	c.Seed.or(seed)
}

// path is what lies between workers and backbone, beside the round trip.
func (c *cli) path() bench.Path {
	return bench.Path{Jitter: c.Jitter.v, Up: c.Up.v, Down: c.Down.v, Stall: c.Stall.v}
}

// layer sets what every scenario of one layer has.
func (c *cli) layer(d *bench.Dispatch) error {
	if err := c.shape(&d.Experts, &d.TopK, &d.Hidden, &d.FFN); err != nil {
		return err
	}
	c.Batch.or(&d.Batch)
	if c.Only.given {
		d.Only = c.Only.v
		if n := len(d.Only); n > 0 {
			d.Batch = d.Only[n-1]
		}
	}
	c.Quant.or(&d.Quant)
	c.rounds(&d.Repeat, &d.Budget, &d.Seed)
	return nil
}

// expert makes settings of flags. What is said of a path in the environment is for another run.
func (c *cli) expert() (bench.Dispatch, error) {
	d := sized(c, bench.DefaultExpert, bench.QuickExpert)
	err := c.layer(&d)
	return d, err
}

// dispatch makes settings of flags.
func (c *cli) dispatch() (bench.Dispatch, error) {
	d := sized(c, bench.DefaultDispatch, bench.QuickDispatch)
	c.RTT.or(&d.RTTs)
	c.Worker.or(&d.Worker)
	c.Workers.or(&d.Workers)
	c.Flights.or(&d.Flights)
	d.Path = c.path()
	err := c.layer(&d)
	return d, err
}

// kernels makes settings of flags.
func (c *cli) kernels() (bench.Kernels, error) {
	k := sized(c, bench.DefaultKernels, bench.QuickKernels)
	c.Batch.or(&k.Batch)
	c.rounds(&k.Pairs, &k.Budget, &k.Seed)
	err := c.shape(&k.Experts, &k.TopK, &k.Hidden, &k.FFN)
	return k, err
}

// audit makes settings of flags.
func (c *cli) audit() (bench.Audit, error) {
	s := sized(c, bench.DefaultAudit, bench.QuickAudit)
	err := c.layer(&s.Layer)
	return s, err
}

// wire makes settings of flags.
func (c *cli) wire() bench.Wire {
	w := sized(c, bench.DefaultWire, bench.QuickWire)
	c.Repeat.or(&w.Rounds)
	c.Budget.or(&w.Budget)
	return w
}

// relay makes settings of flags.
func (c *cli) relay() bench.Relay {
	x := sized(c, bench.DefaultRelay, bench.QuickRelay)
	c.Sessions.or(&x.Sessions)
	return x
}

// whole sets what every scenario of a whole model has.
func (c *cli) whole(m *bench.Model) error {
	m.Path = c.Model
	if c.Preset != "" {
		if err := m.Preset(c.Preset); err != nil {
			return settings(err)
		}
	}
	if c.Like != "" {
		m.Like = c.Like
	}
	c.Sequences.or(&m.Sequences)
	c.Prompt.or(&m.Prompt)
	c.Tokens.or(&m.Tokens)
	c.rounds(&m.Pairs, &m.Budget, &m.Seed)
	return nil
}

// model makes settings of flags.
func (c *cli) model() (bench.Model, error) {
	m := sized(c, bench.DefaultModel, bench.QuickModel)
	c.Prefill.or(&m.Prefill)
	err := c.whole(&m)
	return m, err
}

// decode makes settings of flags.
func (c *cli) decode() (bench.Decode, error) {
	d := sized(c, bench.DefaultDecode, bench.QuickDecode)
	c.Layers.or(&d.Layers)
	c.RTT.or(&d.RTTs)
	c.Worker.or(&d.Worker)
	c.Workers.or(&d.Workers)
	c.Flights.or(&d.Flights)
	d.Line = c.path()
	err := c.whole(&d.Model)
	return d, err
}

// serve makes settings of flags. Under load, and for clients that vanish, the built-in model is enough.
func (c *cli) serve() (bench.Serve, error) {
	s := sized(c, bench.DefaultServe, bench.QuickServe)
	c.Load.or(&s.Load)
	c.Vanish.or(&s.Vanish)
	if s.Path = c.Model; c.Like != "" || s.Load > 0 || s.Vanish > 0 {
		s.Like = c.Like
	}
	c.Sequences.or(&s.Sequences)
	c.Tokens.or(&s.Tokens)
	c.rounds(&s.Pairs, &s.Budget, &s.Seed)
	switch {
	case c.Load.given && s.Load == 0:
		return s, usagef("--load 0s, want 1s to 24h")
	case c.Vanish.given && s.Vanish == 0:
		return s, usagef("--vanish 0, want 1 or more")
	}
	return s, nil
}

// swarm makes settings of flags.
func (c *cli) swarm() (bench.Swarm, error) {
	s := bench.DefaultSwarm()
	if c.Quick {
		s.Simulate = 10 * time.Second
	}
	switch len(c.RTT.v) {
	case 0:
		if c.RTT.given {
			s.RTT = 0
		}
	case 1:
		s.RTT = c.RTT.v[0]
	default:
		return s, usagef("swarm takes one --rtt, that of the middle worker")
	}
	c.Workers.or(&s.Workers)
	c.Layers.or(&s.Layers)
	c.Batch.or(&s.Batch)
	c.Flights.or(&s.Flights)
	c.Up.or(&s.Up)
	c.Down.or(&s.Down)
	c.Worker.or(&s.Speed)
	c.Churn.or(&s.Churn)
	c.Spread.or(&s.Spread)
	c.Memory.or(&s.Memory)
	c.Backbone.or(&s.Own)
	c.Simulate.or(&s.Simulate)
	c.Seed.or(&s.Seed)
	err := c.shape(&s.Experts, &s.TopK, &s.Hidden, &s.FFN)
	return s, err
}

// gate makes settings of flags.
func (c *cli) gate() (bench.Gate, error) {
	g := bench.DefaultGate()
	c.Repeat.or(&g.Rounds)
	g.Counters, g.Update = c.Quick, c.Update
	if c.Ratios != "" {
		g.Ratios = strings.Split(c.Ratios, ",")
	}
	switch {
	case c.Update && strings.TrimSpace(c.Why) == "":
		return g, usagef("--update needs --why: say what has changed, for who reads the baselines later")
	case !c.Update && c.Why != "":
		return g, usagef("--why is for --update")
	}
	if c.Baselines != "" {
		if info, err := os.Stat(c.Baselines); err != nil || !info.IsDir() {
			return g, usagef("--baselines %s: no such folder", c.Baselines)
		}
		g.Baselines = os.DirFS(c.Baselines)
	}
	return g, nil
}
