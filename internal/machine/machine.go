// Package machine tells about the computer that the program runs on: its processor, caches and memory, as
// far as the system says, and how fast the memory is read, which it measures.
package machine

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// Facts are the computer as Kvasir sees it. What the system does not tell is empty or 0.
type Facts struct {
	CPU       string   `json:"cpu"`
	Cores     int      `json:"cores"`           // that the system has given to this process
	Threads   int      `json:"threads"`         // that Go will use: GOMAXPROCS
	Features  []string `json:"features"`        // of those that a kernel could use
	Memory    uint64   `json:"memory,omitzero"` // bytes, or the limit of this container if it is less
	Available uint64   `json:"available,omitzero"`
	Caches    []Cache  `json:"caches"` // without those of instructions; from the nearest on
	Nodes     []Node   `json:"numa"`
}

// Cache is a kind of cache, of which there are Count alike.
type Cache struct {
	Level  int    `json:"level"`
	Size   uint64 `json:"size"`   // bytes, of one
	Shared int    `json:"shared"` // processors, as the system counts them, that share one
	Count  int    `json:"count"`
}

// Node is processors with memory that is near to them.
type Node struct {
	ID     int    `json:"id"`
	CPUs   string `json:"cpus"` // as Linux writes it: 0-3,8-11
	Memory uint64 `json:"memory,omitzero"`
}

// Read asks the system.
func Read() Facts {
	m := Facts{
		CPU: cpuName(), Cores: runtime.NumCPU(), Threads: runtime.GOMAXPROCS(0),
		Features: features(),
	}
	if m.CPU == "" {
		m.CPU = "unnamed processor"
	}
	m.Memory, m.Available = memory()
	m.Caches, m.Nodes = caches(), nodes()
	return m
}

// features lists the instruction sets that matter to integer kernels, as the system calls them.
func features() []string {
	names := []string{}
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"sse4.1", cpu.X86.HasSSE41},
		{"avx2", cpu.X86.HasAVX2},
		{"fma", cpu.X86.HasFMA},
		{"f16c", cpu.X86.HasF16C},
		{"avxvnni", cpu.X86.HasAVXVNNI},
		{"avxvnniint8", cpu.X86.HasAVXVNNIInt8},
		{"avx512f", cpu.X86.HasAVX512F},
		{"avx512bw", cpu.X86.HasAVX512BW},
		{"avx512vl", cpu.X86.HasAVX512VL},
		{"avx512vnni", cpu.X86.HasAVX512VNNI},
		{"amxint8", cpu.X86.HasAMXInt8},
		{"asimd", cpu.ARM64.HasASIMD},
		{"asimdhp", cpu.ARM64.HasASIMDHP},
		{"asimddp", cpu.ARM64.HasASIMDDP},
		{"i8mm", cpu.ARM64.HasI8MM},
		{"sve", cpu.ARM64.HasSVE},
		{"sve2", cpu.ARM64.HasSVE2},
	} {
		if f.has {
			names = append(names, f.name)
		}
	}
	return names
}
