package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"kvasir/kernels/cuda"
	"kvasir/kernels/variant"
)

func (r *doctorReport) processor() finding {
	text := fmt.Sprintf("%s, %s, %s/%s", r.Machine.CPU, plural(r.Machine.Cores, "core"), runtime.GOOS,
		runtime.GOARCH)
	if r.Machine.Threads != r.Machine.Cores {
		text += fmt.Sprintf(", of which %d may be used", r.Machine.Threads)
	}
	if n := len(r.Machine.Nodes); n > 1 {
		text += fmt.Sprintf(", %d NUMA nodes", n)
	}
	return finding{Check: "processor", Verdict: good, Text: text}
}

func (r *doctorReport) features() finding {
	if len(r.Machine.Features) == 0 {
		return finding{Check: "features", Verdict: good, Text: "none that a kernel could use"}
	}
	return finding{Check: "features", Verdict: good, Text: strings.Join(r.Machine.Features, " ")}
}

// leastMemory is what the built-in model takes with a full context, several times over.
const leastMemory = 256 << 20

func (r *doctorReport) memory() finding {
	m := r.Machine
	switch {
	case m.Memory == 0:
		return finding{"memory", note, "this system does not tell", ""}
	case m.Available == 0:
		return finding{"memory", good, size(m.Memory), ""}
	case m.Available < leastMemory:
		return finding{"memory", note, fmt.Sprintf("%s, only %s available", size(m.Memory), size(m.Available)),
			"close other programs before you run a large model"}
	}
	return finding{"memory", good, fmt.Sprintf("%s, %s available", size(m.Memory), size(m.Available)), ""}
}

// pinnedMemory is how much of the memory for rows and frames may be locked.
type pinnedMemory struct {
	Bytes int64  `json:"bytes"`
	Of    int64  `json:"of"` // as much as a busy worker has
	Why   string `json:"why,omitempty"`
}

// slabMemory is what a busy worker has in rows and frames: its window, the answers that wait, and some.
const slabMemory = 64 << 20

// pinned tries how much of that can be locked into memory. Kvasir works without: what is not locked may be
// swapped out, and a device copies it first.
func (r *doctorReport) pinned(probe func(int64) (int64, string)) finding {
	n, why := probe(slabMemory)
	r.Pinned = pinnedMemory{Bytes: n, Of: slabMemory, Why: why}
	if n >= slabMemory {
		return finding{"pinned", good, size(slabMemory) + " of memory for rows and frames can be locked", ""}
	}
	return finding{"pinned", note, fmt.Sprintf("%s of %s for rows and frames can be locked: %s", size(uint64(n)),
		size(slabMemory), why), "raise it with ulimit -l unlimited, or LimitMEMLOCK=infinity in a systemd unit; all works without"}
}

// caches names them level by level: L1d 8 x 32 KiB, L2 8 x 1 MiB, L3 2 x 32 MiB, each for 4 cores.
func (r *doctorReport) caches() finding {
	list := r.Machine.Caches
	if len(list) == 0 {
		return finding{"caches", good, "this system does not tell", ""}
	}
	kinds := make([]string, len(list))
	for i, c := range list {
		text := fmt.Sprintf("L%d ", c.Level)
		if c.Level == 1 {
			text = "L1d "
		}
		if c.Count > 1 {
			text += fmt.Sprintf("%d x ", c.Count)
		}
		text += binarySize(c.Size)
		// Threads of one core share all its caches: only what more of them share is worth a word.
		if c.Shared > list[0].Shared && c.Count > 1 {
			text += fmt.Sprintf(" (each for %d cores)", c.Shared)
		}
		kinds[i] = text
	}
	return finding{"caches", good, strings.Join(kinds, ", "), ""}
}

// binarySize writes the size of a cache as everybody does: 512 KiB.
func binarySize(n uint64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// readTime is how long memory is read.
const readTime = 300 * time.Millisecond

func (r *doctorReport) bandwidth(rate float64) finding {
	r.ReadRate = uint64(rate)
	if r.ReadRate == 0 {
		return finding{"bandwidth", note, "not measured: too little memory is available", ""}
	}
	return finding{"bandwidth", good, fmt.Sprintf("%s/s read from memory by %s", size(r.ReadRate),
		plural(r.Machine.Threads, "thread")), ""}
}

// kernel names what computes the experts.
func (r *doctorReport) kernel(c variant.Choice, err error) finding {
	for _, v := range variant.Available() {
		r.Kernels = append(r.Kernels, v.String())
	}
	if err != nil { // no command runs so
		return finding{"kernel", problem, err.Error(), "unset " + variant.Env}
	}
	r.Kernel = c.Variant.String()
	f := finding{"kernel", good, fmt.Sprintf("%s, %s", c.Variant, c.Why), ""}
	if len(r.Kernels) > 1 {
		f.Text += "; available: " + strings.Join(r.Kernels, ", ")
	}
	if best := r.Kernels[len(r.Kernels)-1]; r.Kernel != best {
		f.Verdict, f.Do = note, fmt.Sprintf("unset %s for %s", variant.Env, best)
	}
	return f
}

// gpus names each device, or why there are none. None is no problem: nothing needs one.
func (r *doctorReport) gpus(list []cuda.Device, err error) []finding {
	r.GPUs = append([]cuda.Device{}, list...)
	none := finding{"gpu", good, "none", ""}
	switch {
	case errors.Is(err, cuda.ErrNoDriver):
		none.Text = "none: no NVIDIA driver found"
	case errors.Is(err, cuda.ErrBuild):
		none.Text = "not looked for: only builds with cgo for Linux do"
	case errors.Is(err, cuda.ErrMismatch):
		none = finding{"gpu", note, "not known: the NVIDIA driver that is loaded and its library are of different versions",
			"restart the machine"}
	case err != nil:
		none = finding{"gpu", note, "not known: " + err.Error(), "see whether nvidia-smi works"}
	case len(list) == 0:
		none.Text = "none: the NVIDIA driver sees none"
	}
	if err != nil || len(list) == 0 {
		return []finding{none}
	}
	var out []finding
	for _, d := range list {
		out = append(out, gpuFinding(d))
	}
	return out
}

func gpuFinding(d cuda.Device) finding {
	if d.Problem != "" {
		return finding{"gpu", note, fmt.Sprintf("%s does not answer: %s", d.Name, d.Problem), "see whether nvidia-smi works"}
	}
	text := d.Name
	if d.Memory > 0 {
		text += ", " + size(d.Memory)
	}
	if d.NUMA >= 0 {
		text += fmt.Sprintf(", NUMA node %d", d.NUMA)
	}
	if d.PowerLimit > 0 {
		text += fmt.Sprintf(", up to %.0f W", d.PowerLimit)
	}
	if d.PCI != "" {
		text += ", at " + d.PCI
	}
	return finding{"gpu", good, text, ""}
}
