package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// small is a file with a value of every type, and tensors of three formats.
func small(t testing.TB, version uint32) []byte {
	t.Helper()
	w := Writer{Version: version}
	for i, v := range everyType() {
		w.Set(fmt.Sprintf("test.value_%d", i), v)
	}
	w.Add("a.weight", 0, []int{4, 3}, Bytes(bytes.Repeat([]byte{1}, 48)))
	w.Add("b.weight", 8, []int{64, 2, 2}, Bytes(bytes.Repeat([]byte{2}, 4*68)))
	w.Add("c.weight", 12, []int{256}, Bytes(bytes.Repeat([]byte{3}, 144)))
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func everyType() []any {
	return []any{
		uint8(200), int8(-100), uint16(60000), int16(-30000), uint32(4e9), int32(-2e9),
		uint64(1 << 63), int64(-1 << 62), float32(0.5), float64(0.25), true, "text", "",
		[]uint8{1, 2}, []int8{-1}, []uint16{3}, []int16{-3}, []uint32{4, 5}, []int32{-4, -5},
		[]uint64{6}, []int64{-6}, []float32{1.5}, []float64{2.5, 3.5}, []bool{true, false},
		[]string{"one", "", "three"}, []string{}, []uint32{},
	}
}

// smallFiles are what the tests of damage work on: small files, and the model that is shipped.
func smallFiles(t testing.TB) map[string][]byte {
	return map[string][]byte{
		"version 2":   small(t, 2),
		"version 3":   small(t, 3),
		"kvasir-tiny": readFile(t, tinyPath),
	}
}

func TestFileCutAnywhereInItsHeaderIsRefused(t *testing.T) {
	for name, data := range smallFiles(t) {
		t.Run(name, func(t *testing.T) {
			_, end := headerFields(data)
			const group = 64 // cuts that share the limit of one
			for first := 0; first < end; first += group {
				if testing.Short() && first/group%8 != 0 {
					continue // with the race detector all of them take minutes
				}
				n := allocated(func() {
					for cut := first; cut < min(first+group, end); cut++ {
						refuseCut(t, data[:cut:cut], end)
					}
				})
				if n > allocationLimit(first) {
					t.Fatalf("cuts from byte %d: %d bytes allocated, want at most %d", first, n, allocationLimit(first))
				}
			}
		})
	}
}

func refuseCut(t *testing.T, data []byte, end int) {
	t.Helper()
	want := ErrDamaged
	if len(data) < len(magic) {
		want = ErrNotGGUF
	}
	if _, err := Parse(data, "x.gguf"); !errors.Is(err, want) {
		t.Fatalf("cut at byte %d of a header of %d: %v, want %v", len(data), end, err, want)
	}
}

func TestFileCutInItsDataIsRefused(t *testing.T) {
	for name, data := range smallFiles(t) {
		t.Run(name, func(t *testing.T) {
			f := mustParse(t, data)
			for _, tensor := range f.Tensors {
				start := int(f.DataOffset) + int(tensor.Offset)
				for _, cut := range []int{start, start + 1, start + len(tensor.Data) - 1} {
					if _, err := Parse(data[:cut:cut], "x.gguf"); !errors.Is(err, ErrDamaged) {
						t.Errorf("cut at byte %d, in %s: %v, want ErrDamaged", cut, tensor.Name, err)
					}
				}
			}
		})
	}
}

func TestEveryCountAndLengthAtItsLargestIsRefused(t *testing.T) {
	values := []uint64{math.MaxUint64, 1 << 63, 1<<63 - 1, 1 << 31, math.MaxUint32, 1 << 61}
	for name, data := range smallFiles(t) {
		t.Run(name, func(t *testing.T) {
			data := bytes.Clone(data)
			fields, _ := headerFields(data)
			most := uint64(0)
			for i, f := range fields {
				if testing.Short() && i%16 != 0 {
					continue // as above
				}
				old := bytes.Clone(data[f.at : f.at+f.width])
				n := allocated(func() {
					for _, v := range values {
						f.set(data, v)
						if f.width == 4 && uint32(v) == 0 {
							continue // cut off by the width
						}
						if _, err := Parse(data, "x.gguf"); err == nil {
							t.Errorf("%s at byte %d set to %#x: no error", f.what, f.at, v)
						} else if strings.ContainsAny(err.Error(), "\n\r") {
							t.Errorf("%s at byte %d set to %#x: more than one line: %q", f.what, f.at, v, err)
						}
					}
				})
				copy(data[f.at:], old)
				if most = max(most, n); n > allocationLimit(len(data)) {
					t.Fatalf("%s at byte %d: %d bytes allocated, want at most %d", f.what, f.at, n, allocationLimit(len(data)))
				}
				if i%64 == 0 {
					mustParse(t, data) // put back as it was
				}
			}
			t.Logf("%d fields, %d values each; at most %d bytes allocated for a field", len(fields), len(values), most)
		})
	}
}

// The files that allocate most for their size: as many keys, tensors and strings as the limits allow,
// each as short as can be.
func TestHungriestFilesStayWithinTheAllocationLimit(t *testing.T) {
	keys := func() []byte {
		r := header(0, MaxMetadata)
		for i := range MaxMetadata {
			r = r.key(fmt.Sprintf("%x", i), Uint8).u8(1)
		}
		return r
	}
	tensors := func() []byte {
		r := header(MaxTensors, 0)
		for i := range uint64(MaxTensors) {
			r = r.tensor(fmt.Sprintf("%x", i), 0, 32*i, 1)
		}
		return r.pad().zeros(32 * MaxTensors)
	}
	lists := func() []byte {
		r := header(0, 2)
		for _, key := range []string{"tokenizer.ggml.tokens", "tokenizer.ggml.merges"} {
			r = r.key(key, Array).u32(uint32(String)).u64(MaxArray).zeros(8 * MaxArray)
		}
		return r
	}
	for name, data := range map[string][]byte{"keys": keys(), "tensors": tensors(), "strings": lists()} {
		t.Run(name, func(t *testing.T) {
			n := allocated(func() {
				f := mustParse(t, data)
				for _, kv := range f.Meta {
					if kv.Value.Type() == Array {
						if _, err := f.Strings(kv.Key); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
			if n > allocationLimit(len(data)) {
				t.Fatalf("%d bytes allocated for %d, want at most %d", n, len(data), allocationLimit(len(data)))
			}
			t.Logf("%d bytes allocated for %d", n, len(data))
		})
	}
}
