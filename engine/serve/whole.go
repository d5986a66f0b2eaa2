package serve

import (
	"context"
	"fmt"
	"strings"
)

// wholeChoice is the text of a choice, as far as it is made.
type wholeChoice struct {
	text, reasoning strings.Builder
	calls           []wireCall
	end             Outcome
}

// whole makes the answer as one object. Neither it nor the failure means anything when ctx has ended.
func (a *reply) whole(ctx context.Context) (any, *failure) {
	list := make([]wholeChoice, len(a.choices))
	size := 0
	res, err := a.generate(ctx, func(p Piece) error {
		n := p.size()
		if size += n; size > a.h.o.Answer {
			return &ParamError{"max_tokens", "", fmt.Errorf("the answer has more than %d bytes; ask for less, or for a stream", a.h.o.Answer)}
		}
		if a.share != nil && !a.share.take(n) {
			return fmt.Errorf("%w: other answers take the memory", ErrBusy)
		}
		c := &list[p.Choice]
		for _, d := range a.take(p) {
			c.text.WriteString(d.text)
			c.reasoning.WriteString(d.reasoning)
			if d.call != nil {
				c.calls = append(c.calls, a.newCall(p.Choice, d.call))
			}
		}
		if p.End != nil {
			c.end = *p.End
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, a.h.failed(ctx, a.kind, err)
	}
	if a.kind == responseText {
		return a.wholeResponse(&list[0], res)
	}
	o := a.object(false)
	for i := range list {
		o.Choices = append(o.Choices, a.wholeChoice(i, &list[i]))
	}
	o.Usage = newUsage(res)
	return o, nil
}

// wholeResponse never fails: it says nothing on the way.
func (a *reply) wholeResponse(c *wholeChoice, res Result) (any, *failure) {
	w := a.newWriting(nil)
	for _, d := range []delta{{reasoning: c.reasoning.String()}, {text: c.text.String()}} {
		if err := w.add(d); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	if err := w.finish(res); err != nil {
		panic("BUG: " + err.Error())
	}
	return w.response, nil
}

// size is about how many bytes of an answer the piece makes.
func (p *Piece) size() int {
	n := len(p.Text)
	if p.Token != nil {
		n += p.Token.size()
	}
	return n
}

func (l *Logprob) size() int {
	n := 50 + 5*len(l.Text) // its names, its number, and the bytes one by one
	for i := range l.Top {
		n += l.Top[i].size()
	}
	return n
}

func (a *reply) wholeChoice(i int, w *wholeChoice) choice {
	s := w.text.String()
	c := choice{Index: i, Finish: a.choices[i].finish(w.end), Logprobs: a.logprobs(i)}
	if a.kind == plainText {
		if a.ask.echo {
			s = a.prompt(i) + s
		}
		c.Text = &s
		return c
	}
	c.Message = &turn{Role: "assistant", Content: &s, Reasoning: w.reasoning.String(), Calls: w.calls}
	if len(w.calls) > 0 && strings.TrimSpace(s) == "" {
		c.Message.Content = nil
	}
	return c
}
