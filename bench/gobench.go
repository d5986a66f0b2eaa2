package bench

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// Line is one measurement in the Go benchmark format, which benchstat reads: of a point there may be many.
type Line struct {
	Name    string // behind Benchmark: a path of names and name=value
	Took    time.Duration
	Metrics []Metric
}

// Metric is a figure of a Line.
type Metric struct {
	Value float64
	Unit  string
}

// WriteGo writes lines with what they were measured on. A round is a line, where rounds are known.
func WriteGo(w io.Writer, m *Machine, lines []Line) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: kvasir/bench\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, m.CPU)
	if m.Commit != "" {
		fmt.Fprintf(&b, "commit: %s\n", m.Commit)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "Benchmark%s-%d 1", strings.ReplaceAll(l.Name, " ", "_"), m.Cores)
		if l.Took > 0 {
			fmt.Fprintf(&b, " %d ns/op", l.Took.Nanoseconds())
		}
		for _, x := range l.Metrics {
			fmt.Fprintf(&b, " %g %s", x.Value, x.Unit)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// title makes a scenario's name one of a benchmark.
func title(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// metrics leaves out what was not measured.
func metrics(list ...Metric) []Metric {
	var kept []Metric
	for _, m := range list {
		if m.Value != 0 {
			kept = append(kept, m)
		}
	}
	return kept
}

// eachOf makes a line of each result.
func eachOf[X any](results []X, line func(*X) Line) []Line {
	list := make([]Line, len(results))
	for i := range results {
		list[i] = line(&results[i])
	}
	return list
}

// GoLines are the rounds of all results.
func (r *Report) GoLines() []Line {
	var list []Line
	for i := range r.Results {
		x := &r.Results[i]
		name := fmt.Sprintf("%s/batch=%d", title(x.Scenario), x.Batch)
		if x.RTT != nil {
			name += fmt.Sprintf("/rtt=%vms", *x.RTT)
		}
		if r.Settings.Worker != "" && r.Settings.Worker != workerCPU {
			name += "/worker=" + r.Settings.Worker
		}
		if r.Settings.Up > 0 || r.Settings.Down > 0 {
			name += fmt.Sprintf("/up=%v/down=%v", Rate(r.Settings.Up), Rate(r.Settings.Down))
		}
		if x.piped() {
			name += "/pipelined"
		}
		for _, t := range x.times {
			list = append(list, Line{name, t, metrics(
				Metric{round(float64(x.Batch) / t.Seconds()), "tokens/s"}, Metric{x.BytesOut, "B-out/row"}, Metric{x.BytesBack, "B-back/row"},
			)})
		}
	}
	return list
}

// GoLines are those of all runs.
func (r *BarsReport) GoLines() []Line {
	var list []Line
	for _, x := range r.Runs {
		list = append(list, x.GoLines()...)
	}
	return list
}

// GoLines has one for each point.
func (r *KernelsReport) GoLines() []Line {
	return eachOf(r.Results, func(x *KernelsResult) Line {
		name := fmt.Sprintf("%s/batch=%d/quant=%s/kernel=%s/picks=%s", title(x.Scenario), x.Batch, x.Quant, x.Kernel, x.Picks)
		return Line{name, ofMilliseconds(x.Ms), metrics(
			Metric{x.TokensPerS, "tokens/s"}, Metric{x.Gops, "GOP/s"}, Metric{x.Allocs, "allocs/row"},
		)}
	})
}

// GoLines has one for each point.
func (r *ModelReport) GoLines() []Line {
	return eachOf(r.Results, func(x *ModelResult) Line {
		name := fmt.Sprintf("%s/kind=%s/batch=%d", title(x.Scenario), x.Kind, x.Batch)
		return Line{name, ofMilliseconds(x.Ms), metrics(Metric{x.TokensPerS, "tokens/s"}, Metric{x.Gops, "GOP/s"})}
	})
}

// GoLines has one for each way.
func (r *WireReport) GoLines() []Line {
	return eachOf(r.Results, func(x *WireResult) Line {
		return Line{fmt.Sprintf("%s/path=%s/way=%s", title(x.Scenario), x.Path, x.Way), 0, metrics(
			Metric{x.GBps, "GB/s"}, Metric{x.CPU, "CPU-s/GB"}, Metric{x.Allocs, "allocs/chunk"},
		)}
	})
}

// GoLines has one for each figure that is measured.
func (r *ReferenceReport) GoLines() []Line {
	return eachOf(r.Results, func(x *ReferenceResult) Line {
		name := fmt.Sprintf("%s/figure=%s/streams=%d/remote=%d", title(x.Scenario), x.Figure, x.Streams, x.Remote)
		if x.RTT != nil {
			name += fmt.Sprintf("/rtt=%vms", *x.RTT)
		}
		return Line{name, ofMilliseconds(x.Ms), metrics(Metric{x.Tokens, "tokens/s"}, Metric{x.XVsBatch1, "x-batch-1"})}
	})
}

// GoLines has two for each number of streams, or one of load.
func (r *ServeReport) GoLines() []Line {
	var list []Line
	for i := range r.Results {
		x := &r.Results[i]
		name := fmt.Sprintf("%s/streams=%d/way=", title(x.Scenario), x.Streams)
		door := 0.0
		if x.Door != nil {
			door = *x.Door
		}
		list = append(list, Line{name + "direct", 0, metrics(Metric{x.Direct, "tokens/s"})},
			Line{name + "http", 0, metrics(Metric{x.HTTP, "tokens/s"}, Metric{door, "door-us/token"})})
	}
	if x := r.Load; x != nil {
		list = append(list, Line{title(ServeName) + "/load", 0, metrics(Metric{x.Goodput, "tokens/s"}, Metric{x.RefusedP99, "refused-p99-ms"})})
	}
	return list
}

// GoLines has one for each figure.
func (r *RelayReport) GoLines() []Line {
	return eachOf(r.Results, func(x *RelayResult) Line {
		unit := x.Unit
		if unit == "" || unit[0] == '/' {
			unit = "count" + unit
		}
		name := fmt.Sprintf("%s/part=%s/figure=%s/sessions=%d", title(RelayName), x.Part, x.Figure, r.Settings.Sessions)
		return one(name, x.Got, unit)
	})
}

// GoLines has one for each count and each ratio.
func (r *GateReport) GoLines() []Line {
	var list []Line
	for i := range r.Lines {
		x := &r.Lines[i]
		if x.Verdict != unknown {
			list = append(list, one(fmt.Sprintf("%s/%s=%s", title(GateName), x.Kind, x.Name), x.Got, cmp.Or(x.Unit, x.Kind)))
		}
	}
	return list
}

// GoLines has one for each pair.
func (r *AuditReport) GoLines() []Line {
	return eachOf(r.Results, func(x *AuditResult) Line {
		return Line{title(AuditName), 0, metrics(Metric{x.Off, "rows/s-off"}, Metric{x.On, "rows/s-on"})}
	})
}

// one is a line of one figure, which may be 0.
func one(name string, value float64, unit string) Line { return Line{name, 0, []Metric{{value, unit}}} }

// GoLines has one, of what was simulated, and one of what was run beside it.
func (r *SwarmReport) GoLines() []Line {
	name := fmt.Sprintf("%s/workers=%d/batch=%d", title(SwarmName), r.Settings.Workers, r.Settings.Batch)
	list := []Line{{name, 0, metrics(Metric{r.Result.Tokens, "tokens/s"}, Metric{r.Result.Step, "ms/step"})}}
	if x := r.Real; x != nil {
		list = append(list, Line{name + "/loopback", 0, metrics(Metric{x.Tokens, "tokens/s"})})
	}
	return list
}

func ofMilliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// On is what was measured on.
func (r *Report) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *BarsReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *KernelsReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *ModelReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *WireReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *ReferenceReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *ServeReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *RelayReport) On() *Machine { return &r.Machine }

// On is what simulated.
func (r *SwarmReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *GateReport) On() *Machine { return &r.Machine }

// On is what was measured on.
func (r *AuditReport) On() *Machine { return &r.Machine }
