package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"kvasir/batcher/place"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
)

// How experts come to workers. Under Swarm.mu every worker has three masks:
//
//	want    what the plan says (replan.go)
//	held    what it has loaded, as its last Ready said
//	serves  what the dispatcher sends it: want and held; and what nobody serves then, all who hold it
//
// settle compares them and starts moves, at most one a worker at a time: a move is one Assign. What a
// worker holds beyond the plan it keeps, until the room is needed; so when another leaves it can take over
// at once. A move that drops something that only this worker serves waits for another worker to have it,
// as long as another move is under way that may bring that about.

// SliceSource is a model's experts, for workers that hold what they are assigned. *slices.Source is one.
type SliceSource interface {
	// Slice names experts of a layer, with their hash, which it may have to make first.
	Slice(ctx context.Context, layer, lo, hi int) (wire.Slice, error)
	// Read is a link.SliceReader.
	Read(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error)
	// ExpertBytes is how much memory an expert of a layer takes.
	ExpertBytes(layer int) int64
}

// planDelay is how long a plan waits for others to join or leave at about the same time.
const planDelay = 150 * time.Millisecond

// share is what a worker shall hold, and does. All under Swarm.mu.
type share struct {
	memory             int64 // bytes for slices; 0: it has the whole model
	rate               int   // expert rows a second, of the standard expert
	want, held, serves mask
	cached             []place.Range
	move               *move  // under way, or nil
	refused            mask   // what it could not load; not tried again
	slows              string // why it is not used, if more comes out without it
	failures           int    // each halves what it is trusted with
	tries              int    // to load something, without success
	down               float64
}

// move is one Assign under way.
type move struct {
	want   mask // of the plan that it is for
	next   mask
	keeps  mask // of what is held: what the worker goes on serving
	cancel context.CancelFunc
}

// newShare says what a worker begins with. It reads the hashes of what the worker says it has cached.
func (s *Swarm) newShare(ctx context.Context, h *wire.Hello) (share, error) {
	none := newMask(s.c.Model.Layers, s.c.Model.PerLayer)
	a := share{memory: h.Memory, rate: h.Rate, want: none, held: none, serves: none, refused: none}
	if h.Memory == 0 && h.Features&wire.FeatureFetch == 0 {
		a.held = none.clone().fill()
		return a, nil
	}
	if s.c.Slices == nil {
		return a, fmt.Errorf("%w: the worker wants slices, and this backbone has none to give", link.ErrRefused)
	}
	if err := s.fitsOne(h.Memory); err != nil {
		return a, err
	}
	for _, c := range h.Slices {
		if c.Layer >= s.c.Model.Layers || c.Hi > s.c.Model.PerLayer {
			continue // of another model
		}
		if mine, err := s.c.Slices.Slice(ctx, c.Layer, c.Lo, c.Hi); err == nil && mine.Hash == c.Hash {
			a.cached = append(a.cached, place.Range{Layer: c.Layer, Lo: c.Lo, Hi: c.Hi})
		}
	}
	return a, nil
}

// errSmall: a worker has no room for a single expert.
var errSmall = errors.New("this worker's memory is too small for the model")

// smallRest is after how long such a worker may ask again: the model may be another then.
const smallRest = 10 * time.Minute

// fitsOne returns errSmall where not even the smallest expert fits into four fifths of a memory.
func (s *Swarm) fitsOne(memory int64) error {
	least := s.expertBytes(0)
	for l := range s.c.Model.Layers {
		least = min(least, s.expertBytes(l))
	}
	if memory/5*4 >= least {
		return nil
	}
	return fmt.Errorf("%w: one expert takes %d KiB and a fifth is to spare, so give at least %d KiB with --memory",
		errSmall, least>>10+1, least>>10*5/4+2)
}

// sendAway tells a worker why it is not wanted.
func sendAway(ctx context.Context, session *link.Session, why error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = session.Drain(ctx, wire.GoAway{ // what comes of it is the same
		Reason: wire.Stopping, Back: uint32(smallRest.Milliseconds()), Text: []byte(why.Error()),
	})
	_ = session.Close()
}

// assigned reports whether the worker holds what it is assigned, not the whole model.
func (a *share) assigned() bool { return a.memory > 0 }

// changedMembers has a plan made anew, and goes on with those who are here until then. Under mu.
func (s *Swarm) changedMembers() {
	s.members++
	if s.c.Place != nil {
		for i, w := range s.present {
			w.want = w.want.of(s.c.Place(i, len(s.present)))
		}
		s.left.Plans++
	} else {
		s.planned = false
		s.wakePlanner()
	}
	s.settle()
}

// What a value takes on the wire: of a row, and of an answer as it mostly is.
const (
	rowValue     = 1.02
	partialValue = 1.7
)

func (s *Swarm) placeModel() place.Model {
	m := place.Model{
		Layers: s.c.Model.Layers, Experts: s.c.Model.PerLayer, TopK: s.c.TopK,
		RowBytes: rowValue * float64(s.c.Model.Hidden), PartialBytes: partialValue * float64(s.c.Model.Hidden),
	}
	for l := range m.Layers {
		m.ExpertBytes = append(m.ExpertBytes, s.expertBytes(l))
	}
	m.Load = s.load()
	return m
}

// expertBytes is what an expert takes of a worker's memory.
func (s *Swarm) expertBytes(layer int) int64 {
	if s.c.Slices == nil {
		return 1 // all workers have all of them
	}
	return s.c.Slices.ExpertBytes(layer)
}

// wholeMemory is that of a worker which has the whole model.
const wholeMemory = 1 << 60

func (s *Swarm) placeWorkers() (list []place.Worker) {
	for _, w := range s.present {
		stats := w.session.Stats()
		p := place.Worker{
			Name: w.id, Memory: w.memory >> w.failures, Rows: s.speed(w), RTT: stats.MinRTT,
			Up: stats.InRate, Down: w.down, Cached: w.cached, Held: w.held.ranges(),
		}
		if !w.assigned() {
			p.Memory = wholeMemory
		}
		if w.move != nil {
			p.Held = w.held.or(w.move.next).ranges()
		}
		list = append(list, p)
	}
	return list
}

// rows makes expert rows of this model of those of the standard expert, by how many weights they have.
func (s *Swarm) rows(rate int) float64 {
	if rate == 0 || s.c.Slices == nil {
		return float64(rate)
	}
	const standard = 3 * worker.StandardHidden * worker.StandardFFN * 9 / 16 // bytes, in Q4_K
	return float64(rate) * standard / float64(max(1, s.c.Slices.ExpertBytes(0)))
}

// settle brings what is served in line with what is held, and starts the moves that may start. Under mu.
func (s *Swarm) settle() {
	s.serve()
	var blocked *attached
	moving := false
	for _, w := range s.present {
		next, ok := s.next(w)
		switch {
		case !ok:
		case s.c.Local == nil && s.lonely(w, w.serves.minus(s.keeps(w, next))):
			blocked = w
		default:
			s.begin(w, next)
		}
		moving = moving || w.move != nil
	}
	if blocked != nil && !moving { // nobody will take over what it has: it is the lesser evil
		next, _ := s.next(blocked)
		s.begin(blocked, next)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// serve tells the dispatcher what each worker serves. Under mu.
func (s *Swarm) serve() {
	served := newMask(s.c.Model.Layers, s.c.Model.PerLayer)
	for _, w := range s.present {
		served = served.or(w.want.and(w.safe()))
	}
	for _, w := range s.present {
		serves := w.want.and(w.safe()).or(w.safe().minus(served))
		if !serves.equal(w.serves) {
			w.serves = serves
			w.member.Update(serves.set())
		}
	}
}

// safe is what the worker holds and keeps while a move is under way.
func (w *attached) safe() mask {
	if w.move == nil {
		return w.held
	}
	return w.move.keeps
}

// keeps returns what the worker goes on serving while it loads next. It loads a layer anew that changes;
// where there is no room for both, the old one goes first.
func (s *Swarm) keeps(w *attached, next mask) mask {
	same := w.held.clone()
	for at := 0; at < len(same.has); at += same.experts {
		if a, b := w.held.has[at:at+same.experts], next.has[at:at+same.experts]; !slices.Equal(a, b) {
			clear(same.has[at : at+same.experts])
		}
	}
	if next.bytes(s.expertBytes)+w.held.minus(same).bytes(s.expertBytes) <= w.memory/10*9 {
		return w.held.and(next)
	}
	return same
}

// next returns what a worker is to load now; ok is false when nothing is, or something else is under way.
// A move that has become pointless is given up: its end comes back to settle.
func (s *Swarm) next(w *attached) (next mask, ok bool) {
	if !w.assigned() || !s.planned {
		return next, false
	}
	if w.want.minus(w.held).empty() || w.want.equal(w.refused) {
		if w.move != nil {
			w.move.cancel()
		}
		return next, false
	}
	next = w.held.or(w.want)
	if next.bytes(s.expertBytes) > w.memory/5*4 || len(next.ranges()) > wire.MaxSlices {
		next = w.want.first(wire.MaxSlices)
	}
	if w.move == nil {
		return next, !next.minus(w.held).empty()
	}
	if !w.move.next.equal(next) {
		w.move.cancel()
	}
	return next, false
}

// lonely reports whether nobody but w serves some of the experts.
func (s *Swarm) lonely(w *attached, lost mask) bool {
	for _, o := range s.present {
		if o != w {
			lost = lost.minus(o.safe())
		}
	}
	return !lost.empty()
}

// begin starts a move. Under mu.
func (s *Swarm) begin(w *attached, next mask) {
	ctx, cancel := context.WithCancel(w.ctx)
	w.move = &move{want: w.want, next: next, keeps: s.keeps(w, next), cancel: cancel}
	s.left.Moves++
	drops := !w.held.minus(w.move.keeps).empty()
	if drops {
		s.serve()
	}
	w.moves.Go(func() {
		defer cancel()
		from, began := w.session.Stats().BytesOut, time.Now()
		err := s.assign(ctx, w, next, drops)
		s.mu.Lock()
		defer s.mu.Unlock()
		if sent := w.session.Stats().BytesOut - from; err == nil && sent >= downSample {
			w.down = float64(sent) / time.Since(began).Seconds()
			w.session.down.Store(math.Float64bits(w.down))
		}
		s.moved(ctx, w, err)
	})
}

// downSample is how many bytes tell at what rate a worker receives.
const downSample = 1 << 20

// assign has a worker load what is in a mask.
func (s *Swarm) assign(ctx context.Context, w *attached, next mask, drops bool) error {
	if drops {
		if err := w.gate.flush(ctx); err != nil {
			return err
		}
	}
	var list []wire.Slice
	for _, r := range next.ranges() {
		c, err := s.c.Slices.Slice(ctx, r.Layer, r.Lo, r.Hi)
		if err != nil {
			return err
		}
		c.Exponent = s.c.Exponents[r.Layer] + wire.ExponentBias
		list = append(list, c)
	}
	return w.session.Assign(ctx, list)
}

// moved ends a move. Under mu.
func (s *Swarm) moved(ctx context.Context, w *attached, err error) {
	m := w.move
	w.move = nil
	switch {
	case err == nil:
		w.held, w.tries = m.next, 0
		if s.c.Holds != nil {
			s.c.Holds(w.id, w.held.set().String())
		}
		s.settle()
	case ctx.Err() != nil, errors.Is(err, link.ErrClosed), errors.Is(err, link.ErrDraining):
		w.held = m.keeps // it may have come through, or not
		s.settle()
	default:
		w.held, w.refused = m.keeps, m.want
		if s.c.Log != nil {
			s.c.Log.Warn("a worker does not load what it was assigned", "worker", w.id, "error", err)
		}
		if errors.Is(err, moe.ErrInvalid) { // too much, by its own account
			w.failures = min(w.failures+1, maxFailures)
			s.changedMembers()
			return
		}
		s.again(w)
		s.settle()
	}
}

// maxFailures is after how many the worker is trusted with next to nothing.
const maxFailures = 16

// How long a worker that could not load something is left alone: the disk may be cleared by then, or the
// web server be back.
const (
	againFirst = 15 * time.Second
	againMost  = 10 * time.Minute
)

// again has the worker try later. Under mu.
func (s *Swarm) again(w *attached) {
	wait := min(againFirst<<w.tries, againMost)
	w.tries = min(w.tries+1, maxFailures)
	t := time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.ctx.Err() == nil {
			w.refused = newMask(s.c.Model.Layers, s.c.Model.PerLayer)
			s.settle()
		}
	})
	context.AfterFunc(w.ctx, func() { t.Stop() })
}

// quiet reports whether every worker holds what it shall, or cannot. Under mu.
func (s *Swarm) quiet() bool {
	if !s.planned {
		return false
	}
	for _, w := range s.present {
		if w.move != nil || !w.want.minus(w.held).empty() && !w.want.equal(w.refused) {
			return false
		}
	}
	return true
}

// source serves the model's experts. Their hashes are kept in the home folder, if the model is a file.
func (o *BackboneOptions) source(e *Engine) (SliceSource, error) {
	src, err := e.Source()
	if err != nil || o.Path == "" {
		return src, err
	}
	dir, err := o.Home.path("hashes")
	if err != nil {
		return nil, err
	}
	if err := src.KeepIn(dir); err != nil {
		o.Log.Warn("hashes of experts are computed again at the next start", "error", err)
	}
	return src, nil
}
