package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal runs the program with all three streams on a terminal and returns what a person would get.
func (c call) terminal(t *testing.T, reply func(soFar string, in *os.File)) (status int, seen string) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	defer control.Close() //nolint:errcheck // the test is over
	fd := int(control.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.command(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	// The terminal is the program's own, so that a typed Ctrl-C reaches it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	buf := make([]byte, 4096)
	for { // until the program has closed its side, which reads as an error
		n, err := control.Read(buf)
		b.Write(buf[:n])
		if reply != nil {
			reply(b.String(), control)
		}
		if err != nil {
			break
		}
	}
	return exitStatus(t, cmd.Wait()), strings.ReplaceAll(b.String(), "\r\n", "\n")
}

// wiped leaves out the bar that a model shows which takes long to load, and which is wiped away.
func wiped(seen string) string {
	if !strings.HasPrefix(seen, "\rloading") {
		return seen
	}
	line, _, _ := strings.Cut(seen, "\n")
	return seen[strings.LastIndexByte(line, '\r')+1:]
}

func TestTerminalShowsTheWholeSentence(t *testing.T) {
	t.Parallel()
	c := call{args: []string{"run", "The capital of France is", "--tokens", "3"}, env: []string{"TERM=xterm"}}
	status, seen := c.terminal(t, nil)
	if seen = wiped(seen); status != statusDone || !strings.HasPrefix(seen, "\x1b[2mThe capital of France is\x1b[0m Paris") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
	if !strings.Contains(seen, "kvasir-tiny") || !strings.Contains(seen, "3 tokens") {
		t.Errorf("no statistics on the terminal: %q", seen)
	}
	c.env = []string{"TERM=xterm", "NO_COLOR=1"}
	if _, seen = c.terminal(t, nil); !strings.HasPrefix(wiped(seen), "The capital of France is Paris") || strings.Contains(seen, "\x1b") {
		t.Errorf("with NO_COLOR the terminal shows %q", seen)
	}
	c.args = append(c.args, "--chat")
	if _, seen = c.terminal(t, nil); strings.HasPrefix(wiped(seen), "The capital of France is") {
		t.Errorf("with --chat the terminal shows the prompt again: %q", seen)
	}
}

func TestTerminalDoesNotObeyAPrompt(t *testing.T) {
	t.Parallel()
	c := call{args: []string{"run", "a\x1b[2Jb", "--tokens", "1"}, env: []string{"TERM=xterm"}}
	if _, seen := c.terminal(t, nil); !strings.Contains(seen, `a\x1b[2Jb`) {
		t.Errorf("terminal shows %q", seen)
	}
}

func TestTerminalWithoutAPromptIsUsage(t *testing.T) {
	t.Parallel()
	status, seen := call{args: []string{"run"}}.terminal(t, nil)
	if status != statusUsage {
		t.Errorf("exit status %d, want %d", status, statusUsage)
	}
	wantOneLine(t, seen, "a prompt is missing")
}

// Ctrl-C must also end a wait for input, which no context can interrupt.
func TestCtrlCEndsAWaitForInput(t *testing.T) {
	t.Parallel()
	typed := false
	reply := func(soFar string, in *os.File) {
		if !typed && strings.Contains(soFar, "half") {
			typed = true
			if _, err := in.WriteString("\x03"); err != nil {
				t.Error(err)
			}
		}
	}
	c := call{args: []string{"run", "-", "--log", "debug"}, env: []string{"NO_COLOR=1"}}
	// The log line says that the program is past its start; then it is given half a prompt.
	started := false
	status, seen := c.terminal(t, func(soFar string, in *os.File) {
		if !started && strings.Contains(soFar, "command") {
			started = true
			if _, err := in.WriteString("half"); err != nil {
				t.Error(err)
			}
		}
		reply(soFar, in)
	})
	if status != statusFailed || !strings.HasSuffix(seen, "kvasir: interrupted\n") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
}

// typedAt has Ctrl-C be typed once, when what is shown is as wanted.
func typedAt(t *testing.T, when func(soFar string) bool) func(string, *os.File) {
	typed := false
	return func(soFar string, in *os.File) {
		if !typed && when(soFar) {
			typed = true
			if _, err := in.WriteString("\x03"); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestCtrlCEndsAGeneration(t *testing.T) {
	t.Parallel()
	c := call{args: []string{"run", "The king", "--tokens", "1000"}, env: []string{"NO_COLOR=1"}}
	var status int
	var seen string
	inTime(t, func() bool {
		status, seen = c.terminal(t, typedAt(t, func(soFar string) bool {
			begun := strings.Index(soFar, "The king")
			return begun >= 0 && len(soFar) > begun+len("The king")+10
		}))
		return status != statusDone
	})
	if status != statusFailed || !strings.HasSuffix(seen, "\nkvasir: interrupted\n") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
	if !strings.HasPrefix(wiped(seen), "The king") {
		t.Errorf("what was made before is lost: %q", seen)
	}
}

func TestCtrlCEndsAProfile(t *testing.T) {
	t.Parallel()
	var status int
	var seen, model string
	inTime(t, func() bool {
		model = tinyFile(t)
		c := call{args: []string{"model", "profile", model}, env: []string{"NO_COLOR=1"}}
		status, seen = c.terminal(t, typedAt(t, func(soFar string) bool { return strings.Contains(soFar, "reading") }))
		return status != statusDone
	})
	if status != statusFailed || !strings.HasSuffix(seen, "\rkvasir: interrupted\n") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
	if _, err := os.Stat(model + ".profile.json"); err == nil {
		t.Error("a profile was written all the same")
	}
}

// TestCtrlCEndsABatchRunThatGoesOnLater has a batch stopped in the middle, and run again.
func TestCtrlCEndsABatchRunThatGoesOnLater(t *testing.T) {
	t.Parallel()
	in, env := writeFile(t, "in.jsonl", requests(300)), []string{"TERM=xterm", "NO_COLOR=1"}
	var c call
	var status int
	var seen, out string
	inTime(t, func() bool {
		out = filepath.Join(t.TempDir(), "out.jsonl")
		c = call{args: []string{"batch", "run", in, "-o", out}, env: env}
		status, seen = c.terminal(t, typedAt(t, func(soFar string) bool { return strings.Contains(soFar, "of 301 lines") }))
		return status != statusDone
	})
	if status != statusFailed || !strings.HasSuffix(seen, eraseLine+"kvasir: interrupted; the same command goes on where this one ended\n") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
	status, seen = c.terminal(t, nil)
	if status != statusDone || !strings.HasSuffix(seen, eraseLine+"300 lines answered, in "+out+"\n1 line failed, in "+out+".errors\n") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
}

// script types what belongs to what is shown. Each step waits for its text, after that of the step before.
// A key is typed at a prompt, when the terminal is raw: before that the system edits the line itself.
type script struct {
	t     *testing.T
	steps [][2]string // what is waited for; what is typed then
	at    int         // in what was shown, where the last step was found
}

func (s *script) reply(soFar string, in *os.File) {
	for len(s.steps) > 0 {
		i := strings.Index(soFar[s.at:], s.steps[0][0])
		if i < 0 {
			return
		}
		s.at += i + len(s.steps[0][0])
		typed := s.steps[0][1]
		s.steps = s.steps[1:]
		if _, err := in.WriteString(typed); err != nil {
			s.t.Error(err)
		}
	}
}

// talk runs a chat on a terminal.
func talk(t *testing.T, args []string, env []string, steps ...[2]string) (status int, seen string) {
	t.Helper()
	s := script{t: t, steps: steps}
	status, seen = call{args: append([]string{"chat"}, args...), env: env}.terminal(t, s.reply)
	if len(s.steps) > 0 {
		t.Errorf("the terminal never shows %q:\n%s", s.steps[0][0], seen)
	}
	return status, seen
}

var noColour = []string{"NO_COLOR=1"}

func TestTerminalChat(t *testing.T) {
	t.Parallel()
	status, seen := talk(t, nil, noColour,
		[2]string{"> ", japan + "\r"}, [2]string{"of context", ""}, [2]string{"> ", "What is \\\r"},
		[2]string{"\n. ", "the capital of France?\r"}, [2]string{"of context", ""}, [2]string{"> ", "/stats\r"},
		[2]string{"experts", ""}, [2]string{"> ", "\x1b[A\x7f\x7f\x7f\x7f\x7fquit\r"}) // up: the last line again
	if status != statusDone {
		t.Errorf("exit status %d", status)
	}
	for _, want := range []string{
		"kvasir-tiny · context 1 024 tokens · /help lists commands", "> " + japan + "\nThe capital of Japan is Tokyo.\n12 tokens at",
		"> What is \\\n. the capital of France?\n", "4 messages", "2 answers",
	} {
		if !strings.Contains(strings.ReplaceAll(seen, "\r", ""), want) {
			t.Errorf("the terminal does not show %q:\n%q", want, seen)
		}
	}
	if strings.Contains(seen, "\x1b[2m") {
		t.Errorf("colour in spite of NO_COLOR: %q", seen)
	}
}

// What a model reasons is faint, and nothing that it says drives the terminal.
func TestTerminalChatShowsReasoningFaint(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "r.gbnf", []byte(reasoned))
	_, seen := talk(t, []string{"--grammar", file}, []string{"TERM=xterm"}, [2]string{"> ", "hi\r"},
		[2]string{"of context", ""}, [2]string{"> ", "\x04"})
	_, answer, _ := strings.Cut(seen, "hi")
	thought, rest, _ := strings.Cut(strings.ReplaceAll(answer, "\r", ""), "\n\n")
	thought = strings.ReplaceAll(strings.ReplaceAll(thought, "\x1b[2m", ""), "\x1b[0m", "")
	if thought != "\nhm, what" || !strings.Contains(answer, "\x1b[2m") || !strings.HasPrefix(rest, `Paris \x1b[2J`+"\n") {
		t.Errorf("reasoning %q, then %q", thought, rest)
	}
}

func TestCtrlCStopsAnAnswerAndTwiceEndsAChat(t *testing.T) {
	t.Parallel()
	// Without an end the answer takes as long as it can.
	endless := []string{"--bias", "2045=-100", "--bias", "2046=-100", "--bias", "2047=-100"}
	var status int
	var seen string
	inTime(t, func() bool {
		status, seen = talk(t, endless, noColour, [2]string{"> ", "Tell me a story.\r"}, [2]string{"Come", "\x03"},
			[2]string{"> ", "/stats\r"}, [2]string{"experts", ""}, [2]string{"> ", "\x03"}, [2]string{"once more", ""},
			[2]string{"> ", "\x03"})
		return strings.Contains(seen, "stopped") || strings.Contains(seen, "Stopped")
	})
	if status != statusDone {
		t.Errorf("exit status %d:\n%s", status, seen)
	}
	if strings.Contains(seen, "interrupted") {
		t.Errorf("the chat was interrupted:\n%s", seen)
	}
	status, seen = talk(t, nil, noColour, [2]string{"> ", "half a line\x03"}, [2]string{"once more", ""},
		[2]string{"> ", "\x03"})
	if status != statusDone || strings.Contains(seen, "tokens/s") {
		t.Errorf("exit status %d:\n%s", status, seen)
	}
}

// A mistake does not end a chat where somebody can mend it.
func TestTerminalChatGoesOnAfterAMistake(t *testing.T) {
	t.Parallel()
	steps := [][2]string{
		{"> ", "/foo\r"}, {"no command /foo", ""}, {"> ", "/retry\r"}, {"no answer yet", ""}, {"> ", japan + "\r"},
		{"Tokyo", ""}, {"> ", "\x04"},
	}
	if status, seen := talk(t, nil, noColour, steps...); status != statusDone {
		t.Errorf("exit status %d:\n%s", status, seen)
	}
}
