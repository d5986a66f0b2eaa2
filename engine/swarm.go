package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// Placement says what worker number i of n holds.
type Placement func(i, n int) *batcher.Set

// ByLayer gives whole layers to workers in turn: a row of a layer then goes to one worker only.
func ByLayer(layers, experts int) Placement {
	return func(i, n int) *batcher.Set {
		s := &batcher.Set{}
		for l := i; l < layers; l += n {
			mustAdd(s, l, 0, experts)
		}
		return s
	}
}

// ByExpert gives each worker the same share of every layer.
func ByExpert(layers, experts int) Placement {
	return func(i, n int) *batcher.Set {
		s := &batcher.Set{}
		if lo, hi := experts*i/n, experts*(i+1)/n; lo < hi {
			for l := range layers {
				mustAdd(s, l, lo, hi)
			}
		}
		return s
	}
}

func mustAdd(s *batcher.Set, layer, lo, hi int) {
	if err := s.Add(layer, lo, hi); err != nil {
		panic("BUG: " + err.Error()) // the model's own numbers are within moe's limits
	}
}

// SwarmConfig is for NewSwarm.
type SwarmConfig struct {
	Key   seal.Key
	Grant seal.Grant // that makes Key a backbone's
	Root  seal.PublicKey
	Hubs  []relay.Target

	Model   worker.Model // what is served; its Experts are not used
	Workers int          // wanted at each hub
	Place   Placement    // nil: package place decides, by what the workers are good for

	// Slices serves workers that hold what they are assigned; nil: workers are to have the whole model.
	Slices    SliceSource
	Exponents []int // of the model's profile, one a layer; with Slices
	TopK      int   // picks a row, as far as it is known

	Local moe.Experts // computes what no worker answers; nil: calls wait for a worker
	// Wait and Patience are batcher.Options'.
	Wait, Patience time.Duration
	Trace          func(*batcher.Call) // is told of every call; may be nil

	// Outbox keeps what was signed until a gateway has read it; nil: a hub that loses its file loses that. It
	// is closed after Close.
	Outbox *ledger.Outbox
	Audit  *AuditOptions // how answers are checked; nil: they are not, and nothing of pay ever settles

	Refuse func(seal.Proof) error   // why a worker is not wanted; may be nil
	Joined func(WorkerStats)        // may be nil
	Left   func(WorkerStats, error) // may be nil
	Holds  func(id, what string)    // a worker has loaded what it was assigned; must not wait; may be nil
	Log    *slog.Logger
	Dialer relay.Dialer
	Rhythm Rhythm
}

// Swarm is the workers of a backbone: it takes those that its hubs offer, gives each its share of the
// experts, and moves the shares when one joins or leaves. Experts computes on all of them.
type Swarm struct {
	c          SwarmConfig
	backbone   *relay.Backbone
	dispatcher *batcher.Dispatcher
	auditor    *auditor // nil: answers are not checked
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	failed     chan struct{} // closed when no hub can be had any more

	mu      sync.Mutex
	err     error       // why, once failed is closed; under mu
	present []*attached // in the order of joining; under mu
	gone    []WorkerStats
	changed chan struct{}   // closed and replaced when present changes, or what they hold; under mu
	planned bool            // the plan is about those who are present; under mu
	members int             // counts what a plan has to be made anew for; under mu
	wake    chan struct{}   // has one token when a plan is wanted
	rest    time.Time       // until when nothing is moved for what was measured; under mu
	ending  map[string]bool // hubs that drain, until they are back; under mu
	parting []*attached     // have left, and their counts are not final; under mu
	judged  []*attached     // have left, and some of their rows are not decided; under mu
	proving []*accounts     // of sessions that have ended and wait for later ones, the oldest first; under mu
	left    Metrics         // without workers: what is counted here; under mu
}

// attached is a worker with a session.
type attached struct {
	id      string
	key     seal.PublicKey
	token   seal.TokenID
	hub     string
	checked *checked
	drain   context.CancelCauseFunc // sends the worker away
	session *timed
	lane    *batcher.Lane
	gate    *gate // before the lane
	member  *batcher.Member
	ctx     context.Context // of the session
	moves   sync.WaitGroup
	signed  promised
	share   // under Swarm.mu
}

// WorkerStats is what a worker has done.
type WorkerStats struct {
	ID         string // first characters of its key
	Key        seal.PublicKey
	Session    string
	Dispatches int64
	Rows       int64
	Picks      int64
	Failures   int64  // dispatches without an answer
	BytesOut   uint64 // to the worker, within the inner TLS
	BytesBack  uint64
	RTT        time.Duration
	Memory     int64   // that it has for slices; 0: it has the whole model
	Rate       int     // expert rows a second, of the standard expert, as it says
	Down       float64 // bytes a second to it, while it fetched its slices last; 0: not known
	Holds      string
	Hub        string        // id of the one by which it came
	Wait       time.Duration // from dispatch to answer, added up
	Here       bool          // it has not left
	Right      int64         // rows of it that were found right, in all its sessions
	Wanted     int           // more rows that are to be found right before its probation ends; 0: it has, or nobody checks
	Settled    ledger.NKVR   // of this session, as this backbone has signed; whether its limit allows it, a gateway knows
	Voided     ledger.NKVR
}

// NewSwarm begins to take workers, until Close.
func NewSwarm(c SwarmConfig) (*Swarm, error) {
	ctx, end := context.WithCancelCause(context.Background())
	s := &Swarm{
		c: c, cancel: func() { end(errEnding) },
		dispatcher: batcher.NewDispatcher(batcher.Options{Local: c.Local, Wait: c.Wait, Patience: c.Patience, Trace: c.Trace}),
		failed:     make(chan struct{}),
		changed:    make(chan struct{}),
		wake:       make(chan struct{}, 1),
		planned:    true,
		ending:     map[string]bool{},
	}
	var err error
	s.backbone, err = relay.NewBackbone(relay.BackboneConfig{
		Key: c.Key, Grant: c.Grant, Root: c.Root, Hubs: c.Hubs,
		Want:   relay.Want{Model: fmt.Sprintf("%x", c.Model.Hash), Workers: c.Workers},
		Refuse: c.Refuse, Drain: s.drain, Online: s.online,
		Log: c.Log, Dialer: c.Dialer, Backoff: c.Rhythm.backoff(),
	})
	if err != nil {
		end(err)
		return nil, err
	}
	if c.Audit != nil {
		s.auditor = newAuditor(s, *c.Audit)
		s.auditor.load(ctx)
		s.resume(ctx)
		s.wg.Go(func() { s.auditor.keep(ctx) })
		s.wg.Go(func() { s.auditor.a.Run(ctx) })
	}
	s.wg.Go(func() { s.accept(ctx) })
	s.wg.Go(func() { s.keepPlanning(ctx) })
	if c.Outbox != nil {
		s.wg.Go(func() { s.remind(ctx) })
	}
	return s, nil
}

// Experts computes on the workers, and on SwarmConfig.Local what they do not answer.
func (s *Swarm) Experts() moe.Experts { return s.dispatcher }

// accept takes workers until ctx ends.
func (s *Swarm) accept(ctx context.Context) {
	for {
		a, err := s.backbone.Accept(ctx)
		if err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
			close(s.failed)
			return
		}
		s.wg.Go(func() {
			came, err := s.attach(ctx, a)
			reason := a.Ended(err, kindOfEnd(err))
			if err != nil && !came && s.c.Log != nil {
				s.c.Log.Warn("worker did not come in", "worker", a.Worker.Key.Short(), "reason", reason, "error", err)
			}
		})
	}
}

// kindOfEnd is what a session is counted under that ended because of err, for reasons within it.
func kindOfEnd(err error) string {
	if errors.Is(err, errSmall) {
		return "small"
	}
	return link.Kind(err)
}

// Counts returns what has been counted of hubs, offers and ends of sessions, see relay.Backbone.Counts; a
// worker that has no room for any expert ended as small. What could not be written here is counted too, and
// records of workers that were damaged.
func (s *Swarm) Counts() map[string]uint64 {
	all := maps.Clone(s.backbone.Counts())
	if s.c.Outbox != nil {
		maps.Copy(all, s.c.Outbox.Counts())
	}
	return all
}

// attach runs one worker's session from the beginning to the end. came says that it had a beginning; its
// end is told to SwarmConfig.Left then.
func (s *Swarm) attach(ctx context.Context, a *relay.Accepted) (came bool, err error) {
	all := ctx // of the swarm
	inner, err := seal.Server(ctx, a.Conn, seal.ServerConfig{Self: s.c.Key, Root: s.c.Root, Paired: a.Worker})
	if err != nil {
		_ = a.Conn.Close() // the error says more
		return false, err
	}
	opened, err := link.Open(ctx, inner, s.linkOptions(a.Worker.Key))
	if err != nil {
		return false, err
	}
	session := &timed{Session: opened}
	share, err := s.newShare(ctx, session.Peer())
	if err != nil {
		sendAway(ctx, opened, err)
		return false, err
	}
	lane, err := batcher.NewLane(session, batcher.Limits{Adapt: true}, 0)
	if err != nil {
		_ = session.Close()
		return false, err
	}
	ctx, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	w := &attached{
		id: a.Worker.Key.Short(), key: a.Worker.Key, token: a.Worker.Token.ID, hub: a.Hub, drain: drain, session: session,
		lane: lane, checked: s.auditor.begin(a.Worker.Key, a.Worker.Token.ID, session.Peer().Class), ctx: ctx, share: share,
	}
	w.gate = newGate(w.checked.wrap(lane))
	s.join(w)
	left := make(chan struct{}) // closed when the worker's counts are final
	var reports sync.WaitGroup
	books := s.newAccounts(w, a.Hub, a.Session)
	if books != nil {
		reports.Go(func() { books.keep(left) })
	}
	if s.c.Joined != nil {
		s.mu.Lock()
		now := w.stats()
		s.mu.Unlock()
		s.c.Joined(now)
	}
	select {
	case <-session.Leaving():
	case <-ctx.Done():
	}
	s.leave(w)
	if ctx.Err() != nil {
		// In order: the worker is told, and what is under way is finished.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		cause := context.Cause(ctx)
		err = session.Drain(drain, wire.GoAway{
			Reason: wire.Stopping, Back: uint32(back(cause).Milliseconds()), Text: []byte(cause.Error()),
		})
		cancel()
	} else {
		<-session.Done()
		err = session.Err()
	}
	_ = session.Close()
	drain(nil) // for what it was to load
	w.moves.Wait()
	lane.Close()
	<-w.member.Done()
	close(left)
	reports.Wait()
	s.mu.Lock()
	last := w.stats()
	last.Session, last.Here = a.Session, false
	s.gone = remember(s.gone, last)
	s.left.leftWith(w)
	books.after(all)
	s.parting = slices.DeleteFunc(s.parting, func(x *attached) bool { return x == w })
	s.mu.Unlock()
	if s.c.Left != nil {
		s.c.Left(last, err)
	}
	return true, err
}

// maxGone is how many workers that have left are told apart.
const maxGone = 1024

// remember adds what a worker did in a session that has ended to what it did in those before; the longest
// gone are put together where there are too many.
func remember(list []WorkerStats, last WorkerStats) []WorkerStats {
	for i := range list {
		if list[i].Key == last.Key {
			last.add(&list[i])
			list = slices.Delete(list, i, i+1)
			break
		}
	}
	if len(list) == maxGone {
		list[1].add(&list[0])
		list[1].ID, list[1].Key = "others", seal.PublicKey{}
		list = slices.Delete(list, 0, 1)
	}
	return append(list, last)
}

// add adds the counts of another session.
func (w *WorkerStats) add(o *WorkerStats) {
	w.Dispatches += o.Dispatches
	w.Rows += o.Rows
	w.Picks += o.Picks
	w.Failures += o.Failures
	w.BytesOut += o.BytesOut
	w.BytesBack += o.BytesBack
	w.Wait += o.Wait
}

// Causes of sending a worker away, which it is told.
var (
	errEnding  = errors.New("the backbone ends")
	errHubEnds = errors.New("the hub ends")
)

// drain sends the workers of a hub away, which will end after n.
func (s *Swarm) drain(hub string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending[hub] = true // for those that are about to join
	for _, w := range s.present {
		if w.hub == hub {
			w.drain(errHubEnds)
		}
	}
}

// online hears of hubs that come and go.
func (s *Swarm) online(hub string, connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if connected {
		delete(s.ending, hub)
	}
}

// Failed is closed when no hub can be had any more, and Err says why.
func (s *Swarm) Failed() <-chan struct{} { return s.failed }

// Err returns why no hub can be had any more, once Failed is closed.
func (s *Swarm) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// linkOptions are those of a session with a worker.
func (s *Swarm) linkOptions(key seal.PublicKey) link.Options {
	o := link.Options{Hello: s.c.Model.Hello(), Name: "worker " + key.Short(), Log: s.c.Log}
	if s.c.Slices != nil {
		o.Hello.Features |= wire.FeatureFetch
		o.Slices = s.c.Slices.Read
	}
	return o
}

// join takes a worker in, and plans anew.
func (s *Swarm) join(w *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = append(s.present, w)
	w.member = s.dispatcher.Join(w.id, w.gate, &batcher.Set{})
	w.member.Trial(w.checked.probation())
	s.changedMembers()
	if s.ending[w.hub] {
		w.drain(errHubEnds)
	}
}

func (s *Swarm) leave(w *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = slices.DeleteFunc(s.present, func(x *attached) bool { return x == w })
	s.parting = append(s.parting, w)
	w.member.Leave()
	s.changedMembers()
}

// WaitFor returns when n workers are present and hold what they shall.
func (s *Swarm) WaitFor(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		have, quiet, changed := len(s.present), s.quiet(), s.changed
		s.mu.Unlock()
		if have >= n && quiet {
			return nil
		}
		select {
		case <-changed:
		case <-s.failed:
			return s.Err()
		case <-ctx.Done():
			if have >= n {
				return fmt.Errorf("%d workers have come and still load what they are to hold: %w", have, context.Cause(ctx))
			}
			return fmt.Errorf("%d of %d workers have come: %w", have, n, context.Cause(ctx))
		}
	}
}

// Workers returns what each worker has done, those first that have left.
func (s *Swarm) Workers() []WorkerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.gone)
	for _, w := range s.present {
		list = append(list, w.stats())
	}
	return list
}

// stats is under Swarm.mu.
func (w *attached) stats() WorkerStats {
	m, l := w.member.Stats(), w.session.Stats()
	right, wanted := w.checked.standing()
	settled, voided := w.signed.sums()
	return WorkerStats{
		Right: right, Wanted: wanted, Settled: settled, Voided: voided,
		ID: w.id, Key: w.key, Dispatches: m.Dispatches, Rows: m.Rows, Picks: m.Picks + m.Spare, Failures: m.Failures,
		BytesOut: l.BytesOut, BytesBack: l.BytesIn, RTT: l.MinRTT,
		Memory: w.memory, Rate: w.rate, Down: w.down, Holds: w.held.set().String(), Hub: w.hub, Wait: m.Wait, Here: true,
	}
}

// Close sends the workers away and returns when no goroutine is left.
func (s *Swarm) Close() {
	s.cancel()
	s.wg.Wait() // the last reports go out over the control connections
	s.auditor.save(context.Background())
	s.auditor.retry()
	s.backbone.Close()
	s.dispatcher.Close()
}
