package main

import (
	"strings"

	"kvasir/engine"
)

// answerPrinter prints an answer as it is made: on a terminal what the model reasons is faint, and
// elsewhere it is left out.
type answerPrinter struct {
	t   *conversation
	out streamer

	text strings.Builder
}

func newAnswerPrinter(t *conversation) *answerPrinter {
	return &answerPrinter{t: t, out: streamer{screen: t.a.stdout}}
}

// piece takes what became certain with a token.
func (p *answerPrinter) piece(e engine.Piece) error {
	p.text.WriteString(e.Text)
	if p.t.c.JSON || e.Text == "" {
		return nil
	}
	return p.out.piece(e.Text)
}

// end closes the last line.
func (p *answerPrinter) end() { p.out.end(p.text.Len() > 0 && !p.t.c.JSON) }

// message is the answer as the model is reminded of it.
func (p *answerPrinter) message() engine.Message {
	return engine.Message{Role: "assistant", Content: p.text.String()}
}
