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

// begin prints what is measured, on what, and the head of the table.
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
		if _, err := fmt.Fprintln(v.w); err != nil {
			return err
		}
		return head()
	})
}

// dispatchHead says what is measured.
func dispatchHead(name string, r *bench.Report) []string {
	s := &r.Settings
	if s.Weights > 0 {
		name = fmt.Sprintf("%s; %.2f GB of weights", name, float64(s.Weights)/1e9)
	}
	lines := []string{name, machineLine(&r.Machine, s.Kernel)}
	if s.Workers == 0 {
		return lines
	}
	swarm := fmt.Sprintf("%d worker behind gateway and hub, all on this machine", s.Workers)
	if s.Workers > 1 {
		swarm = strings.Replace(swarm, "worker", "workers", 1)
	}
	if s.Up > 0 {
		swarm += fmt.Sprintf("; %vbit/s from each worker", bench.Rate(s.Up))
	}
	if s.Down > 0 {
		swarm += fmt.Sprintf("; %vbit/s to each", bench.Rate(s.Down))
	}
	if s.Jitter > 0 {
		swarm += fmt.Sprintf("; jitter of %v ms", s.Jitter)
	}
	if s.Stall != "" {
		swarm += "; stalls of " + s.Stall
	}
	return append(lines, swarm)
}

// decodeName says what model is measured.
func decodeName(r *bench.Report) string {
	s := &r.Settings
	return fmt.Sprintf("%s: %d layers, %d of them with their experts on workers, hidden %d, %d experts, top-%d, FFN %d, %s", s.Model,
		s.Layers, s.Remote, s.Hidden, s.Experts, s.TopK, s.FFN, s.Quant)
}

// kernelsHead says what is measured.
func kernelsHead(name string, r *bench.KernelsReport) []string {
	threads := fmt.Sprintf("%d threads", r.Settings.Threads)
	if r.Settings.Threads == 1 {
		threads = "1 thread"
	}
	return []string{
		name + "; random weights, computed here with " + threads,
		machineLine(&r.Machine, r.Settings.Kernel),
	}
}

// modelHead says what is measured.
func modelHead(r *bench.ModelReport) []string {
	s := &r.Settings
	threads := fmt.Sprintf("%d threads", s.Threads)
	if s.Threads == 1 {
		threads = "1 thread"
	}
	return []string{
		fmt.Sprintf("%s: %s, %d layers, hidden %d, %d experts, top-%d, FFN %d, %s, vocabulary %d; %.2f GB", s.Model, s.Arch, s.Layers,
			s.Hidden, s.Experts, s.TopK, s.FFN, s.Quant, s.Vocab, float64(s.File)/1e9),
		fmt.Sprintf("computed here with %s; prompts of %d random tokens, and %d tokens of each are counted", threads, s.Prompt, s.Tokens),
		machineLine(&r.Machine, s.Kernel),
	}
}

// serveHead says what is measured.
func serveHead(r *bench.ServeReport) []string {
	s := &r.Settings
	return []string{fmt.Sprintf("%s; streams of %d tokens over loopback, %d threads", s.Model, s.Tokens, s.Threads), machineLine(&r.Machine, s.Kernel)}
}

// wireHead says what is measured, of what is not computed.
func wireHead(name string, m *bench.Machine) []string {
	return []string{name, fmt.Sprintf("%s, %d cores, %s", m.CPU, m.Cores, m.Go)}
}

// machineLine describes the machine and the build.
func machineLine(m *bench.Machine, kernel string) string {
	commit := "not recorded in this build"
	if m.Commit != "" {
		commit = m.Commit
	}
	return fmt.Sprintf("%s, %d cores, %s kernels, %s, commit %s", m.CPU, m.Cores, kernel, m.Go, commit)
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
