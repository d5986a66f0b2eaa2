package serve

import (
	"context"
	"net/http"
	"sync"

	"kvasir/engine/chat"
)

// reply is the answer to one request.
type reply struct {
	h       *Handler
	w       http.ResponseWriter
	kind    kind
	ask     *asked
	id      string
	created int64
	callID  func(choice, n int) string
	choices []*choiceState // of the first prompt, then of the second …
	share   *share         // of what answers to lines of batches may take; nil: it is no line

	parts  []chat.Part // scratch of take
	deltas []delta     // what take has returned last
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
	Logprobs any     `json:"logprobs"`          // plainLogs, chatLogs or null
	Finish   *string `json:"finish_reason"`     // null: it goes on
}

type turn struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []wireCall `json:"tool_calls,omitempty"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func newUsage(r Result) *usage {
	u := &usage{Prompt: r.Prompt}
	for _, c := range r.Choices {
		u.Completion += c.Tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// choiceState is a choice that is being made.
type choiceState struct {
	split *chat.Reply // of a chat
	calls int         // so far
	logs  []Logprob   // that no chunk has carried yet
}

// prepare makes what the choices need. The error is the generator's.
func (a *reply) prepare() error {
	var o chat.ReplyOptions
	if a.kind != plainText {
		var err error
		if o, err = a.h.g.Reply(a.ask.requests[0]); err != nil {
			return err
		}
	}
	for range len(a.ask.requests) * a.ask.request.Choices {
		c := &choiceState{}
		if a.kind != plainText {
			c.split = chat.NewReply(o)
		}
		a.choices = append(a.choices, c)
	}
	return nil
}

// generate has all prompts continued at the same time. emit is not called by two at once.
func (a *reply) generate(ctx context.Context, emit func(Piece) error) (Result, error) {
	list, n := a.ask.requests, a.ask.request.Choices
	if len(list) == 1 {
		return a.h.g.Generate(ctx, list[0], emit)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := make([]Result, len(list))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() {
			var err error
			results[i], err = a.h.g.Generate(ctx, list[i], func(p Piece) error {
				p.Choice += i * n
				p.More = false // that of another prompt may take longer
				mu.Lock()
				defer mu.Unlock()
				return emit(p)
			})
			if err != nil {
				stop(err) // the first one's is what the client is told
			}
		})
	}
	wg.Wait()
	var all Result
	for _, r := range results {
		all.Prompt += r.Prompt
		all.Choices = append(all.Choices, r.Choices...)
	}
	return all, context.Cause(ctx)
}

// delta is what a piece adds to a choice.
type delta struct {
	text      string // of a completion, or content of a chat
	reasoning string
	call      *chat.ToolCall
}

// take adds a piece to its choice and returns what it adds to the answer, for use until the next call.
func (a *reply) take(p Piece) []delta {
	c := a.choices[p.Choice]
	if p.Token != nil {
		c.logs = append(c.logs, *p.Token)
	}
	a.deltas = a.deltas[:0]
	if c.split == nil {
		if p.Text != "" {
			a.deltas = append(a.deltas, delta{text: p.Text})
		}
		return a.deltas
	}
	a.parts = c.split.Append(a.parts[:0], p.Text)
	if p.End != nil {
		a.parts = append(a.parts, c.split.Flush()...)
	}
	for _, part := range a.parts {
		a.deltas = append(a.deltas, delta{part.Content, part.Reasoning, part.Call})
	}
	return a.deltas
}

// newCall gives a call of a choice its id.
func (a *reply) newCall(choice int, call *chat.ToolCall) wireCall {
	c := a.choices[choice]
	c.calls++
	return wireCall{ID: "call_" + a.callID(choice, c.calls), Type: "function", Function: wireFunction{call.Name, call.Arguments}}
}

// finish says why a choice ended.
func (c *choiceState) finish(o Outcome) *string {
	why := "stop"
	switch {
	case c.calls > 0:
		why = "tool_calls"
	case o.Length:
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
	case a.kind == chatText && chunk:
		name = "chat.completion.chunk"
	case a.kind == chatText:
		name = "chat.completion"
	}
	return completion{ID: a.id, Object: name, Created: a.created, Model: a.h.o.Model, Choices: choices}
}

// prompt is the prompt of a choice.
func (a *reply) prompt(choice int) string { return a.ask.prompts[choice/a.ask.request.Choices] }
