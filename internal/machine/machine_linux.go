package machine

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
)

func cpuName() string { return linuxCPUName(os.DirFS("/")) }

func memory() (total, available uint64) { return linuxMemory(os.DirFS("/")) }

// linuxCPUName reads the name that the kernel gives: of the processor on x86, of the board or phone
// on arm, where processors have only numbers.
func linuxCPUName(root fs.FS) string {
	info, _ := fs.ReadFile(root, "proc/cpuinfo")
	for _, key := range []string{"model name", "Hardware", "Model"} {
		if name := field(string(info), key); name != "" {
			return name
		}
	}
	board, _ := fs.ReadFile(root, "sys/firmware/devicetree/base/model")
	return strings.TrimRight(string(board), "\x00\n")
}

// linuxMemory reads how much memory there is and how much of it can be had without swapping, both
// within the limit of this container.
func linuxMemory(root fs.FS) (total, available uint64) {
	info, _ := fs.ReadFile(root, "proc/meminfo")
	total = kilobytes(field(string(info), "MemTotal"))
	available = kilobytes(field(string(info), "MemAvailable"))
	for _, group := range [][2]string{
		{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"},
		{"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, ok := number(root, group[0])
		if !ok || limit >= total {
			continue
		}
		total = limit
		if used, ok := number(root, group[1]); ok {
			available = min(available, limit-min(used, limit))
		}
		available = min(available, limit)
	}
	return total, available
}

// field returns the value of the first line "key : value".
func field(text, key string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func kilobytes(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSuffix(s, " kB"), 10, 54)
	if err != nil {
		return 0
	}
	return n << 10
}

// number reads a file that holds one number; "max" is none.
func number(root fs.FS, name string) (uint64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
