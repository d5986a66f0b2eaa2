package chat

import (
	"fmt"
	"strings"
)

// Prompt is a conversation as the model wants it.
type Prompt struct {
	Text string
	// Plain has the bytes of Text where a control token begins, or might, that came from a message and
	// not from the template. They ascend. The tokenizer must leave them text (EncodeChat).
	Plain []int

	thinks bool // the template knows reasoning
}

// Thinks reports whether the template has opened the model's reasoning already, so that an answer
// begins in the middle of it.
func (p Prompt) Thinks() bool {
	return strings.HasSuffix(strings.TrimRight(p.Text, "\n"), thinkOpen)
}

// MayThink reports whether an answer may begin with reasoning, which it then opens itself.
func (p Prompt) MayThink() bool {
	end := strings.TrimRight(p.Text, "\n")
	return p.thinks && !strings.HasSuffix(end, thinkOpen) && !strings.HasSuffix(end, thinkClose)
}

// marks follow what came from messages through a template: the first character of each control token
// in a message is replaced by one that stands nowhere in the conversation. A template sees as many
// characters as before, and can only tell by looking for a control token in a message.
type marks struct {
	controls func(string) []int
	found    bool
	used     map[rune]bool // of markRanges, in the conversation
	to, from map[rune]rune
	next     int // of markRanges, counted through
	err      error
}

// markRanges are characters that Python prints as they are, that have no case and are no space:
// signs of ancient Greek music, dominoes, and rare ideographs for whoever writes about those.
var markRanges = [][2]rune{{0x1d200, 0x1d241}, {0x1f030, 0x1f093}, {0x20000, 0x2a6d6}}

// mark returns vars with marks.
func (m *marks) mark(vars dict) (dict, error) {
	if m.controls == nil {
		return vars, nil
	}
	m.used, m.to, m.from = map[rune]bool{}, map[rune]rune{}, map[rune]rune{}
	mapStrings(vars, m.look)
	if !m.found {
		return vars, nil
	}
	marked := mapStrings(vars, m.replace).(dict)
	return marked, m.err
}

// mapStrings returns v with f of each string in it. The names of variables and the keys that Render
// itself makes are strings too, without control tokens.
func mapStrings(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = mapStrings(x, f)
		}
		return out
	case dict:
		out := make(dict, len(v))
		for i, e := range v {
			out[i] = entry{mapStrings(e.key, f), mapStrings(e.value, f)}
		}
		return out
	}
	return v
}

func (m *marks) look(s string) string {
	for _, r := range s {
		for _, x := range markRanges {
			if r >= x[0] && r <= x[1] {
				m.used[r] = true
			}
		}
	}
	m.found = m.found || len(m.controls(s)) > 0
	return s
}

func (m *marks) replace(s string) string {
	places := m.controls(s)
	if len(places) == 0 {
		return s
	}
	var b strings.Builder
	done := 0
	for i, r := range s {
		if len(places) == 0 {
			break
		}
		if i < places[0] {
			continue
		}
		places = places[1:]
		b.WriteString(s[done:i])
		b.WriteRune(m.of(r))
		done = i + len(string(r))
	}
	b.WriteString(s[done:])
	return b.String()
}

// of returns the mark that stands for r.
func (m *marks) of(r rune) rune {
	if x, ok := m.to[r]; ok {
		return x
	}
	at := m.next
	for _, x := range markRanges {
		size := int(x[1]-x[0]) + 1
		for ; at < size; at++ {
			m.next++
			if c := x[0] + rune(at); !m.used[c] {
				m.to[r], m.from[c] = c, r
				return c
			}
		}
		at -= size
	}
	m.err = fmt.Errorf("%w: the conversation holds every character that could mark typed control tokens", ErrLimit)
	return r
}

// remove puts back what the marks stand for.
func (m *marks) remove(text string) Prompt {
	if len(m.from) == 0 {
		return Prompt{Text: text}
	}
	var p Prompt
	var b strings.Builder
	done := 0
	for i, r := range text {
		if original, ok := m.from[r]; ok {
			b.WriteString(text[done:i])
			p.Plain = append(p.Plain, b.Len())
			b.WriteRune(original)
			done = i + len(string(r))
		}
	}
	b.WriteString(text[done:])
	p.Text = b.String()
	return p
}
