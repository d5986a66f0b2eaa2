package gguf

import (
	"bytes"
	"testing"
)

// FuzzParse reads arbitrary bytes. Nothing panics or allocates beyond the limit; what is accepted
// keeps the invariants of File, can be read in every way, and is the same file after it was written.
func FuzzParse(f *testing.F) {
	f.Add(small(f, 2))
	f.Add(small(f, 3))
	f.Add([]byte(header(0, 0)))
	for _, c := range refused {
		if len(c.data) < 1<<12 {
			f.Add([]byte(c.data))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := allocated(func() {
			if file, err := Parse(data, "x.gguf"); err == nil {
				checkFile(t, file, data)
			}
		})
		if n > allocationLimit(len(data)) {
			t.Errorf("%d bytes allocated for %d", n, len(data))
		}
		if file, err := Parse(data, "x.gguf"); err == nil {
			checkRewritten(t, file)
		}
	})
}

func checkFile(t *testing.T, f *File, data []byte) {
	t.Helper()
	used := make([]bool, len(data))
	for _, x := range f.Tensors {
		values, size := block(x.Format)
		if x.Dims[0]%values != 0 || x.Values()/values*size != len(x.Data) || x.Offset%f.Alignment != 0 {
			t.Errorf("%s: %s%s of %d bytes at %d", x.Name, x.Format, x.Shape(), len(x.Data), x.Offset)
		}
		for i := range x.Data {
			at := int(f.DataOffset) + int(x.Offset) + i
			if used[at] {
				t.Fatalf("%s: byte %d is another tensor's too", x.Name, at)
			}
			used[at] = true
		}
		_, _ = f.Tensor(x.Name)
	}
	for _, kv := range f.Meta {
		for _, get := range getters {
			_, _ = get(f, kv.Key)
		}
	}
	_ = f.Describe()
	_ = f.Check()
}

func checkRewritten(t *testing.T, f *File) {
	t.Helper()
	once := rewrite(t, f)
	again := mustParse(t, once)
	if len(again.Meta) != len(f.Meta) || len(again.Tensors) != len(f.Tensors) {
		t.Fatalf("%d metadata and %d tensors became %d and %d", len(f.Meta), len(f.Tensors), len(again.Meta), len(again.Tensors))
	}
	for i, kv := range f.Meta {
		if got := again.Meta[i]; got.Key != kv.Key || !bytes.Equal(got.Value.raw, kv.Value.raw) {
			t.Errorf("metadata %q came back as %q: %s", kv.Key, got.Key, got.Value)
		}
	}
	for i, x := range f.Tensors {
		if got := again.Tensors[i]; got.Name != x.Name || got.Shape() != x.Shape() || !bytes.Equal(got.Data, x.Data) {
			t.Errorf("tensor %q %s came back as %q %s", x.Name, x.Shape(), got.Name, got.Shape())
		}
	}
	if !bytes.Equal(rewrite(t, again), once) {
		t.Error("written twice, two files")
	}
}
