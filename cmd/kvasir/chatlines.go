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

// lines reads turns from standard input, with a line editor and a history where a person types.
type lines struct {
	read    func(prompt string) (string, error) // a line without its end, or io.EOF after the last
	editor  *editor                             // nil: nobody types
	pressed chan struct{}                       // holds a Ctrl-C that came as a signal
	pending chan line                           // what read will give; nil: it is not reading
}

type line struct {
	text string
	err  error
}

func newLines(a *app) *lines {
	l := &lines{pressed: make(chan struct{}, 1)}
	if term.IsTerminal(int(a.stdin.Fd())) && (a.stdout.terminal || a.stderr.terminal) {
		out := a.stdout
		if !out.terminal {
			out = a.stderr // answers go into a file: what is typed is still seen
		}
		l.editor = &editor{keys: keys{in: a.stdin, out: out}}
		l.read = l.editor.read
	} else {
		r := bufio.NewReader(a.stdin)
		l.read = func(string) (string, error) { return readPiped(r) }
	}
	return l
}

// press takes a Ctrl-C that is no key, which is so while the terminal is not raw. A second one that comes
// before the first was noticed is not taken.
func (l *lines) press() bool {
	select {
	case l.pressed <- struct{}{}:
		return true
	default:
		return false
	}
}

// turn reads lines up to one that does not end with a backslash.
func (l *lines) turn(ctx context.Context, prompt, more string) (string, error) {
	var text strings.Builder
	for {
		line, err := l.line(ctx, prompt)
		if errors.Is(err, io.EOF) && text.Len() > 0 {
			return text.String(), nil
		}
		if err != nil {
			return "", err
		}
		rest, goesOn := strings.CutSuffix(line, `\`)
		if text.WriteString(rest); text.Len() > maxPrompt {
			return "", errors.New("the text is larger than " + size(maxPrompt) + "; shorten it")
		}
		if !goesOn {
			return text.String(), nil
		}
		text.WriteByte('\n')
		prompt = more
	}
}

// line reads a line, unless ctx ends or Ctrl-C is pressed before it comes. A read cannot be interrupted:
// its line is then the next one's.
func (l *lines) line(ctx context.Context, prompt string) (string, error) {
	if l.editor != nil {
		restore, err := l.editor.raw()
		if err != nil {
			return "", err
		}
		defer restore()
	}
	if l.pending == nil {
		l.pending = make(chan line, 1)
		go func() { // ends with the line, or with the process
			text, err := l.read(prompt)
			l.pending <- line{text, err}
		}()
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-l.pressed:
		return "", errCtrlC
	case r := <-l.pending:
		l.pending = nil
		return r.text, r.err
	}
}

// readPiped reads a line of a file.
func readPiped(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, more, err := r.ReadLine()
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

// editor lets a person type lines. The terminal is raw while a line is read, and as it was at all other
// times: a Ctrl-C during an answer is then a signal.
type editor struct {
	keys keys
	term *term.Terminal
}

// keys are the terminal's two directions.
type keys struct {
	in    *os.File
	out   *screen
	ctrlC bool // one came
}

// Read implements io.Reader.
func (k *keys) Read(p []byte) (int, error) {
	const ctrlC = 3
	n, err := k.in.Read(p)
	k.ctrlC = k.ctrlC || bytes.IndexByte(p[:n], ctrlC) >= 0
	return n, err
}

// Write implements io.Writer.
func (k *keys) Write(p []byte) (int, error) { return k.out.Write(p) }

// raw lets every key through, until restore.
func (e *editor) raw() (restore func(), err error) {
	fd := int(e.keys.in.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return func() { _ = term.Restore(fd, before) }, nil // it was set a moment ago
}

// read returns a line, io.EOF for Ctrl-D, or errCtrlC.
func (e *editor) read(prompt string) (string, error) {
	// One that has seen a Ctrl-C would see it again.
	if e.term == nil || e.keys.ctrlC {
		old := e.term
		e.keys.ctrlC = false
		if e.term = term.NewTerminal(&e.keys, ""); old != nil {
			e.term.History = old.History
		}
	}
	e.term.SetPrompt(prompt)
	if width, height, err := term.GetSize(int(e.keys.in.Fd())); err == nil && width > 0 {
		_ = e.term.SetSize(width, height) // it only draws anew
	}
	text, err := e.term.ReadLine()
	if errors.Is(err, io.EOF) {
		e.keys.out.printf("\r\n")
		if e.keys.ctrlC {
			err = errCtrlC
		}
	}
	return text, err
}
