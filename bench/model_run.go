package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"kvasir/internal/machine"
)

// Kinds of points.
const (
	decoding = "decode"
	reading  = "prefill"
)

// modelPoint is one thing to measure.
type modelPoint struct {
	kind string
	rows int // sequences that decode, tokens of the prompt
}

// name is the point in words.
func (p *modelPoint) name() string { return modelPointName(p.kind, p.rows) }

func modelPointName(kind string, rows int) string {
	switch {
	case kind == reading:
		return fmt.Sprintf("prefill of %d tokens", rows)
	case rows == 1:
		return "1 sequence"
	}
	return fmt.Sprintf("%d sequences", rows)
}

func (m Model) points() []modelPoint {
	var list []modelPoint
	for _, n := range m.Sequences {
		list = append(list, modelPoint{decoding, n})
	}
	if m.Prefill > 0 {
		list = append(list, modelPoint{reading, m.Prefill})
	}
	return list
}

// modelRun is a run of Model under way.
type modelRun struct {
	m      Model
	o      Observer[ModelReport, ModelResult]
	start  time.Time
	report ModelReport
	rig    *modelRig
	gen    *scheduled

	prompts [][]int32
	made    [][]int32 // by the first run that had the prompt
	next    []int32   // after the prompt of prefill, of the first run

	peaks []float64 // all that were measured
	reads []float64
}

func (r *modelRun) measure(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.m.Seed, 1))
	if n := len(r.m.Sequences); n > 0 {
		var err error
		if r.gen, err = newScheduled(r.rig, scheduledConfig{
			experts: r.rig.experts, sequences: r.m.Sequences[n-1], tokens: r.m.Prompt + r.m.Tokens + 1,
		}); err != nil {
			return err
		}
		defer r.gen.close()
		r.prompts = make([][]int32, r.m.Sequences[n-1])
		r.made = make([][]int32, len(r.prompts))
	}
	for i := range r.prompts {
		r.prompts[i] = r.prompt(random, r.m.Prompt)
	}
	points := r.m.points()
	for i := range points {
		p := &points[i]
		if !r.fits(p) {
			r.report.Settings.LeftOut = append(r.report.Settings.LeftOut, p.name())
			continue
		}
		now := time.Since(r.start)
		m := &modelPointRun{
			r: r, p: p, done: float64(i) / float64(len(points)), identical: true,
			schedule: pairsSchedule{fixed: r.m.Pairs, until: now + (r.m.Budget-now)/time.Duration(len(points)-i)},
		}
		if p.kind == reading {
			m.prompt = r.prompt(random, p.rows)
		}
		pairs, err := m.pairs(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name(), err)
		}
		x := r.result(p, pairs)
		x.Identical = new(m.identical)
		r.report.Results = append(r.report.Results, x)
		r.o.row(x)
	}
	r.o.progress(1, "done")
	return nil
}

// prompt draws n tokens.
func (r *modelRun) prompt(random *rand.Rand, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = random.Int32N(int32(r.rig.model.Vocab))
	}
	return p
}

// fits reports whether this machine has room for the sequences of a point, and the model for their tokens.
func (r *modelRun) fits(p *modelPoint) bool {
	n, tokens := p.rows, r.m.Prompt+r.m.Tokens
	if p.kind == reading {
		n, tokens = 1, p.rows
	}
	if tokens > r.rig.model.Context {
		return false
	}
	available := machine.Read().Available
	return available == 0 || uint64(n)*uint64(r.rig.model.SequenceBytes(tokens)) < available/10*9
}

// finish fills in what is known at the end.
func (r *modelRun) finish() {
	m := &r.report.Machine
	m.atBest(r.peaks, r.reads)
	if n := resident(); n > 0 && r.rig != nil {
		r.report.Settings.ResidentEnd = round(float64(n) / 1e6)
	}
	if r.m.usual() {
		r.report.Bars = judgeModel(&r.report)
	}
}

// modelPointRun is a point under way.
type modelPointRun struct {
	r         *modelRun
	p         *modelPoint
	prompt    []int32 // of prefill
	done      float64 // of the whole run
	schedule  pairsSchedule
	identical bool
}

// pairs measures the point.
func (m *modelPointRun) pairs(ctx context.Context) ([]pair, error) {
	m.r.o.progress(m.done, m.p.name()+", warming up")
	if err := m.once(ctx, &sample{}); err != nil {
		return nil, err
	}
	return collect(ctx, meter{
		limits: m.limits, run: m.run, now: func() time.Duration { return time.Since(m.r.start) },
	}, m.schedule, m.reads())
}

// reads reports whether memory is what bounds the point.
func (m *modelPointRun) reads() bool { return m.p.kind == decoding && m.p.rows <= memoryRows }

// limits measures what the machine can do now.
func (m *modelPointRun) limits() limits {
	r := m.r
	l := limits{peak: r.rig.backend.PeakRate(r.m.least), read: machine.ReadRate(r.rig.backend.Threads(), r.m.least)}
	if l.peak > 0 {
		r.peaks = append(r.peaks, l.peak)
	}
	if l.read > 0 {
		r.reads = append(r.reads, l.read)
	}
	return l
}

// run computes for a while.
func (m *modelPointRun) run(ctx context.Context, pair int) (sample, error) {
	m.r.o.progress(m.done, fmt.Sprintf("%s, pair %d", m.p.name(), pair))
	var x sample
	for x.dispatches == 0 || x.took < m.r.m.least {
		if err := m.once(ctx, &x); err != nil {
			return x, err
		}
	}
	return x, nil
}

// once adds one run of the point to x, in tokens: all its sequences from their prompts on, or one reading of
// the long prompt.
func (m *modelPointRun) once(ctx context.Context, x *sample) error {
	r := m.r
	if m.p.kind == reading {
		before := r.rig.experts.count()
		next, took, err := r.rig.prefill(ctx, m.prompt)
		if err != nil {
			return err
		}
		x.dispatches += len(m.prompt)
		x.took += took
		x.count(r.rig.experts.count().less(before))
		if r.next = append(r.next, next); next != r.next[0] {
			m.identical = false
		}
		return nil
	}
	g, err := r.gen.generate(ctx, r.prompts[:m.p.rows], r.m.Tokens)
	if err != nil {
		return err
	}
	x.dispatches += g.decoded
	x.took += g.decode
	x.count(g.counted)
	for i, made := range g.tokens {
		if r.made[i] == nil {
			r.made[i] = made
		}
		if !slices.Equal(made, r.made[i]) {
			m.identical = false
		}
	}
	return nil
}
