package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/schollz/progressbar/v3"

	"kvasir/engine"
	"kvasir/wire/seal"
)

// backboneFlags say where a backbone finds workers. They are embedded by commands that generate.
type backboneFlags struct {
	Hub     hubRefs   `help:"Hub to find workers at, as kvasir hub or gateway prints it; several with commas between. Default: none, everything is computed here." placeholder:"ID@HOST:PORT" group:"swarm"`
	Gateway string    `help:"Name by which friends reach the hub, if it is another than in --hub." placeholder:"HOST" group:"swarm"`
	Workers count     `help:"How many workers to take at each hub (default ${default})." placeholder:"N" default:"256" group:"swarm"`
	Audit   uses      `name:"audit-rows" help:"Rows of each 512 of a worker's that are computed again here, to see whether they are right; 0: none, and its pay stays pending (default ${default})." placeholder:"N" default:"1" group:"swarm"`
	Root    publicKey `help:"Public half of the swarm's root key, where that key is elsewhere. Default: a root key in the home folder, drawn at the first start." placeholder:"ROOT" group:"swarm"`
	Grant   grantText `help:"What kvasir token grant has printed for this backbone, where the root key is elsewhere; it is kept." placeholder:"GRANT" group:"swarm"`
}

// options returns how to start a backbone.
func (f *backboneFlags) options(a *app, o engine.Options, now func() time.Time) engine.BackboneOptions {
	audit := f.audit()
	audit.Share, audit.Hold = a.pace.audit.Share, a.pace.audit.Hold
	return engine.BackboneOptions{
		Options: o, Home: a.homeFolder(), Hubs: f.Hub.list(), Gateway: f.Gateway, Root: f.Root.key(),
		Grant: f.Grant.grant(), Workers: int(f.Workers), Log: a.log, Now: now, Audit: audit,
		Rhythm: a.pace.rhythm,
	}
}

// audit says how workers are checked.
func (f *backboneFlags) audit() engine.AuditOptions {
	if f.Audit == 0 {
		return engine.AuditOptions{Every: -1}
	}
	return engine.AuditOptions{Every: max(1, 512/int(f.Audit))}
}

// where says who computes routed experts.
type where string

// UnmarshalText checks a place, wherever it comes from.
func (w *where) UnmarshalText(text []byte) error {
	*w = where(text)
	if *w != expertsLocal && *w != expertsRemote {
		return fmt.Errorf("want local or remote, got %q", text)
	}
	return nil
}

const (
	expertsLocal  where = "local"
	expertsRemote where = "remote"
)

// generatorFlags are embedded by commands that generate for one person.
type generatorFlags struct {
	modelFlags
	Experts where `help:"Who computes the routed experts: local, this machine, or remote, the workers of a swarm. What no worker answers is computed here (default ${default})." placeholder:"WHERE" default:"local" group:"swarm"`
	backboneFlags
}

// swarmFlagNames are of no use without workers.
var swarmFlagNames = []string{"hub", "gateway", "workers", "root", "grant"}

// check says what does not go together.
func (f *generatorFlags) check(parsed *kong.Context) error {
	switch {
	case f.Experts == expertsLocal:
		return needs(parsed, "--experts remote", swarmFlagNames...)
	case f.Hub == "":
		return usagef("--experts remote needs --hub ID@HOST:PORT, as kvasir hub prints it")
	}
	return nil
}

// open loads the model. With remote experts it waits for the first worker.
func (f *generatorFlags) open(ctx context.Context, a *app) (*engine.Backbone, error) {
	now, err := a.clock()
	if err != nil {
		return nil, err
	}
	load := newLoading(a)
	o := f.modelFlags.options()
	o.Progress = load.progress()
	bo := f.backboneFlags.options(a, o, now)
	if f.Experts == expertsLocal {
		bo.Hubs = nil
	}
	b, err := engine.NewBackbone(bo)
	load.end()
	if err != nil {
		return nil, err
	}
	if f.Experts == expertsRemote {
		if err := waitForWorker(ctx, a, b); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// waitForWorker says how a worker comes in, and waits for the first.
func waitForWorker(ctx context.Context, a *app, b *engine.Backbone) error {
	// Whoever was there before comes back within a moment: then nothing is to be said.
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := b.WaitFor(soon, 1)
	if err == nil || ctx.Err() != nil || soon.Err() == nil {
		return err
	}
	a.stderr.printf("Waiting for a worker.")
	if len(b.Joins) == 0 {
		a.stderr.printf(" For a line to hand to friends, run kvasir token create where the root key is.\n")
	} else {
		a.stderr.printf(" A friend helps with:\n\n")
		for _, j := range b.Joins {
			a.stderr.printf("    %s\n\n", j.Line())
		}
	}
	return b.WaitFor(ctx, 1)
}

// helped says what workers have done so far, in words; "" without a swarm.
func helped(b *engine.Backbone) string {
	list := b.Workers()
	if len(list) == 0 {
		return ""
	}
	var picks int64
	workers := map[seal.PublicKey]bool{} // each is in the list once for every time it came
	for _, w := range list {
		picks += w.Picks
		workers[w.Key] = true
	}
	return fmt.Sprintf("%s picks by %s", decimal(uint64(picks)), plural(len(workers), "worker"))
}

// patienceToLoad is how long loading takes before a bar is worth the room.
const patienceToLoad = 400 * time.Millisecond

// loading draws a bar on a terminal while a model is loaded, once that takes a while.
type loading struct {
	screen *screen
	from   time.Time

	mu   sync.Mutex
	most int64 // under mu, like all that follows
	bar  *progressbar.ProgressBar
	over bool
}

func newLoading(a *app) *loading { return &loading{screen: a.stderr, from: time.Now()} }

// progress is engine.Options.Progress; nil where nobody looks.
func (l *loading) progress() func(done, total int64) {
	if !l.screen.terminal {
		return nil
	}
	return l.set
}

func (l *loading) set(done, total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || done <= l.most || time.Since(l.from) < patienceToLoad {
		return
	}
	l.most = done
	if l.bar == nil {
		l.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(l.screen),
			progressbar.OptionSetDescription("loading"),
			progressbar.OptionShowBytes(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetWidth(30),
		)
	}
	_ = l.bar.Set64(done) // one that cannot be drawn is no reason to stop
}

// end wipes the bar, so that the next line starts on its left.
func (l *loading) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.bar != nil {
		_ = l.bar.Clear()
	}
}

// joinWords puts what is to be said between dots, leaving out what is empty.
func joinWords(parts ...string) string {
	var list []string
	for _, p := range parts {
		if p != "" {
			list = append(list, p)
		}
	}
	return strings.Join(list, " · ")
}
