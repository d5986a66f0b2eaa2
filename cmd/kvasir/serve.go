package main

import (
	"context"
	"time"

	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/kernels/cpu"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

type serveCmd struct {
	modelFlags
	Sequences count  `help:"How many requests run at once; others wait, in order (default ${default})." placeholder:"N" default:"512" group:"memory"`
	Listen    string `help:"Address to answer on over HTTP (default ${default})." placeholder:"HOST:PORT" default:"127.0.0.1:8080"`
	backboneFlags
	jsonFlag
}

func (serveCmd) server() {}

// Help is printed by kvasir serve --help.
func (serveCmd) Help() string {
	return `Answers /v1/completions and /v1/chat/completions as OpenAI's interface describes them, whole and streaming, always with the likeliest token. With --hub, workers compute the experts; what no worker answers is computed here. It prints the line that a friend runs to become a worker.

Whoever can reach --listen can use the model: there are no accounts.

Examples:

    kvasir serve
    kvasir serve -m model.gguf --hub ID@gateway.example:443`
}

// serveReady is what kvasir serve --json prints when it listens.
type serveReady struct {
	Model   string   `json:"model"`
	Listen  string   `json:"listen"`
	URL     string   `json:"url"`
	Workers []string `json:"workers,omitempty"` // the lines for friends, one a hub
	Lossy   string   `json:"lossy,omitempty"`   // what is kept in fewer bits than it was computed in
}

// maxSequences bounds --sequences: each has a place in every micro-batch.
const maxSequences = 1 << 16

// Run serves until it is stopped.
func (c *serveCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	if c.Hub == "" && (c.Gateway != "" || c.Root != "" || c.Grant != "") {
		return usagef("--gateway, --root and --grant are of no use without --hub")
	}
	if c.Sequences > maxSequences {
		return usagef("--sequences: at most %d", maxSequences)
	}
	load := newLoading(a)
	o := c.modelFlags.options()
	o.Sequences, o.Progress = int(c.Sequences), load.progress()
	n, err := engine.NewServeNode(engine.ServeOptions{
		BackboneOptions: c.backboneFlags.options(a, o, now), Listen: c.Listen,
	})
	load.end()
	if err != nil {
		return err
	}
	r := serveReady{Model: n.Model(), Listen: n.Addr, URL: "http://" + reachable(n.Addr, "127.0.0.1") + "/v1",
		Lossy: c.lossy()}
	for _, j := range n.Joins {
		r.Workers = append(r.Workers, j.Line())
	}
	if c.JSON {
		err = a.stdout.printJSON(r)
	} else {
		r.print(a.stdout, c.Hub != "")
	}
	if err != nil {
		a.log.Warn("standard output", "err", err)
	}
	return ended(ctx, n.Run(ctx))
}

func (r *serveReady) print(s *screen, hub bool) {
	s.printf("%s is served at %s\n\n", clean(r.Model), r.URL)
	if r.Lossy != "" {
		s.printf("Note: %s.\n\n", r.Lossy)
	}
	s.printf("    curl %s/completions -d '{\"prompt\": \"The capital of France is\"}'\n\n", r.URL)
	switch {
	case len(r.Workers) > 0:
		s.printf("A friend helps with:\n\n")
		for _, line := range r.Workers {
			s.printf("    %s\n\n", line)
		}
	case hub:
		s.printf("For a line to hand to friends, run kvasir token create where the root key is.\n")
	default:
		s.printf("Without --hub everything is computed here.\n")
	}
}

type workerCmd struct {
	Join  joinText `arg:"" help:"What you were given: kvasir://HOST/TOKEN#ROOT."`
	Model filePath `short:"m" help:"Model file in GGUF format, the same that is served. Default: the built-in kvasir-tiny." placeholder:"FILE"`
	jsonFlag
}

// joinText is an address to join.
type joinText string

// UnmarshalText checks an address, wherever it comes from.
func (j *joinText) UnmarshalText(text []byte) error {
	_, err := seal.ParseJoin(string(text))
	*j = joinText(text)
	return err
}

func (workerCmd) server() {}

// Help is printed by kvasir worker --help.
func (workerCmd) Help() string {
	return `Computes experts for whoever has given you the address, over one connection that goes out and with no open port, until you stop it with Ctrl-C. It comes back by itself when the connection is lost. A worker is known by the key in its home folder: give a second one on the same machine another --home.

Example:

    kvasir worker kvasir://HOST/TOKEN#ROOT`
}

// workerReady is what kvasir worker --json prints when it begins.
type workerReady struct {
	ID    string `json:"id"`
	Host  string `json:"host"`
	Model string `json:"model"`
}

// Run works until it is stopped, or refused for good.
func (c *workerCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	join, err := seal.ParseJoin(string(c.Join))
	if err != nil {
		return err
	}
	// A worker is paid for exact answers: a machine that cannot give them is better told now.
	backend, err := cpu.Default()
	if err != nil {
		return err
	}
	if err := backend.Check(); err != nil {
		return err
	}
	unlock, err := a.homeFolder().Lock(seal.Worker)
	if err != nil {
		return err
	}
	defer unlock()
	key, err := a.homeFolder().Key(seal.Worker)
	if err != nil {
		return err
	}
	e, err := engine.Open(engine.Options{Path: string(c.Model)})
	if err != nil {
		return err
	}
	defer closing(e, a)
	if c.JSON {
		if err := a.stdout.printJSON(workerReady{key.Public().Short(), join.Host, e.Name()}); err != nil {
			return err
		}
	} else {
		a.stdout.printf("Worker %s with %s joins at %s. Ctrl-C ends it.\n", key.Public().Short(), clean(e.Name()), join.Host)
	}
	w := worker.Config{
		Join: join, Key: key, Model: e.Model(), Log: a.log, Dialer: relay.Dialer{Now: now},
		Waiting: said(a),
		Working: func(session string) { a.log.Info("working", "session", session) },
		Lost:    lost(a),
	}
	return ended(ctx, worker.Run(ctx, w))
}

// said logs why a worker waits, when that changes.
func said(a *app) func(reason string) {
	last := ""
	return func(reason string) {
		if reason != last {
			last = reason
			a.log.Info("waiting", "why", reason)
		}
	}
}

// lost logs a connection that was lost, or did not come about.
func lost(a *app) func(error, time.Duration) {
	return func(err error, wait time.Duration) {
		why := "ended"
		if err != nil {
			why = oneLine(err.Error())
		}
		a.log.Warn("no connection, trying again", "wait", wait.Round(time.Millisecond), "why", why)
	}
}
