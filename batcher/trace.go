package batcher

import (
	"cmp"
	"context"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// Times is where the time of a dispatch went, as far as its executor knows; what it does not know is 0.
type Times struct {
	Lane time.Duration `json:"lane_ns"` // before it was sent
	Out  time.Duration `json:"out_ns"`  // on the wire to the worker
	Work time.Duration `json:"work_ns"` // in the worker
	Back time.Duration `json:"back_ns"` // on the wire from the worker
}

// Timed is an executor that knows where the time goes.
type Timed interface {
	moe.Experts
	// ForwardTimed is Forward, and fills times.
	ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *Times) error
}

// Span is one dispatch of a call.
type Span struct {
	To string `json:"to"`
	// Instead is who was asked for the same just before, and was late, failed, or answered moe.Wide.
	Instead string `json:"instead,omitempty"`

	Rows   int           `json:"rows"`
	Picks  int           `json:"picks"`
	At     time.Duration `json:"at_ns"` // since the call began
	Took   time.Duration `json:"took_ns"`
	Times                // parts of Took
	Add    time.Duration `json:"add_ns"` // adding the answer into the call's sums, after Took
	Result string        `json:"result"` // answered, beaten, late, failed, lacking, refused or void
}

// End is when the dispatch was over, since the call began.
func (s *Span) End() time.Duration { return s.At + s.Took + s.Add }

// waitedFor is whose fault it is that there was no answer before.
func (s *Span) waitedFor() string { return cmp.Or(s.Instead, s.To) }

// Call is the waterfall of one Forward of a dispatcher: one layer of one micro-batch.
type Call struct {
	Layer int           `json:"layer"`
	Rows  int           `json:"rows"`
	Start time.Time     `json:"start"`
	Took  time.Duration `json:"took_ns"`
	Spans []Span        `json:"spans"` // in the order of their ends
	// Straggler is for whom the call took so long: who answered last, or instead of whom that was; and Lag
	// how much later than the last but one the answer came; the whole call if there was but one.
	Straggler string        `json:"straggler,omitempty"`
	Lag       time.Duration `json:"lag_ns,omitempty"`
	Err       error         `json:"-"`
}

// trace collects the spans of a call. A nil trace collects nothing.
type trace struct {
	mu   sync.Mutex // guards the rest, while the call runs
	call Call
}

func (t *trace) note(m *Member, o *outcome) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	instead := ""
	if o.instead != nil {
		instead = o.instead.name
	}
	t.call.Spans = append(t.call.Spans, Span{
		To: m.name, Instead: instead, Rows: o.sent, Picks: o.sentPicks, At: o.at.Sub(t.call.Start), Took: o.took,
		Times: o.times, Add: o.combine, Result: o.verdict.String(),
	})
}

// end completes the call.
func (t *trace) end(err error) {
	c := &t.call
	c.Took, c.Err = time.Since(c.Start), err
	var last, before time.Duration
	for i := range c.Spans {
		s := &c.Spans[i]
		if s.Result != answered.String() {
			continue
		}
		if end := s.End(); c.Straggler == "" || end > last {
			c.Straggler, last, before = s.waitedFor(), end, last
		} else {
			before = max(before, end)
		}
	}
	c.Lag = last - before
}

// String is the verdict as a Span tells it.
func (v verdict) String() string {
	return [...]string{"answered", "beaten", "late", "failed", "lacking", "refused", "void"}[v]
}
