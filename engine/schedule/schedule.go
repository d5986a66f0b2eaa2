// Package schedule runs many requests through one model at once: continuous batching.
//
// A request is a prompt and one or more choices, which are continuations of it. Sequences join and
// leave between micro-batches. Prompts are computed in chunks beside those who decode, and several
// micro-batches may be under way at the same time, so that experts far away can be waited for
// without idling:
//
//	Submit -> queue -> admission -> micro-batch -> choosers -> Stream
//	            ^                       |
//	            +---- preempted --------+
//
// Who goes when is decided by a core without clock, goroutine or model (core.go, pick.go). Its
// rules:
//
//   - Requests are admitted in the order of their arrival, class Interactive before class Batch.
//     Nobody overtakes because it is smaller. Neither class starves: one admission in eight is a
//     Batch request's, and so are the first rows of one micro-batch in eight.
//   - A sequence is admitted when there is memory for its tokens and a part of its answer. When
//     memory runs out all the same, the youngest sequence is preempted, whatever its class: its
//     memory goes to the others, and it is computed anew from its tokens when its time comes. The
//     oldest always goes on.
//   - All who are admitted take turns: those served longest ago go first.
//
// A result depends on nothing but its request: the model gives the same bits whatever the chunks,
// the neighbours and the past of a sequence, and a chooser sees each position once, in order.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"kvasir/engine/model"
	"kvasir/internal/moe"
)

// Errors of this package; test with errors.Is.
var (
	// ErrFull: so many requests wait already that this one is refused. Send it again later.
	ErrFull = errors.New("schedule: queue is full")
	// ErrTooLarge: the request could not run even if it were alone.
	ErrTooLarge = errors.New("schedule: request too large for the memory")
	// ErrTooLong: the prompt leaves no room for an answer in the model's context.
	ErrTooLong = errors.New("schedule: prompt too long")
	// ErrRequest: the request breaks a rule of Request.
	ErrRequest = errors.New("schedule: invalid request")
	// ErrCanceled: Stream.Cancel was called.
	ErrCanceled = errors.New("schedule: request canceled")
	// ErrClosed: the scheduler was closed.
	ErrClosed = errors.New("schedule: closed")
	// ErrExperts: the experts could not run a micro-batch that the request was part of.
	ErrExperts = errors.New("schedule: the experts could not run")
)

// Config is for New. A number that is 0 has its default.
type Config struct {
	Model   *model.Model
	Memory  *model.Memory // of Model; the scheduler's alone
	Experts moe.Experts   // of Model; safe for Flights concurrent calls

	Rows    int // the most of a micro-batch: 1 to model.BatchRows, which is the default
	Flights int // micro-batches under way at once; 1 by default
	// Wanted says how many of Flights there should be at present, so that each is as large as can be. It
	// is called with a lock held, and must not wait; nil: all of them.
	Wanted func() int
	// Mark makes of a context that of micro-batches of a class, for who computes experts to see. A micro-batch
	// is of class Interactive when one of its sequences is. nil: the context says nothing.
	Mark      func(ctx context.Context, c Class) context.Context
	Watch     Watcher // is told of every micro-batch; nil: nobody is
	Sequences int     // that run at once, and so the most choices of a request; 512 by default
	Waiting   int     // requests that wait to be admitted; 1024 by default
	Retries   int     // of a choice whose micro-batch the experts could not run; none by default
}

// Watcher is told when a micro-batch begins its way through the layers, and when it has ended. The context is
// that of its experts, and of one micro-batch at a time.
type Watcher interface {
	Begin(ctx context.Context)
	End(ctx context.Context, err error)
}

// Defaults of Config.
const (
	DefaultSequences = 512
	DefaultWaiting   = 1024
)

// bounds of Config that keep a mistake from taking all memory.
const (
	maxFlights   = 64
	maxSequences = 1 << 16
	maxWaiting   = 1 << 20
	maxRetries   = 100
)

// limits returns the numbers in force, or an error that names the one out of bounds.
func (c *Config) limits() (limits, error) {
	for _, f := range []struct {
		name     string
		at       *int
		def, max int
	}{
		{"Rows", &c.Rows, model.BatchRows, model.BatchRows},
		{"Flights", &c.Flights, 1, maxFlights},
		{"Sequences", &c.Sequences, DefaultSequences, maxSequences},
		{"Waiting", &c.Waiting, DefaultWaiting, maxWaiting},
		{"Retries", &c.Retries, 0, maxRetries},
	} {
		if *f.at == 0 {
			*f.at = f.def
		}
		if *f.at < 0 || *f.at > f.max {
			return limits{}, fmt.Errorf("schedule: %s is %d, want 1 to %d, or 0 for %d", f.name, *f.at, f.max, f.def)
		}
	}
	return limits{c.Rows, c.Flights, c.Sequences, c.Waiting, defaultGrow}, nil
}

// Class says how urgent a request is.
type Class uint8

const (
	Interactive Class = iota // somebody waits for it
	Batch                    // it may take its time

	classes = 2
)

// Chooser chooses the tokens of one choice.
type Chooser interface {
	// Next returns the token at position pos of the sequence, counted from the prompt's first
	// token; end says that it is the last. The logits are those after the token before; they may be
	// changed and are not to be kept. Calls come one after another, for positions that follow each
	// other, none twice, but not from one goroutine. The micro-batch waits for Next. An error fails
	// the request.
	//
	// What Next has written may be read by who has received the token's event, as far as Next does
	// not write it again: it may be choosing the next token by then.
	Next(logits []float32, pos int) (token int32, end bool, err error)
}

// Request asks for continuations of a prompt.
type Request struct {
	Prompt  []int32 // copied
	Limit   int     // the most tokens of a choice; the model's context may end it earlier
	Choices []Chooser
	Class   Class
}

// Scheduler runs requests. It is safe for concurrent use.
type Scheduler struct {
	back    backend
	shape   shape
	retries int
	wanted  func() int                                   // nil: all flights
	mark    func(context.Context, Class) context.Context // may be nil
	watch   Watcher                                      // likewise
	wg      sync.WaitGroup                               // of flights

	mu       sync.Mutex // before Stream.mu and the memory's
	core     core
	requests map[*request]struct{} // that are not over
	closed   bool
	flights  []*flight
	flying   int           // of them, those with a micro-batch under way
	work     sync.Cond     // with mu: there may be something for a flight, or the end has come
	drained  chan struct{} // closed when no request is left after closed
	counts   Stats         // those that core does not count
	victims  []*task       // scratch
}

// shape is what a request is held to.
type shape struct {
	vocab, context int
	budget         int64 // bytes; 0: no limit
}

// New returns a scheduler, which is to be closed.
func New(c Config) (*Scheduler, error) {
	l, err := c.limits()
	if err != nil {
		return nil, err
	}
	sh := shape{vocab: c.Model.Vocab, context: c.Model.Context, budget: c.Memory.Stats().Budget}
	return start(&local{c.Model, c.Memory, c.Experts}, sh, l, &c), nil
}

func start(b backend, sh shape, l limits, c *Config) *Scheduler {
	s := &Scheduler{
		back: b, shape: sh, retries: c.Retries, wanted: c.Wanted, mark: c.Mark, watch: c.Watch,
		core:     core{limits: l, bytes: b.bytes},
		requests: map[*request]struct{}{},
		drained:  make(chan struct{}),
	}
	s.work.L = &s.mu
	for range l.flights {
		s.flights = append(s.flights, &flight{s: s})
	}
	for _, f := range s.flights {
		s.wg.Go(f.fly)
	}
	return s
}

// request is a Request under way.
type request struct {
	prompt  []int32
	choices []*choice
	stream  *Stream
	over    atomic.Bool // no chooser is asked any more

	// Under Scheduler.mu.
	live int         // choices that have not ended
	stop func() bool // ends the watch on the context of Submit
}

// choice is one continuation.
type choice struct {
	task
	req     *request
	chooser Chooser

	// Under Scheduler.mu, or its flight's while the task is in use.
	answer  []int32  // chosen so far
	seq     sequence // nil while the task waits
	picked  pick
	retries int     // left
	flight  *flight // that the task is in
}

// Submit lets a request wait for its turn. When ctx ends the request does. An error means that
// nothing of it was computed or will be.
func (s *Scheduler) Submit(ctx context.Context, r Request) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.check(&r); err != nil {
		return nil, err
	}
	req := &request{prompt: slices.Clone(r.Prompt), live: len(r.Choices)}
	req.stream = &Stream{s: s, req: req, wake: make(chan struct{}, 1)}
	for i, ch := range r.Choices {
		c := &choice{req: req, chooser: ch, retries: s.retries}
		c.task = task{class: r.Class, index: i, have: len(r.Prompt), left: r.Limit, owner: c}
		req.choices = append(req.choices, c)
	}
	req.choices[0].forks = len(r.Choices) - 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.core.full() {
		return nil, fmt.Errorf("%w: %d requests wait; send it again later", ErrFull, s.core.fresh)
	}
	req.stop = context.AfterFunc(ctx, func() { s.finish(req, ctx.Err()) })
	s.requests[req] = struct{}{}
	s.core.submit(&req.choices[0].task)
	s.work.Signal()
	return req.stream, nil
}

// check refuses a request that breaks a rule or can never run, and cuts its limit to the context.
func (s *Scheduler) check(r *Request) error {
	switch n := len(r.Prompt); {
	case n == 0:
		return fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	case n >= s.shape.context:
		return fmt.Errorf("%w: it has %d tokens and the model takes %d, answer included; shorten it", ErrTooLong, n, s.shape.context)
	case r.Limit < 1:
		return fmt.Errorf("%w: a limit of %d tokens; ask for 1 or more", ErrRequest, r.Limit)
	case r.Class >= classes:
		return fmt.Errorf("%w: class %d; want Interactive or Batch", ErrRequest, r.Class)
	case len(r.Choices) == 0 || len(r.Choices) > s.core.sequences:
		return fmt.Errorf("%w: %d choices; ask for 1 to %d", ErrRequest, len(r.Choices), s.core.sequences)
	case slices.Contains(r.Choices, nil):
		return fmt.Errorf("%w: a choice without a chooser", ErrRequest)
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= s.shape.vocab {
			return fmt.Errorf("%w: token %d of the prompt is %d, and the vocabulary has %d", ErrRequest, i, t, s.shape.vocab)
		}
	}
	r.Limit = min(r.Limit, s.shape.context-len(r.Prompt))
	if need := s.back.bytes(len(r.Prompt) + r.Limit); s.shape.budget > 0 && need > s.shape.budget {
		return fmt.Errorf("%w: %d tokens of prompt and %d of answer take %d MiB, and there are %d MiB; ask for less, or give more memory",
			ErrTooLarge, len(r.Prompt), r.Limit, (need+1<<20-1)>>20, s.shape.budget>>20)
	}
	return nil
}

// finish ends a request, with an error unless all its choices have ended. What of it is in a
// micro-batch under way goes when that returns.
func (s *Scheduler) finish(r *request, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(r, err)
	s.settled()
}

// end is finish, with mu held.
func (s *Scheduler) end(r *request, err error) {
	if _, ok := s.requests[r]; !ok {
		return
	}
	delete(s.requests, r)
	r.over.Store(true)
	r.stop()
	for _, c := range r.choices {
		s.remove(c)
	}
	switch {
	case err == nil:
		s.counts.Finished++
	case errors.Is(err, ErrCanceled) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		s.counts.Canceled++
	default:
		s.counts.Failed++
	}
	r.stream.end(err)
	if s.closed && len(s.requests) == 0 {
		close(s.drained)
	}
}

// Close lets the requests under way and those that wait run to their end, and takes no further
// ones. If ctx ends before they do they fail with ErrClosed, and Close returns the error of ctx. No
// goroutine is left when it returns.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		if len(s.requests) == 0 {
			close(s.drained)
		}
	}
	s.work.Broadcast()
	s.mu.Unlock()
	var err error
	select {
	case <-s.drained:
	case <-ctx.Done():
		err = ctx.Err()
		s.mu.Lock()
		for r := range s.requests {
			s.end(r, ErrClosed)
		}
		s.settled()
		s.mu.Unlock()
	}
	s.wg.Wait()
	return err
}

// Stats are counts since New, and how things stand.
type Stats struct {
	Waiting    int // requests and preempted sequences without memory
	Running    int // sequences
	Prefilling int // of them, those that compute a prompt

	Finished, Failed, Canceled int64 // requests

	Batches     int64 // micro-batches
	Rows        int64 // tokens that went through the layers
	Prefilled   int64 // of them, those of prompts, and what was computed anew
	Decoded     int64 // tokens chosen
	Reused      int64 // tokens that were known from other sequences
	Preemptions int64
	Recomputed  int64 // tokens whose results were given up, by preemption or because experts failed
	Retries     int64 // of sequences whose experts failed
}

// Stats tells how things stand.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.counts
	for _, q := range s.core.queues {
		st.Waiting += len(q)
	}
	st.Running = len(s.core.running)
	for _, t := range s.core.running {
		if !t.decodes() {
			st.Prefilling++
		}
	}
	c := &s.core.counts
	st.Batches, st.Rows, st.Prefilled = c.batches, c.rows, c.prefilled
	st.Reused, st.Preemptions, st.Recomputed = c.reused, c.preemptions, c.recomputed
	return st
}
