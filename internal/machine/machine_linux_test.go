package machine

import (
	"testing"
	"testing/fstest"
)

func TestLinuxCPUName(t *testing.T) {
	for _, c := range []struct {
		name string
		fs   fstest.MapFS
		want string
	}{
		{"x86", fstest.MapFS{"proc/cpuinfo": {Data: []byte("processor\t: 0\nmodel name\t: AMD EPYC 7763\nmodel name\t: other\n")}}, "AMD EPYC 7763"},
		{"phone", fstest.MapFS{"proc/cpuinfo": {Data: []byte("CPU part\t: 0xd41\nHardware\t: Qualcomm SM8350\n")}}, "Qualcomm SM8350"},
		{"board", fstest.MapFS{"sys/firmware/devicetree/base/model": {Data: []byte("Raspberry Pi 5 Model B\x00")}}, "Raspberry Pi 5 Model B"},
		{"nothing", fstest.MapFS{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := linuxCPUName(c.fs); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLinuxMemoryKeepsToTheContainer(t *testing.T) {
	info := &fstest.MapFile{Data: []byte("MemTotal:       8000 kB\nMemFree: 1 kB\nMemAvailable:   6000 kB\n")}
	const kB = 1 << 10
	for _, c := range []struct {
		name             string
		fs               fstest.MapFS
		total, available uint64
	}{
		{"bare", fstest.MapFS{"proc/meminfo": info}, 8000 * kB, 6000 * kB},
		{"no limit", fstest.MapFS{"proc/meminfo": info, "sys/fs/cgroup/memory.max": {Data: []byte("max\n")}}, 8000 * kB, 6000 * kB},
		{"limit", fstest.MapFS{
			"proc/meminfo":                 info,
			"sys/fs/cgroup/memory.max":     {Data: []byte("4096000\n")},
			"sys/fs/cgroup/memory.current": {Data: []byte("1024000\n")},
		}, 4000 * kB, 3000 * kB},
		{"limit that is overdrawn", fstest.MapFS{
			"proc/meminfo":                 info,
			"sys/fs/cgroup/memory.max":     {Data: []byte("4096000\n")},
			"sys/fs/cgroup/memory.current": {Data: []byte("5000000\n")},
		}, 4000 * kB, 0},
		{"limit of the first cgroups", fstest.MapFS{
			"proc/meminfo": info,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": {Data: []byte("4096000\n")},
		}, 4000 * kB, 4000 * kB},
		{"limit of the first cgroups that is none", fstest.MapFS{
			"proc/meminfo": info,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": {Data: []byte("9223372036854771712\n")},
		}, 8000 * kB, 6000 * kB},
		{"nothing", fstest.MapFS{}, 0, 0},
		{"nonsense", fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: lots\nMemAvailable\n")}}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			total, available := linuxMemory(c.fs)
			if total != c.total || available != c.available {
				t.Errorf("got %d and %d, want %d and %d", total, available, c.total, c.available)
			}
		})
	}
}
