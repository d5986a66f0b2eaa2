package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

// program is the command under test, built once by TestMain.
var program string

func TestMain(m *testing.M) {
	if os.Getenv(quickVariable) != "" {
		os.Exit(execute(os.Args[1:], quick))
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kvasir-test-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary folder
	program = filepath.Join(dir, "kvasir")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	// Without version control stamps the build needs no git and no repository.
	build := exec.Command("go", "build", "-buildvcs=false", fmt.Sprintf("-race=%v", raced), "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// call is one run of the program.
type call struct {
	args  []string
	env   []string // besides HOME and what the system needs
	stdin string
	home  string // HOME; a fresh folder if empty
	quick bool   // run this test's own executable, at the pace of quick
}

// outcome is what a run left.
type outcome struct {
	status         int
	stdout, stderr string
}

// command prepares a run that sees nothing of the tester's own settings.
func (c call) command(t *testing.T) *exec.Cmd {
	t.Helper()
	home := c.home
	if home == "" {
		home = t.TempDir()
	}
	of := program
	if c.quick {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		of, c.env = self, append([]string{quickVariable + "=1"}, c.env...)
	}
	cmd := exec.CommandContext(t.Context(), of, c.args...)
	cmd.Dir = home
	cmd.Env = append([]string{
		"HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config"), "AppData=" + home,
		"SYSTEMROOT=" + os.Getenv("SYSTEMROOT"),
	}, c.env...)
	return cmd
}

func (c call) run(t *testing.T) outcome {
	t.Helper()
	cmd := c.command(t)
	cmd.Stdin = strings.NewReader(c.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	status := exitStatus(t, cmd.Run())
	return outcome{status, stdout.String(), stderr.String()}
}

// kvasir runs the program with arguments only.
func kvasir(t *testing.T, args ...string) outcome {
	t.Helper()
	return call{args: args}.run(t)
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatalf("running %s: %v", program, err)
	return -1
}

// wantFailure holds a run to the promise for failures: the status, nothing on standard output, and one
// line on standard error that starts with the program's name and holds all of the texts.
func (o outcome) wantFailure(t *testing.T, status int, texts ...string) {
	t.Helper()
	if o.status != status {
		t.Errorf("exit status %d, want %d", o.status, status)
	}
	if o.stdout != "" {
		t.Errorf("standard output %q, want none", o.stdout)
	}
	wantOneLine(t, o.stderr, texts...)
}

func wantOneLine(t *testing.T, stderr string, texts ...string) {
	t.Helper()
	if strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") ||
		!strings.HasPrefix(stderr, "kvasir: ") {
		t.Errorf("standard error %q, want one line that starts with kvasir:", stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stderr, text) {
			t.Errorf("standard error %q, want %q in it", stderr, text)
		}
	}
	if strings.Contains(stderr, "goroutine ") {
		t.Errorf("standard error holds a stack trace: %q", stderr)
	}
}

// wantDone checks a run that should have worked and said nothing on standard error.
func (o outcome) wantDone(t *testing.T) outcome {
	t.Helper()
	if o.status != 0 || o.stderr != "" {
		t.Fatalf("exit status %d, standard error %q; want 0 and none", o.status, o.stderr)
	}
	return o
}

// object reads standard output as one JSON object and nothing else.
func (o outcome) object(t *testing.T, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("standard output %q: %v", o.stdout, err)
	}
	if d.More() {
		t.Errorf("more than one JSON value on standard output: %q", o.stdout)
	}
}

// wantNarrow checks that no line is wider than a table may be.
func wantNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > maxColumns {
			t.Errorf("a line of %d columns, want at most %d: %q", n, maxColumns, line)
		}
		if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
			t.Errorf("a line ends in spaces: %q", line)
		}
	}
}

// writeFile makes a file below a fresh folder and returns its path.
func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
