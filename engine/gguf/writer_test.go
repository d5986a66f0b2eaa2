package gguf

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"kvasir/kernels/quant"
)

// The bytes of a small file, so that a mistake that Writer and Parse share is seen.
const golden = `
	47 47 55 46  03 00 00 00                            magic, version
	02 00 00 00 00 00 00 00  03 00 00 00 00 00 00 00    tensors, metadata
	01 00 00 00 00 00 00 00  61                         key "a"
	08 00 00 00  02 00 00 00 00 00 00 00  68 69         string "hi"
	01 00 00 00 00 00 00 00  62                         key "b"
	09 00 00 00  08 00 00 00  02 00 00 00 00 00 00 00   array of 2 strings
	01 00 00 00 00 00 00 00  78                         "x"
	00 00 00 00 00 00 00 00                             ""
	11 00 00 00 00 00 00 00  67 65 6e 65 72 61 6c 2e 61 6c 69 67 6e 6d 65 6e 74    key "general.alignment"
	04 00 00 00  10 00 00 00                            uint32 16
	01 00 00 00 00 00 00 00  74  02 00 00 00            tensor "t", 2 dimensions
	03 00 00 00 00 00 00 00  01 00 00 00 00 00 00 00    3, 1
	00 00 00 00  00 00 00 00 00 00 00 00                F32, offset 0
	01 00 00 00 00 00 00 00  75  01 00 00 00            tensor "u", 1 dimension
	02 00 00 00 00 00 00 00                             2
	1e 00 00 00  10 00 00 00 00 00 00 00                BF16, offset 16
	00 00 00 00 00 00 00 00 00 00 00 00                 padding
	01 02 03 04 05 06 07 08 09 0a 0b 0c  00 00 00 00    t, padding
	0d 0e 0f 10  00 00 00 00 00 00 00 00 00 00 00 00    u, padding
`

func goldenBytes(t *testing.T) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(golden) {
		for _, word := range strings.Fields(line) {
			if _, err := hex.DecodeString(word); err != nil || len(word) != 2 {
				break // a remark
			}
			digits.WriteString(word)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWriterWritesTheGoldenFile(t *testing.T) {
	var w Writer
	w.Set("a", "hi")
	w.Set("b", []string{"x", ""})
	w.Set("general.alignment", uint32(16))
	w.Add("t", quant.F32, []int{3, 1}, Bytes([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}))
	w.Add("u", quant.BF16, []int{2}, Bytes([]byte{13, 14, 15, 16}))
	want := goldenBytes(t)
	for range 2 { // the second time as the first
		var out bytes.Buffer
		n, err := w.WriteTo(&out)
		if err != nil || n != int64(len(want)) || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%d bytes, %v\ngot  % x\nwant % x", n, err, out.Bytes(), want)
		}
	}
	f := mustParse(t, want)
	if f.Alignment != 16 || len(f.Meta) != 3 || !bytes.Equal(f.Tensors[1].Data, []byte{13, 14, 15, 16}) {
		t.Errorf("parsed as %+v", f)
	}
}

// rewrite writes a parsed file again.
func rewrite(t testing.TB, f *File) []byte {
	t.Helper()
	w := Writer{Version: f.Version}
	for _, kv := range f.Meta {
		w.Set(kv.Key, kv.Value)
	}
	for _, x := range f.Tensors {
		w.Add(x.Name, x.Format, x.Dims, Bytes(x.Data))
	}
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRewrittenFilesAreTheSameByteForByte(t *testing.T) {
	files := smallFiles(t)
	for _, mini := range []string{"mini3-q8_0", "mini3k-q4_k_m", "mini35-f32"} {
		files[mini] = readFile(t, "../model/testdata/mini/"+mini+".gguf")
	}
	for name, data := range files {
		if got := rewrite(t, mustParse(t, data)); !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes rewritten as %d, or others", name, len(data), len(got))
		}
	}
}

func TestEveryTypeComesBackAsWritten(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		f := mustParse(t, small(t, version))
		if f.Version != version {
			t.Errorf("version %d, want %d", f.Version, version)
		}
		for i, want := range everyType() {
			v, err := NewValue(want)
			if err != nil {
				t.Fatal(err)
			}
			got := f.Meta[i].Value
			if got.typ != v.typ || got.elem != v.elem || got.n != v.n || !bytes.Equal(got.raw, v.raw) {
				t.Errorf("%T %v came back as %s %s", want, want, got.TypeName(), got)
			}
		}
		if text, err := f.String("test.value_11"); err != nil || text != "text" {
			t.Errorf("%q, %v", text, err)
		}
	}
}

func TestAlignmentIsWhatTheMetadataSays(t *testing.T) {
	for _, alignment := range []uint32{8, 64, 4096, MaxAlignment} {
		var w Writer
		w.Set("general.alignment", alignment)
		w.Add("a", quant.F32, []int{1}, Bytes([]byte{1, 2, 3, 4}))
		w.Add("b", quant.F32, []int{1}, Bytes([]byte{5, 6, 7, 8}))
		var out bytes.Buffer
		if _, err := w.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		f := mustParse(t, out.Bytes())
		if f.DataOffset%int64(alignment) != 0 || f.Tensors[1].Offset != uint64(alignment) ||
			!bytes.Equal(f.Tensors[1].Data, []byte{5, 6, 7, 8}) {
			t.Errorf("alignment %d: data at %d, b at %d: % x", alignment, f.DataOffset, f.Tensors[1].Offset, f.Tensors[1].Data)
		}
	}
}

func TestWriterStreamsTensorData(t *testing.T) {
	const piece, pieces = 1 << 16, 1 << 10 // 64 MiB
	var w Writer
	w.Add("large", quant.F32, []int{piece / 4, pieces}, func(out io.Writer) error {
		b := make([]byte, piece)
		for range pieces {
			if _, err := out.Write(b); err != nil {
				return err
			}
		}
		return nil
	})
	n := allocated(func() {
		if size, err := w.WriteTo(io.Discard); err != nil || size < piece*pieces {
			t.Errorf("%d bytes, %v", size, err)
		}
	})
	if n > 1<<20 {
		t.Errorf("%d bytes allocated, want at most %d", n, 1<<20)
	}
}

func TestWriterRefusesWhatParseWould(t *testing.T) {
	data := Bytes(make([]byte, 128))
	for _, c := range []struct {
		name string
		fill func(w *Writer)
		says string
	}{
		{"key without length", func(w *Writer) { w.Set("", "x") }, `write metadata "": name of 0 bytes, want 1 to 65535`},
		{"key twice", func(w *Writer) { w.Set("k", "x"); w.Set("k", "x") }, `write metadata "k": appears twice`},
		{"key with a newline", func(w *Writer) { w.Set("k\n", "x") }, "control character"},
		{"int without a size", func(w *Writer) { w.Set("k", 1) }, "wrong type: a int cannot be metadata"},
		{"nothing", func(w *Writer) { w.Set("k", nil) }, "wrong type: a <nil> cannot be metadata"},
		{"nested", func(w *Writer) { w.Set("k", [][]uint8{{1}}) }, "wrong type: a [][]uint8 cannot be metadata"},
		{"array too long", func(w *Writer) { w.Set("k", make([]uint8, MaxArray+1)) }, "array of 1048577 elements, at most 1048576"},
		{"strings too many", func(w *Writer) { w.Set("k", make([]string, MaxArray+1)) }, "array of 1048577 elements"},
		{"alignment 48", func(w *Writer) { w.Set("general.alignment", uint32(48)) }, "48, want a power of two"},
		{"alignment of another type", func(w *Writer) { w.Set("general.alignment", uint64(32)) }, "is uint64, want uint32"},
		{"name too long", func(w *Writer) { w.Add(strings.Repeat("n", 65), 0, []int{32}, data) }, "name of 65 bytes, want 1 to 64"},
		{"name twice", func(w *Writer) { w.Add("a", 0, []int{32}, data); w.Add("a", 0, []int{32}, data) }, `write tensor "a": appears twice`},
		{"name with a slash", func(w *Writer) { w.Add("a/b", 0, []int{32}, data) }, "the name is a path"},
		{"no dimensions", func(w *Writer) { w.Add("a", 0, nil, data) }, "0 dimensions, want 1 to 4"},
		{"dimension 0", func(w *Writer) { w.Add("a", 0, []int{32, 0}, data) }, "dimension 2 is 0"},
		{"dimension negative", func(w *Writer) { w.Add("a", 0, []int{-32}, data) }, "dimension 1 is 0"},
		{"not whole blocks", func(w *Writer) { w.Add("a", 8, []int{33}, data) }, "not whole blocks of 32, as Q8_0"},
		{"unknown format", func(w *Writer) { w.Add("a", 99, []int{32}, data) }, "format number 99 is unknown"},
		{"too large", func(w *Writer) { w.Add("a", 0, []int{1 << 60, 2}, data) }, "too large"},
		{"too little data", func(w *Writer) { w.Add("a", 0, []int{33}, data) }, `write tensor "a": 128 bytes written, want 132`},
		{"too much data", func(w *Writer) { w.Add("a", 0, []int{31}, data) }, `write tensor "a": 128 bytes written, want 124`},
		{"version", func(w *Writer) { w.Version = 1 }, "write GGUF version 1, want 2 or 3"},
	} {
		var w Writer
		c.fill(&w)
		w.Set("after", "the fault")
		if _, err := w.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

func TestWriterReturnsTheErrorsOfBothItsEnds(t *testing.T) {
	errData := errors.New("no more data")
	var w Writer
	w.Add("a", 0, []int{32}, func(io.Writer) error { return errData })
	if _, err := w.WriteTo(io.Discard); !errors.Is(err, errData) {
		t.Errorf("%v, want %v", err, errData)
	}
	w = Writer{}
	w.Add("a", 0, []int{1 << 20}, Bytes(make([]byte, 4<<20)))
	for _, after := range []int64{0, 10, 1 << 20} {
		out := &fullAfter{left: after}
		if _, err := w.WriteTo(out); !errors.Is(err, errFull) {
			t.Errorf("full after %d bytes: %v", after, err)
		}
	}
}

var errFull = errors.New("disk full")

type fullAfter struct{ left int64 }

func (w *fullAfter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, errFull
	}
	w.left -= int64(len(p))
	return len(p), nil
}

func TestWriterKeepsTheLimits(t *testing.T) {
	var w Writer
	for i := range MaxMetadata + 1 {
		w.Set(fmt.Sprint(i), true)
	}
	if _, err := w.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), `"65536": one more than 65536`) {
		t.Error(err)
	}
	w = Writer{}
	for i := range MaxTensors + 1 {
		w.Add(fmt.Sprint(i), quant.F32, []int{1}, Bytes(make([]byte, 4)))
	}
	if _, err := w.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), `"65536": one more than 65536`) {
		t.Error(err)
	}
}

func TestNewValueKeepsAValue(t *testing.T) {
	v, err := NewValue([]uint16{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewValue(v)
	if err != nil || again.TypeName() != "array of uint16" || again.Len() != 2 || again.Type() != Array ||
		!slices.Equal(again.raw, []byte{1, 0, 2, 0}) {
		t.Errorf("%+v, %v", again, err)
	}
}
