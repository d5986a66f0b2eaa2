package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
)

// Names of the scenarios of Dispatch.
const (
	DispatchName = "dispatch"
	ExpertName   = "expert"
)

// ErrSettings: a setting is out of its limits, or does not go with another.
var ErrSettings = errors.New("bench: bad setting")

// Limits of settings.
const (
	workersMax  = 64
	rttMax      = 10 * time.Second
	repeatMax   = 10_000
	ffnMax      = 1 << 16
	budgetLeast = time.Second
	budgetMost  = 24 * time.Hour
)

// Dispatch measures one layer of experts with random weights in batches of 1, 2, 4 … rows: computed here
// by a function call, by workers behind gateway and hub at 0 ms, and by the same at round trips; one batch
// under way at a time, and the largest also with so many at a time that the way is hidden.
type Dispatch struct {
	Experts, TopK int
	Hidden, FFN   int
	Quant         quant.Format
	Batch         int             // the largest
	Only          []int           // batches that are measured, ascending up to Batch; nil: 1, 2, 4 …
	RTTs          []time.Duration // between workers and gateway, ascending; none, or 0 alone: the path at 0 ms only
	Path          Path            // what else it is, at 0 ms too
	Workers       int
	Worker        Speed // of stubs; zero: workers compute
	Flights       int   // dispatches under way at once, where they are; 0: as many as hide the way
	Repeat        int   // rounds of every batch; 0: as many as Budget allows
	Budget        time.Duration
	Seed          uint64 // of weights, rows and picks
	Alone         bool   // the function call only: the scenario expert

	scene string                        // the scenario's name, where it is not of this struct
	least time.Duration                 // that a limit of the machine is measured, and a way; 0: they are not, and once
	wrap  func(moe.Experts) moe.Experts // of the workers' executors, for tests
}

// DefaultDispatch is one layer of Qwen3.5-122B-A10B.
func DefaultDispatch() Dispatch {
	return Dispatch{
		Experts: 256, TopK: 8, Hidden: 3072, FFN: 1024, Quant: quant.Q4K, Batch: 512,
		RTTs: []time.Duration{13 * time.Millisecond}, Workers: 1, Budget: 110 * time.Second, Seed: 1,
		least: 100 * time.Millisecond,
	}
}

// QuickDispatch is a small layer that takes seconds. What it tells of a large one is how the parts work
// together, not how quick they are.
func QuickDispatch() Dispatch {
	d := DefaultDispatch()
	d.Experts, d.Hidden, d.FFN, d.Batch, d.Budget = 16, 1024, 256, 64, 10*time.Second
	d.least = 20 * time.Millisecond
	return d
}

// DefaultExpert is the same layer without a network.
func DefaultExpert() Dispatch {
	d := DefaultDispatch()
	d.Alone, d.RTTs, d.Workers, d.Budget = true, nil, 0, time.Minute
	return d
}

// QuickExpert is QuickDispatch without a network.
func QuickExpert() Dispatch {
	d := QuickDispatch()
	d.Alone, d.RTTs, d.Workers = true, nil, 0
	return d
}

// scenario is the name of what is measured.
func (d Dispatch) scenario() string {
	switch {
	case d.scene != "":
		return d.scene
	case d.Alone:
		return ExpertName
	}
	return DispatchName
}

// Name says what the layer is, in words.
func (d Dispatch) Name() string {
	name := fmt.Sprintf("%s, %s", layerName(d.Experts, d.TopK, d.Hidden, d.FFN), d.Quant)
	if d.Worker != (Speed{}) {
		name = fmt.Sprintf("%s; workers compute nothing and take %v a batch and %v a row", name, d.Worker.Call, d.Worker.Row)
	}
	return name
}

// usual reports whether the layer is the one that bars are set for.
func (d Dispatch) usual() bool { return usualLayer(d.Experts, d.TopK, d.Hidden, d.FFN) }

// usualLayer reports whether dimensions are those of DefaultDispatch.
func usualLayer(experts, topK, hidden, ffn int) bool {
	d := DefaultDispatch()
	return experts == d.Experts && topK == d.TopK && hidden == d.Hidden && ffn == d.FFN
}

// layerName says what dimensions a layer has.
func layerName(experts, topK, hidden, ffn int) string {
	name := "one layer"
	if usualLayer(experts, topK, hidden, ffn) {
		name += " of Qwen3.5-122B-A10B"
	}
	return fmt.Sprintf("%s: %d experts, top-%d, hidden %d, FFN %d", name, experts, topK, hidden, ffn)
}

// far are the round trips beside 0.
func (d Dispatch) far() []time.Duration {
	return slices.DeleteFunc(slices.Clone(d.RTTs), func(rtt time.Duration) bool { return rtt == 0 })
}

// batches lists what is measured.
func (d Dispatch) batches() []int {
	if d.Only != nil {
		return d.Only
	}
	return batchesUpTo(d.Batch)
}

func (d Dispatch) shape() experts.SyntheticShape {
	return experts.SyntheticShape{Hidden: d.Hidden, FFN: d.FFN, Experts: d.Experts, Format: d.Quant}
}

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (d Dispatch) Check() error {
	least := 1 // worker
	if d.Alone {
		least = 0
	}
	if d.Only != nil && !ascending(d.Only, min(d.Batch, moe.MaxRows)) {
		return fmt.Errorf("%w: --only %s, want ascending numbers of 1 to %d", ErrSettings, commas(d.Only), moe.MaxRows)
	}
	for _, s := range []struct {
		name           string
		value, lo, top int
	}{
		{"experts", d.Experts, 1, moe.MaxExperts},
		{"topk", d.TopK, 1, moe.MaxTopK},
		{"hidden", d.Hidden, 256, moe.MaxHidden},
		{"ffn", d.FFN, 256, ffnMax},
		{"batch", d.Batch, 1, moe.MaxRows},
		{"workers", d.Workers, least, workersMax},
		{"flights", d.Flights, 0, flightsMax},
		{"repeat", d.Repeat, 0, repeatMax},
	} {
		if s.value < s.lo || s.value > s.top {
			return fmt.Errorf("%w: --%s %d, want %d to %d", ErrSettings, s.name, s.value, s.lo, s.top)
		}
	}
	switch {
	case d.TopK > d.Experts:
		return fmt.Errorf("%w: --topk %d of %d experts; lower --topk or raise --experts", ErrSettings, d.TopK, d.Experts)
	case d.Workers > d.Experts:
		return fmt.Errorf("%w: --workers %d for %d experts; lower --workers", ErrSettings, d.Workers, d.Experts)
	case !d.Quant.Supported():
		return fmt.Errorf("%w: --quant %s, which is not computed on; Q4_K is", ErrSettings, d.Quant)
	case d.Budget < budgetLeast || d.Budget > budgetMost:
		return fmt.Errorf("%w: --budget %v, want %v to %v", ErrSettings, d.Budget, budgetLeast, budgetMost)
	case d.Alone && len(d.RTTs) > 0:
		return fmt.Errorf("%w: --rtt %v, and expert has no network; use the scenario dispatch", ErrSettings, d.RTTs[0])
	}
	if block, _ := d.Quant.Block(); d.Hidden%block != 0 {
		return fmt.Errorf("%w: --hidden %d, want a multiple of %d, the block of %s", ErrSettings, d.Hidden, block, d.Quant)
	} else if d.FFN%block != 0 {
		return fmt.Errorf("%w: --ffn %d, want a multiple of %d, the block of %s", ErrSettings, d.FFN, block, d.Quant)
	}
	return d.checkPaths()
}

// ascending reports whether there are numbers, from 1 to top, each greater than the one before.
func ascending(list []int, top int) bool {
	last := 0
	for _, n := range list {
		if n <= last || n > top {
			return false
		}
		last = n
	}
	return last > 0
}

// commas writes numbers as a flag has them.
func commas(list []int) string {
	if len(list) == 0 {
		return "0"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
}

// rttsMax is how many round trips one run compares: each has a swarm of its own.
const rttsMax = 8

func (d Dispatch) checkPaths() error {
	last := time.Duration(-1)
	for _, rtt := range d.RTTs {
		if rtt < 0 || rtt > rttMax {
			return fmt.Errorf("%w: --rtt %v, want 0 to %v", ErrSettings, rtt, rttMax)
		}
		if rtt <= last {
			return fmt.Errorf("%w: --rtt %v after %v, want ascending times", ErrSettings, rtt, last)
		}
		last = rtt
	}
	if len(d.RTTs) > rttsMax {
		return fmt.Errorf("%w: --rtt has %d times, want at most %d", ErrSettings, len(d.RTTs), rttsMax)
	}
	return d.Path.check(d.far())
}

// checkMemory refuses what this machine has no room for.
func (d Dispatch) checkMemory(weights int, available uint64) error {
	// Beside the layer: the answers to the largest batch, as 8-byte sums, those that are kept here and those
	// on the way, of which 6 were seen at once, and one more for each dispatch under way; the h of every pick;
	// and what the rate of memory is measured on.
	answers := 8
	if !d.Alone {
		answers += 2 * max(4, d.Flights)
	}
	if d.Worker != (Speed{}) {
		weights = 0
	}
	return checkMemory(d.Experts, weights, answers*d.Batch*d.Hidden*8+hBytes(d.Batch*d.TopK, d.FFN)+256<<20, available)
}

// hBytes returns how much memory the h of so many picks takes while a batch is computed.
func hBytes(picks, ffn int) int { return matmul.RecordsBytes(ffn, picks) }

// checkMemory refuses a layer with so many bytes of weights, and of what a run needs besides, that this
// machine has no room for. 0 bytes available: the system does not tell.
func checkMemory(experts, weights, besides int, available uint64) error {
	// Repacked weights are a little larger, and beside them are a few experts as they were, and the program.
	need := uint64(weights) + uint64(weights)/32 + 4*uint64(weights/experts) + uint64(besides) + 256<<20
	if available > 0 && need > available {
		return fmt.Errorf("%w: a layer of %d experts needs %.1f GB of memory, %.1f GB are available; lower --experts, or use --quick",
			ErrSettings, experts, float64(need)/1e9, float64(available)/1e9)
	}
	return nil
}
