package ledger

import (
	"fmt"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// Subject is what the reports of a session are about.
type Subject struct {
	Session SessionID
	Worker  seal.PublicKey
	Model   Hash
	Profile Hash
	Hidden  int // values of a row
}

// Reporter is the backbone's side of one session: it counts picks and makes the chain of reports. It
// is safe for concurrent use.
type Reporter struct {
	key  seal.Key
	next Report // what all reports have in common, and the sequence and hash for the report to come
	most int64  // picks that one report may have

	mu     sync.Mutex
	picks  [MaxLayers]int64 // not yet in a report
	sum    int64            // of picks
	signed []byte           // the last report, while nobody has confirmed it
}

// NewReporter returns a reporter for a session.
func NewReporter(key seal.Key, s Subject) *Reporter {
	return &Reporter{
		key: key,
		next: Report{Session: s.Session, Sequence: 1, Worker: s.Worker, Model: s.Model, Profile: s.Profile,
			Hidden: s.Hidden},
		most: MaxOutput / BytesPerValue / int64(max(s.Hidden, 1)),
	}
}

// Resume has the next report follow on one that was signed before, by another process.
func (r *Reporter) Resume(signed []byte) error {
	last, err := Verify(signed)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last.Session != r.next.Session || last.Backbone != r.key.Public() || last.Worker != r.next.Worker {
		return fmt.Errorf("%w: report %d of session %s is to be followed in session %s", ErrWrongSession, last.Sequence, last.Session, r.next.Session)
	}
	r.signed, r.next.Sequence, r.next.Before = nil, last.Sequence+1, HashOf(signed)
	return nil
}

// Count adds picks that the worker has answered.
func (r *Reporter) Count(layer int, picks int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if layer < 0 || layer >= MaxLayers || picks < 0 {
		return fmt.Errorf("%w: %d picks of layer %d", ErrBadReport, picks, layer)
	}
	if picks > r.most-r.sum {
		return fmt.Errorf("%w: %d picks of layer %d after %d", ErrOverflow, picks, layer, r.sum)
	}
	r.picks[layer] += picks
	r.sum += picks
	return nil
}

// News is what a report says beside picks: of the time since the report before, whose sequence is one
// less. It is called when the report is made, once.
type News func(sequence int64) (Traffic, Audit)

// Report returns the signed report to send now, or nil when there is nothing to say: no picks, and also
// is false, which says that news is of something. Until Done has confirmed a report it returns that one
// again, the same bytes, and goes on counting: so a hub that is away makes the next report larger, not
// the backbone's memory.
func (r *Reporter) Report(now time.Time, also bool, news News) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signed != nil {
		return r.signed, nil
	}
	if r.sum == 0 && !also {
		return nil, nil
	}
	report := r.next
	report.Time = now.Truncate(time.Millisecond)
	report.Traffic, report.Audit = news(report.Sequence)
	for layer, picks := range r.picks {
		if picks > 0 {
			report.Picks = append(report.Picks, LayerPicks{Layer: layer, Picks: picks})
		}
	}
	signed, err := report.Append(nil, r.key)
	if err != nil {
		return nil, err
	}
	r.signed, r.picks, r.sum = signed, [MaxLayers]int64{}, 0
	r.next.Sequence++
	r.next.Before = HashOf(signed)
	return signed, nil
}

// Done says that the hub has stored the report of this sequence. It may be said twice.
func (r *Reporter) Done(sequence int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sequence == r.next.Sequence-1 {
		r.signed = nil
	}
}
