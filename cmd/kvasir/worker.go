package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/wire/seal"
)

type workerCmd struct {
	Join   joinText `arg:"" help:"What you were given: kvasir://HOST/TOKEN#ROOT."`
	Model  filePath `short:"m" help:"Model file in GGUF format, the same that is served, or where it is on the web. Default: none; what is needed of it is fetched from whoever serves it." placeholder:"FILE|URL"`
	Memory byteSize `help:"Memory for the part of the model that is computed here, as in 8GiB. Default: half of what the machine has left." placeholder:"SIZE" group:"memory"`
	Cache  filePath `help:"Folder in which fetched parts are kept. Default: one below the user's cache folder." placeholder:"DIR" group:"memory"`
	Disk   byteSize `help:"Most that fetched parts may take there. Default: four times --memory." placeholder:"SIZE" group:"memory"`

	Nice          niceness `help:"Let other programs go first: 0 (as they are) to 19 (only what they leave)." placeholder:"N" default:"0" group:"owner"`
	MaxCPU        whole    `name:"max-cpu" help:"Most processors to use; 0: all." placeholder:"N" default:"0" group:"owner"`
	RowsPerS      whole    `name:"rows-per-s" help:"Expert rows a second to count on, as --json names them, where measuring at the start would tell less; 0: measure." placeholder:"N" default:"0" group:"owner"`
	PauseWhenBusy bool     `help:"Make room while other programs keep more than half of the processors busy for ten seconds; come back when they have been quiet for a minute." group:"owner"`
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

// niceness is 0 to 19.
type niceness int

// UnmarshalText checks a number, wherever it comes from.
func (n *niceness) UnmarshalText(text []byte) error {
	var w whole
	if err := w.UnmarshalText(text); err != nil || w > 19 {
		return fmt.Errorf("want a whole number of 0 to 19, got %q", text)
	}
	*n = niceness(w)
	return nil
}

func (workerCmd) server() {}

// Help is printed by kvasir worker --help.
func (workerCmd) Help() string {
	return `Computes experts for whoever has given you the address, over one connection that goes out and with no open port, until you stop it with Ctrl-C. It measures this machine, is given a part of the model that fits into --memory with a fifth to spare, fetches it, and keeps it on disk for the next time. It comes back by itself when the connection is lost. A worker is known by the key in its home folder: give a second one on the same machine another --home.

Examples:

    kvasir worker kvasir://HOST/TOKEN#ROOT
    kvasir worker kvasir://HOST/TOKEN#ROOT --memory 8GiB --nice 10 --pause-when-busy`
}

// workerReady is what kvasir worker --json prints when it begins. Events follow, one a line.
type workerReady struct {
	ID         string `json:"id"`
	Host       string `json:"host"`
	Model      string `json:"model,omitempty"` // absent: what is needed is fetched
	Memory     int64  `json:"memory"`          // bytes for slices
	RowsPerSec int    `json:"rows_per_s"`      // of an expert of 3072 by 1024 in Q4_K
}

// errArithmetic: this machine computes wrong.
var errArithmetic = errors.New("this machine computes other bits than it should, so it cannot be a worker; kvasir doctor says more")

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
	if err := c.yield(); err != nil {
		return err
	}
	// A worker is paid for exact answers: a machine that cannot give them is better told now.
	if wrong := checkArithmetic(arithmeticChecks); len(wrong) > 0 {
		return fmt.Errorf("%w: %s", errArithmetic, strings.Join(wrong, "; "))
	}
	v := newWorkerView(a, c.JSON)
	n, err := engine.NewWorkerNode(ctx, engine.WorkerOptions{
		Home: a.homeFolder(), Join: join, Model: string(c.Model), Memory: c.Memory.bytes(),
		Cache: string(c.Cache), Disk: c.Disk.bytes(), Pause: c.PauseWhenBusy, Rate: int(c.RowsPerS), Agent: agent(), Log: a.log, Now: now,
		Waiting: v.waiting, Working: v.working, Holding: v.holding, Lost: v.lost, Rhythm: a.pace.rhythm,
	})
	if err != nil {
		return err
	}
	defer n.Close()
	if err := c.ready(a, n, join.Host); err != nil {
		return err
	}
	show, cancel := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() { // ends with cancel
		defer close(shown)
		v.run(show, n)
	}()
	err = n.Run(ctx)
	cancel()
	<-shown
	return ended(ctx, err)
}

// yield leaves the machine to others as far as is wanted.
func (c *workerCmd) yield() error {
	if c.MaxCPU > 0 && int(c.MaxCPU) < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(int(c.MaxCPU))
	}
	if c.Nice == 0 {
		return nil
	}
	return worker.Nice(int(c.Nice))
}

// ready says who this worker is.
func (c *workerCmd) ready(a *app, n *engine.WorkerNode, host string) error {
	if c.JSON {
		return a.stdout.printJSON(workerReady{n.ID, host, string(c.Model), n.Memory, n.Rate})
	}
	a.stdout.printf("Worker %s joins at %s with %s of memory; it computes %s expert rows a second. Ctrl-C ends it.\n",
		n.ID, host, size(uint64(n.Memory)), decimal(uint64(n.Rate)))
	return nil
}

// agent names program and system to the other side.
func agent() string {
	text := fmt.Sprintf("kvasir %s/%s", runtime.GOOS, runtime.GOARCH)
	return text[:min(len(text), math.MaxInt8)]
}

// Times of the view.
const (
	statusLine = time.Second      // between two looks of a terminal
	statusLog  = 30 * time.Second // between two lines of the log
)
