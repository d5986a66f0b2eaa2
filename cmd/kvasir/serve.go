package main

import (
	"context"
	"net"
	"runtime"
	"strings"

	"kvasir/engine"
	"kvasir/kernels/cpu"
)

type serveCmd struct {
	modelFlags
	Sequences      count  `help:"How many requests run at once; others wait, in order (default ${default})." placeholder:"N" default:"512" group:"memory"`
	Listen         string `help:"Address to answer on over HTTP (default ${default})." placeholder:"HOST:PORT" default:"127.0.0.1:8080"`
	Embedded       bool   `help:"Be hub and gateway too: workers join with nothing else running." group:"swarm"`
	EmbeddedListen string `help:"Address that workers come to with --embedded (default ${default})." placeholder:"HOST:PORT" default:":7700" group:"swarm"`
	batchesFlags
	doorFlags
	backboneFlags
	jsonFlag
}

func (serveCmd) server() {}

// Help is printed by kvasir serve --help.
func (serveCmd) Help() string {
	return `Answers /v1/completions and /v1/chat/completions as OpenAI's interface describes them, whole and streaming. With --embedded or --hub, workers compute the experts; what no worker answers is computed here. It prints the line that a friend runs to become a worker.

With --embedded this is all that has to run: workers on other machines come to --embedded-listen, over TLS, and know this machine by its key, which is in their line. No certificate and no account is needed. The line has this machine's address; if they reach it by another one, give that with --gateway.

On this machine nobody is asked for an API key. Where others can reach --listen they need one, as kvasir key create makes them; --open lets everybody in. GET /healthz says that the server lives, /readyz that tokens come through every layer, /metrics tells Prometheus the rest.

Examples:

    kvasir serve
    kvasir serve -m model.gguf --embedded
    kvasir serve -m model.gguf --hub ID@gateway.example:443
    kvasir serve -m model.gguf --listen :443 --acme models.example.org
    kvasir serve --batches postgres://kvasir@db.example/kvasir --files /mnt/shared/kvasir`
}

// serveReady is what kvasir serve --json prints when it listens.
type serveReady struct {
	Model   string   `json:"model"`
	Listen  string   `json:"listen"`
	URL     string   `json:"url"`
	Workers []string `json:"workers,omitempty"` // the lines for friends, one a hub
	Lossy   string   `json:"lossy,omitempty"`   // what is kept in fewer bits than it was computed in
	Keys    bool     `json:"keys,omitempty"`    // API keys are asked for
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
	if err := c.doorFlags.check(); err != nil {
		return err
	}
	door, end, err := c.doorFlags.options(a)
	if err != nil {
		return err
	}
	defer end() //nolint:errcheck // each line was written when it came
	load := newLoading(a)
	o := c.modelFlags.options()
	o.Sequences, o.Progress = int(c.Sequences), load.progress()
	n, err := engine.NewServeNode(engine.ServeOptions{
		BackboneOptions: c.backboneFlags.options(a, o, now), Listen: c.Listen, Embedded: c.embedded(), Door: door,
		Database: string(c.Batches), Files: string(c.Files), Build: build(),
	})
	load.end()
	if err != nil {
		return err
	}
	leaveTheNetworkAThread()
	r := serveReady{Model: n.Model(), Listen: n.Addr, URL: c.url(n) + "/v1", Lossy: c.lossy(), Keys: n.Keys}
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

// leaveTheNetworkAThread lets Go run one goroutine more at a time than threads compute. Else a request that comes
// while all compute waits until the runtime interrupts one of them: up to 10 ms, several times over.
func leaveTheNetworkAThread() {
	if b, err := cpu.Default(); err == nil { // an error was told by who loaded the model
		runtime.GOMAXPROCS(b.Threads() + 1)
	}
}

// url is where the server is reached from here, or by its name where it has one.
func (c *serveCmd) url(n *engine.ServeNode) string {
	addr := reachable(n.Addr, "127.0.0.1")
	if !n.TLS {
		return "http://" + addr
	}
	if len(c.ACME) > 0 {
		_, port, err := net.SplitHostPort(addr)
		if err == nil {
			addr = net.JoinHostPort(c.ACME[0], port)
		}
	}
	return "https://" + strings.TrimSuffix(addr, ":443")
}

func (r *serveReady) print(s *screen, hub bool) {
	s.printf("%s is served at %s\n\n", clean(r.Model), r.URL)
	if r.Lossy != "" {
		s.printf("Note: %s.\n\n", r.Lossy)
	}
	header := ""
	if r.Keys {
		header = `-H "Authorization: Bearer KEY" `
		s.printf("KEY is an API key, as kvasir key create makes them.\n\n")
	}
	s.printf("    curl %s/completions %s-d '{\"prompt\": \"The capital of France is\"}'\n\n", r.URL, header)
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
