package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"kvasir/engine"
	"kvasir/internal/machine"
	"kvasir/kernels/cpu"
)

// serveRun is a run of Serve under way.
type serveRun struct {
	s       Serve
	o       Observer[ServeReport, ServeResult]
	start   time.Time
	report  ServeReport
	backend *cpu.Backend
	node    *engine.ServeNode
	places  int // requests that are answered or wait at once
	close   func() error

	texts        []string // of each prompt, by the first that had it
	peaks, reads []float64
}

func (r *serveRun) measure(ctx context.Context) error {
	for i, n := range r.s.Sequences {
		now := time.Since(r.start)
		p := &servePoint{
			r: r, n: n, done: float64(i) / float64(len(r.s.Sequences)), identical: true,
			schedule: pairsSchedule{fixed: r.s.Pairs, until: now + (r.s.Budget-now)/time.Duration(len(r.s.Sequences)-i)},
		}
		x, err := p.measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", streams(n), err)
		}
		r.report.Results = append(r.report.Results, x)
		r.o.row(x)
	}
	var err error
	if r.s.Load > 0 {
		r.report.Load, err = r.load(ctx)
	}
	if r.s.Vanish > 0 && err == nil {
		r.report.Vanish, err = r.vanish(ctx)
	}
	r.o.progress(1, "done")
	return err
}

// streams says how many.
func streams(n int) string {
	if n == 1 {
		return "1 stream"
	}
	return fmt.Sprintf("%d streams", n)
}

// prompts are n that differ.
func prompts(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%d. There was once a poor miller", i)
	}
	return list
}

// served is what a way has made from when all streams had begun until the first of them ended.
type served struct {
	tokens int64
	took   time.Duration
	cpu    time.Duration // of this process

	steps   int64 // of the model
	rows    int64 // that went through it
	prompts int64 // of those, rows of prompts

	all    int64         // tokens until the last stream ended
	client time.Duration // of the client's process, until then
}

func (s *served) rate() float64 { return float64(s.tokens) / s.took.Seconds() }

// perToken is processor time in microseconds.
func perToken(cpu time.Duration, tokens int64) float64 {
	return float64(cpu.Nanoseconds()) / 1000 / float64(tokens)
}

// watch begins to count: what it returns ends that.
func (r *serveRun) watch() func() served {
	before, _ := r.node.Engine().Standing()
	cpu, start := processCPU(), time.Now()
	return func() served {
		took, used := time.Since(start), processCPU()-cpu
		after, _ := r.node.Engine().Standing()
		return served{
			tokens: after.Decoded - before.Decoded, took: took, cpu: used, steps: after.Batches - before.Batches,
			rows: after.Rows - before.Rows, prompts: after.Prefilled - before.Prefilled,
		}
	}
}

// glance is how often it is looked whether a stream has ended.
const glance = 5 * time.Millisecond

// together counts while all streams go on: prompts take as many steps as answers do, so the streams end as they
// began, one after the other, and with fewer of them the model makes fewer tokens a second. What it returns is
// to be called when the last stream has ended.
func (r *serveRun) together() func() served {
	finished := func() int64 {
		s, _ := r.node.Engine().Standing()
		return s.Finished
	}
	count, all, before := r.watch(), r.watch(), finished()
	first, over := make(chan served, 1), make(chan struct{})
	go func() { // ends with over
		tick := time.NewTicker(glance)
		defer tick.Stop()
		for finished() == before {
			select {
			case <-tick.C:
				continue
			case <-over:
			}
			break
		}
		first <- count()
	}()
	return func() served {
		close(over)
		x := <-first
		x.all = all().tokens
		return x
	}
}

// servePoint is a point under way.
type servePoint struct {
	r         *serveRun
	n         int // streams
	done      float64
	schedule  pairsSchedule
	identical bool

	direct, http []served // of each pair
}

func (p *servePoint) measure(ctx context.Context) (ServeResult, error) {
	p.r.o.progress(p.done, streams(p.n)+", warming up")
	if _, err := p.call(ctx); err != nil {
		return ServeResult{}, err
	}
	pairs, err := collect(ctx, meter{
		limits: p.r.limits, run: p.run, now: func() time.Duration { return time.Since(p.r.start) },
	}, p.schedule, p.n <= memoryRows)
	if err != nil {
		return ServeResult{}, err
	}
	x := p.result(pairs)
	if p.r.report.Settings.Apart && processCPU() > 0 {
		p.r.o.progress(p.done, streams(p.n)+", the door alone")
		us, err := p.r.door(ctx, p.n)
		if err != nil {
			return x, err
		}
		x.Door = new(round(us))
	}
	return x, nil
}

// limits measures what the machine can do now.
func (r *serveRun) limits() limits {
	l := limits{peak: r.backend.PeakRate(r.s.least), read: machine.ReadRate(r.backend.Threads(), r.s.least)}
	if l.peak > 0 {
		r.peaks = append(r.peaks, l.peak)
	}
	if l.read > 0 {
		r.reads = append(r.reads, l.read)
	}
	return l
}

// run has both ways take a turn; who is first changes.
func (p *servePoint) run(ctx context.Context, pair int) (x sample, err error) {
	p.r.o.progress(p.done, fmt.Sprintf("%s, round %d", streams(p.n), pair))
	ways := []func(context.Context) (served, error){p.call, p.ask}
	var got [2]served
	for i := range ways {
		k := (i + pair) % len(ways)
		if got[k], err = ways[k](ctx); err != nil {
			return x, err
		}
		if got[k].tokens == 0 {
			return x, errors.New("the model ended its answers before all had begun; ask for more --tokens")
		}
	}
	p.direct, p.http = append(p.direct, got[0]), append(p.http, got[1])
	return sample{dispatches: int(got[1].tokens), took: got[1].took}, nil
}

// same notes a text, and whether the prompt had another before.
func (p *servePoint) same(texts []string) {
	r := p.r
	for len(r.texts) < len(texts) {
		r.texts = append(r.texts, texts[len(r.texts)])
	}
	if !slices.Equal(r.texts[:len(texts)], texts) {
		p.identical = false
	}
}

// call asks the engine directly.
func (p *servePoint) call(ctx context.Context) (served, error) {
	var wg, begun sync.WaitGroup
	texts, errs := make([]string, p.n), make([]error, p.n)
	begun.Add(p.n)
	for i, prompt := range prompts(p.n) {
		wg.Go(func() {
			first := sync.OnceFunc(begun.Done)
			defer first()
			var text strings.Builder
			_, errs[i] = p.r.node.Engine().Generate(ctx, engine.Request{Prompt: prompt, Tokens: p.r.s.Tokens}, func(e engine.Piece) error {
				if e.Text != "" { // a stream says nothing of others
					first()
				}
				text.WriteString(e.Text)
				return nil
			})
			texts[i] = text.String()
		})
	}
	begun.Wait()
	count := p.r.together()
	wg.Wait()
	x := count()
	if err := errors.Join(errs...); err != nil {
		return x, err
	}
	p.same(texts)
	return x, nil
}

// ask asks over HTTP.
func (p *servePoint) ask(ctx context.Context) (x served, err error) {
	c, err := p.r.client(ctx, clientJob{Kind: jobStreams, Prompts: prompts(p.n), Tokens: p.r.s.Tokens})
	if err != nil {
		return x, err
	}
	count := p.r.together()
	n, err := c.next()
	x = count()
	if err := errors.Join(err, c.end()); err != nil {
		return x, err
	}
	x.client = n.CPU
	p.same(n.Texts)
	return x, nil
}

// client starts a client, and waits until it has begun.
func (r *serveRun) client(ctx context.Context, j clientJob) (*client, error) {
	j.Addr, j.Model = r.node.Addr, r.node.Model()
	c, err := startClient(ctx, r.s.Client, j)
	if err != nil {
		return nil, err
	}
	if _, err := c.next(); err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// result makes figures of the pairs: medians of those that are kept, or of all where too few are.
func (p *servePoint) result(pairs []pair) ServeResult {
	x := ServeResult{Scenario: ServeName, Streams: p.n, Pairs: len(pairs), Identical: new(p.identical)}
	var kept []int
	for i := range pairs {
		if pairs[i].steady(p.n <= memoryRows) {
			kept = append(kept, i)
		}
	}
	x.Dropped = len(pairs) - len(kept)
	if x.noisy() {
		kept = kept[:0]
		for i := range pairs {
			kept = append(kept, i)
		}
	}
	var direct, http, ratio, cost, client []float64
	for _, i := range kept {
		d, h := &p.direct[i], &p.http[i]
		direct, http, ratio = append(direct, d.rate()), append(http, h.rate()), append(ratio, h.rate()/d.rate())
		cost = append(cost, perToken(h.cpu, h.tokens)-perToken(d.cpu, d.tokens))
		client = append(client, perToken(h.client, h.all))
	}
	x.Direct, x.HTTP, x.Ratio = round(middle(direct)), round(middle(http)), round(middle(ratio))
	if p.r.report.Settings.Apart && processCPU() > 0 {
		x.Beyond, x.Client = new(round(middle(cost))), new(round(middle(client)))
	}
	return x
}
