package ledger

import (
	"fmt"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// Reporter is the backbone's side of one session: it counts picks and makes the chain of reports. It
// is safe for concurrent use.
type Reporter struct {
	key  seal.Key
	next Report // session, worker, hidden, and the sequence and hash for the report to come
	most int64  // picks that one report may have

	mu     sync.Mutex
	picks  [MaxLayers]int64 // not yet in a report
	sum    int64            // of picks
	signed []byte           // the last report, while nobody has confirmed it
}

// NewReporter returns a reporter for a session with a worker, on rows of hidden values.
func NewReporter(key seal.Key, session SessionID, worker seal.PublicKey, hidden int) *Reporter {
	return &Reporter{
		key:  key,
		next: Report{Session: session, Sequence: 1, Worker: worker, Hidden: hidden},
		most: int64(MaxReward) / Rate / BytesPerValue / int64(max(hidden, 1)),
	}
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

// Report returns the signed report to send now, or nil when there is nothing to say. Until Done has
// confirmed a report it returns that one again, the same bytes, and goes on counting: so a hub that is
// away makes the next report larger, not the backbone's memory.
func (r *Reporter) Report(now time.Time) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signed != nil {
		return r.signed, nil
	}
	report := r.next
	report.Time = now.Truncate(time.Millisecond)
	for layer, picks := range r.picks {
		if picks > 0 {
			report.Picks = append(report.Picks, LayerPicks{Layer: layer, Picks: picks})
		}
	}
	if len(report.Picks) == 0 {
		return nil, nil
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
