package machine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func cpuName() string {
	name, _ := unix.Sysctl("machdep.cpu.brand_string")
	return name
}

// memory returns how much memory there is. macOS has no one number for what is available.
func memory() (total, available uint64) {
	total, _ = unix.SysctlUint64("hw.memsize")
	return total, 0
}

// nodes are none: macOS runs on machines with one memory.
func nodes() []Node { return []Node{} }

func caches() []Cache {
	return sysctlCaches(func(name string) int {
		if n, err := unix.SysctlUint64(name); err == nil {
			return int(n)
		}
		n, _ := unix.SysctlUint32(name)
		return int(n)
	})
}

// sysctlCaches asks for the caches of each performance level, the fast cores first, or, on processors that
// have no levels, of all cores alike. What is not known is 0.
func sysctlCaches(get func(name string) int) []Cache {
	list := []Cache{}
	add := func(level, size, cpus, shared int) {
		if shared = max(1, shared); size > 0 && cpus > 0 {
			list = append(list, Cache{Level: level, Size: uint64(size), Shared: shared, Count: (cpus + shared - 1) / shared})
		}
	}
	levels := get("hw.nperflevels")
	for level := 1; level <= 3; level++ {
		name := [...]string{1: "l1dcachesize", 2: "l2cachesize", 3: "l3cachesize"}[level]
		per := [...]string{1: "cpusperl1", 2: "cpusperl2", 3: "cpusperl3"}[level]
		for p := range levels {
			of := fmt.Sprintf("hw.perflevel%d.", p)
			add(level, get(of+name), get(of+"logicalcpu"), get(of+per))
		}
		if levels == 0 {
			cpus := get("hw.logicalcpu")
			cores := max(1, get("hw.physicalcpu"))
			shared := cpus / cores
			if level == 3 {
				shared = cpus / max(1, get("hw.packages"))
			}
			add(level, get("hw."+name), cpus, shared)
		}
	}
	return list
}
