package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"kvasir/batcher"
	"kvasir/engine"
)

type traceCmd struct {
	Prompt  string        `arg:"" optional:"" help:"Text to continue (default: ${default})." default:"The capital of France is"`
	Model   filePath      `short:"m" help:"Model file in GGUF format. Default: the built-in kvasir-tiny." placeholder:"FILE"`
	Tokens  count         `help:"How many tokens to make at most (default ${default})." placeholder:"N" default:"32"`
	Rows    count         `help:"How many texts go through the layers together, up to 128 (default ${default})." placeholder:"N" default:"1"`
	Workers count         `help:"How many workers (default ${default})." placeholder:"N" default:"2"`
	RTT     time.Duration `name:"rtt" help:"Emulate a wide-area path of this round trip between workers and gateway, for instance 13ms." placeholder:"TIME"`
	URL     string        `name:"url" help:"Trace a running kvasir serve instead: its address, such as http://127.0.0.1:8080." placeholder:"URL"`
	Steps   *whole        `help:"With --url: how many steps to wait for (default 32, up to 4096)." placeholder:"N"`
	Wait    time.Duration `help:"With --url: how long to wait for them (default 10s, up to 1m)." placeholder:"TIME"`
	apiKeyFlag
	jsonFlag
}

// Help is printed by kvasir trace --help.
func (traceCmd) Help() string {
	return `Shows where the time of a token goes, layer by layer: in the backbone, in the queue before a worker, on the wire each way, in the worker, and in combining the answers; and who is waited for. It starts a swarm of its own on this machine, as kvasir demo does, or looks at a running kvasir serve with --url. What the wire takes is reckoned from the smallest round trip and the rates that were measured; what is left of a dispatch is the worker's.

A serving machine answers GET /debug/trace?steps=N&wait=TIME with what --json prints. It watches one trace at a time, and only while somebody generates. Where the server asks for API keys, --api-key is to be one with the scope admin; else only its own machine may ask.

Examples:

    kvasir trace --rtt 13ms --workers 3
    kvasir trace --url http://127.0.0.1:8080 --steps 100`
}

// Run shows a waterfall.
func (c *traceCmd) Run(ctx context.Context, a *app) error {
	t, err := c.trace(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(t)
	}
	waterfall{t, a.stdout}.print()
	return nil
}

func (c *traceCmd) trace(ctx context.Context) (t engine.Trace, err error) {
	if c.URL != "" {
		return c.ask(ctx)
	}
	switch {
	case c.Steps != nil || c.Wait != 0:
		return t, usagef("--steps and --wait are of no use without --url")
	case c.Workers > maxDemoWorkers || c.RTT < 0:
		return t, usagef("--workers: at most %d; --rtt: 0 or more", maxDemoWorkers)
	case c.Rows > maxTraceRows:
		return t, usagef("--rows: at most %d", maxTraceRows)
	case c.Tokens < 2:
		return t, usagef("--tokens: at least 2, since the first is not counted")
	}
	e, err := engine.Open(engine.Options{Path: string(c.Model)})
	if err != nil {
		return t, err
	}
	defer func() { _ = e.Close() }() // read only
	conf := engine.TraceConfig{Batch: int(c.Rows), DemoConfig: engine.DemoConfig{
		Request: engine.Request{Prompt: c.Prompt, Tokens: int(c.Tokens)}, Workers: int(c.Workers),
	}}
	if c.RTT > 0 {
		paths, err := newPaths(c.RTT, int(c.Workers))
		if err != nil {
			return t, err
		}
		defer paths.close()
		conf.Dial = paths.dial
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2)) // for the emulated path, as in demo
	}
	if t, err = e.Trace(ctx, conf); err == nil && t.Steps == 0 {
		err = errors.New("the text ended after its first token, which is not counted; give another prompt")
	}
	return t, err
}

const (
	maxTraceRows = 128
	// maxTraceBody bounds what a serving machine may answer.
	maxTraceBody = 16 << 20
)

// ask has a serving machine trace.
func (c *traceCmd) ask(ctx context.Context) (t engine.Trace, err error) {
	u, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(c.URL, "/"), "/v1"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return t, usagef("--url: want http://HOST:PORT, got %.80q", c.URL)
	}
	u = u.JoinPath(engine.TracePath)
	q := url.Values{}
	wait := engine.DefaultTraceWait
	if c.Steps != nil {
		q.Set("steps", fmt.Sprint(int(*c.Steps)))
	}
	if c.Wait != 0 {
		wait = c.Wait
		q.Set("wait", c.Wait.String())
	}
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(ctx, max(0, wait)+10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return t, usagef("--url: %v", err)
	}
	c.send(r)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return t, fmt.Errorf("%w; is kvasir serve running there?", err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(io.LimitReader(res.Body, maxTraceBody))
	if err != nil {
		return t, err
	}
	if res.StatusCode != http.StatusOK {
		return t, fmt.Errorf("%s says %s: %.200s", u.Host, res.Status, strings.TrimSpace(clean(string(body))))
	}
	if err := json.Unmarshal(body, &t); err != nil {
		return t, fmt.Errorf("%s does not answer with a trace: %w", u.Host, err)
	}
	if t.Steps == 0 {
		return t, fmt.Errorf("nothing was generated within %v; send requests while the trace runs", wait)
	}
	return t, nil
}

// waterfall prints a trace.
type waterfall struct {
	engine.Trace
	s *screen
}

// traceParts are the parts of a layer's bar, in the order of time.
var traceParts = []struct {
	mark rune
	name string
	of   func(*batcher.StepLayer) time.Duration
}{
	{'b', "backbone", func(l *batcher.StepLayer) time.Duration { return l.Own }},
	{'.', "waiting", func(l *batcher.StepLayer) time.Duration { return l.Before + l.Lane }},
	{'>', "wire out", func(l *batcher.StepLayer) time.Duration { return l.Out }},
	{'#', "worker", func(l *batcher.StepLayer) time.Duration { return l.Work + l.Other }},
	{'<', "wire back", func(l *batcher.StepLayer) time.Duration { return l.Back }},
	{'+', "combining", func(l *batcher.StepLayer) time.Duration { return l.Add + l.Rest }},
}

// barColumns is how long the bar of the slowest layer is.
const barColumns = 64

// maxBars is how many layers are shown: of more, the slowest.
const maxBars = 16

func (w waterfall) print() {
	w.s.printf("%s · %s of %.4g %s each · %s a step\n\n", clean(w.Model), plural(int(w.Steps), "step"),
		w.Rows, map[bool]string{true: "row", false: "rows"}[w.Rows == 1], inMS(w.Step.Took))
	w.bars()
	w.workers()
	w.s.printf("\n")
	for _, line := range w.says() {
		w.s.printf("%s\n", strings.Join(wrap(line, maxColumns), "\n"))
	}
}

func inMS(d time.Duration) string { return fmt.Sprintf("%.2f ms", milliseconds(d)) }

// mean is what a layer takes in one step.
func mean(l *batcher.StepLayer) time.Duration {
	if l.Calls == 0 {
		return 0
	}
	return (l.Own + l.Took) / time.Duration(l.Calls)
}

func (w waterfall) bars() {
	shown, longest := w.slowest()
	var legend []string
	for _, p := range traceParts {
		legend = append(legend, fmt.Sprintf("%c %s", p.mark, p.name))
	}
	t := table{
		head: []string{"layer", "waits for", "ms", strings.Join(legend, "  ")}, right: []bool{true, false, true},
	}
	for i := range w.Layers {
		if l := &w.Layers[i]; shown[l.Layer] {
			t.add(fmt.Sprint(l.Layer), l.Straggler, fmt.Sprintf("%.2f", milliseconds(mean(l))), layerBar(l, longest))
		}
	}
	t.print(w.s)
	if n := len(w.Layers) - len(shown); n > 0 {
		w.s.printf("and %s that took less\n", plural(n, "layer"))
	}
	w.s.printf("\n")
}

// slowest returns the layers to show, and what the slowest takes.
func (w waterfall) slowest() (shown map[int]bool, longest time.Duration) {
	shown = map[int]bool{}
	for range min(maxBars, len(w.Layers)) {
		best := -1
		for i := range w.Layers {
			if !shown[w.Layers[i].Layer] && (best < 0 || mean(&w.Layers[i]) > mean(&w.Layers[best])) {
				best = i
			}
		}
		shown[w.Layers[best].Layer] = true
		longest = max(longest, mean(&w.Layers[best]))
	}
	return shown, longest
}

// layerBar draws a layer; its parts end where their sum so far does.
func layerBar(l *batcher.StepLayer, longest time.Duration) string {
	var b strings.Builder
	if l.Calls == 0 || longest == 0 {
		return ""
	}
	sum, drawn := time.Duration(0), 0
	for _, p := range traceParts {
		sum += p.of(l) / time.Duration(l.Calls)
		for end := int((sum*barColumns + longest/2) / longest); drawn < min(end, barColumns); drawn++ {
			b.WriteRune(p.mark)
		}
	}
	return b.String()
}

func (w waterfall) workers() {
	t := table{
		head:  []string{"ms a dispatch", "dispatches", "rows", "waiting", "out", "worker", "back", "late", "failed", "was last"},
		right: []bool{false, true, true, true, true, true, true, true, true, true},
	}
	for i := range w.Workers {
		x := &w.Workers[i]
		each := func(d time.Duration) string {
			return fmt.Sprintf("%.2f", milliseconds(d/time.Duration(max(1, x.Dispatches))))
		}
		t.add(x.To, fmt.Sprint(x.Dispatches), fmt.Sprint(x.Rows), each(x.Lane), each(x.Out),
			each(x.Took-x.Lane-x.Out-x.Back), each(x.Back), fmt.Sprint(x.Late), fmt.Sprint(x.Failed), fmt.Sprint(x.Last))
	}
	t.print(w.s)
}

// says puts the trace into words.
func (w waterfall) says() []string {
	p := &w.Step
	if p.Took <= 0 {
		return nil
	}
	share := func(d time.Duration) string { return fmt.Sprintf("%.0f %%", 100*float64(d)/float64(p.Took)) }
	first := fmt.Sprintf("Of a step's %s, %s is on the wire, %s in workers, %s in the backbone and %s waiting for a turn.",
		inMS(p.Took), share(p.Out+p.Back), share(p.Worker), share(p.Backbone), share(p.Waiting))
	lines := []string{first}
	if w.Straggler != "" {
		lines = append(lines, fmt.Sprintf("The straggler is %s: for %s of each step (%s) nobody else was waited for.",
			w.Straggler, inMS(w.Waits), share(w.Waits)))
	}
	return append(lines, advice[w.Bound])
}

// advice says what bounds a step, and what helps.
var advice = map[string]string{
	engine.BoundWire:     "The wire bounds the step: more rows at once, or more requests beside it, cost it little more.",
	engine.BoundWorker:   "Workers bound the step: another worker, or a faster one, makes it shorter.",
	engine.BoundBackbone: "The backbone bounds the step: workers elsewhere cannot make it shorter.",
	engine.BoundWaiting:  "Queues bound the step: too much waits for too few workers.",
}
