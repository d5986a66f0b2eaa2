package main

import (
	"context"

	"kvasir/engine"
)

type serveCmd struct {
	modelFlags
	Sequences      count  `help:"How many requests run at once; others wait, in order (default ${default})." placeholder:"N" default:"512" group:"memory"`
	Listen         string `help:"Address to answer on over HTTP (default ${default})." placeholder:"HOST:PORT" default:"127.0.0.1:8080"`
	Embedded       bool   `help:"Be hub and gateway too: workers join with nothing else running." group:"swarm"`
	EmbeddedListen string `help:"Address that workers come to with --embedded (default ${default})." placeholder:"HOST:PORT" default:":7700" group:"swarm"`
	batchesFlags
	backboneFlags
	jsonFlag
}

func (serveCmd) server() {}

// Help is printed by kvasir serve --help.
func (serveCmd) Help() string {
	return `Answers /v1/completions and /v1/chat/completions as OpenAI's interface describes them, whole and streaming. With --embedded or --hub, workers compute the experts; what no worker answers is computed here. It prints the line that a friend runs to become a worker.

With --embedded this is all that has to run: workers on other machines come to --embedded-listen, over TLS, and know this machine by its key, which is in their line. No certificate and no account is needed. The line has this machine's address; if they reach it by another one, give that with --gateway.

Whoever can reach --listen can use the model: there are no accounts.

Examples:

    kvasir serve
    kvasir serve -m model.gguf --embedded
    kvasir serve -m model.gguf --hub ID@gateway.example:443
    kvasir serve --batches postgres://kvasir@db.example/kvasir --files /mnt/shared/kvasir`
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

// embedded is where workers come to this process; empty: they do not.
func (c *serveCmd) embedded() string {
	if c.Embedded {
		return c.EmbeddedListen
	}
	return ""
}

// Run serves until it is stopped.
func (c *serveCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	switch {
	case c.Embedded && c.Hub != "":
		return usagef("--embedded is a hub itself: leave out --hub")
	case c.Embedded && (c.Root != "" || c.Grant != ""):
		return usagef("--root and --grant are for a hub elsewhere: leave them out with --embedded")
	case c.Hub == "" && !c.Embedded && (c.Gateway != "" || c.Root != "" || c.Grant != ""):
		return usagef("--gateway, --root and --grant are of no use without --hub")
	}
	if c.Sequences > maxSequences {
		return usagef("--sequences: at most %d", maxSequences)
	}
	if err := c.batchesFlags.check(); err != nil {
		return err
	}
	load := newLoading(a)
	o := c.modelFlags.options()
	o.Sequences, o.Progress = int(c.Sequences), load.progress()
	n, err := engine.NewServeNode(engine.ServeOptions{
		BackboneOptions: c.backboneFlags.options(a, o, now), Listen: c.Listen, Embedded: c.embedded(),
		Database: string(c.Batches), Files: string(c.Files),
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
		r.print(a.stdout, c.Hub != "" || c.Embedded)
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
		s.printf("Everything is computed here. With --embedded, workers can join.\n")
	}
}
