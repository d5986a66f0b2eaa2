package schedule

import (
	"context"
	"io"
	"sync"
)

// Final says whether a token is the last of its choice, and why.
type Final uint8

const (
	More  Final = iota // it is not the last
	Ended              // the chooser said so
	Full               // the limit is reached, or the context is full
)

// Event is one token of an answer.
type Event struct {
	Choice int
	Token  int32
	Pos    int // in the sequence, counted from the prompt's first token
	Final  Final
}

// Stream is the answer to a request. It is for one goroutine at a time, but for Cancel.
//
// It holds what has not been read, at most Limit events a choice, so a slow reader holds up nobody.
type Stream struct {
	s   *Scheduler
	req *request

	mu     sync.Mutex
	events []Event
	at     int   // the next to be read
	over   error // nil: more may come
	wake   chan struct{}
}

// Next returns the next token. Those of one choice come in order. After the last of all choices it
// returns io.EOF. If the request failed or was cancelled it returns why, after what was made
// before.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		if e, ok, err := s.take(); ok {
			return e, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// take returns what Next does, if it is known.
func (s *Stream) take() (e Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at < len(s.events) {
		e = s.events[s.at]
		if s.at++; s.at == len(s.events) {
			s.events, s.at = s.events[:0], 0
		}
		return e, true, nil
	}
	return Event{}, s.over != nil, s.over
}

// Ready reports whether Next returns at once: there is another token, or the stream is over.
func (s *Stream) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at < len(s.events) || s.over != nil
}

// Cancel ends the request, unless it is over. Its memory is given back at once; what of it is in a
// micro-batch under way, when that returns: until then its choosers may be in use.
func (s *Stream) Cancel() { s.s.finish(s.req, ErrCanceled) }

// add adds an event. ring is to follow, once all of the micro-batch are there: who reads a stream of many
// choices then finds all of a step at once, and none is woken while the scheduler's lock is held.
func (s *Stream) add(e Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
}

// end ends the stream; with nil all is well.
func (s *Stream) end(err error) {
	if err == nil {
		err = io.EOF
	}
	s.mu.Lock()
	s.over = err
	s.mu.Unlock()
	s.ring()
}

func (s *Stream) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
