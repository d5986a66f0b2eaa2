package serve

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// stream is an answer as server-sent events.
type stream struct {
	*reply
	out     *http.ResponseController
	writing *writing // of a response

	mu     sync.Mutex // pieces and signs of life come from different goroutines
	began  bool
	head   []byte    // of chunks
	buf    []byte    // what is to be sent
	pieces int       // of it
	last   time.Time // something was sent
	limit  time.Time // until when the connection takes it

	pause *time.Timer // of the generator's goroutine
}

// most is how much waits for what follows, before it is sent all the same.
const most = 16 << 10

// events answers with a stream. Its head goes out with the first piece, so that a request which cannot
// be answered still gets a status of its own; or when nothing has come for so long that the client might
// give up.
func (a *reply) events(ctx context.Context) {
	s := a.newStream()
	defer func() { _ = s.out.SetWriteDeadline(time.Time{}) }() // the connection may carry more requests
	stop := s.keepAlive()
	res, err := a.generate(ctx, func(p Piece) error {
		fast, err := s.piece(p)
		if fast && err == nil {
			s.rest(ctx)
		}
		return err
	})
	stop()
	if err != nil {
		f := a.h.failed(ctx, a.kind, err)
		switch {
		case f == nil: // nobody listens
		case s.began && s.writing != nil:
			_ = s.writing.failed(f) // it adds to what is to be sent, as event does
			_ = s.flush()           // the stream ends in either case
		case s.began:
			s.event(f.body())
			_ = s.flush() // the stream ends in either case
		default:
			refuse(a.w, f)
		}
		return
	}
	s.finish(res)
	_ = s.flush() // it is the last
}

func (a *reply) newStream() *stream {
	s := &stream{reply: a, out: http.NewResponseController(a.w), head: a.chunkHead(), last: time.Now()}
	if a.kind == responseText {
		s.writing = a.newWriting(func(e *responseEvent) error {
			s.add("event: "+e.Type+"\ndata: ", encode(e))
			return nil
		})
		s.writing.more = func(text string) { s.buf = appendDelta(s.buf, s.writing, text) }
	}
	return s
}

// rest lets pieces gather for Options.Gather before the next is asked for: an eye does not tell forty writes a
// second from a hundred, and a write costs as much as fifty tokens do before it.
func (s *stream) rest(ctx context.Context) {
	if s.pause == nil {
		s.pause = time.NewTimer(s.h.o.Gather)
	} else {
		s.pause.Reset(s.h.o.Gather)
	}
	select {
	case <-s.pause.C:
	case <-ctx.Done(): // the generator sees it too
	}
}

// finish adds the end.
func (s *stream) finish(res Result) {
	s.begin()
	if s.writing != nil {
		_ = s.writing.finish(res) // it adds, which does not fail
		return
	}
	if s.ask.usage {
		o := s.object(true)
		o.Usage = newUsage(res)
		s.event(o)
	}
	s.add("data: ", []byte("[DONE]"))
}

// keepAlive sends comments, which clients skip, while there is nothing else to send. The function that it
// returns ends that.
func (s *stream) keepAlive() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		tick := time.NewTicker(s.h.o.Alive)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			s.mu.Lock()
			if time.Since(s.last) >= s.h.o.Alive {
				s.begin()
				s.add(": ", []byte("waiting"))
				_ = s.flush() // the next piece finds out whether anybody is there
			}
			s.mu.Unlock()
		}
	}()
	return func() { close(done); <-ended }
}

// begin adds the head, once.
func (s *stream) begin() {
	if s.began {
		return
	}
	s.began = true
	head := s.w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-cache")
	head.Set("X-Accel-Buffering", "no") // proxies are not to wait for more
	s.w.WriteHeader(http.StatusOK)
	if s.writing != nil {
		_ = s.writing.begin() // it adds, which does not fail
		return
	}
	for i := range s.choices {
		c := choice{Index: i}
		switch {
		case s.kind == chatText:
			c.Delta = &turn{Role: "assistant", Content: new("")}
		case s.ask.echo:
			c.Text = new(s.prompt(i))
		default:
			continue
		}
		s.event(s.object(true, c))
	}
}

// piece sends what a piece adds, and the end of its choice; or leaves that to the next one, which is known. It
// reports whether more pieces come than are worth a write each.
func (s *stream) piece(p Piece) (fast bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	s.pieces++
	deltas := s.take(p)
	for i := range deltas {
		switch d := &deltas[i]; {
		case s.writing != nil:
			_ = s.writing.add(*d) // which does not fail
		case d.call != nil || len(s.choices[p.Choice].logs) > 0:
			s.event(s.object(true, s.chunk(p.Choice, d)))
		default:
			s.buf = appendText(s.buf, s.head, s.kind, p.Choice, d)
		}
	}
	if p.End != nil && s.writing == nil {
		s.ended(p)
	}
	if p.More && len(s.buf) < most {
		return false, nil
	}
	// Those of several prompts come one by one, from as many goroutines: none is to hold up the others.
	fast = !p.More && len(s.ask.requests) == 1 && (s.pieces > len(s.choices) || time.Since(s.last) < s.h.o.Gather)
	return fast, s.flush()
}

// chunk is what a delta adds to a choice.
func (s *stream) chunk(index int, d *delta) choice {
	c := choice{Index: index, Logprobs: s.logprobs(index)}
	switch {
	case s.kind == plainText:
		c.Text = &d.text
	case d.call != nil:
		n := s.choices[index].calls
		call := s.newCall(index, d.call)
		call.Index = &n
		c.Delta = &turn{Calls: []wireCall{call}}
	case d.reasoning != "":
		c.Delta = &turn{Reasoning: d.reasoning}
	default:
		c.Delta = &turn{Content: &d.text}
	}
	return c
}

// ended adds the end of a choice.
func (s *stream) ended(p Piece) {
	state := s.choices[p.Choice]
	c := choice{Index: p.Choice, Finish: state.finish(*p.End), Logprobs: s.logprobs(p.Choice)}
	if s.kind == plainText {
		c.Text = new("")
	} else {
		c.Delta = &turn{}
	}
	s.event(s.object(true, c))
}

func (s *stream) event(v any) { s.add("data: ", encode(v)) }

// add adds one event to what is to be sent.
func (s *stream) add(field string, data []byte) {
	s.buf = append(append(append(s.buf, field...), data...), "\n\n"...)
}

// flush sends, in one write; a client that takes nothing for Options.Write is let go. The limit is set anew
// once a quarter of that time has gone since it was, and not for each token.
func (s *stream) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	s.pieces, s.last = 0, time.Now()
	if wait := s.h.o.Write; s.limit.Sub(s.last) < wait {
		s.limit = s.last.Add(wait + wait/4)
		if err := s.out.SetWriteDeadline(s.limit); err != nil {
			return err
		}
	}
	_, err := s.w.Write(s.buf)
	if s.buf = s.buf[:0]; err != nil {
		return err
	}
	return s.out.Flush()
}
