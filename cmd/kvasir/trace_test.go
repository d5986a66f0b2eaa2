package main

import (
	"strings"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/engine"
)

// TestTraceShowsWhereTheTimeGoes looks at what a real step must come to, on any machine.
func TestTraceShowsWhereTheTimeGoes(t *testing.T) {
	t.Parallel()
	shown := kvasir(t, "trace", "--tokens", "6", "--rtt", "13ms", story).wantDone(t)
	wantNarrow(t, shown.stdout)
	for _, want := range []string{"5 steps of 1 row each", "waits for", "The straggler is", " the step: "} {
		if !strings.Contains(shown.stdout, want) {
			t.Errorf("no %q in:\n%s", want, shown.stdout)
		}
	}
	var r engine.Trace
	kvasir(t, "trace", "--json", "--tokens", "4", "--rows", "2", "--rtt", "13ms", story).wantDone(t).object(t, &r)
	if p := r.Step; r.Steps != 3 || r.Rows != 2 || len(r.Layers) != 4 || len(r.Workers) != 2 || r.Straggler == "" ||
		p.Took <= 0 || p.Backbone+p.Waiting+p.Out+p.Worker+p.Back > p.Took || p.Worker <= 0 {
		t.Errorf("%+v", r)
	}
	// No answer is back before its round trip; means are rounded down.
	if wire, least := r.Step.Out+r.Step.Back, 4*13*time.Millisecond-time.Microsecond; wire < least {
		t.Errorf("%v on the wire of four layers, want %v at least", wire, least)
	}
}

func TestTraceIsDrawnToScale(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	step := batcher.StepLayer{Calls: 5, Rows: 5, Own: 10 * ms, Took: 70 * ms, Straggler: "abc", Lag: 50 * ms,
		Times: batcher.Times{Out: 30 * ms, Work: 10 * ms, Back: 30 * ms}}
	tr := engine.Trace{Model: "tiny", Steps: 5, Rows: 1, Layers: []batcher.StepLayer{step}, Straggler: "abc", Waits: 10 * ms, Bound: engine.BoundWire,
		Workers: []batcher.Where{{To: "abc", Dispatches: 5, Rows: 5, Times: step.Times, Took: 70 * ms, Last: 5}},
		Step:    engine.TraceParts{Took: 16 * ms, Backbone: 2 * ms, Out: 6 * ms, Worker: 2 * ms, Back: 6 * ms}}
	var b strings.Builder
	waterfall{tr, &screen{w: &b}}.print()
	wantNarrow(t, b.String())
	for _, want := range []string{
		"tiny · 5 steps of 1 row each · 16.00 ms a step", "abc", "16.00  " + strings.Repeat("b", 8) + strings.Repeat(">", 24) + strings.Repeat("#", 8) + strings.Repeat("<", 24) + "\n",
		"75 % is on the wire", "The straggler is abc: for 10.00 ms of each step (62 %)", "The wire bounds the step",
	} {
		if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestTraceRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--tokens", "1"}, statusUsage, "at least 2"},
		{[]string{"--rows", "129"}, statusUsage, "at most 128"},
		{[]string{"--workers", "65"}, statusUsage, "at most 64"},
		{[]string{"--steps", "3"}, statusUsage, "without --url"},
		{[]string{"--url", "nowhere"}, statusUsage, "want http://HOST:PORT"},
		{[]string{"--url", "http://127.0.0.1:1"}, statusFailed, "is kvasir serve running there?"},
	} {
		kvasir(t, append([]string{"trace"}, c.args...)...).wantFailure(t, c.status, c.want)
	}
}

// TestTraceOfAServingMachine looks at a serve with a worker while it answers, and at one that is alone.
func TestTraceOfAServingMachine(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	worker := s.worker(s.address())
	serve.await("worker is ready", worker.id)
	url := s.serveReady.URL
	kvasir(t, "trace", "--url", url, "--steps", "4097").wantFailure(t, statusFailed, "400", "from 1 to 4096")
	kvasir(t, "trace", "--url", url, "--wait", "10ms").wantFailure(t, statusFailed, "nothing was generated")
	traced := make(chan outcome, 1)
	go func() { traced <- kvasir(t, "trace", "--url", url, "--steps", "8", "--wait", "1m", "--json") }()
	var r engine.Trace
	for r.Steps == 0 {
		answerOf(t, url, story, 20, nil)
		select {
		case o := <-traced:
			o.wantDone(t).object(t, &r)
		default:
		}
	}
	if r.Steps < 8 || len(r.Workers) == 0 || r.Straggler == "" {
		t.Errorf("%+v", r)
	}
	for _, p := range []*process{worker, serve, hub} {
		p.stop()
	}
	alone := newSwarm(t)
	serve = alone.serve()
	kvasir(t, "trace", "--url", alone.serveReady.URL).wantFailure(t, statusFailed, "404", "no worker takes part")
	serve.stop()
}
