// Command kvasir-bench measures what batches of rows cost: on this machine alone, against what it can do at
// best, and on workers behind a gateway and a hub with a wide-area network in between, emulated.
//
// It is a thin door: flags and printing are here, what is measured and how is in package bench. What
// others rely on:
//
//   - Exit status: 0 done, 1 failed, among that answers that differ where they must not, and with --judge
//     a bar that was missed; 2 wrong usage. A failure is exactly one line on standard error, the last one.
//   - KVASIR_KERNEL chooses the kernels; one that is not to be had here is a failure.
//   - Every flag has its environment variable: KVASIR_ and the flag's name. An empty one counts as unset.
//   - Results go to standard output, everything else to standard error.
//   - Ctrl-C prints what is finished, with --json as one valid object, and ends with status 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
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

// patience is for how long after a signal others are the same one.
const patience = time.Second

// errInterrupted ends a run that the user stopped, by Ctrl-C or SIGTERM.
var errInterrupted = errors.New("interrupted; what is above is what was finished")

func main() {
	// With SIGPIPE ignored a write to a closed pipe is an error like any other, on every system.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks, a second one ends the process at once: but not one that comes with the first, as timeout
	// and others send it to a process and to its group.
	context.AfterFunc(ctx, func() { time.AfterFunc(patience, stop) })
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
	err := a.command(ctx, args)
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

func (a *app) command(ctx context.Context, args []string) error {
	c, err := parse(args, a.stdout, a.getenv)
	if err != nil {
		return err
	}
	// Whatever is measured, it is measured with the kernel that was asked for or not at all.
	if _, err := variant.Active(); err != nil {
		return fmt.Errorf("%s: %w", variant.Env, err)
	}
	switch c.Scenario {
	case listName:
		return a.list(c.JSON)
	case reportName:
		return a.report(c)
	case compareName:
		return a.compare(c)
	case bench.DispatchName:
		return a.dispatch(ctx, c)
	case bench.ExpertName:
		return a.expert(ctx, c)
	case bench.GateName:
		return a.gate(ctx, c)
	case bench.DecodeName:
		return a.decode(ctx, c)
	case bench.BarsName:
		return a.bars(ctx, c)
	case bench.ReferenceName:
		return a.reference(ctx, c)
	case bench.KernelsName:
		return a.kernels(ctx, c)
	case bench.ModelName:
		return a.model(ctx, c)
	case bench.SwarmName:
		return a.swarm(ctx, c)
	case bench.ServeName:
		return a.serve(ctx, c)
	case bench.ServeClientName:
		return bench.ServeClient(ctx, os.Stdin, a.stdout)
	case bench.WireName:
		return a.wire(ctx, c)
	case bench.RelayName:
		return a.relay(ctx, c)
	case bench.AuditName:
		return a.audit(ctx, c)
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

// closedPipe reports whether a write failed because its reader went away, who has had what he wanted.
func closedPipe(err error) bool {
	const brokenPipe, noData = syscall.Errno(109), syscall.Errno(232) // of Windows
	return errors.Is(err, syscall.EPIPE) ||
		runtime.GOOS == "windows" && (errors.Is(err, brokenPipe) || errors.Is(err, noData))
}
