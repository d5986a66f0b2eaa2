package serve

import (
	"context"
	"net/http"
	"strings"
)

// wholeChoice is the text of a choice, as far as it is made.
type wholeChoice struct {
	text, reasoning strings.Builder
	calls           []wireCall
	end             Outcome
}

// whole answers with one object.
func (a *reply) whole(ctx context.Context) {
	list := make([]wholeChoice, len(a.choices))
	res, err := a.generate(ctx, func(p Piece) error {
		c := &list[p.Choice]
		for _, d := range a.take(p) {
			c.text.WriteString(d.text)
			c.reasoning.WriteString(d.reasoning)
			if d.call != nil {
				c.calls = append(c.calls, a.choices[p.Choice].newCall(d.call))
			}
		}
		if p.End != nil {
			c.end = *p.End
		}
		return ctx.Err()
	})
	if err != nil {
		if f := a.h.failed(ctx, err); f != nil {
			refuse(a.w, f)
		}
		return
	}
	o := a.object(false)
	for i := range list {
		o.Choices = append(o.Choices, a.wholeChoice(i, &list[i]))
	}
	o.Usage = newUsage(res)
	answer(a.w, http.StatusOK, o)
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
