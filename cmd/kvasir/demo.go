package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"kvasir/bench/wan"
	"kvasir/engine"
	"kvasir/engine/ledger"
)

type demoCmd struct {
	Prompt  string        `arg:"" optional:"" help:"Text to continue (default: ${default})." default:"The capital of France is"`
	Model   filePath      `short:"m" help:"Model file in GGUF format. Default: the built-in kvasir-tiny." placeholder:"FILE"`
	Tokens  count         `help:"How many tokens to make at most (default ${default})." placeholder:"N" default:"32"`
	Chat    bool          `help:"Take the prompt as a question and answer it."`
	Workers count         `help:"How many workers (default ${default})." placeholder:"N" default:"2"`
	RTT     time.Duration `name:"rtt" help:"Emulate a wide-area path of this round trip between workers and gateway, for instance 13ms." placeholder:"TIME"`
	jsonFlag
}

// Help is printed by kvasir demo --help.
func (demoCmd) Help() string {
	return `Starts a whole swarm on this machine, over real sockets: a gateway with TLS, a hub, workers that dial out through the gateway with one connection each, and a backbone that dials out to the hub. All routed experts of all layers are computed on the workers. The same prompt then runs with local experts, and the two are compared: tokens and final logits, byte for byte. Exit status 1 when they differ.

Examples:

    kvasir demo "The capital of France is"
    kvasir demo --rtt 13ms --workers 3 --chat "What is the capital of Japan?"`
}

// maxDemoWorkers bounds --workers: each is a TLS session and a share of the processors.
const maxDemoWorkers = 64

// demoResult is what kvasir demo --json prints. What was not measured is absent.
type demoResult struct {
	Text      string       `json:"text"`
	Tokens    int          `json:"tokens"`
	Identical bool         `json:"identical"`
	RTTms     float64      `json:"rtt_ms,omitempty"` // the least that was measured
	Workers   []demoWorker `json:"workers"`
}

type demoWorker struct {
	ID        string  `json:"id"`
	Picks     int64   `json:"picks"`
	BytesOut  uint64  `json:"bytes_out"`
	BytesBack uint64  `json:"bytes_back"`
	Units     float64 `json:"units"`
	NKVR      int64   `json:"nkvr"`

	dispatches int64
	rtt        time.Duration
	output     int64 // bytes of expert output
}

// Run shows the way of a token through a swarm.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	if c.Workers > maxDemoWorkers || c.RTT < 0 {
		return usagef("--workers: at most %d; --rtt: 0 or more", maxDemoWorkers)
	}
	e, err := engine.Open(engine.Options{Path: string(c.Model)})
	if err != nil {
		return err
	}
	defer closing(e, a)
	conf := engine.DemoConfig{
		Request: engine.Request{Prompt: c.Prompt, Chat: c.Chat, Tokens: int(c.Tokens)},
		Workers: int(c.Workers),
	}
	if c.RTT > 0 {
		paths, err := newPaths(c.RTT, int(c.Workers))
		if err != nil {
			return err
		}
		defer paths.close()
		conf.Dial = paths.dial
		// The emulated path keeps time in this process: it needs processors that the experts leave it.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2))
	}
	p := &streamer{screen: a.stdout}
	emit := engine.Text(p.piece)
	if c.JSON {
		emit = func(engine.Piece) error { return nil }
	} else {
		if !c.Chat && a.stdout.terminal {
			p.echo = c.Prompt
		}
		conf.Ready = func(gateway, hub string) {
			a.stderr.printf("%s\n", a.stderr.styled(faint, fmt.Sprintf(
				"%s · gateway %s · hub %s · %s, one outbound connection each",
				e.Name(), gateway, hub, plural(int(c.Workers), "worker"))))
		}
	}
	d, err := e.Demo(ctx, conf, emit)
	if !c.JSON {
		p.end(err == nil)
	}
	if err != nil {
		return err
	}
	r := newDemoResult(d)
	if c.JSON {
		if err := a.stdout.printJSON(r); err != nil {
			return err
		}
	} else {
		r.print(a.stdout, d)
	}
	if !d.Identical {
		return errors.New("remote and local experts gave different results; this is a fault of Kvasir, please report it with the output of kvasir doctor")
	}
	return nil
}

func newDemoResult(d engine.DemoResult) demoResult {
	r := demoResult{Text: d.Remote.First().Text, Tokens: len(d.Remote.First().Tokens), Identical: d.Identical}
	for _, w := range d.Workers {
		b := d.Balances[w.Key]
		r.Workers = append(r.Workers, demoWorker{
			ID: w.ID, Picks: w.Picks, BytesOut: w.BytesOut, BytesBack: w.BytesBack,
			Units: float64(b.Output) / ledger.UnitBytes, NKVR: int64(b.Pending),
			dispatches: w.Dispatches, rtt: w.RTT, output: b.Output,
		})
		if ms := milliseconds(w.RTT); ms > 0 && (r.RTTms == 0 || ms < r.RTTms) {
			r.RTTms = ms
		}
	}
	return r
}

// print writes the comparison and the table.
func (r demoResult) print(s *screen, d engine.DemoResult) {
	verdict, st := "identical: tokens and final logits, byte for byte", green
	if !r.Identical {
		verdict, st = "DIFFERENT", red
	}
	s.printf("\nremote and local experts: %s\n", s.styled(st, verdict))
	var picks, dispatches int64
	for _, w := range r.Workers {
		picks += w.Picks
		dispatches += w.dispatches
	}
	s.printf("%s; %d dispatches; %d of %d picks computed by workers\n\n",
		plural(r.Tokens, "token"), dispatches, picks, d.Picks)
	t := table{
		head:  []string{"worker", "dispatches", "picks", "out", "back", "round trip", "units", "nKVR"},
		right: []bool{false, true, true, true, true, true, true, true},
	}
	for _, w := range r.Workers {
		t.add(w.ID, fmt.Sprint(w.dispatches), fmt.Sprint(w.Picks), size(w.BytesOut), size(w.BytesBack),
			fmt.Sprintf("%.1f ms", milliseconds(w.rtt)), ledger.FormatUnits(w.output), fmt.Sprint(w.NKVR))
	}
	t.print(s)
	s.printf("\nunits and nKVR are those of the gateway's wallet, pending: nothing has checked the work yet\n")
}

// paths are emulated ways from workers to the gateway, one a worker.
type paths []*wan.Link

func newPaths(rtt time.Duration, n int) (paths, error) {
	var p paths
	for range n {
		l, err := wan.NewLink(wan.Profile{RTT: rtt})
		if err != nil {
			p.close()
			return nil, usagef("--rtt: %v", err)
		}
		p = append(p, l)
	}
	return p, nil
}

func (p paths) dial(i int) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return p[i].Dial
}

func (p paths) close() {
	for _, l := range p {
		_ = l.Close() // nothing is left to be said on it
	}
}
