package main

import (
	"strings"

	"kvasir/engine"
	"kvasir/engine/chat"
)

// answerPrinter prints an answer as it is made. What the model reasons is faint, and shown to a person
// only.
type answerPrinter struct {
	reply  *chat.Reply
	out    streamer
	silent bool // print nothing
	person bool

	content, reasoning strings.Builder
	flushed            bool
}

// piece takes what became certain with a token.
func (p *answerPrinter) piece(e engine.Piece) error { return p.show(p.reply.Push(e.Text)) }

// end shows what was held back, and closes the last line: an answer has one, if only an empty one.
func (p *answerPrinter) end(done bool) {
	if !p.flushed {
		p.flushed = true
		_ = p.show(p.reply.Flush()) // app.finish tells of a screen that fails
	}
	p.out.end(done && !p.silent)
}

func (p *answerPrinter) show(parts []chat.Part) error {
	for _, part := range parts {
		if part.Content != "" && p.content.Len() == 0 && p.out.started {
			p.out.end(false) // the reasoning's last line
			p.out.screen.printf("\n")
		}
		p.content.WriteString(part.Content)
		p.reasoning.WriteString(part.Reasoning)
		text, st := part.Content, plain
		if part.Reasoning != "" && p.person {
			text, st = part.Reasoning, faint
		}
		if text == "" || p.silent {
			continue
		}
		p.out.style = st
		if err := p.out.piece(text); err != nil {
			return err
		}
	}
	return nil
}

// message is the answer as the model is reminded of it; its template says what of the reasoning.
func (p *answerPrinter) message() engine.Message {
	return engine.Message{Role: "assistant", Content: p.content.String(), Reasoning: p.reasoning.String()}
}
