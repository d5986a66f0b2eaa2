package main

import (
	"fmt"
	"strings"
	"time"

	"kvasir/engine"
	"kvasir/engine/chat"
	"kvasir/engine/sample"
)

// runResult is what kvasir run --json prints. What was not measured, or not asked for, is absent.
type runResult struct {
	Model        string `json:"model"`
	Prompt       string `json:"prompt"`
	runChoice           // the first
	PromptTokens int    `json:"prompt_tokens"`

	Choices    []runChoice `json:"choices,omitempty"` // all, if there are several
	PromptMS   float64     `json:"prompt_ms,omitempty"`
	DecodeMS   float64     `json:"decode_ms,omitempty"`    // of all tokens but the first of each text, which the prompt yields
	TokensPerS float64     `json:"tokens_per_s,omitempty"` // of those
	Lossy      string      `json:"lossy,omitempty"`        // what is kept in fewer bits than it was computed in
}

// runChoice is one text.
type runChoice struct {
	Text     string     `json:"text"`
	Tokens   int        `json:"tokens"`
	TokenIDs []int32    `json:"token_ids"`
	Stop     string     `json:"stop"` // end: the model ended it; stop: --stop did; length: --tokens did, or the context
	Logprobs []runToken `json:"logprobs,omitempty"`

	// What text consists of, with --chat.
	Content   *string   `json:"content,omitempty"`
	Reasoning string    `json:"reasoning,omitempty"`
	Calls     []runCall `json:"tool_calls,omitempty"`
}

// runCall is a function that the model wants to have called.
type runCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // a JSON object
}

// runToken is a token with its log probability.
type runToken struct {
	ID      int32      `json:"id"`
	Text    string     `json:"text"`
	Logprob float64    `json:"logprob"`
	Top     []runToken `json:"top,omitempty"` // the likeliest, in order
}

// result puts together what is printed.
func (c *runCmd) result(e *engine.Engine, req engine.Request, res engine.Result) runResult {
	r := runResult{
		Model: e.Name(), Prompt: req.Prompt, PromptTokens: len(res.PromptTokens), PromptMS: milliseconds(res.Prefill),
		Lossy: c.lossy(),
	}
	for i := range res.Choices {
		choice := newRunChoice(e, &res.Choices[i])
		if reply, err := e.Reply(req); req.Chat && err == nil { // it was rendered a moment ago
			choice.split(reply)
		}
		r.Choices = append(r.Choices, choice)
	}
	r.runChoice = r.Choices[0]
	if len(r.Choices) == 1 {
		r.Choices = nil
	}
	if steps := decoded(res); steps > 0 && res.Decode > 0 {
		r.DecodeMS = milliseconds(res.Decode)
		r.TokensPerS = perSecond(steps, res.Decode)
	}
	return r
}

// decoded counts the tokens that were computed after the first of each text.
func decoded(res engine.Result) (steps int) {
	for _, c := range res.Choices {
		steps += len(c.Tokens) - 1
		if c.Stop == engine.StopEnd {
			steps++ // the end was computed as well
		}
	}
	return steps
}

func perSecond(n int, d time.Duration) float64 { return round(float64(n)/d.Seconds(), 10) }

func newRunChoice(e *engine.Engine, c *engine.Choice) runChoice {
	r := runChoice{Text: c.Text, Tokens: len(c.Tokens), TokenIDs: c.Tokens, Stop: c.Stop}
	if r.TokenIDs == nil {
		r.TokenIDs = []int32{}
	}
	for _, t := range c.Logprobs {
		out := runToken{ID: t.ID, Text: e.TokenText(t.ID), Logprob: logarithm(t.Logprob)}
		for _, o := range t.Top {
			out.Top = append(out.Top, newCandidate(e, o))
		}
		r.Logprobs = append(r.Logprobs, out)
	}
	return r
}

// split says what the text of an answer consists of.
func (c *runChoice) split(reply *chat.Reply) {
	c.Content = new(string)
	for _, part := range append(reply.Push(c.Text), reply.Flush()...) {
		*c.Content += part.Content
		c.Reasoning += part.Reasoning
		if part.Call != nil {
			c.Calls = append(c.Calls, runCall{part.Call.Name, part.Call.Arguments})
		}
	}
}

func newCandidate(e *engine.Engine, c sample.Candidate) runToken {
	return runToken{ID: c.ID, Text: e.TokenText(c.ID), Logprob: logarithm(c.Logprob)}
}

// logarithm keeps five digits behind the point.
func logarithm(v float32) float64 {
	if v < 0 {
		return -round(-float64(v), 1e5)
	}
	return 0
}

// print writes what was not streamed: several texts, log probabilities.
func (r *runResult) print(s *screen, echo string) {
	list := r.Choices
	if list == nil {
		list = []runChoice{r.runChoice}
	}
	for i, c := range list {
		if len(list) > 1 {
			if i > 0 {
				s.printf("\n")
			}
			s.printf("%s\n", s.styled(bold, fmt.Sprintf("%d of %d", i+1, len(list))))
			p := streamer{screen: s, echo: echo}
			_ = p.piece(c.Text) // app.finish tells of a screen that fails
			p.end(true)
		}
		if len(c.Logprobs) > 0 {
			s.printf("\n")
			c.printLogprobs(s)
		}
	}
}

func (c *runChoice) printLogprobs(s *screen) {
	t := table{head: []string{"token", "", "log probability", "likeliest"}, right: []bool{true, false, true, false}}
	for _, l := range c.Logprobs {
		var others []string
		for _, o := range l.Top {
			others = append(others, fmt.Sprintf("%q %.3f", o.Text, o.Logprob))
		}
		t.add(fmt.Sprint(l.ID), fmt.Sprintf("%q", l.Text), fmt.Sprintf("%.3f", l.Logprob), strings.Join(others, ", "))
	}
	t.print(s)
}

// statistics is the line below a text.
func (r *runResult) statistics() string {
	tokens, cut := r.Tokens, r.Stop == engine.StopLength
	if r.Choices != nil {
		tokens = 0
		for _, c := range r.Choices {
			tokens += c.Tokens
		}
		cut = false
	}
	s := fmt.Sprintf("%s · prompt %s in %.0f ms · %s", r.Model, plural(r.PromptTokens, "token"), r.PromptMS, plural(tokens, "token"))
	if r.TokensPerS > 0 {
		s += fmt.Sprintf(" at %.1f tokens/s", r.TokensPerS)
	}
	if cut {
		s += " · stopped by --tokens or the context"
	}
	return s
}
