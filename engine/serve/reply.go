package serve

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// reply is the answer to one request. It belongs to the request's goroutine.
type reply struct {
	h       *Handler
	w       http.ResponseWriter
	kind    kind
	usage   bool
	id      string
	created int64

	out *http.ResponseController // of a stream
}

// completion is OpenAI's object, whole or a chunk of a stream.
type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index    int     `json:"index"`
	Text     *string `json:"text,omitempty"`    // of a completion
	Message  *turn   `json:"message,omitempty"` // of a chat
	Delta    *turn   `json:"delta,omitempty"`   // of a chat's stream
	Logprobs *int    `json:"logprobs"`          // always null
	Finish   *string `json:"finish_reason"`     // null: it goes on
}

type turn struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func newUsage(r Result) *usage { return &usage{r.Prompt, r.Tokens, r.Prompt + r.Tokens} }

func finish(r Result) *string {
	why := "stop"
	if r.Length {
		why = "length"
	}
	return &why
}

func (a *reply) object(chunk bool, choices ...choice) completion {
	if choices == nil {
		choices = []choice{}
	}
	name := "text_completion"
	switch {
	case a.kind == chat && chunk:
		name = "chat.completion.chunk"
	case a.kind == chat:
		name = "chat.completion"
	}
	return completion{ID: a.id, Object: name, Created: a.created, Model: a.h.o.Model, Choices: choices}
}

// whole answers with one object.
func (a *reply) whole(ctx context.Context, r Request) {
	var text strings.Builder
	res, err := a.h.g.Generate(ctx, r, func(piece string) error {
		text.WriteString(piece)
		return ctx.Err()
	})
	if err != nil {
		if f := a.h.failed(ctx, err); f != nil {
			refuse(a.w, f)
		}
		return
	}
	s := text.String()
	c := choice{Finish: finish(res)}
	if a.kind == chat {
		c.Message = &turn{"assistant", &s}
	} else {
		c.Text = &s
	}
	o := a.object(false, c)
	o.Usage = newUsage(res)
	answer(a.w, http.StatusOK, o)
}

// events answers with a stream. Its head goes out with the first piece, so that a request which cannot
// be answered still gets a status of its own.
func (a *reply) events(ctx context.Context, r Request) {
	a.out = http.NewResponseController(a.w)
	defer func() { _ = a.out.SetWriteDeadline(time.Time{}) }() // the connection may carry more requests
	began := false
	begin := func() error {
		if began {
			return nil
		}
		began = true
		head := a.w.Header()
		head.Set("Content-Type", "text/event-stream")
		head.Set("Cache-Control", "no-cache")
		head.Set("X-Accel-Buffering", "no") // proxies are not to wait for more
		a.w.WriteHeader(http.StatusOK)
		if a.kind == plain {
			return nil
		}
		nothing := ""
		return a.event(a.object(true, choice{Delta: &turn{"assistant", &nothing}}))
	}
	res, err := a.h.g.Generate(ctx, r, func(piece string) error {
		if err := begin(); err != nil {
			return err
		}
		return a.event(a.object(true, a.piece(&piece, nil)))
	})
	if err != nil {
		f := a.h.failed(ctx, err)
		switch {
		case f == nil: // nobody listens
		case began:
			_ = a.event(f.body()) // the stream ends in either case
		default:
			refuse(a.w, f)
		}
		return
	}
	if begin() != nil {
		return
	}
	nothing := ""
	if a.event(a.object(true, a.piece(&nothing, finish(res)))) != nil {
		return
	}
	if a.usage {
		o := a.object(true)
		o.Usage = newUsage(res)
		if a.event(o) != nil {
			return
		}
	}
	_ = a.send("[DONE]") // it is the last
}

func (a *reply) piece(text, finish *string) choice {
	c := choice{Finish: finish}
	switch {
	case a.kind == plain:
		c.Text = text
	case finish != nil:
		c.Delta = &turn{}
	default:
		c.Delta = &turn{Content: text}
	}
	return c
}

func (a *reply) event(v any) error { return a.send(string(encode(v))) }

// send writes one event; a client that takes nothing for Options.Write is let go.
func (a *reply) send(data string) error {
	if err := a.out.SetWriteDeadline(time.Now().Add(a.h.o.Write)); err != nil {
		return err
	}
	if _, err := a.w.Write([]byte("data: " + data + "\n\n")); err != nil {
		return err
	}
	return a.out.Flush()
}
