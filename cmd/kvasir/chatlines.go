package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// errCtrlC: the line was given up with Ctrl-C.
var errCtrlC = errors.New("line given up")

// lineSource gives the lines that a person types, or those of a file.
type lineSource interface {
	// read returns a line without its end, io.EOF after the last, or errCtrlC.
	read(prompt string) (string, error)
}

// newLines reads from standard input, with a line editor where a person types.
func newLines(a *app) lineSource {
	if term.IsTerminal(int(a.stdin.Fd())) && (a.stdout.terminal || a.stderr.terminal) {
		out := a.stdout
		if !out.terminal {
			out = a.stderr // answers go into a file: what is typed is still seen
		}
		return &typedLines{keys: keys{in: a.stdin, out: out}}
	}
	return &pipedLines{r: bufio.NewReader(a.stdin)}
}

// pipedLines are the lines of a file.
type pipedLines struct{ r *bufio.Reader }

func (p *pipedLines) read(string) (string, error) {
	var b strings.Builder
	for {
		part, more, err := p.r.ReadLine()
		if err != nil {
			return "", pathless(err) // a last line without an end came whole, before
		}
		if b.Write(part); b.Len() > maxPrompt {
			return "", errors.New("a line on standard input is larger than " + size(maxPrompt) + "; shorten it")
		}
		if !more {
			return b.String(), nil
		}
	}
}

// typedLines are lines that a person types, with a line editor and a history. The terminal is raw while a
// line is read, and as it was at all other times: a Ctrl-C during an answer is then a signal.
type typedLines struct {
	keys   keys
	editor *term.Terminal
	before *term.State // of the terminal, while it is raw
}

// keys are the terminal's two directions.
type keys struct {
	in    *os.File
	out   *screen
	ctrlC bool // one came
}

func (k *keys) Read(p []byte) (int, error) {
	n, err := k.in.Read(p)
	k.ctrlC = k.ctrlC || bytes.IndexByte(p[:n], 3) >= 0
	return n, err
}

func (k *keys) Write(p []byte) (int, error) { return k.out.Write(p) }

func (t *typedLines) read(prompt string) (string, error) {
	t.renew()
	t.editor.SetPrompt(prompt)
	fd := int(t.keys.in.Fd())
	if width, height, err := term.GetSize(fd); err == nil && width > 0 {
		_ = t.editor.SetSize(width, height) // it only draws anew
	}
	line, err := t.editor.ReadLine()
	if errors.Is(err, io.EOF) {
		t.keys.out.printf("\r\n")
		if t.keys.ctrlC {
			err = errCtrlC
		}
	}
	return line, err
}

// raw lets every key through.
func (t *typedLines) raw() error {
	before, err := term.MakeRaw(int(t.keys.in.Fd()))
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.before = before
	return nil
}

func (t *typedLines) restore() {
	if t.before != nil {
		_ = term.Restore(int(t.keys.in.Fd()), t.before) // it was set a moment ago
		t.before = nil
	}
}

// renew makes an editor, also in the place of one that has seen a Ctrl-C: it would see it again.
func (t *typedLines) renew() {
	if t.editor != nil && !t.keys.ctrlC {
		return
	}
	old := t.editor
	t.keys.ctrlC = false
	if t.editor = term.NewTerminal(&t.keys, ""); old != nil {
		t.editor.History = old.History
	}
}

// readLine reads a line, unless ctx ends before it comes.
func readLine(ctx context.Context, lines lineSource, prompt string) (string, error) {
	if typed, ok := lines.(*typedLines); ok {
		if err := typed.raw(); err != nil {
			return "", err
		}
		defer typed.restore()
	}
	type result struct {
		line string
		err  error
	}
	done := make(chan result, 1)
	// A read cannot be interrupted; where ctx ends, so does the command, and the goroutine with it.
	go func() {
		line, err := lines.read(prompt)
		done <- result{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-done:
		return r.line, r.err
	}
}

// readTurn reads lines up to one that does not end with a backslash.
func readTurn(ctx context.Context, lines lineSource, prompt, more string) (string, error) {
	var text strings.Builder
	for {
		line, err := readLine(ctx, lines, prompt)
		if errors.Is(err, io.EOF) && text.Len() > 0 {
			return text.String(), nil
		}
		if err != nil {
			return "", err
		}
		rest, goesOn := strings.CutSuffix(line, `\`)
		if text.WriteString(rest); !goesOn {
			return text.String(), nil
		}
		text.WriteByte('\n')
		if text.Len() > maxPrompt {
			return "", errors.New("the text is larger than " + size(maxPrompt) + "; shorten it")
		}
		prompt = more
	}
}
