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
	case reportName:
		return a.report(c)
	case compareName:
		return a.compare(c)
	case bench.DispatchName, bench.ExpertName:
		return a.dispatch(ctx, c)
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
		return a.simulate(ctx, c)
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

// measured is what a scenario has measured.
type measured interface {
	Empty() bool
	Remarks() []string
	Words() []string
}

// measure runs a scenario and prints what comes of it. run shows what it does with the view, which is
// without a table where one JSON object is wanted.
func (a *app) measure(ctx context.Context, c *cli, run func(context.Context, *view) (measured, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	v := &view{w: a.stdout, progress: newProgress(a.stderr, a.terminal), failed: cancel}
	if c.JSON || c.Format == formatGo {
		v.w = io.Discard
	}
	o, err := run(ctx, v)
	v.progress.end()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // standard output is gone
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // whatever has failed, it was stopped: processes that help end too
	}
	// Who reads JSON gets one object also of a run that was stopped before anything was finished.
	if !o.Empty() || c.JSON && errors.Is(err, context.Canceled) {
		if printErr := a.print(o, c); printErr != nil {
			return printErr
		}
	}
	if err == nil {
		err = a.plot(c, o)
	}
	return settings(err)
}

// settings makes an error of settings one of usage.
func settings(err error) error {
	if errors.Is(err, bench.ErrSettings) {
		return usagef("%s", strings.TrimPrefix(err.Error(), bench.ErrSettings.Error()+": "))
	}
	return err
}

// dispatch runs the scenario of that name.
func (a *app) dispatch(ctx context.Context, c *cli) error {
	d, err := c.dispatch(c.Scenario == bench.ExpertName)
	if err != nil {
		return err
	}
	if err := d.Check(); err != nil {
		return settings(err)
	}
	var report *bench.Report
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewTable(v.w)
		var err error
		report, err = d.Run(ctx, bench.Observer{
			Progress: v.progress.show,
			Begin:    func(r *bench.Report) { v.begin(dispatchHead(d.Name(), r), c.Quick, t.Head) },
			Row:      func(x bench.Result) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return verdict(report, c.Judge)
}

// bars runs the scenario of that name.
func (a *app) bars(ctx context.Context, c *cli) error {
	b := bench.DefaultBars()
	if c.Quick {
		b = bench.QuickBars()
	}
	if err := b.Check(); err != nil {
		return settings(err)
	}
	var report *bench.BarsReport
	err := a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewTable(v.w)
		var err error
		report, err = b.Run(ctx, bench.Observer{
			Progress: v.progress.show,
			Begin:    func(r *bench.Report) { v.begin(dispatchHead(r.Name(), r), c.Quick, t.Head) },
			Row:      func(x bench.Result) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return verdict(report, c.Judge)
}

// reference runs the scenario of that name.
func (a *app) reference(ctx context.Context, c *cli) error {
	x := bench.DefaultReference()
	if c.Quick {
		x = bench.QuickReference()
	}
	if err := x.Check(); err != nil {
		return settings(err)
	}
	return a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewReferenceTable(v.w)
		return x.Run(ctx, bench.ReferenceObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.ReferenceReport) { v.begin([]string{x.Layer.Name()}, c.Quick, t.Head) },
			Row:      func(r bench.ReferenceResult) { v.do(func() error { return t.Row(r) }) },
		})
	})
}

// decode runs the scenario of that name.
func (a *app) decode(ctx context.Context, c *cli) error {
	d, err := c.decode()
	if err != nil {
		return err
	}
	if err := d.Check(); err != nil {
		return settings(err)
	}
	var report *bench.Report
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewStepTable(v.w)
		var err error
		report, err = d.Run(ctx, bench.Observer{
			Progress: v.progress.show,
			Begin:    func(r *bench.Report) { v.begin(dispatchHead(decodeName(r), r), c.Quick, t.Head) },
			Row:      func(x bench.Result) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return verdict(report, c.Judge)
}

// judged is what workers have answered, and what bars are set for.
type judged interface {
	Different() []int
	Missed() []string
}

// verdict fails a run whose workers gave other bits than this machine, and where it is asked for one with
// missed bars.
func verdict(r judged, judge bool) error {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Errorf("workers' answers differ from those computed here, first at batch %d; run kvasir doctor", bad[0])
	}
	return missed(r, judge)
}

// missed fails a run with missed bars, where it is asked for.
func missed(r interface{ Missed() []string }, judge bool) error {
	if bad := r.Missed(); judge && len(bad) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(bad, "; "))
	}
	return nil
}

// kernels runs the scenario of that name.
func (a *app) kernels(ctx context.Context, c *cli) error {
	k, err := c.kernels()
	if err != nil {
		return err
	}
	if err := k.Check(); err != nil {
		return settings(err)
	}
	var report *bench.KernelsReport
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewKernelsTable(v.w)
		var err error
		report, err = k.Run(ctx, bench.KernelsObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.KernelsReport) { v.begin(kernelsHead(k.Name(), r), c.Quick, t.Head) },
			Row:      func(x bench.KernelsResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return kernelsVerdict(report, c.Judge)
}

// kernelsVerdict fails a run with wrong answers, and where it is asked for one with missed bars.
func kernelsVerdict(r *bench.KernelsReport, judge bool) error {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Errorf("the same rows had different answers at %s; run kvasir doctor", strings.Join(bad, "; "))
	}
	return missed(r, judge)
}

// model runs the scenario of that name.
func (a *app) model(ctx context.Context, c *cli) error {
	m, err := c.model()
	if err != nil {
		return err
	}
	if err := m.Check(); err != nil {
		return settings(err)
	}
	var report *bench.ModelReport
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewModelTable(v.w)
		var err error
		report, err = m.Run(ctx, bench.ModelObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.ModelReport) { v.begin(modelHead(r), c.Quick, t.Head) },
			Row:      func(x bench.ModelResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	if bad := report.Different(); len(bad) > 0 {
		return fmt.Errorf("the same prompts had different tokens at %s; run kvasir doctor", strings.Join(bad, "; "))
	}
	return missed(report, c.Judge)
}

// serve runs the scenario of that name, with its client in another process of this program.
func (a *app) serve(ctx context.Context, c *cli) error {
	s := c.serve()
	if c.Load.given && c.Load.d == 0 {
		return usagef("--load 0s, want 1s to 24h")
	}
	if err := s.Check(); err != nil {
		return settings(err)
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the client is another process of this program: %w", err)
	}
	s.Client = []string{own, bench.ServeClientName}
	var report *bench.ServeReport
	err = a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewServeTable(v.w)
		head := t.Head
		if s.Load > 0 || s.Vanish > 0 {
			head = func() error { return nil } // there are no rows
		}
		var err error
		report, err = s.Run(ctx, bench.ServeObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.ServeReport) { v.begin(serveHead(r), c.Quick, head) },
			Row:      func(x bench.ServeResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	if bad := report.Different(); len(bad) > 0 {
		return fmt.Errorf("a prompt had different texts through HTTP and directly, first at %d streams; run kvasir doctor", bad[0])
	}
	return missed(report, c.Judge)
}

// wire runs the scenario of that name.
func (a *app) wire(ctx context.Context, c *cli) error {
	w := c.wire()
	if err := w.Check(); err != nil {
		return settings(err)
	}
	var report *bench.WireReport
	err := a.measure(ctx, c, func(ctx context.Context, v *view) (measured, error) {
		t := bench.NewWireTable(v.w)
		var err error
		report, err = w.Run(ctx, bench.WireObserver{
			Progress: v.progress.show,
			Begin:    func(r *bench.WireReport) { v.begin(wireHead(w.Name(), &r.Machine), c.Quick, t.Head) },
			Row:      func(x bench.WireResult) { v.do(func() error { return t.Row(x) }) },
		})
		return report, err
	})
	if err != nil {
		return err
	}
	return missed(report, c.Judge)
}

// print prints the report, or what the table lacks of it.
func (a *app) print(o measured, c *cli) error {
	if c.JSON {
		return a.printJSON(o)
	}
	if x, ok := o.(interface {
		Lines() []bench.Line
		On() *bench.Machine
	}); ok && c.Format == formatGo {
		return bench.WriteGo(a.stdout, x.On(), x.Lines())
	}
	for _, part := range [][]string{o.Remarks(), o.Words()} {
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
