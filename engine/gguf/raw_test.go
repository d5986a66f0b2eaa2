package gguf

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
)

const tinyPath = "../tiny/kvasir-tiny-q4_k_m.gguf"

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustParse(t testing.TB, data []byte) *File {
	t.Helper()
	f, err := Parse(data, "x.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// raw builds a file piece by piece, and lets everything through that Writer refuses.
type raw []byte

func (r raw) u8(v byte) raw    { return append(r, v) }
func (r raw) u32(v uint32) raw { return binary.LittleEndian.AppendUint32(r, v) }
func (r raw) u64(v uint64) raw { return binary.LittleEndian.AppendUint64(r, v) }
func (r raw) str(s string) raw { return append(r.u64(uint64(len(s))), s...) }
func (r raw) zeros(n int) raw  { return append(r, make([]byte, n)...) }

// header begins a file of version 3.
func header(tensors, metadata uint64) raw {
	return raw(magic).u32(3).u64(tensors).u64(metadata)
}

// key begins a piece of metadata; the value follows.
func (r raw) key(key string, t Type) raw { return r.str(key).u32(uint32(t)) }

// tensor describes a tensor.
func (r raw) tensor(name string, format uint32, offset uint64, dims ...uint64) raw {
	r = r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r = r.u64(d)
	}
	return r.u32(format).u64(offset)
}

// pad fills up to the default alignment.
func (r raw) pad() raw { return r.zeros(-len(r) & (defaultAlignment - 1)) }

// field is a number in a header.
type field struct {
	what      string
	at, width int
}

func (f field) set(data []byte, v uint64) {
	if f.width == 4 {
		binary.LittleEndian.PutUint32(data[f.at:], uint32(v))
	} else {
		binary.LittleEndian.PutUint64(data[f.at:], v)
	}
}

// headerFields finds every count, length, type, dimension and offset in the header of a file that is
// whole, and where the header ends: a reader that trusts everything, to check the one that does not.
func headerFields(data []byte) (fields []field, end int) {
	pos := 8
	u32 := func(what string) int {
		fields = append(fields, field{what, pos, 4})
		pos += 4
		return int(binary.LittleEndian.Uint32(data[pos-4:]))
	}
	u64 := func(what string) int {
		fields = append(fields, field{what, pos, 8})
		pos += 8
		return int(binary.LittleEndian.Uint64(data[pos-8:]))
	}
	str := func(what string) { pos += u64(what) }
	tensors, metadata := u64("tensor count"), u64("metadata count")
	for range metadata {
		str("key length")
		switch typ := Type(u32("value type")); typ {
		case String:
			str("string length")
		case Array:
			elem := Type(u32("element type"))
			n := u64("array length")
			for range n {
				if elem == String {
					str("length of a string in an array")
				} else {
					pos += int(elem.size())
				}
			}
		default:
			pos += int(typ.size())
		}
	}
	for range tensors {
		str("name length")
		for range u32("number of dimensions") {
			u64("dimension")
		}
		u32("format")
		u64("offset")
	}
	return fields, pos
}

// allocated is the bytes that f allocates, freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// allocationLimit is what reading a file may allocate.
func allocationLimit(size int) uint64 { return uint64(size) + 64<<20 }
