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
	Agent  string

	Waiting func(reason string)
	Working func(session string)
	Holding func(what string)
	Lost    func(error, time.Duration)
	Log     *slog.Logger
	Now     func() time.Time
}

// WorkerNode is a worker with its home, what it holds, and what was signed for its work.
type WorkerNode struct {
	ID     string // first characters of its key
	Memory int64
	Rate   int // expert rows a second, of the standard expert

	worker *worker.Worker
	busy   *worker.Busy // nil: it does not pause
	credit credit
	close  []func()
}

// NewWorkerNode measures this machine and makes a worker of what is in its home. Run is to follow, and
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
	unlock, err := o.Home.Lock(seal.Worker)
	if err != nil {
		return err
	}
	n.close = append(n.close, unlock)
	c := worker.Config{
		Join: o.Join, Memory: o.Memory, Agent: o.Agent, Log: o.Log, Dialer: relay.Dialer{Now: o.Now},
		Waiting: o.Waiting, Working: o.Working, Holding: o.Holding, Lost: o.Lost,
		Paired: func(session string) { n.credit.begin(session, n.worker.Status().Output) },
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
	if c.Rate, err = worker.Measure(ctx); err != nil {
		return err
	}
	n.Memory, n.Rate = c.Memory, c.Rate
	n.credit.own = c.Key.Public()
	c.Receipt = n.credit.take
	n.worker = worker.New(c)
	return nil
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
	Mode    ledger.Mode // how the last report says that this worker is checked; 0: none has come
	Unsaid  int64       // bytes of output of this session for which no receipt has come
}

// Status returns what the worker is about. It is safe for concurrent use.
func (n *WorkerNode) Status() WorkerStatus {
	s := WorkerStatus{Status: n.worker.Status()}
	n.credit.mu.Lock()
	defer n.credit.mu.Unlock()
	s.Pending, s.Settled, s.Voided = n.credit.pending, n.credit.settled, n.credit.voided
	s.Mode = n.credit.mode
	if s.Session != "" {
		s.Unsaid = n.credit.unsaid(s.Session, s.Output)
	}
	return s
}

// credit adds up what backbones have signed. It believes what was signed by the backbone of the session,
// about this worker and that session, once.
type credit struct {
	own seal.PublicKey

	mu       sync.Mutex
	session  string
	sequence int64 // of the last report of session
	open     []worth
	output   int64
	mode     ledger.Mode

	pending, settled, voided ledger.NKVR

	at   string // the session that goes on
	from int64  // output when it began, less what was signed by then
}

// worth is a report of the session that is pending.
type worth struct {
	sequence int64
	reward   ledger.NKVR
}

// begin says that a session begins after so much output. What of that was not signed, nobody will sign to
// this worker any more: the hub has the backbone's last report, or there is none.
func (c *credit) begin(session string, output int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.from = session, output-c.output
}

// unsaid is how much of the output of a session, which goes on, has no receipt. mu is held.
func (c *credit) unsaid(session string, output int64) int64 {
	if session != c.at {
		return 0 // it begins
	}
	return max(0, output-c.from-c.output)
}

// take is worker.Config.Receipt.
func (c *credit) take(backbone seal.PublicKey, session string, r wire.Receipt) {
	report, err := ledger.Verify(r.Signed)
	if err != nil || report.Worker != c.own || report.Backbone != backbone {
		return // it says nothing that would be paid
	}
	id, err := ledger.ParseSessionID(session)
	if err != nil || report.Session != id {
		return
	}
	total, err := report.Total()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != session {
		c.session, c.sequence, c.open = session, 0, nil // what was open stays pending here; the wallet knows
	}
	reward, err := ledger.Reward(total.Bytes)
	if err != nil || report.Sequence <= c.sequence || reward > ledger.MaxBalance-c.pending-c.settled-c.voided {
		return
	}
	c.sequence, c.mode = report.Sequence, report.Mode
	c.output += total.Bytes
	c.pending += reward
	c.open = append(c.open, worth{report.Sequence, reward})
	to, upTo := &c.settled, report.Holds
	if report.Wrong > 0 {
		to, upTo = &c.voided, report.Sequence
	}
	for len(c.open) > 0 && c.open[0].sequence <= upTo {
		c.pending -= c.open[0].reward
		*to += c.open[0].reward
		c.open = c.open[1:]
	}
}
