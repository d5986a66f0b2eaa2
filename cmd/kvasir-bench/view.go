package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"kvasir/bench"
)

// view prints the table as its rows come.
type view struct {
	w        io.Writer
	progress *progress
	failed   func(error) // ends the run: nobody can read what it measures
}

// begin prints what is measured, on what, and the head of the table; nil: there is none.
func (v *view) begin(lines []string, quick bool, head func() error) {
	if quick {
		lines = append(lines, "--quick: sized down to take seconds; its figures are not those of a large model")
	}
	v.do(func() error {
		for _, line := range lines {
			if _, err := fmt.Fprintln(v.w, bench.Wrap(line)); err != nil {
				return err
			}
		}
		if head == nil {
			return nil
		}
		if _, err := fmt.Fprintln(v.w); err != nil {
			return err
		}
		return head()
	})
}

// do prints with the progress bar out of the way.
func (v *view) do(print func() error) {
	v.progress.hide()
	if err := print(); err != nil {
		v.failed(fmt.Errorf("writing standard output: %w", pathless(err)))
	}
}

// pathless strips what os adds to an error of a standard stream: "write /dev/stdout: ".
func pathless(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// progress says on standard error what is going on: a bar on a terminal, else a line where a new batch
// begins.
type progress struct {
	w     io.Writer
	bar   *progressbar.ProgressBar // nil: lines
	start time.Time
	last  string
}

// steps is how finely the bar moves.
const steps = 1000

func newProgress(w io.Writer, terminal bool) *progress {
	p := &progress{w: w, start: time.Now()}
	if terminal {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
			progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionClearOnFinish())
	}
	return p
}

// show is called before every dispatch. What a bar cannot show is nobody's loss.
func (p *progress) show(done float64, doing string) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%-32s", doing))
		_ = p.bar.Set(min(int(done*steps), steps-1)) // the end is end's to say
		return
	}
	if doing, _, _ = strings.Cut(doing, ","); doing != p.last {
		p.last = doing
		_, _ = fmt.Fprintf(p.w, "%6.1f s  %s\n", time.Since(p.start).Seconds(), doing)
	}
}

// hide takes the bar off the screen until the next show.
func (p *progress) hide() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// end takes the bar off the screen for good.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
