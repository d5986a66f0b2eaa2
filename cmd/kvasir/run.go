package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"kvasir/engine"
	"kvasir/engine/chat"
)

type runCmd struct {
	Prompt   promptText `arg:"" optional:"" help:"Text to continue. With - or without it, the text is read from standard input."`
	Tokens   count      `help:"How many tokens to make at most (default ${default})." placeholder:"N" default:"64"`
	Choices  count      `short:"n" help:"How many texts to make, up to 128 (default ${default})." placeholder:"N" default:"1"`
	Logprobs *whole     `help:"Print the log probability of each token, and of so many others that were likely (0 to 20)." placeholder:"N"`
	Chat     bool       `help:"Take the prompt as a question and answer it." group:"chat"`
	turnFlags
	Tools filePath `help:"What the model may call: a JSON list of functions, as OpenAI's interface has them." placeholder:"FILE" group:"chat"`
	samplingFlags
	generatorFlags
	jsonFlag
}

// Help is printed by kvasir run --help.
func (runCmd) Help() string {
	return `The text is made token by token and printed as it is made. It ends where the model ends it or after --tokens tokens. Without other flags it is always the likeliest token that is taken; with --temperature it is drawn by chance, which --seed decides. In both cases the same command gives the same text on every machine.

Examples:

    kvasir run "The capital of France is"
    kvasir run --chat "What is the capital of Japan?"
    kvasir run -n 3 --temperature 0.8 --seed 7 "Once upon a time"
    kvasir run -m model.gguf --tokens 200 - < prompt.txt`
}

// maxPrompt bounds what is read from standard input. No context holds so much text.
const maxPrompt = 64 << 20

// Run generates.
func (c *runCmd) Run(ctx context.Context, a *app, all *cli, parsed *kong.Context) error {
	req, err := c.request(parsed)
	if err != nil {
		return err
	}
	if req.Prompt, err = c.readPrompt(ctx, a); err != nil {
		return err
	}
	if req.Chat && len(c.begin()) > 0 && req.Prompt != "" {
		req.Messages = append(c.begin(), engine.Message{Role: "user", Content: req.Prompt})
	}
	b, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer b.Close()
	e := b.Engine()
	if int(c.Tokens) > e.Context() {
		return usagef("--tokens: %d is more than the context of %s, which is %d tokens, prompt included",
			c.Tokens, e.Name(), e.Context())
	}
	p := &streamer{screen: a.stdout}
	if !c.Chat && a.stdout.terminal {
		p.echo = req.Prompt
	}
	emit := engine.Text(p.piece)
	silent := c.JSON || c.Choices > 1
	if silent {
		emit = func(engine.Piece) error { return nil }
	}
	res, err := e.Generate(ctx, req, emit)
	if !silent {
		p.end(err == nil)
	}
	if err != nil {
		return c.explain(err)
	}
	r := c.result(e, req, res)
	if c.JSON {
		return a.stdout.printJSON(r)
	}
	r.print(a.stdout, p.echo)
	if a.stderr.terminal || all.Verbose {
		line := joinWords(r.statistics(), c.lossy(), helped(b))
		a.stderr.printf("%s\n", a.stderr.styled(faint, line))
	}
	return nil
}

// request makes what is asked for of the flags, but for the prompt.
func (c *runCmd) request(parsed *kong.Context) (r engine.Request, err error) {
	if err = c.check(parsed); err != nil {
		return r, err
	}
	if !c.Chat {
		if err = needs(parsed, "--chat", "system", "thinking", "tools"); err != nil {
			return r, err
		}
	}
	r = engine.Request{Chat: c.Chat, Tokens: int(c.Tokens), Choices: int(c.Choices), Stop: c.Stop}
	if r.Sampling, err = c.params(); err != nil {
		return r, err
	}
	if c.Logprobs != nil {
		r.Sampling.Logprobs, r.Sampling.Top = true, int(*c.Logprobs)
		if err = c.explain(r.Sampling.Check(math.MaxInt32)); err != nil {
			return r, err
		}
	}
	if r.Format, err = c.format(); err != nil || !c.Chat {
		return r, err
	}
	r.Template = chat.Options{Thinking: c.Thinking, Now: time.Now}
	r.Template.Tools, err = readTools(c.Tools)
	return r, err
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
	style   style
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
	p.screen.printf("%s", p.screen.styled(p.style, text))
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
