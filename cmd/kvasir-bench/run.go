package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"kvasir/bench"
)

// measured is what a scenario has measured.
type measured interface {
	Empty() bool
	Remarks() []string
	Words() []string
	On() *bench.Machine
	GoLines() []bench.Line
}

// run runs a scenario and prints what comes of it. do shows what it does with the view, which is without a table
// where one JSON object or the Go benchmark format is wanted.
func (a *app) run(ctx context.Context, c *cli, do func(context.Context, *view) (measured, error)) error {
	if c.Plot != "" { // it is no use to find out at the end
		if err := os.MkdirAll(c.Plot, 0o755); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	v := &view{w: a.stdout, progress: newProgress(a.stderr, a.terminal), failed: cancel}
	if c.JSON || c.Format == formatGo {
		v.w = io.Discard
	}
	o, err := do(ctx, v)
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

// print prints the report, or what the table lacks of it.
func (a *app) print(o measured, c *cli) error {
	switch {
	case c.JSON:
		return a.printJSON(o)
	case c.Format == formatGo:
		return bench.WriteGo(a.stdout, o.On(), o.GoLines())
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

// verdict fails a run with other bits than there must be, and where it is asked for one with missed bars.
func verdict(o any, judge bool) error {
	if x, ok := o.(interface{ Mistaken() string }); ok {
		if text := x.Mistaken(); text != "" {
			return errors.New(text)
		}
	}
	if x, ok := o.(interface{ Missed() []string }); ok && judge {
		if bad := x.Missed(); len(bad) > 0 {
			return fmt.Errorf("missed: %s", strings.Join(bad, "; "))
		}
	}
	return nil
}
