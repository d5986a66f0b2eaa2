package serve

import "unicode/utf8"

// plainLogs are the log probabilities of a completion.
type plainLogs struct {
	Tokens  []string             `json:"tokens"`
	Logs    []float32            `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

// chatLogs are those of a chat.
type chatLogs struct {
	Content []chatLog `json:"content"`
	Refusal *string   `json:"refusal"` // always null
}

type chatLog struct {
	Token   string    `json:"token"`
	Logprob float32   `json:"logprob"`
	Bytes   []int     `json:"bytes"` // a token may be a part of a character
	Top     []chatLog `json:"top_logprobs,omitempty"`
}

// logprobs takes those of a choice that no chunk has carried yet; nil where none were asked for, or none
// are new.
func (a *reply) logprobs(i int) any {
	c := a.choices[i]
	logs := c.logs
	c.logs = nil
	if len(logs) == 0 {
		return nil
	}
	if a.kind == chatText {
		out := &chatLogs{}
		for _, l := range logs {
			e := newChatLog(l)
			e.Top = []chatLog{}
			for _, t := range l.Top {
				e.Top = append(e.Top, newChatLog(t))
			}
			out.Content = append(out.Content, e)
		}
		return out
	}
	out := &plainLogs{}
	before := 0
	if a.ask.echo {
		before = utf8.RuneCountInString(a.prompt(i))
	}
	for _, l := range logs {
		out.Offsets = append(out.Offsets, before+l.At)
		out.Tokens, out.Logs = append(out.Tokens, string(l.Text)), append(out.Logs, l.Logprob)
		top := map[string]float32{}
		for _, t := range l.Top {
			top[string(t.Text)] = t.Logprob
		}
		out.Top = append(out.Top, top)
	}
	return out
}

func newChatLog(l Logprob) chatLog {
	e := chatLog{Token: string(l.Text), Logprob: l.Logprob, Bytes: make([]int, len(l.Text))}
	for i, b := range l.Text {
		e.Bytes[i] = int(b)
	}
	return e
}
