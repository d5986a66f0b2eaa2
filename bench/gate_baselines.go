package bench

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// built are the baselines of this build.
//
//go:embed baselines/*.json
var built embed.FS

// ErrBaseline: a file of baselines cannot be read, or says nothing that holds.
var ErrBaseline = errors.New("bench: bad baseline")

// countersFile holds the counters, which are the same on every machine.
const countersFile = "counters.json"

// ratiosFile holds the ratios of machines with the same kernels.
func ratiosFile(kernel string) string {
	return "ratios-" + strings.ReplaceAll(strings.ToLower(kernel), " ", "-") + ".json"
}

// Why says why a baseline is what it is.
type Why struct {
	Why    string `json:"why"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Go     string `json:"go"`
	Commit string `json:"commit,omitempty"`
}

// counterBaselines is a file of counters.
type counterBaselines struct {
	Why  []Why              `json:"why"` // the latest last
	Most map[string]float64 `json:"most"`
}

// ratioBaselines is a file of ratios.
type ratioBaselines struct {
	Why    []Why                 `json:"why"`                    // the latest last
	Adds   float64               `json:"adds_a_cycle,omitempty"` // of a core that is ours alone
	Ratios map[string]ratioBound `json:"ratios"`
}

// ratioBound is what a ratio has to come to, and what it came to when the bound was set.
type ratioBound struct {
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Spread float64 `json:"spread"` // from quartile to quartile, as a part of the median
}

// baselines are those of one level of kernels.
type baselines struct {
	level    string // empty: there are no ratios for it
	counters counterBaselines
	ratios   ratioBaselines
}

// readBaselines reads those for a kernel. That there is no file is no error: then nothing is judged.
func readBaselines(from fs.FS, kernel string) (*baselines, error) {
	if from == nil {
		sub, err := fs.Sub(built, "baselines")
		if err != nil {
			return nil, err
		}
		from = sub
	}
	b := &baselines{}
	if _, err := readBaseline(from, countersFile, &b.counters); err != nil {
		return nil, err
	}
	there, err := readBaseline(from, ratiosFile(kernel), &b.ratios)
	if there {
		b.level = kernel
	}
	return b, err
}

// maxBaseline bounds a file of baselines.
const maxBaseline = 1 << 20

func readBaseline(from fs.FS, name string, into any) (there bool, err error) {
	switch info, err := fs.Stat(from, name); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: %w", ErrBaseline, err)
	case info.Size() > maxBaseline:
		return false, fmt.Errorf("%w: %s has %d bytes, want %d at most", ErrBaseline, name, info.Size(), maxBaseline)
	}
	data, err := fs.ReadFile(from, name)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrBaseline, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrBaseline, name, err)
	}
	return true, nil
}

// whysKept is how many reasons a file keeps.
const whysKept = 20

// Update writes what a run has come to as the new baselines to a folder. Only what was measured and can be
// judged changes. It returns the names of the files.
func (r *GateReport) Update(dir, why string) (files []string, err error) {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%w: no folder %s; run this at the top of the repository, or name a folder with --baselines", ErrSettings, dir)
	}
	b, err := readBaselines(os.DirFS(dir), r.Settings.Kernel)
	if err != nil {
		return nil, err
	}
	m := &r.Machine
	because := Why{Why: why, CPU: m.CPU, Cores: m.Cores, Go: m.Go, Commit: m.Commit}
	counters, ratios := map[string]float64{}, map[string]ratioBound{}
	for _, x := range r.Lines {
		switch {
		case x.Kind == gateCounted:
			counters[x.Name] = x.bound
		case x.Verdict != noisy && x.Verdict != unknown:
			ratios[x.Name] = x.newBound()
		}
	}
	if len(counters) > 0 {
		b.counters.Most = counters
		b.counters.Why = append(b.counters.Why, because)
		b.counters.Why = b.counters.Why[max(0, len(b.counters.Why)-whysKept):]
		if err := writeBaseline(dir, countersFile, &b.counters); err != nil {
			return files, err
		}
		files = append(files, countersFile)
	}
	if len(ratios) > 0 {
		names := Gate{}.names()
		for name, old := range b.ratios.Ratios {
			if _, ok := ratios[name]; !ok && slices.Contains(names, name) {
				ratios[name] = old // not measured this time
			}
		}
		b.ratios.Ratios = ratios
		if r.Adds > 0 {
			b.ratios.Adds = r.Adds
		}
		b.ratios.Why = append(b.ratios.Why, because)
		b.ratios.Why = b.ratios.Why[max(0, len(b.ratios.Why)-whysKept):]
		if err := writeBaseline(dir, ratiosFile(r.Settings.Kernel), &b.ratios); err != nil {
			return files, err
		}
		files = append(files, ratiosFile(r.Settings.Kernel))
	}
	return files, nil
}

func writeBaseline(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), append(data, '\n'), 0o644)
}

// newBound makes a bound of what was measured: the median, less the room that the ratio needs.
func (x *GateLine) newBound() ratioBound {
	return ratioBound{Least: floor3(x.Got * (1 - x.room)), Median: x.Got, Spread: round((x.High - x.Low) / x.Got)}
}

// floor3 keeps three decimals, never more than v.
func floor3(v float64) float64 { return math.Floor(v*1000) / 1000 }
