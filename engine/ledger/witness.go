package ledger

import (
	"fmt"
	"math"
	"time"

	"kvasir/wire/seal"
)

// Witness is the worker's side of one session: it reads the reports that come, compares them with what the
// worker has counted, and makes the statements. It belongs to one goroutine at a time.
//
// An answer that is under way when a report is signed stands in a later one, and one that nobody waited for
// any more in none. So TooFew is said only of what the worker had answered before the report before the
// last one came, less a sixteenth of it and of what fits into a few dispatches.
type Witness struct {
	key      seal.Key
	session  SessionID
	backbone seal.PublicKey

	sequence int64
	last     Hash
	lost     bool     // a report was missing: its picks are not known
	signed   int64    // picks in all reports
	answered [2]int64 // picks that the worker had answered when the last two came
	by       [MaxLayers]int64
	signedBy [MaxLayers]int64
}

// underWay is how many picks may be missing in reports for ever.
const underWay = 4096

// NewWitness returns a witness of a session.
func NewWitness(key seal.Key, session SessionID, backbone seal.PublicKey) *Witness {
	return &Witness{key: key, session: session, backbone: backbone}
}

// State reads a report, which has to be about this session and signed by its backbone, and returns the
// signed statement on it. by is what the worker has answered in the session up to now, by layer. A report
// that has been seen gives nil.
func (w *Witness) State(signed []byte, by []int64, now time.Time) (statement []byte, opinion Opinion, err error) {
	r, err := Verify(signed)
	if err != nil {
		return nil, 0, err
	}
	if r.Session != w.session || r.Backbone != w.backbone || r.Worker != w.key.Public() {
		return nil, 0, fmt.Errorf("%w: report %d of session %s", ErrWrongSession, r.Sequence, r.Session)
	}
	if len(by) > MaxLayers {
		return nil, 0, fmt.Errorf("%w: %d layers", ErrBadStatement, len(by))
	}
	hash := HashOf(signed)
	if r.Sequence <= w.sequence {
		if r.Sequence == w.sequence && hash != w.last {
			return nil, Forked, fmt.Errorf("%w: there is another report %d of session %s", ErrFork, r.Sequence, r.Session)
		}
		return nil, 0, nil
	}
	opinion = w.judge(&r, by)
	s := Statement{
		Session: r.Session, Sequence: r.Sequence, Report: hash, Worker: r.Worker, Backbone: r.Backbone,
		Time: now.Truncate(time.Millisecond), Opinion: opinion,
	}
	for layer, n := range by {
		s.Answered += n
		if since := n - w.by[layer]; since > 0 && opinion != Agree {
			s.Picks = append(s.Picks, LayerPicks{layer, since})
		}
	}
	if statement, err = s.Append(nil, w.key); err != nil {
		return nil, 0, err
	}
	w.sequence, w.last = r.Sequence, hash
	copy(w.by[:], by)
	w.answered = [2]int64{w.answered[1], s.Answered}
	return statement, opinion, nil
}

// judge takes the picks of a report in, and says what it is to be thought of.
func (w *Witness) judge(r *Report, by []int64) Opinion {
	more := false
	for _, l := range r.Picks {
		w.signed = plus(w.signed, l.Picks)
		w.signedBy[l.Layer] = plus(w.signedBy[l.Layer], l.Picks)
		more = more || l.Layer >= len(by) || w.signedBy[l.Layer] > by[l.Layer]
	}
	switch {
	case r.Sequence != w.sequence+1:
		w.lost = true
		return Missing
	case r.Sequence > 1 && r.Before != w.last:
		w.lost = true
		return Forked
	case more:
		return TooMany
	case !w.lost && w.signed < w.answered[0]-w.answered[0]/16-underWay:
		return TooFew
	}
	return Agree
}

// plus adds what many reports say, which may be any numbers.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
