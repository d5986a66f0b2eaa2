package machine

import (
	"fmt"
	"slices"
	"testing"
	"testing/fstest"
)

// cpus makes the files of processors that share their caches so.
func cpus(n int, caches func(cpu int) [][4]string) fstest.MapFS {
	files := fstest.MapFS{"sys/devices/system/cpu/cpufreq/x": {}, "sys/devices/system/cpu/online": {}}
	for cpu := range n {
		for i, c := range caches(cpu) {
			for j, name := range []string{"level", "type", "size", "shared_cpu_list"} {
				path := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, i, name)
				files[path] = &fstest.MapFile{Data: []byte(c[j] + "\n")}
			}
		}
	}
	return files
}

func TestLinuxCaches(t *testing.T) {
	for _, c := range []struct {
		name string
		fs   fstest.MapFS
		want []Cache
	}{
		{"two threads a core", cpus(16, func(cpu int) [][4]string {
			core := fmt.Sprintf("%d,%d", cpu%8, cpu%8+8)
			half := []string{"0-3,8-11", "4-7,12-15"}[cpu/4%2]
			return [][4]string{{"1", "Data", "48K", core}, {"1", "Instruction", "32K", core},
				{"2", "Unified", "2048K", core}, {"3", "Unified", "32M", half}}
		}), []Cache{{1, 48 << 10, 2, 8}, {2, 2 << 20, 2, 8}, {3, 32 << 20, 8, 2}}},
		{"large and small cores", cpus(3, func(cpu int) [][4]string {
			size := []string{"32K", "64K", "32K"}[cpu]
			return [][4]string{{"1", "Data", size, fmt.Sprint(cpu)}}
		}), []Cache{{1, 64 << 10, 1, 1}, {1, 32 << 10, 1, 2}}},
		{"no size, as on many arm machines", cpus(2, func(cpu int) [][4]string {
			return [][4]string{{"1", "Data", "", fmt.Sprint(cpu)}}
		}), nil},
		{"nonsense", cpus(1, func(int) [][4]string {
			return [][4]string{{"one", "Data", "1K", "0"}, {"1", "Data", "1Q", "0"}, {"1", "Data", "-1K", "0"},
				{"1", "Data", "1K", "3-1"}, {"1", "Data", "1K", "0-"}, {"1", "Data", "99999999999999999G", "0"}}
		}), nil},
		{"nothing", fstest.MapFS{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := linuxCaches(c.fs)
			if got == nil || !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestLinuxNodes(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const dir = "sys/devices/system/node/"
	got := linuxNodes(fstest.MapFS{
		dir + "online":          file("0-10\n"),
		dir + "node10/cpulist":  file("\n"),
		dir + "node2/cpulist":   file("4-7\n"),
		dir + "node2/meminfo":   file("Node 2 MemTotal:       1000 kB\nNode 2 MemFree: 1 kB\n"),
		dir + "node0/cpulist":   file("0-3\n"),
		dir + "node0x9/cpulist": file("0-3\n"),
	})
	want := []Node{{0, "0-3", 0}, {2, "4-7", 1000 << 10}, {10, "", 0}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if none := linuxNodes(fstest.MapFS{}); none == nil || len(none) != 0 {
		t.Errorf("nodes of nothing: %#v", none)
	}
}
