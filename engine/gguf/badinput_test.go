package gguf

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// badInput has one file, or model of two parts, of each kind that readers of GGUF are known to have
// fallen over: crashed, read beyond the end, allocated gigabytes, or written where a name led them.
// The tables of refuse_test.go and split_test.go try the same and more without files.
var badInput = []struct {
	kind  string
	files []raw // two are parts of a model
	is    error
}{
	{"a file of 4 bytes", []raw{raw(magic)}, ErrDamaged},
	{"count of tensors that overflows", []raw{header(math.MaxUint64, 0).zeros(64)}, ErrDamaged},
	{"count of tensors whose bytes overflow", []raw{header(math.MaxUint64/minTensor+2, 0).zeros(64)}, ErrDamaged},
	{"count of metadata that overflows", []raw{header(0, 1<<63).zeros(64)}, ErrDamaged},
	{"length of a key that overflows", []raw{header(0, 1).u64(math.MaxUint64).zeros(64)}, ErrDamaged},
	{"length of a string that overflows", []raw{header(0, 1).key("a", String).u64(math.MaxUint64 - 44).zeros(64)}, ErrDamaged},
	{"length of a string of gigabytes", []raw{header(0, 1).key("a", String).u64(1 << 34).zeros(64)}, ErrDamaged},
	{"length of an array that overflows", []raw{header(0, 1).key("a", Array).u32(uint32(Uint32)).u64(1 << 62).zeros(64)}, ErrDamaged},
	{"array of strings of gigabytes", []raw{header(0, 1).key("a", Array).u32(uint32(String)).u64(1 << 31).zeros(64)}, ErrDamaged},
	{"length of a name that overflows", []raw{header(1, 0).u64(1 << 63).zeros(64)}, ErrDamaged},
	{"dimensions whose product overflows", []raw{one("a", 0, 0, 1<<40, 1<<40)}, ErrDamaged},
	{"bytes that overflow", []raw{one("a", 0, 0, 1<<62)}, ErrDamaged},
	{"offset past the end", []raw{one("a", 0, 1<<40, 8)}, ErrDamaged},
	{"offset that wraps", []raw{one("a", 0, math.MaxUint64-31, 32)}, ErrDamaged},
	{"data past the end", []raw{one("a", 0, 96, 32)}, ErrDamaged},
	{"alignment 0", []raw{aligned(Uint32, 0, 0, 0, 0)}, ErrDamaged},
	{"padding that wraps", []raw{aligned(Uint32, 0, 0, 0, 128)}, ErrDamaged},
	{"zero dimension", []raw{one("a", 0, 0, 0)}, ErrDamaged},
	{"no dimensions", []raw{one("a", 0, 0)}, ErrDamaged},
	{"too many dimensions", []raw{header(1, 0).str("a").u32(math.MaxUint32).zeros(128)}, ErrDamaged},
	{"array of unknown type", []raw{header(0, 1).key("a", Array).u32(255).u64(1).zeros(64)}, ErrDamaged},
	{"value of unknown type", []raw{header(0, 1).key("a", 255).zeros(64)}, ErrDamaged},
	{"array of arrays", []raw{header(0, 1).key("a", Array).u32(uint32(Array)).u64(1 << 40).zeros(64)}, ErrUnsupported},
	{"format that does not exist", []raw{one("a", 1<<31, 0, 32)}, ErrUnsupported},
	{"tensor named as a path", []raw{one("../../../etc/cron.d/x", 0, 0, 32)}, ErrDamaged},
	{"tensor named as a path of Windows", []raw{one(`C:\x`, 0, 0, 32)}, ErrDamaged},

	{"count of parts that overflows", []raw{inPart(math.MaxUint64, 0, 1)}, ErrDamaged},
	{"number of a part that overflows", []raw{inPart(2, math.MaxUint64, 1)}, ErrDamaged},
	{"part that names another by a path", []raw{header(0, 3).key(splitCount, Uint32).u32(2).
		key(splitNo, String).str("../../etc/passwd").key(splitTensors, Uint32).u32(1).zeros(64)}, ErrDamaged},
	{"parts whose count of tensors overflows", []raw{inPart(2, 0, math.MaxUint64), inPart(2, 1, 1)}, ErrDamaged},
	{"second part of 4 bytes", []raw{inPart(2, 0, 1), raw(magic)}, ErrDamaged},
	{"second part with an offset past the end", []raw{inPart(2, 0, 1), one("b", 0, 1<<40, 8)}, ErrDamaged},
	{"second part with a tensor named as a path", []raw{inPart(2, 0, 1), one("../b", 0, 0, 8)}, ErrDamaged},
	{"second part that is a whole file", []raw{inPart(2, 0, 1), one("b", 0, 0, 8)}, ErrParts},
	{"tensor in both parts", []raw{inPart(2, 0, 2), inPart(2, 1, 2)}, ErrParts},
}

// inPart is a part with one tensor, "a".
func inPart(count, no, tensors uint64) raw {
	r := header(1, 3).key(splitCount, Uint64).u64(count).key(splitNo, Uint64).u64(no).key(splitTensors, Uint64).u64(tensors)
	return r.tensor("a", 0, 0, 8).pad().zeros(32)
}

func TestEveryKindOfBadFileIsRefused(t *testing.T) {
	for _, c := range badInput {
		t.Run(c.kind, func(t *testing.T) {
			prefix := filepath.Join(t.TempDir(), "m")
			size := 0
			for i, data := range c.files {
				size += len(data)
				if err := os.WriteFile(PartName(prefix, i+1, 2), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			n := allocated(func() { _, err = Open(PartName(prefix, 1, 2)) })
			if !errors.Is(err, c.is) {
				t.Errorf("%v, want %v", err, c.is)
			}
			if n > allocationLimit(size) {
				t.Errorf("%d bytes allocated for %d", n, size)
			}
		})
	}
}
