// Command kvasir runs mixture-of-experts models and looks after what they need.
//
// It is a thin door: flags, settings and printing are here, everything that has a meaning is in
// package engine and below. What others rely on:
//
//   - Exit status: 0 done, 1 failed, 2 wrong usage (a flag, an environment variable or the settings
//     file). A failure is exactly one line on standard error, and never a stack trace. KVASIR_KERNEL
//     is no setting but a wish that a machine may fail to meet: 1, whatever the command.
//   - Settings: flag, then environment (KVASIR_ and the flag's name), then the settings file, then
//     the default. An empty environment variable counts as unset. settings.go has the rules.
//   - Results go to standard output, everything else to standard error. Colour and echo only on a
//     terminal, and not where NO_COLOR is set.
//   - A reader that closes standard output early has had what it wanted: the command ends quietly
//     with status 0.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/alecthomas/kong"

	"kvasir/engine"
	"kvasir/kernels/variant"
)

// Exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

// errInterrupted ends a command that the user stopped, by Ctrl-C or SIGTERM.
var errInterrupted = errors.New("interrupted")

func main() { os.Exit(execute(os.Args[1:], pace{})) }

// execute runs one command line in this process, and returns its exit status.
func execute(args []string, p pace) int {
	// With SIGPIPE ignored a write to a closed pipe is an error like any other, on every system.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(context.Background())
	a := &app{
		stdin:   os.Stdin,
		stdout:  newScreen(os.Stdout, os.Getenv),
		stderr:  newScreen(os.Stderr, os.Getenv),
		environ: os.Environ(),
		pace:    p,
	}
	a.interrupts.hear(cancel)
	return a.main(ctx, args)
}

// pace is how quickly the books of a swarm are kept. It is no setting: a test kills hundreds of processes in
// the time in which they would else make ten reports.
type pace struct {
	rhythm engine.Rhythm
	audit  engine.AuditOptions // Share and Hold of it
}

// app is what a command needs of the process around it.
type app struct {
	stdin   *os.File
	stdout  *screen
	stderr  *screen
	environ []string

	interrupts interrupts
	pace       pace

	settings *settings // filled while the command line is parsed
	model    *kong.Kong
	log      *slog.Logger
}

// interrupts are Ctrl-C and SIGTERM. The first asks the command to end, a second one ends the process at
// once. A command may take a Ctrl-C for itself.
type interrupts struct {
	mu   sync.Mutex
	take func() bool // reports whether it took a Ctrl-C; may be nil; under mu
}

// hear begins to listen, until the first signal that nobody has taken: that calls end.
func (i *interrupts) hear(end func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // ends with the first signal, or with the process
		for s := range signals {
			i.mu.Lock()
			taken := s == os.Interrupt && i.take != nil && i.take()
			i.mu.Unlock()
			if !taken {
				signal.Stop(signals)
				end()
				return
			}
		}
	}()
}

// give hands each Ctrl-C to take, which says whether it took it; nil gives them back.
func (i *interrupts) give(take func() bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.take = take
}

// main runs one command line and returns the exit status.
func (a *app) main(ctx context.Context, args []string) (status int) {
	a.log = slog.New(slog.DiscardHandler)
	defer func() {
		if p := recover(); p != nil {
			a.log.Debug("panic", "value", fmt.Sprint(p), "stack", string(debug.Stack()))
			err := fmt.Errorf("internal error: %v; please report it with the output of "+
				"kvasir version", p)
			status = a.finish(err)
		}
	}()
	return a.finish(a.run(ctx, args))
}

func (a *app) run(ctx context.Context, args []string) error {
	var c cli
	var err error
	if a.model, err = newParser(&c, a); err != nil {
		return fmt.Errorf("internal error: command line grammar: %w", err)
	}
	if len(args) == 0 {
		return a.shortHelp()
	}
	parsed, err := a.model.Parse(args)
	switch {
	case errors.Is(err, errHelp):
		return nil
	case err != nil:
		return explain(a.model.Model, err)
	}
	a.log = newLogger(a.stderr, logLevelFor(parsed, c.Log))
	slog.SetDefault(a.log)
	a.log.Debug("command", "name", parsed.Command(), "home", a.settings.home,
		"settings_file", a.settings.file)
	// Whatever the command computes, it computes with the kernel that was asked for or not at all.
	if _, err := variant.Active(); err != nil {
		return fmt.Errorf("%s: %w", variant.Env, err)
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(a, &c)
}

// finish tells the user how it went and returns the exit status.
func (a *app) finish(err error) int {
	// What could not be written matters more than what came of it.
	if failed := a.stdout.failed(); failed != nil {
		if closedPipe(failed) {
			return statusDone
		}
		err = fmt.Errorf("writing standard output: %w", pathless(failed))
	}
	if err == nil {
		return statusDone
	}
	status := statusFailed
	var usage *usageError
	switch {
	case errors.Is(err, errShortHelp):
		return statusUsage
	case errors.As(err, &usage):
		status, err = statusUsage, usage
	case errors.Is(err, context.Canceled):
		err = errInterrupted
	}
	a.stderr.printf("kvasir: %s\n", oneLine(err.Error()))
	return status
}

// pathless strips what os adds to an error of a standard stream: "write /dev/stdout: ".
func pathless(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// oneLine makes an error message one line that a terminal shows as it is: messages may carry text
// out of files and arguments.
func oneLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	return clean(strings.Join(lines, "; "))
}
