// Command kvasir-bench measures what batches of rows cost: on this machine alone, and on workers behind
// a gateway and a hub with a wide-area network in between, emulated.
//
// It is a thin door: flags and printing are here, what is measured and how is in package bench. What
// others rely on:
//
//   - Exit status: 0 done, 1 failed, among that answers from workers that are not those computed here,
//     2 wrong usage. A failure is exactly one line on standard error, the last one.
//   - Every flag has its environment variable: KVASIR_ and the flag's name. An empty one counts as unset.
//   - Results go to standard output, everything else to standard error.
//   - Ctrl-C prints what is finished, with --json as one valid object, and ends with status 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/term"

	"kvasir/bench"
	"kvasir/kernels/variant"
)

// Exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

// errInterrupted ends a run that the user stopped, by Ctrl-C or SIGTERM.
var errInterrupted = errors.New("interrupted; what is above is what was finished")

func main() {
	// With SIGPIPE ignored a write to a closed pipe is an error like any other, on every system.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first signal asks, a second one ends the process at once
	a := &app{
		stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv,
		terminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	os.Exit(a.main(ctx, os.Args[1:]))
}

// app is what a run needs of the process around it.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	terminal       bool // standard error is one
}

// main runs one command line and returns the exit status.
func (a *app) main(ctx context.Context, args []string) int {
	err := a.run(ctx, args)
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, errHelp), closedPipe(err):
		return statusDone
	case errors.As(err, &usage):
		a.complain(usage.Error() + " (see kvasir-bench --help)")
		return statusUsage
	case errors.Is(err, context.Canceled):
		err = errInterrupted
	}
	a.complain(err.Error())
	return statusFailed
}

// complain prints one line that a terminal shows as it is.
func (a *app) complain(text string) {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	harmless := func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}
	// An error of writing standard error has nobody to go to.
	_, _ = fmt.Fprintf(a.stderr, "kvasir-bench: %s\n", strings.Map(harmless, strings.Join(lines, "; ")))
}

func (a *app) run(ctx context.Context, args []string) error {
	c, err := parse(args, a.stdout, a.getenv)
	if err != nil {
		return err
	}
	// Whatever is measured, it is measured with the kernel that was asked for or not at all.
	if _, err := variant.Active(); err != nil {
		return fmt.Errorf("%s: %w", variant.Env, err)
	}
	switch c.Scenario {
	case "list":
		return a.list(c.JSON)
	case bench.DispatchName:
		return a.measure(ctx, c)
	}
	return usagef("%q is no scenario; kvasir-bench list names them", c.Scenario)
}

func (a *app) list(asJSON bool) error {
	if asJSON {
		return a.printJSON(bench.Scenarios())
	}
	for _, s := range bench.Scenarios() {
		if _, err := fmt.Fprintf(a.stdout, "%-10s%s\n", s.Name, s.Text); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the scenario and prints what comes of it.
func (a *app) measure(ctx context.Context, c *cli) error {
	d := c.dispatch()
	if err := d.Check(); err != nil {
		return usagef("%s", strings.TrimPrefix(err.Error(), bench.ErrSettings.Error()+": "))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newProgress(a.stderr, a.terminal)
	o := bench.Observer{Progress: p.show}
	if !c.JSON {
		v := &view{w: a.stdout, progress: p, name: d.Name(), quick: c.Quick, failed: cancel}
		o.Begin, o.Row = v.begin, v.row
	}
	report, err := d.Run(ctx, o)
	p.end()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // standard output is gone
	}
	if report != nil && (err == nil || len(report.Results) > 0) {
		if printErr := a.print(report, c.JSON); printErr != nil {
			return printErr
		}
	}
	if errors.Is(err, bench.ErrSettings) {
		return usagef("%s", strings.TrimPrefix(err.Error(), bench.ErrSettings.Error()+": "))
	}
	if err != nil {
		return err
	}
	return verdict(report)
}

// verdict fails a run whose workers gave other bits than this machine.
func verdict(r *bench.Report) error {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Errorf("workers' answers differ from those computed here, first at batch %d; run kvasir doctor", bad[0])
	}
	return nil
}

// print prints the report, or what the table lacks of it.
func (a *app) print(r *bench.Report, asJSON bool) error {
	if asJSON {
		return a.printJSON(r)
	}
	for _, part := range [][]string{r.Remarks(), r.Words()} {
		if len(part) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(a.stdout); err != nil {
			return err
		}
		for _, line := range part {
			if _, err := fmt.Fprintln(a.stdout, bench.Wrap(line)); err != nil {
				return err
			}
		}
	}
	return nil
}

// printJSON writes v as one indented object.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// closedPipe reports whether a write failed because its reader went away, who has had what he wanted.
func closedPipe(err error) bool {
	const brokenPipe, noData = syscall.Errno(109), syscall.Errno(232) // of Windows
	return errors.Is(err, syscall.EPIPE) ||
		runtime.GOOS == "windows" && (errors.Is(err, brokenPipe) || errors.Is(err, noData))
}
