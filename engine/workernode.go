package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/ledger"
	"kvasir/engine/model"
	slicing "kvasir/engine/slices"
	"kvasir/engine/worker"
	"kvasir/wire"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// ErrNoCache: this system names no folder for what can be fetched again.
var ErrNoCache = errors.New("this system has no folder for caches; give one with --cache")

// WorkerOptions are for NewWorkerNode.
type WorkerOptions struct {
	Home   Home
	Join   seal.Join
	Model  string // a file, or where one is on the web; empty: slices come from the backbone
	Memory int64  // bytes for slices; 0: worker.FreeMemory
	Cache  string // folder of fetched slices; empty: one of this worker's own below the user's caches
	Disk   int64  // most bytes of it; 0: four times Memory
	Pause  bool   // when other programs need this machine
	Rate   int    // expert rows a second, of the standard expert; 0: measured
	Agent  string

	Waiting func(reason string)
	Working func(session string)
	Holding func(what string)
	Lost    func(error, time.Duration)
	Log     *slog.Logger
	Now     func() time.Time
	Rhythm  Rhythm
}

// WorkerNode is a worker with its home, what it holds, and what was signed for its work.
type WorkerNode struct {
	ID     string // first characters of its key
	Memory int64
	Rate   int // expert rows a second, of the standard expert

	worker *worker.Worker
	busy   *worker.Busy // nil: it does not pause
	credit credit
	clerk  *clerk
	now    func() time.Time
	close  []func()
}

// NewWorkerNode measures this machine, unless it is told, and makes a worker of what is in its home. Run is to follow, and
// Close.
func NewWorkerNode(ctx context.Context, o WorkerOptions) (*WorkerNode, error) {
	n := &WorkerNode{}
	if err := n.start(ctx, o); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *WorkerNode) start(ctx context.Context, o WorkerOptions) error {
	if n.now = o.Now; n.now == nil {
		n.now = time.Now
	}
	unlock, err := o.Home.Lock(seal.Worker)
	if err != nil {
		return err
	}
	n.close = append(n.close, unlock)
	c := worker.Config{
		Join: o.Join, Memory: o.Memory, Agent: o.Agent, Log: o.Log, Dialer: relay.Dialer{Now: o.Now},
		Waiting: o.Waiting, Working: o.Working, Holding: o.Holding, Lost: o.Lost, Backoff: o.Rhythm.backoff(),
		Paired: func(session string) {
			n.credit.begin(session, n.worker.Status().Output)
			n.clerk.begin(session)
		},
		Unsigned: func() bool { return n.credit.unsigned(n.worker.Status().Output, n.now()) }, Look: o.Rhythm.Look,
	}
	if c.Key, err = o.Home.Key(seal.Worker); err != nil {
		return err
	}
	n.ID = c.Key.Public().Short()
	if o.Pause {
		if n.busy, err = worker.NewBusy(); err != nil {
			return err
		}
		c.Busy = n.busy
	}
	if c.Memory == 0 {
		c.Memory = worker.FreeMemory()
	}
	if err := n.shelf(ctx, o, &c); err != nil {
		return err
	}
	if c.Rate = o.Rate; c.Rate == 0 {
		if c.Rate, err = worker.Measure(ctx); err != nil {
			return err
		}
	}
	n.Memory, n.Rate = c.Memory, c.Rate
	n.credit.own = c.Key.Public()
	c.Receipt = func(backbone seal.Grant, session string, r wire.Receipt) {
		n.credit.take(backbone.Key, session, r)
		n.clerk.take(backbone, session, r)
	}
	n.worker = worker.New(c)
	return n.openClerk(ctx, o, &c)
}

// openClerk makes who answers receipts.
func (n *WorkerNode) openClerk(ctx context.Context, o WorkerOptions, c *worker.Config) error {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	outbox, err := o.Home.openOutbox(ctx, seal.Worker, log)
	if err != nil {
		return err
	}
	n.close = append(n.close, func() { _ = outbox.Close() }) // what was kept is on the disk
	n.clerk = &clerk{
		key: c.Key, hub: c.Join.Token.Hub, outbox: outbox, picks: n.worker.Picks, now: n.now, log: log, kept: n.credit.kept,
		queue: make(chan ledger.Item, clerkQueue), every: o.Rhythm.remind(),
		dial: dialStatements(relay.WorkerConfig{Join: c.Join, Address: c.Address, Key: c.Key, Dialer: c.Dialer}),
	}
	return nil
}

// openOutbox opens what a worker or backbone of this home has signed and no gateway has read.
func (h Home) openOutbox(ctx context.Context, role seal.Role, log *slog.Logger) (*ledger.Outbox, error) {
	path, err := h.path(role.String() + ".receipts.db")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	return ledger.OpenOutbox(ctx, path, log)
}

// shelf says where slices come from.
func (n *WorkerNode) shelf(ctx context.Context, o WorkerOptions, c *worker.Config) (err error) {
	if o.Model != "" && !IsURL(o.Model) {
		f, err := gguf.Open(o.Model)
		if err != nil {
			return err
		}
		n.close = append(n.close, func() { _ = f.Close() }) // it was only read
		c.Shelf = worker.FileShelf{File: f}
		c.Model, err = describe(f, o.Model)
		return err
	}
	shelf := worker.CacheShelf{}
	if IsURL(o.Model) {
		if shelf.Weights, err = slicing.OpenURL(ctx, o.Model, http.DefaultClient); err != nil {
			return err
		}
	}
	dir := o.Cache
	if dir == "" {
		if dir, err = os.UserCacheDir(); err != nil {
			return fmt.Errorf("%w (%w)", ErrNoCache, err)
		}
		dir = filepath.Join(dir, "kvasir", "slices", n.ID)
	}
	limit := o.Disk
	if limit == 0 {
		limit = 4 * c.Memory
	}
	if shelf.Cache, err = slicing.OpenCache(dir, limit); err != nil {
		return fmt.Errorf("folder of fetched slices %s: %w; give another with --cache", dir, err)
	}
	n.close = append(n.close, func() { _ = shelf.Cache.Close() })
	c.Shelf = shelf
	return nil
}

// IsURL reports whether a model is on the web, and no file.
func IsURL(model string) bool {
	return strings.HasPrefix(model, "http://") || strings.HasPrefix(model, "https://")
}

// describe names a model file without loading it. It reads all weights.
func describe(f *gguf.File, path string) (m worker.Model, err error) {
	if err := f.Check(); err != nil {
		return m, err
	}
	c, err := model.ReadConfig(f)
	if err != nil {
		return m, err
	}
	p, _, err := loadProfile(path, c.Layers)
	if err != nil {
		return m, err
	}
	return worker.Model{
		Layers: c.Layers, PerLayer: c.Experts, Hidden: c.Hidden,
		Hash: experts.HashModel(f, p), Profile: experts.HashProfile(p),
	}, nil
}

// Run works until ctx ends, or until another try cannot help: see worker.Worker.Run.
func (n *WorkerNode) Run(ctx context.Context) error {
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer group.Wait()
	defer cancel()
	if n.busy != nil {
		group.Go(func() { n.busy.Run(ctx) })
	}
	group.Go(func() { n.clerk.run(ctx) })
	return n.worker.Run(ctx)
}

// Close releases what the worker has.
func (n *WorkerNode) Close() {
	for i := len(n.close) - 1; i >= 0; i-- {
		n.close[i]()
	}
	n.close = nil
}

// WorkerStatus is what a worker is about, has done, and was promised for it.
type WorkerStatus struct {
	worker.Status
	Pending ledger.NKVR // signed by backbones since the start, and neither settled nor voided
	Settled ledger.NKVR // that backbones say holds
	Voided  ledger.NKVR // was pending when a backbone found a row wrong
	Held    ledger.NKVR // of what was signed, in all: gateways hold it back, for a backbone's limit is reached
	Mode    ledger.Mode // how the last report says that this worker is checked; 0: none has come
	Unsaid  int64       // bytes of output of this session for which no receipt has come

	Disputed int64  // reports of backbones that this worker disputes, since the start
	Trouble  string // what is wrong with the last of them
	Unread   int    // reports, with what this worker says of them, that no gateway has read yet
}

// Status returns what the worker is about. It is safe for concurrent use.
func (n *WorkerNode) Status() WorkerStatus {
	s := WorkerStatus{Status: n.worker.Status()}
	s.Disputed, s.Trouble, s.Unread = n.clerk.standing()
	s.Held = n.clerk.heldBack()
	n.credit.mu.Lock()
	defer n.credit.mu.Unlock()
	s.Pending, s.Settled, s.Voided = n.credit.pending, n.credit.settled, n.credit.voided
	s.Mode = n.credit.mode
	if s.Session != "" {
		s.Unsaid = n.credit.unsaid(s.Session, s.Output)
	}
	return s
}
