package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvasir/batcher"
	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/seal"
)

// AuditOptions say how the answers of workers are checked.
type AuditOptions struct {
	Every int           // rows of a worker of which one is recomputed; 0: 512
	Share float64       // of one processor's time that this takes; 0: 0.02
	Hold  time.Duration // how long a row waits for others to be recomputed with; 0: 10 s

	// Convict keeps the evidence against a worker, which is not let in again, nor who has the same token, and
	// returns its hash. It may be nil.
	Convict func(f audit.Finding, token seal.TokenID) (ledger.Hash, error)
	// Retry writes what Convict could not, and returns how many convictions that were. It may be nil.
	Retry func() (written int, err error)
	// Guilty reports whether a worker was convicted, in whatever process, and by which evidence. It may be nil.
	Guilty func(worker seal.PublicKey) (evidence ledger.Hash, guilty bool)
}

// errConvicted is why a worker is sent away whose answers are wrong.
var errConvicted = errors.New("a row that was checked is wrong; what is pending is void, and the evidence is kept")

// auditor has the answers of a swarm's workers checked, by the backbone's own experts or, where it has none,
// by other workers.
type auditor struct {
	s *Swarm
	o AuditOptions
	a *audit.Auditor

	secret [32]byte      // of what is known, as it is kept
	drawn  [32]byte      // of rows that wait, and how far sessions have come, as they are kept
	wake   chan struct{} // has one token when what is known is to be written
	saving sync.Mutex    // one writes; before mu

	mu    sync.Mutex
	known map[seal.PublicKey]*known // under mu
}

func newAuditor(s *Swarm, o AuditOptions) *auditor {
	a := &auditor{
		s: s, o: o, known: map[seal.PublicKey]*known{}, wake: make(chan struct{}, 1), secret: s.c.Key.Secret("records 1"),
		drawn: s.c.Key.Secret("drawn 1"),
	}
	a.a = audit.New(audit.Options{
		Judge: a.judge, Found: a.found, Trial: a.trial, Every: o.Every, Share: o.Share, Hold: o.Hold,
	})
	return a
}

// judge is audit.Options.Judge.
func (a *auditor) judge(layer int, not []seal.PublicKey) (audit.Judge, bool) {
	if a.s.c.Local != nil {
		return audit.Judge{Experts: a.s.c.Local}, true
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	tokens := map[seal.TokenID]bool{} // who has the same token may be the same person
	for _, w := range a.s.present {
		if slices.Contains(not, w.key) {
			tokens[w.token] = true
		}
	}
	for _, w := range a.s.present {
		exact := w.session.Peer().Class == wire.Exact // else its word is worth no more than that of whom it judges
		if exact && !slices.Contains(not, w.key) && !tokens[w.token] && w.hasLayer(layer) {
			return audit.Judge{Key: w.key, Experts: w.lane}, true
		}
	}
	return audit.Judge{}, false
}

// hasLayer reports whether a worker holds all experts of a layer. Swarm.mu is held.
func (w *attached) hasLayer(layer int) bool {
	n := w.held.experts
	row := w.held.has[layer*n:]
	return !slices.Contains(row[:n], false)
}

// found is audit.Options.Found: a worker is convicted.
func (a *auditor) found(f audit.Finding) {
	var hash ledger.Hash
	var err error
	if a.o.Convict != nil {
		hash, err = a.o.Convict(f, a.tokenOf(f.Worker))
	}
	hash = named(hash)
	a.mu.Lock()
	a.about(f.Worker).record.Fall() // also of one that was asked as a judge
	a.mu.Unlock()
	a.changed()
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.s.proving = slices.DeleteFunc(a.s.proving, func(x *accounts) bool { return x.w.key == f.Worker })
	for _, w := range slices.Concat(a.s.present, a.s.parting, a.s.judged) { // whose last report is still to come
		if w.key == f.Worker {
			w.checked.convict(hash, f.Session)
			w.drain(errConvicted)
		}
	}
	if a.s.c.Log != nil {
		a.s.c.Log.Warn("a worker's answer is wrong; it is sent away, and what is pending for it is void",
			"worker", f.Worker.Short(), "layer", f.Row.Shape.Layer, "judges", f.Judges, "class", f.Class.String(), "evidence", fmt.Sprintf("%x", hash[:8]), "error", err)
	}
}

// named is a hash of evidence for a report, which names something where a row is wrong.
func named(evidence ledger.Hash) ledger.Hash {
	if evidence == (ledger.Hash{}) {
		return ledger.Hash{31: 1}
	}
	return evidence
}

// checked is the checking of one session. A nil one checks nothing.
type checked struct {
	a *auditor
	w *audit.Worker

	mu       sync.Mutex
	evidence ledger.Hash // under mu
	more     int64       // wrong rows that it has given as a judge, or in a session before, not told yet; under mu
	closing  bool        // it is of a process before, and nothing was told since; under mu
}

// begin begins a session. A nil auditor gives nil.
func (a *auditor) begin(key seal.PublicKey, token seal.TokenID, class wire.Class) *checked {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.about(key)
	k.token = token
	c := &checked{a: a, w: a.a.Worker(key, k.record)}
	if class == wire.Close {
		c.w.Compare(audit.Close)
	}
	return c
}

// tokenOf returns the token by which a worker came last; zeros: it is not known.
func (a *auditor) tokenOf(key seal.PublicKey) (token seal.TokenID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.known[key]; k != nil {
		token = k.token
	}
	return token
}

// trial is audit.Options.Trial.
func (a *auditor) trial(key seal.PublicKey, on bool) {
	a.changed()
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for _, w := range a.s.present {
		if w.key == key {
			w.member.Trial(on)
		}
	}
}

// probation reports whether nothing of the worker's is paid yet.
func (c *checked) probation() bool { return c != nil && c.w.Probation() }

// proving reports whether what was signed in a session, which has ended, is decided by later ones of its worker.
func (c *checked) proving() bool { return c != nil && c.w.Undecided() }

// decided reports whether the next report tells that all of the session holds.
func (c *checked) decided() bool { return c != nil && c.w.Decided() }

// open reports whether rows are still looked at.
func (c *checked) open() bool { return c != nil && c.w.Open() > 0 }

// wrap has what x answers checked.
func (c *checked) wrap(x batcher.Timed) batcher.Timed {
	if c == nil {
		return x
	}
	return audited{x, c.w}
}

// convict notes a wrong row of the worker's; session is that of the answer, which its own checking counts.
func (c *checked) convict(evidence ledger.Hash, session int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evidence = evidence
	if session != c.w.ID() {
		c.more++
	}
}

// convicted reports whether a row was wrong.
func (c *checked) convicted() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evidence != (ledger.Hash{})
}

// news reports whether a report would tell something of rows.
func (c *checked) news() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.more > 0 || c.closing || c.w.News()
}

// turn is what the next report says of rows.
func (c *checked) turn() ledger.Audit {
	if c == nil {
		return ledger.Audit{Mode: ledger.Unverified}
	}
	t := c.w.Turn()
	c.mu.Lock()
	defer c.mu.Unlock()
	r := ledger.Audit{
		Checked: t.Checked + c.more, Wrong: t.Wrong + c.more, Unchecked: t.Skipped, Holds: t.Through, Mode: ledger.Sampled,
		Close: c.w.Class() == audit.Close,
	}
	c.more, c.closing = 0, false
	if r.Wrong == 0 && c.evidence != (ledger.Hash{}) { // what was answered since is void too
		r.Checked, r.Wrong = r.Checked+1, 1
	}
	if t.Probation {
		r.Mode = ledger.Probation
	}
	if r.Wrong > 0 {
		r.Evidence = c.evidence
	}
	return r
}

// audited is an executor whose answers are checked.
type audited struct {
	next batcher.Timed
	w    *audit.Worker
}

// Forward implements moe.Experts.
func (x audited) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return x.ForwardTimed(ctx, b, out, nil)
}

// ForwardTimed implements batcher.Timed.
func (x audited) ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *batcher.Times) error {
	err := x.next.ForwardTimed(ctx, b, out, times)
	if err == nil {
		x.w.Answer(b, out)
	}
	return err
}

// AnswerLate implements batcher.Later: who loses a hedge is paid, and checked like all others.
func (x audited) AnswerLate(b *moe.Batch, out *moe.Partials) { x.w.Answer(b, out) }
