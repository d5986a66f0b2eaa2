package model

import (
	"context"
	"errors"
	"fmt"

	"kvasir/internal/moe"
)

// BatchRows is how many rows walk through the layers together, and so the most that one dispatch to the
// experts holds. Forward cuts longer work into micro-batches of this size.
const BatchRows = 512

// Want says after which tokens of a step the logits are wanted.
type Want uint8

const (
	Last Want = iota // after the last token only
	None             // nowhere: a chunk of a prompt that is not its end
	All              // after each token
)

// Step is one run of tokens of one sequence, to be taken in one Forward.
type Step struct {
	Seq    *Sequence
	Tokens []int32
	Want   Want

	// Logits receives Vocab values for each wanted position, in order. Forward reuses its room.
	Logits []float32
	// Sink, if set, is called with the Vocab values of each wanted position instead, in order, by one of
	// several goroutines: those of different steps at the same time. It may change the values, and does
	// not keep them.
	Sink func(logits []float32)
	// Err is what went wrong with this sequence alone. The sequence cannot go on after it.
	Err error
}

// Errors of a step that Forward refuses before any work; the sequence stays as it was.
var (
	ErrContext = errors.New("model: the context is full")
	ErrToken   = errors.New("model: token outside the vocabulary")
	ErrBusy    = errors.New("model: sequence twice in one call")
	ErrEmpty   = errors.New("model: a step without tokens")
)

// Forward takes all steps together, with the routed experts computed by experts. What is wrong with one
// sequence is in its step's Err and leaves the others untouched. Forward's own error means that the
// experts could not run: the sequences that were under way cannot go on.
func (m *Model) Forward(ctx context.Context, experts moe.Experts, steps []*Step) error {
	w := m.works.Get().(*work)
	w.travel = m.travels.take()
	defer func() {
		for _, s := range steps {
			if s.Err == nil || !errors.Is(s.Err, ErrBusy) {
				s.Seq.busy = false
			}
		}
		m.travels.put(w.travel)
		w.travel = nil
		w.release()
		m.works.Put(w)
	}()
	for _, s := range steps {
		s.Logits = s.Logits[:0]
		s.Err = m.admit(s)
	}
	at := cursor{steps: steps}
	for w.take(&at) {
		if err := w.forward(ctx, experts); err != nil {
			for _, r := range w.runs {
				r.step.Err = err
				r.step.Seq.err = err
			}
			return err
		}
	}
	return nil
}

// admit checks a step before anything is computed for it.
func (m *Model) admit(s *Step) error {
	if s.Seq.busy {
		return ErrBusy
	}
	s.Seq.busy = true
	switch {
	case s.Seq.err != nil:
		return s.Seq.err
	case len(s.Tokens) == 0:
		return ErrEmpty
	case s.Seq.mem.m != m:
		panic("BUG: a sequence of another model")
	case s.Seq.Len()+len(s.Tokens) > m.Context:
		return fmt.Errorf("%w: %d tokens after %d, and the model takes %d", ErrContext, len(s.Tokens), s.Seq.Len(), m.Context)
	}
	for i, t := range s.Tokens {
		if t < 0 || int(t) >= m.Vocab {
			return fmt.Errorf("%w: token %d is %d, the vocabulary has %d", ErrToken, i, t, m.Vocab)
		}
	}
	return s.Seq.reserve(len(s.Tokens))
}

// cursor is how far a list of steps has been taken.
type cursor struct {
	steps []*Step
	step  int // next step
	token int // next token of it
}

// run is the consecutive rows of one sequence within a micro-batch.
type run struct {
	step   *Step
	lo, hi int     // rows of the micro-batch
	tokens []int32 // of all its rows, those included that have been dropped since
}

// row is one token of a micro-batch.
type row struct {
	step *Step
	run  int // of the micro-batch
	pos  int
	want bool // logits after it
}

// take fills the micro-batch with the next rows and reports whether there are any.
func (w *work) take(c *cursor) bool {
	w.rows, w.runs, w.tokens = w.rows[:0], w.runs[:0], w.tokens[:0]
	for c.step < len(c.steps) && len(w.rows) < BatchRows {
		s := c.steps[c.step]
		if s.Err != nil {
			c.step, c.token = c.step+1, 0
			continue
		}
		n := s.Seq.chunk(min(len(s.Tokens)-c.token, BatchRows-len(w.rows)))
		lo := len(w.rows)
		for i := c.token; i < c.token+n; i++ {
			w.tokens = append(w.tokens, s.Tokens[i])
			w.rows = append(w.rows, row{
				step: s,
				run:  len(w.runs),
				pos:  s.Seq.Len() + i - c.token,
				want: s.Want == All || s.Want == Last && i == len(s.Tokens)-1,
			})
		}
		w.runs = append(w.runs, run{step: s, lo: lo, hi: lo + n, tokens: s.Tokens[c.token : c.token+n]})
		if c.token += n; c.token < len(s.Tokens) {
			break // the rest begins where these have gone through all layers
		}
		c.step, c.token = c.step+1, 0
	}
	return len(w.rows) > 0
}

// forward walks the micro-batch through all layers.
func (w *work) forward(ctx context.Context, experts moe.Experts) error {
	m := w.m
	n := len(w.rows)
	w.x = room(w.x, n*m.Hidden)
	w.h = room(w.h, n*m.Hidden)
	w.y = room(w.y, n*m.Hidden)
	for i, t := range w.tokens {
		m.embedRow(w.x[i*m.Hidden:(i+1)*m.Hidden], int(t))
	}
	w.turn()
	for i := range m.layers {
		more, err := w.walk(ctx, experts, i)
		if err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if !more {
			break
		}
	}
	w.logits()
	for _, r := range w.runs {
		r.step.Seq.took(r.tokens)
	}
	return nil
}

// walk takes the rows through one layer. In the last one only those go on after which logits are wanted;
// it reports whether there are any.
func (w *work) walk(ctx context.Context, experts moe.Experts, i int) (more bool, err error) {
	m, ly, last := w.m, &w.m.layers[i], i == len(w.m.layers)-1
	w.layer = i
	w.normRows(w.h, w.x, ly.attnNorm)
	w.in.set(w.h, m.Hidden)
	if ly.delta != nil {
		w.deltaNet(ly.delta)
	} else if !w.attention(ly.attn, last) {
		return false, nil
	}
	w.addRows(w.x, w.y)
	if last && ly.delta != nil && !w.narrow() {
		return false, nil
	}
	w.normRows(w.h, w.x, ly.ffnNorm)
	w.in.set(w.h, m.Hidden)
	return true, w.moe(ctx, experts, ly)
}

// narrow drops the rows after which no logits are wanted, and reports whether any are left. Nothing of
// them is kept: a row's result does not depend on its neighbours.
func (w *work) narrow() bool {
	d, half := w.m.Hidden, len(w.m.rope.freq)
	n := 0
	for k := range w.runs {
		r := &w.runs[k]
		lo := n
		for i := r.lo; i < r.hi; i++ {
			if !w.rows[i].want {
				continue
			}
			w.rows[n] = w.rows[i]
			copy(w.x[n*d:(n+1)*d], w.x[i*d:(i+1)*d])
			copy(w.h[n*d:(n+1)*d], w.h[i*d:(i+1)*d])
			copy(w.cos[n*half:(n+1)*half], w.cos[i*half:(i+1)*half])
			copy(w.sin[n*half:(n+1)*half], w.sin[i*half:(i+1)*half])
			n++
		}
		r.lo, r.hi = lo, n
	}
	w.rows = w.rows[:n]
	w.x, w.h, w.y = w.x[:n*d], w.h[:n*d], w.y[:n*d]
	w.in.set(w.h, d)
	return n > 0
}

// embedRow writes the embedding of one token.
func (m *Model) embedRow(dst []float32, token int) {
	size := len(m.embed.Data) / m.embed.Out
	m.ops.Dequantize(dst, m.embed.Format, m.embed.Data[token*size:(token+1)*size])
}

// logits computes the head for the rows that want it and appends the results to their steps.
func (w *work) logits() {
	m := w.m
	w.wanted = w.wanted[:0]
	for i, r := range w.rows {
		if r.want && r.step.Err == nil {
			w.wanted = append(w.wanted, i)
		}
	}
	if len(w.wanted) == 0 {
		return
	}
	// A few rows at a time: with a large vocabulary the logits of all would be larger than the model.
	few := max(16, headRoom/m.Vocab)
	for at := 0; at < len(w.wanted); at += few {
		w.head(w.wanted[at:min(at+few, len(w.wanted))])
	}
}

// headRoom is how many logits are computed at a time, if that is 16 rows of them.
const headRoom = 16 << 20

// sinkInline is how many logits are given to their steps by one goroutine: for fewer, others begin too late.
const sinkInline = 1 << 16

// head computes the logits of rows, and gives them to their steps.
func (w *work) head(rows []int) {
	m := w.m
	w.h = room(w.h, len(rows)*m.Hidden)
	for k, i := range rows {
		w.rmsNorm(w.h[k*m.Hidden:(k+1)*m.Hidden], w.x[i*m.Hidden:(i+1)*m.Hidden], m.norm)
	}
	w.layer = -1
	w.in.set(w.h, m.Hidden)
	w.in.owner = rows
	w.out = room(w.out, len(rows)*m.Vocab)
	w.matmul(w.out, m.head, &w.in, "the output row")
	give := func(lo, hi int) { // the rows of one step, in order
		for k := lo; k < hi; k++ {
			s, logits := w.rows[rows[k]].step, w.out[k*m.Vocab:(k+1)*m.Vocab]
			switch {
			case s.Err != nil:
			case s.Sink != nil:
				s.Sink(logits)
			default:
				s.Logits = append(s.Logits, logits...)
			}
		}
	}
	w.ends = w.ends[:0]
	for k := range rows {
		if k == len(rows)-1 || w.rows[rows[k]].run != w.rows[rows[k+1]].run {
			w.ends = append(w.ends, k+1)
		}
	}
	steps := func(i int) {
		lo := 0
		if i > 0 {
			lo = w.ends[i-1]
		}
		give(lo, w.ends[i])
	}
	if len(w.out) < sinkInline {
		for i := range w.ends {
			steps(i)
		}
		return
	}
	w.apart(len(w.ends), steps)
}

// fail records what is wrong with a row; the first fault of a sequence stands.
func (w *work) fail(i int, where string, status moe.Status, index int) {
	r := w.rows[i]
	if r.step.Err != nil {
		return
	}
	r.step.Err = &RowError{Layer: w.layer, Pos: r.pos, Index: index, Where: where, Status: status}
	r.step.Seq.err = r.step.Err
	r.step.Logits = r.step.Logits[:0]
}
