package serve

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/valyala/bytebufferpool"
)

// stream is an answer as server-sent events.
type stream struct {
	*reply
	out     *http.ResponseController
	writing *writing // of a response

	mu    sync.Mutex // pieces and signs of life come from different goroutines
	began bool
	last  time.Time // something was sent
}

// events answers with a stream. Its head goes out with the first piece, so that a request which cannot
// be answered still gets a status of its own; or when nothing has come for so long that the client might
// give up.
func (a *reply) events(ctx context.Context) {
	s := &stream{reply: a, out: http.NewResponseController(a.w), last: time.Now()}
	if a.kind == responseText {
		s.writing = a.newWriting(func(e *responseEvent) error { return s.send("event: "+e.Type+"\ndata: ", encode(e)) })
	}
	defer func() { _ = s.out.SetWriteDeadline(time.Time{}) }() // the connection may carry more requests
	stop := s.keepAlive()
	res, err := a.generate(ctx, s.piece)
	stop()
	if err != nil {
		f := a.h.failed(ctx, err)
		switch {
		case f == nil: // nobody listens
		case s.began && s.writing != nil:
			_ = s.writing.failed(f) // the stream ends in either case
		case s.began:
			_ = s.event(f.body()) // the stream ends in either case
		default:
			refuse(a.w, f)
		}
		return
	}
	if s.begin() != nil {
		return
	}
	if s.writing != nil {
		_ = s.writing.finish(res) // it is the last
		return
	}
	if a.ask.usage {
		o := a.object(true)
		o.Usage = newUsage(res)
		if s.event(o) != nil {
			return
		}
	}
	_ = s.send("data: ", []byte("[DONE]")) // it is the last
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
			if time.Since(s.last) >= s.h.o.Alive && s.begin() == nil {
				_ = s.send(": ", []byte("waiting")) // the next piece finds out whether anybody is there
			}
			s.mu.Unlock()
		}
	}()
	return func() { close(done); <-ended }
}

// begin sends the head, once.
func (s *stream) begin() error {
	if s.began {
		return nil
	}
	s.began = true
	head := s.w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-cache")
	head.Set("X-Accel-Buffering", "no") // proxies are not to wait for more
	s.w.WriteHeader(http.StatusOK)
	if s.writing != nil {
		return s.writing.begin()
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
		if err := s.event(s.object(true, c)); err != nil {
			return err
		}
	}
	return nil
}

// piece sends what a piece adds, and the end of its choice.
func (s *stream) piece(p Piece) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(); err != nil {
		return err
	}
	if s.writing != nil {
		for _, d := range s.take(p) {
			if err := s.writing.add(d); err != nil {
				return err
			}
		}
		return nil
	}
	state := s.choices[p.Choice]
	for _, d := range s.take(p) {
		c := choice{Index: p.Choice, Logprobs: s.logprobs(p.Choice)}
		switch {
		case s.kind == plainText:
			c.Text = &d.text
		case d.call != nil:
			n := state.calls
			call := s.newCall(p.Choice, d.call)
			call.Index = &n
			c.Delta = &turn{Calls: []wireCall{call}}
		case d.reasoning != "":
			c.Delta = &turn{Reasoning: d.reasoning}
		default:
			c.Delta = &turn{Content: &d.text}
		}
		if err := s.event(s.object(true, c)); err != nil {
			return err
		}
	}
	if p.End == nil {
		return nil
	}
	c := choice{Index: p.Choice, Finish: state.finish(*p.End), Logprobs: s.logprobs(p.Choice)}
	if s.kind == plainText {
		c.Text = new("")
	} else {
		c.Delta = &turn{}
	}
	return s.event(s.object(true, c))
}

func (s *stream) event(v any) error { return s.send("data: ", encode(v)) }

// send writes one event; a client that takes nothing for Options.Write is let go.
func (s *stream) send(field string, data []byte) error {
	s.last = time.Now()
	if err := s.out.SetWriteDeadline(s.last.Add(s.h.o.Write)); err != nil {
		return err
	}
	b := bytebufferpool.Get()
	defer bytebufferpool.Put(b)
	b.B = append(append(append(b.B, field...), data...), "\n\n"...)
	if _, err := s.w.Write(b.B); err != nil {
		return err
	}
	return s.out.Flush()
}
