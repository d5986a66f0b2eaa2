package machine

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

func caches() []Cache { return linuxCaches(os.DirFS("/")) }

func nodes() []Node { return linuxNodes(os.DirFS("/")) }

// linuxCaches reads what each processor says of the caches that it uses. Processors that share one name the
// same list of processors.
func linuxCaches(root fs.FS) []Cache {
	dirs, _ := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*")
	seen := map[string]bool{}
	list := []Cache{}
	for _, dir := range dirs {
		if text(root, dir+"/type") == "Instruction" {
			continue
		}
		level, ok := number(root, dir+"/level")
		size := sizeOf(text(root, dir+"/size"))
		cpus := text(root, dir+"/shared_cpu_list")
		shared := processors(cpus)
		if !ok || size == 0 || shared == 0 {
			continue
		}
		if one := fmt.Sprintf("L%d of %s", level, cpus); seen[one] {
			continue
		} else {
			seen[one] = true
		}
		kind := Cache{Level: int(level), Size: size, Shared: shared, Count: 1}
		i := slices.IndexFunc(list, func(c Cache) bool {
			return c.Level == kind.Level && c.Size == kind.Size && c.Shared == kind.Shared
		})
		if i < 0 {
			list = append(list, kind)
		} else {
			list[i].Count++
		}
	}
	slices.SortFunc(list, func(a, b Cache) int {
		return cmp.Or(a.Level-b.Level, cmp.Compare(b.Size, a.Size), a.Shared-b.Shared)
	})
	return list
}

// linuxNodes reads the nodes that there are.
func linuxNodes(root fs.FS) []Node {
	dirs, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*")
	list := []Node{}
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(dir, "sys/devices/system/node/node"))
		if err != nil {
			continue
		}
		info := text(root, dir+"/meminfo")
		total := field(info, fmt.Sprintf("Node %d MemTotal", id))
		list = append(list, Node{ID: id, CPUs: text(root, dir+"/cpulist"), Memory: kilobytes(total)})
	}
	slices.SortFunc(list, func(a, b Node) int { return a.ID - b.ID })
	return list
}

// text reads a file without the line end; a file that is not there is empty.
func text(root fs.FS, name string) string {
	data, _ := fs.ReadFile(root, name)
	return strings.TrimSpace(string(data))
}

// sizeOf reads the size of a cache: 32K.
func sizeOf(s string) uint64 {
	for unit, shift := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseUint(digits, 10, 63-shift)
			if err != nil {
				return 0
			}
			return n << shift
		}
	}
	return 0
}

// processors counts a list of them: 0-3,8 are 5. A list that is none counts 0.
func processors(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 31)
		last, err2 := strconv.ParseUint(to, 10, 31)
		if err1 != nil || err2 != nil || last < first {
			return 0
		}
		n += int(last-first) + 1
	}
	return n
}
