package serve

import (
	"context"
	"strings"
)

// wholeChoice is the text of a choice, as far as it is made.
type wholeChoice struct {
	text, reasoning strings.Builder
	calls           []wireCall
	end             Outcome
}

// whole makes the answer as one object. Neither it nor the failure means anything when ctx has ended.
func (a *reply) whole(ctx context.Context) (o completion, f *failure) {
	list := make([]wholeChoice, len(a.choices))
	res, err := a.generate(ctx, func(p Piece) error {
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
		return o, a.h.failed(ctx, err)
	}
	o = a.object(false)
	for i := range list {
		o.Choices = append(o.Choices, a.wholeChoice(i, &list[i]))
	}
	o.Usage = newUsage(res)
	return o, nil
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
