package gguf

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// one is a file with one tensor of 32 floats, to be made wrong.
func one(name string, format uint32, offset uint64, dims ...uint64) raw {
	return header(1, 0).tensor(name, format, offset, dims...).pad().zeros(128)
}

func two(nameB string, offsetA, offsetB uint64) raw {
	return header(2, 0).tensor("a", 0, offsetA, 8).tensor(nameB, 0, offsetB, 8).pad().zeros(128)
}

func aligned(t Type, bytes ...byte) raw {
	return append(header(1, 1).key(alignmentKey, t), bytes...).tensor("a", 0, 0, 8).pad().zeros(128)
}

var refused = []struct {
	name string
	data raw
	is   error
	says string
}{
	{"magic alone", raw(magic), ErrDamaged, "4 bytes, and a header alone has 24"},
	{"version 0", raw(magic).u32(0).u64(0).u64(0), ErrUnsupported, "GGUF version 0, want 2 or 3"},
	{"version 1", raw(magic).u32(1).u32(1).u32(1).zeros(64), ErrUnsupported, "GGUF version 1, want 2 or 3; convert the model anew"},
	{"version 4", raw(magic).u32(4).u64(0).u64(0), ErrUnsupported, "GGUF version 4, want 2 or 3"},
	{"big-endian", append(raw(magic), 0, 0, 0, 3).zeros(64), ErrUnsupported, "big-endian GGUF version 3, want little-endian"},
	{"more tensors than the file has room for", header(3, 0).zeros(60), ErrDamaged, "tensors: 3 of them, each of 33 bytes or more, with 60 bytes left in the file"},
	{"more metadata than the file has room for", header(0, 3).zeros(20), ErrDamaged, "metadata: 3 of them"},
	{"more tensors than the limit", header(MaxTensors+1, 0).zeros(33 * (MaxTensors + 1)), ErrUnsupported, "65537 of them, at most 65536"},
	{"more metadata than the limit", header(0, MaxMetadata+1).zeros(14 * (MaxMetadata + 1)), ErrUnsupported, "65537 of them, at most 65536"},

	{"key without length", header(0, 1).str("").u32(4).u32(7), ErrDamaged, "metadata 1 of 1: key: 0 bytes long, want 1 to 65535"},
	{"key too long", header(0, 1).key(strings.Repeat("k", 65536), Uint8).u8(1), ErrDamaged, "key: 65536 bytes long"},
	{"key with a newline", header(0, 1).key("a\nb", Uint8).u8(1), ErrDamaged, `"a\nb" has a control character`},
	{"key that turns text around", header(0, 1).key("a\u202eb", Uint8).u8(1), ErrDamaged, `"a\u202eb" has a control character`},
	{"key not UTF-8", header(0, 1).key("a\xffb", Uint8).u8(1), ErrDamaged, `"a\xffb" is not UTF-8`},
	{"key twice", header(0, 2).key("a", Uint8).u8(1).key("a", Uint8).u8(1), ErrDamaged, `metadata 2 of 2: key "a" appears twice`},
	{"unknown type", header(0, 1).key("a", 13).zeros(8), ErrDamaged, `"a": value type 13 is unknown`},
	{"unknown type of an array", header(0, 1).key("a", Array).u32(99).u64(1).zeros(8), ErrDamaged, "value type 99 of an array is unknown"},
	{"array of arrays", header(0, 1).key("a", Array).u32(uint32(Array)).u64(1).zeros(32), ErrUnsupported, `"a": not supported: an array of arrays`},
	{"array longer than the file", header(0, 1).key("a", Array).u32(uint32(Uint64)).u64(2).zeros(15), ErrDamaged, "array of uint64: 2 of them, each of 8 bytes or more, with 15 bytes left"},
	{"array whose size wraps", header(0, 1).key("a", Array).u32(uint32(Uint64)).u64(1 << 61).zeros(64), ErrDamaged, "array of uint64: 2305843009213693952 of them"},
	{"array longer than the limit", header(0, 1).key("a", Array).u32(0).u64(MaxArray + 1).zeros(MaxArray + 1), ErrUnsupported, "1048577 of them, at most 1048576"},
	{"string longer than the file", header(0, 1).key("a", String).u64(9).zeros(8), ErrDamaged, "string of 9 bytes at byte 45, with 8 left"},
	{"string in an array longer than the file", header(0, 1).key("a", Array).u32(uint32(String)).u64(2).str("x").u64(5).zeros(4), ErrDamaged, "element 2 of 2: string of 5 bytes"},
	{"bool of 2", header(0, 1).key("a", Bool).u8(2), ErrDamaged, "bool of 2, want 0 or 1"},
	{"bool of 2 in an array", header(0, 1).key("a", Array).u32(uint32(Bool)).u64(2).u8(1).u8(2), ErrDamaged, "element 2 of 2: bool of 2"},

	{"alignment 0", aligned(Uint32, 0, 0, 0, 0), ErrDamaged, "general.alignment: 0, want a power of two from 8 to 1048576"},
	{"alignment 4", aligned(Uint32, 4, 0, 0, 0), ErrDamaged, "general.alignment: 4"},
	{"alignment 48", aligned(Uint32, 48, 0, 0, 0), ErrDamaged, "general.alignment: 48"},
	{"alignment 2^31", aligned(Uint32, 0, 0, 0, 128), ErrDamaged, "general.alignment: 2147483648"},
	{"alignment 2^32-1", aligned(Uint32, 255, 255, 255, 255), ErrDamaged, "general.alignment: 4294967295"},
	{"alignment of another type", aligned(Uint64, 32, 0, 0, 0, 0, 0, 0, 0), ErrDamaged, "general.alignment: is uint64, want uint32"},

	{"name without length", one("", 0, 0, 32), ErrDamaged, "tensor 1 of 1: name: 0 bytes long, want 1 to 64"},
	{"name too long", one(strings.Repeat("n", 65), 0, 0, 32), ErrDamaged, "name: 65 bytes long"},
	{"name with a control character", one("a\x1b[2J", 0, 0, 32), ErrDamaged, `"a\x1b[2J" has a control character`},
	{"name with a NUL", one("a\x00", 0, 0, 32), ErrDamaged, `"a\x00" has a control character`},
	{"name with a slash", one("../../etc/passwd", 0, 0, 32), ErrDamaged, `"../../etc/passwd": the name is a path`},
	{"name with a backslash", one(`..\x`, 0, 0, 32), ErrDamaged, "the name is a path"},
	{"name of dots", one("..", 0, 0, 32), ErrDamaged, "the name is a path"},
	{"name twice", two("a", 0, 32), ErrDamaged, `tensor 2 of 2: "a": appears twice`},

	{"no dimensions", one("a", 0, 0), ErrDamaged, `"a": 0 dimensions, want 1 to 4`},
	{"five dimensions", one("a", 0, 0, 1, 1, 1, 1, 1), ErrDamaged, "5 dimensions, want 1 to 4"},
	{"2^32-1 dimensions", header(1, 0).str("a").u32(math.MaxUint32).zeros(64), ErrDamaged, "4294967295 dimensions"},
	{"dimension 0", one("a", 0, 0, 32, 0), ErrDamaged, "dimension 2 is 0"},
	{"dimensions that wrap to 0", one("a", 0, 0, 1<<32, 1<<32), ErrDamaged, "dimensions [4294967296 4294967296] are too large"},
	{"dimensions that wrap to 32", one("a", 0, 0, 1<<63+16, 2), ErrDamaged, "are too large"},
	{"dimensions of 2^63", one("a", 0, 0, 1<<31, 1<<32), ErrDamaged, "are too large"},
	{"bytes that wrap", one("a", 0, 0, 1<<62), ErrDamaged, "F32[4611686018427387904] is too large"},
	{"not whole blocks", one("a", 12, 0, 100, 256), ErrDamaged, "rows of 100 values are not whole blocks of 256, as Q4_K has them"},
	{"removed format", one("a", 4, 0, 32), ErrUnsupported, `tensor 1 of 1: "a": not supported: format number 4 is unknown; give the model in F32, F16, `},
	{"unknown format", one("a", 1000, 0, 32), ErrUnsupported, "format number 1000 is unknown"},

	{"offset not aligned", one("a", 0, 8, 8), ErrDamaged, `"a": offset 8 is not a multiple of the alignment, 32`},
	{"offset past the end", one("a", 0, 160, 8), ErrDamaged, "offset 160, with 128 bytes of data in the file"},
	{"offset that wraps", one("a", 0, math.MaxUint64-31, 32), ErrDamaged, "offset 18446744073709551584"},
	{"data past the end", one("a", 0, 32, 32), ErrDamaged, "128 bytes of F32[32] at offset 32, with 96 bytes left"},
	{"data that a format makes too long", one("a", 8, 0, 128), ErrDamaged, "136 bytes of Q8_0[128] at offset 0, with 128 bytes left"},
	{"data missing altogether", header(1, 0).tensor("a", 0, 0, 8), ErrDamaged, "tensor data begins at byte 64 of 57"},
	{"the same data twice", two("b", 32, 32), ErrDamaged, `tensors "a" and "b" overlap at offset 32`},
	{"overlap by one value", header(2, 0).tensor("a", 0, 0, 9).tensor("b", 0, 32, 8).pad().zeros(128), ErrDamaged, `tensors "a" and "b" overlap at offset 32`},
	{"overlap", header(2, 0).tensor("a", 0, 32, 8).tensor("b", 0, 0, 16).pad().zeros(128), ErrDamaged, `tensors "b" and "a" overlap at offset 32`},
}

func TestParseRefuses(t *testing.T) {
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			f, err := Parse(c.data, "dir/x.gguf")
			if err == nil {
				t.Fatalf("no error; %d tensors, %d metadata", len(f.Tensors), len(f.Meta))
			}
			if !errors.Is(err, c.is) {
				t.Errorf("error is not %q: %v", c.is, err)
			}
			if msg := err.Error(); !strings.Contains(msg, c.says) || !strings.HasPrefix(msg, "dir/x.gguf: ") {
				t.Errorf("message %q, want it to begin with the file and to say %q", msg, c.says)
			}
		})
	}
}

// The files that the table above makes wrong are right without the fault.
func TestParseAcceptsWhatTheRefusedFilesStartFrom(t *testing.T) {
	for name, data := range map[string]raw{
		"one":                   one("a", 0, 0, 32),
		"two":                   two("b", 0, 32),
		"swapped":               two("b", 32, 0),
		"apart":                 two("b", 0, 96),
		"aligned":               aligned(Uint32, 32, 0, 0, 0),
		"align 8":               header(1, 1).key(alignmentKey, Uint32).u32(8).tensor("a", 0, 8, 2).pad().zeros(16),
		"nothing":               header(0, 0),
		"no padding at the end": header(1, 0).tensor("a", 0, 0, 2).pad().zeros(8),
	} {
		if _, err := Parse(data, "x.gguf"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
