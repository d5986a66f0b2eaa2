package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"

	"kvasir/engine"
)

type runCmd struct {
	Prompt promptText `arg:"" optional:"" help:"Text to continue. With - or without it, the text is read from standard input."`
	Model  filePath   `short:"m" help:"Model file in GGUF format. Default: the built-in kvasir-tiny." placeholder:"FILE"`
	Tokens count      `help:"How many tokens to make at most (default ${default})." placeholder:"N" default:"64"`
	Chat   bool       `help:"Take the prompt as a question and answer it."`
	jsonFlag
}

// Help is printed by kvasir run --help.
func (runCmd) Help() string {
	return `The text is made token by token, always the likeliest one, and printed as it is made. It ends where the model ends it or after --tokens tokens. The same prompt gives the same text on every machine.

Examples:

    kvasir run "The capital of France is"
    kvasir run --chat "What is the capital of Japan?"
    kvasir run -m model.gguf --tokens 200 - < prompt.txt`
}

// maxPrompt bounds what is read from standard input. No context holds so much text.
const maxPrompt = 64 << 20

// runResult is what kvasir run --json prints. What was not measured is absent.
type runResult struct {
	Model        string  `json:"model"`
	Prompt       string  `json:"prompt"`
	Text         string  `json:"text"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"`
	TokenIDs     []int32 `json:"token_ids"`
	Stop         string  `json:"stop"` // end: the model ended the text; length: --tokens did, or the context
	PromptMS     float64 `json:"prompt_ms,omitempty"`
	DecodeMS     float64 `json:"decode_ms,omitempty"`    // of all tokens but the first, which the prompt yields
	TokensPerS   float64 `json:"tokens_per_s,omitempty"` // of those
}

// Run generates.
func (c *runCmd) Run(ctx context.Context, a *app, all *cli) error {
	prompt, err := c.readPrompt(ctx, a)
	if err != nil {
		return err
	}
	e, err := engine.Open(engine.Options{Path: string(c.Model)})
	if err != nil {
		return err
	}
	defer closing(e, a)
	if int(c.Tokens) > e.Context() {
		return usagef("--tokens: %d is more than the context of %s, which is %d tokens, prompt included",
			c.Tokens, e.Name(), e.Context())
	}
	req := engine.Request{Prompt: prompt, Chat: c.Chat, Tokens: int(c.Tokens)}
	if c.JSON {
		res, err := e.Generate(ctx, req, func(engine.Piece) error { return nil })
		if err != nil {
			return err
		}
		return a.stdout.printJSON(newRunResult(e.Name(), prompt, res))
	}
	p := &streamer{screen: a.stdout}
	if !c.Chat && a.stdout.terminal {
		p.echo = prompt
	}
	res, err := e.Generate(ctx, req, engine.Text(p.piece))
	p.end(err == nil)
	if err != nil {
		return err
	}
	if a.stderr.terminal || all.Verbose {
		a.stderr.printf("%s\n", a.stderr.styled(faint, statistics(newRunResult(e.Name(), prompt, res))))
	}
	return nil
}

// closing releases a model; nobody waits for what that may say.
func closing(c io.Closer, a *app) {
	if err := c.Close(); err != nil {
		a.log.Warn("closing the model", "err", err)
	}
}

// streamer prints a text as it is made. On a terminal the prompt goes before it, so that the sentence
// reads whole, and control characters are shown and not obeyed.
type streamer struct {
	screen  *screen
	echo    string // printed before the first piece
	started bool
	closed  bool // what was printed last is a new line
}

func (p *streamer) start() {
	if !p.started {
		p.screen.printf("%s", p.screen.styled(faint, clean(p.echo)))
		p.started = true
	}
}

func (p *streamer) piece(text string) error {
	p.start()
	if p.screen.terminal {
		text = clean(text)
	}
	p.screen.printf("%s", text)
	p.closed = strings.HasSuffix(text, "\n")
	return p.screen.failed()
}

// end closes the last line. A run that failed before it printed anything leaves no line.
func (p *streamer) end(done bool) {
	if done {
		p.start()
	}
	if p.started && !p.closed {
		p.screen.printf("\n")
	}
}

func newRunResult(model, prompt string, res engine.Result) runResult {
	first := res.First()
	r := runResult{
		Model: model, Prompt: prompt, Text: first.Text,
		PromptTokens: len(res.PromptTokens), Tokens: len(first.Tokens), TokenIDs: first.Tokens,
		Stop: first.Stop, PromptMS: milliseconds(res.Prefill),
	}
	if r.TokenIDs == nil {
		r.TokenIDs = []int32{}
	}
	steps := len(first.Tokens) - 1
	if first.Stop == engine.StopEnd {
		steps++ // the end was computed as well
	}
	if steps > 0 && res.Decode > 0 {
		r.DecodeMS = milliseconds(res.Decode)
		r.TokensPerS = round(float64(steps)/res.Decode.Seconds(), 10)
	}
	return r
}

// statistics is the line below a text.
func statistics(r runResult) string {
	s := fmt.Sprintf("%s · prompt %s in %.0f ms · %s", r.Model, plural(r.PromptTokens, "token"),
		r.PromptMS, plural(r.Tokens, "token"))
	if r.TokensPerS > 0 {
		s += fmt.Sprintf(" at %.1f tokens/s", r.TokensPerS)
	}
	if r.Stop == engine.StopLength {
		s += " · stopped by --tokens or the context"
	}
	return s
}

// milliseconds keeps microseconds: finer digits say nothing.
func milliseconds(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 1000) }

// round keeps so many parts of 1.
func round(v, parts float64) float64 { return float64(int64(v*parts+0.5)) / parts }

// readPrompt takes the prompt from the command line or from standard input. A line end at the end of
// the input is not part of it, as in a shell's $(…).
func (c *runCmd) readPrompt(ctx context.Context, a *app) (string, error) {
	if c.Prompt.given && c.Prompt.text != "-" {
		return c.Prompt.text, nil
	}
	if !c.Prompt.given && term.IsTerminal(int(a.stdin.Fd())) {
		return "", usagef(`a prompt is missing: kvasir run "The capital of France is" (see kvasir run --help)`)
	}
	type input struct {
		text []byte
		err  error
	}
	done := make(chan input, 1)
	// A read of standard input cannot be interrupted; where the user gives up, the goroutine ends with
	// the process.
	go func() {
		text, err := io.ReadAll(io.LimitReader(a.stdin, maxPrompt+1))
		done <- input{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case in := <-done:
		if in.err != nil {
			return "", fmt.Errorf("reading the prompt from standard input: %w", pathless(in.err))
		}
		if len(in.text) > maxPrompt {
			return "", errors.New("the prompt on standard input is larger than " + size(maxPrompt) +
				"; shorten it")
		}
		text := strings.TrimSuffix(string(in.text), "\n")
		return strings.TrimSuffix(text, "\r"), nil
	}
}
