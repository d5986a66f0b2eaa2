// Package worker is the far end of a swarm: it joins through a gateway, waits for a backbone, and computes
// experts for it until one of the two leaves, over one outbound connection and with no open port.
//
//	measure -> join -> wait in the lobby -> Hello -> Assign: fetch, check, load -> Ready -> compute
//	              ^                                                                            |
//	              +---------- full jitter, or when a GoAway or the owner says ------------------+
//
// What it holds stays loaded from one session to the next, as long as the model stays the same.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// Errors of this package; test with errors.Is.
var (
	// ErrOtherModel: the backbones of the hub serve another model than this worker has.
	ErrOtherModel = errors.New("worker: no backbone serves the model that this worker has; give the model " +
		"file that is served, and the same profile beside it, or none: then what is needed is fetched")
	// ErrMemory: slices do not fit into the memory that this worker has for them.
	ErrMemory = errors.New("worker: too much for the memory that is there for slices")
	// ErrUnsigned: work was done and nobody has signed for it, or what was signed could not be kept.
	ErrUnsigned = errors.New("worker: no receipt was kept for a minute of work, so this worker stops: the backbone " +
		"signs nothing, its hub does not take it, or the disk here refuses it, of which there is a line then")
	// ErrAssign: a backbone assigned what its model does not have.
	ErrAssign = errors.New("worker: the backbone assigned what its model does not have")
)

// Model is what a worker computes: an executor, and what it says of itself, so that a backbone of another
// model is refused and never served wrong.
type Model struct {
	Experts  moe.Experts // of the whole model; nil: it holds what it is assigned
	Layers   int
	PerLayer int // experts a layer
	Hidden   int // values a row
	Hash     [32]byte
	Profile  [32]byte
}

// Hello is what is said of the model when a session begins, by a worker and by a backbone.
func (m Model) Hello() wire.Hello {
	return wire.Hello{
		Layers: m.Layers, Experts: m.PerLayer, Hidden: m.Hidden,
		Model: wire.Hash(m.Hash), Profile: wire.Hash(m.Profile),
	}
}

// Config is for New.
type Config struct {
	Join    seal.Join
	Address string   // ws:// or wss:// of the gateway; empty: wss:// and the host of Join
	Key     seal.Key // this worker's identity

	// Model is what this machine has. Without one it computes for any model, and fetches its slices.
	Model Model
	// Shelf is where slices come from; nil: Model.Experts holds everything.
	Shelf  Shelf
	Memory int64  // bytes for slices; with Shelf
	Rate   int    // expert rows a second, see Measure; 0: not measured
	Busy   *Busy  // the owner's need of the machine; nil: nobody asks
	Agent  string // program, version and system, for people

	Waiting func(reason string)        // why there is no work yet; may be nil
	Paired  func(session string)       // a session has begun; may be nil
	Working func(session string)       // there is work from now on: what is to be held is; may be nil
	Holding func(what string)          // an Assign is in force; may be nil
	Lost    func(error, time.Duration) // a failure, and how long until the next try; may be nil
	// Receipt is given what the backbone signs about the work done, and by whom; it must not wait; may be
	// nil.
	Receipt func(backbone seal.Grant, session string, r wire.Receipt)
	// Unsigned is asked every Look during a session, which ends when it returns true: the worker works for
	// nobody who signs nothing. It may be nil.
	Unsigned func() bool
	Look     time.Duration // 0: 5 s

	// Wrap, if set, wraps the executor that answers: a test spoils answers with it.
	Wrap func(moe.Experts) moe.Experts
	// WrapConn, if set, wraps the connection within the inner TLS: a test sends with it what nobody asked for.
	WrapConn func(net.Conn) net.Conn

	Dialer  relay.Dialer
	Backoff relay.Backoff
	Log     *slog.Logger // nil: none
}

// Worker is a worker with what it holds and has done.
type Worker struct {
	c      Config
	holder *holder // nil: it holds the whole model
	status status
}

// New returns a worker. Run is to follow.
func New(c Config) *Worker {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{c: c}
	if c.Shelf != nil {
		w.holder = &holder{shelf: c.Shelf, memory: c.Memory, status: &w.status, log: c.Log}
	}
	return w
}

// Run is New and Worker.Run.
func Run(ctx context.Context, c Config) error { return New(c).Run(ctx) }

// Run works until ctx ends; then it finishes what is under way and returns nil. It comes back after
// every failure that another try may mend, and returns the others: a token or key that is refused, or a
// backbone of another model or arithmetic.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.status.set(Connecting, "")
	err := relay.Keep(ctx, w.c.Backoff, func(ctx context.Context) error {
		if err := w.untilFree(ctx); err != nil {
			return err
		}
		err := w.session(ctx, stop)
		if errors.Is(err, link.ErrRefused) || errors.Is(err, seal.ErrRefused) {
			stop(err) // the two do not fit together, and will not the next time
		}
		return err
	}, w.lost)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lost tells of a session that failed.
func (w *Worker) lost(err error, wait time.Duration) {
	w.status.set(Connecting, "the connection was lost")
	if w.c.Lost != nil {
		w.c.Lost(err, wait)
	}
}

// wait tells why there is no work.
func (w *Worker) wait(state State, reason string) {
	w.status.set(state, reason)
	if w.c.Waiting != nil {
		w.c.Waiting(reason)
	}
}

// session joins, and returns when the session has ended.
func (w *Worker) session(ctx context.Context, stop context.CancelCauseFunc) error {
	c := &w.c
	model := ""
	if c.Model.Hash != [32]byte{} {
		model = fmt.Sprintf("%x", c.Model.Hash)
	}
	p, err := relay.DialWorker(ctx, relay.WorkerConfig{
		Join: c.Join, Address: c.Address, Key: c.Key, Model: model, Dialer: c.Dialer,
		Waiting: func(reason string) {
			if reason == relay.OtherModel {
				stop(ErrOtherModel)
			}
			w.wait(Waiting, reason)
		},
	})
	if err != nil {
		return err
	}
	if p.Skew.Abs() >= skewSaid {
		c.Log.Warn("this machine's clock is off; set it, or what ends by the clock ends too soon or late",
			"ahead_of_the_hub", p.Skew.Round(time.Minute).String())
	}
	inner, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: c.Key, Root: c.Join.Root, Paired: p.Grant, Now: time.Now})
	if err != nil {
		_ = p.Conn.Close() // the error says more
		return err
	}
	var conn net.Conn = inner
	if c.WrapConn != nil {
		conn = c.WrapConn(inner)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s := &session{w: w, id: p.Session, backbone: p.Grant, ctx: ctx}
	defer s.group.Wait()
	defer end()
	err = seal.Explain(link.Serve(ctx, conn, s.worker(), s.options()))
	w.status.end()
	if s.unsigned.Load() {
		return ErrUnsigned
	}
	var away *link.Away
	if errors.As(err, &away) {
		back := min(away.Back, maxBack)
		if back > 0 {
			w.wait(Waiting, fmt.Sprintf("the backbone has sent this worker away for %v: %s", back, away.Text))
		}
		sleep(ctx, back)
		return nil
	}
	return err
}

// skewSaid is from when on a clock that differs from the hub's is worth a line.
const skewSaid = 5 * time.Minute

// maxBack is the longest that a backbone may send a worker away for.
const maxBack = time.Hour

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
