package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parseParts is Open without files: parts named as they stand in the list.
func parseParts(list ...[]byte) (*File, error) {
	r := newRoom()
	parts := make([]*File, len(list))
	for i, data := range list {
		var err error
		if parts[i], err = parse(data, fmt.Sprintf("x-%d", i+1), r); err != nil {
			return nil, err
		}
	}
	return join(parts)
}

// splitTiny is kvasir-tiny in parts, on disk.
func splitTiny(t testing.TB, count int) (paths []string, whole *File) {
	t.Helper()
	whole = mustParse(t, readFile(t, tinyPath))
	paths, err := whole.WriteParts(filepath.Join(t.TempDir(), "tiny"), count)
	if err != nil {
		t.Fatal(err)
	}
	return paths, whole
}

func TestOpenOfAnyPartOpensAll(t *testing.T) {
	for _, count := range []int{1, 2, 3, 7} {
		paths, whole := splitTiny(t, count)
		for _, path := range paths {
			f, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			checkParts(t, f, whole, paths)
			f.Forget(f.Tensors[len(f.Tensors)-1].Data)
			checkParts(t, f, whole, paths)
			if err := f.Check(); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil || len(f.unmap) != 0 {
				t.Errorf("close: %v", err)
			}
		}
	}
}

// checkParts holds f to be whole in the parts of paths.
func checkParts(t *testing.T, f, whole *File, paths []string) {
	t.Helper()
	if f.Name != paths[0] || len(f.Parts) != len(paths) || len(f.unmap) != len(paths) || len(f.Meta) != len(whole.Meta)+3 {
		t.Fatalf("%s: %d parts, %d mappings, %d metadata", f.Name, len(f.Parts), len(f.unmap), len(f.Meta))
	}
	size, tensors := int64(0), 0
	for i, p := range f.Parts {
		size, tensors = size+p.Size, tensors+p.Tensors
		if p.Name != paths[i] {
			t.Errorf("part %d is %s, want %s", i, p.Name, paths[i])
		}
	}
	if size != f.Size || tensors != len(f.Tensors) || len(f.Tensors) != len(whole.Tensors) {
		t.Errorf("%d bytes and %d tensors in parts, %d and %d in the file, want %d", size, tensors, f.Size, len(f.Tensors), len(whole.Tensors))
	}
	for i, want := range whole.Tensors {
		x, err := f.Tensor(want.Name)
		if err != nil || f.Tensors[i] != x || x.Shape() != want.Shape() || !bytes.Equal(x.Data, want.Data) {
			t.Fatalf("tensor %s differs: %v", want.Name, err)
		}
	}
}

func TestOpenSaysWhichPartIsMissing(t *testing.T) {
	paths, _ := splitTiny(t, 3)
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("tiny-00002-of-00003.gguf is missing in %s, part 2 of 3: file does not exist; "+
		"keep all parts of one model in one folder, under their own names", filepath.Dir(paths[0]))
	for _, path := range []string{paths[0], paths[2]} {
		_, err := Open(path)
		if !errors.Is(err, fs.ErrNotExist) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestOpenOfPartsWithOtherNamesIsRefused(t *testing.T) {
	for _, c := range []struct{ name, says string }{
		{"model.gguf", "part 2 of 3, whose name does not tell the names of the others; name it NAME-00002-of-00003.gguf"},
		{"model-2-of-3.gguf", "whose name does not tell"},
		{"model-00002-of-00003.gguf.old", "whose name does not tell"},
		{"model-00001-of-00003.gguf", "it is named part 1 of 3 and holds part 2 of 3; keep all parts"},
		{"model-00002-of-00004.gguf", "it is named part 2 of 4 and holds part 2 of 3"},
	} {
		paths, _ := splitTiny(t, 3)
		path := filepath.Join(filepath.Dir(paths[0]), c.name)
		if err := os.Rename(paths[1], path); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if !errors.Is(err, ErrParts) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("got  %v\nwant %s", err, c.says)
		}
	}
}

func TestOpenOfSwappedPartsIsRefused(t *testing.T) {
	paths, _ := splitTiny(t, 3)
	aside := paths[0] + ".aside"
	for _, move := range [][2]string{{paths[1], aside}, {paths[2], paths[1]}, {aside, paths[2]}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Open(paths[0])
	if !errors.Is(err, ErrParts) || !strings.HasPrefix(err.Error(), paths[1]) || !strings.Contains(err.Error(), "it holds part 3, want part 2 of 3") {
		t.Error(err)
	}
	if _, err = Open(paths[1]); !errors.Is(err, ErrParts) || !strings.Contains(err.Error(), "it is named part 2 of 3 and holds part 3 of 3") {
		t.Error(err)
	}
}

// part is one part of a model of two.
func part(no int, tensors, add int, more func(w *Writer)) []byte {
	var w Writer
	w.Set(splitNo, uint16(no))
	w.Set(splitCount, uint16(2))
	w.Set(splitTensors, int32(tensors))
	w.Set("general.architecture", "qwen3moe")
	for i := range add {
		w.Add(fmt.Sprintf("t.%d.%d", no, i), 0, []int{8}, Bytes(make([]byte, 32)))
	}
	if more != nil {
		more(&w)
	}
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func TestJoinRefusesWhatDoesNotBelongTogether(t *testing.T) {
	first, second := part(0, 3, 2, nil), part(1, 3, 1, nil)
	if f, err := parseParts(first, second); err != nil || len(f.Tensors) != 3 || f.Tensors[2].Part != 1 {
		t.Fatalf("what the others start from: %v", err)
	}
	var lone bytes.Buffer
	if _, err := new(Writer).WriteTo(&lone); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		parts [][]byte
		says  string
	}{
		{"wrong order", [][]byte{second, first}, "x-1: not the parts of one model: it holds part 2, want part 1 of 2"},
		{"one twice", [][]byte{first, first}, "x-2: not the parts of one model: it holds part 1, want part 2 of 2"},
		{"a whole file", [][]byte{first, lone.Bytes()}, "of a model of 1 parts with 0 tensors; x-1 is of one of 2 parts with 3"},
		{"another count of tensors", [][]byte{first, part(1, 4, 1, nil)}, "of a model of 2 parts with 4 tensors; x-1 is of one of 2 parts with 3"},
		{"another architecture", [][]byte{first, part(1, 3, 1, func(w *Writer) { w.meta[3].Value.raw = []byte("llama") })},
			`its metadata "general.architecture" is llama, in x-1 it is qwen3moe; keep all parts`},
		{"a type differs", [][]byte{first, part(1, 3, 1, func(w *Writer) { w.meta[3].Value, _ = NewValue(uint8(7)) })},
			`its metadata "general.architecture" is 7, in x-1 it is qwen3moe`},
		{"too few tensors", [][]byte{first, part(1, 3, 0, nil)}, "x-1: not the parts of one model: 2 tensors in all parts, 3 in the model"},
		{"too many tensors", [][]byte{first, part(1, 3, 2, nil)}, "4 tensors in all parts, 3 in the model"},
		{"a tensor twice", [][]byte{first, part(1, 3, 0, func(w *Writer) { w.Add("t.0.1", 0, []int{8}, Bytes(make([]byte, 32))) })},
			`x-2: not the parts of one model: tensor "t.0.1" is in x-1 too`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseParts(c.parts...)
			if !errors.Is(err, ErrParts) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, c.says)
			}
		})
	}
}

// An alignment of their own is no difference between parts.
func TestPartsMayBeAlignedEachAsItLikes(t *testing.T) {
	align := func(a uint32) func(w *Writer) { return func(w *Writer) { w.Set(alignmentKey, a) } }
	f, err := parseParts(part(0, 3, 2, align(64)), part(1, 3, 1, align(16)))
	if err != nil || f.Alignment != 64 {
		t.Errorf("%v", err)
	}
}

func TestNumbersOfPartsAreChecked(t *testing.T) {
	set := func(pairs ...any) func(w *Writer) {
		return func(w *Writer) {
			for i := 0; i < len(pairs); i += 2 {
				w.Set(pairs[i].(string), pairs[i+1])
			}
		}
	}
	for _, c := range []struct {
		name string
		fill func(w *Writer)
		says string
	}{
		{"count alone", set(splitCount, uint16(3)), "split.no is missing in a part of a split model"},
		{"no tensors", set(splitCount, uint16(3), splitNo, uint16(0)), "split.tensors.count is missing"},
		{"no number", set(splitCount, "three"), "split.count is string three, want an integer from 0 to 1024"},
		{"negative", set(splitCount, int32(-1)), "split.count is int32 -1"},
		{"too many parts", set(splitCount, uint16(65535)), "split.count is uint16 65535, want an integer from 0 to 1024"},
		{"largest", set(splitCount, uint64(math.MaxUint64)), "split.count is uint64 18446744073709551615"},
		{"beyond the last", set(splitCount, uint16(3), splitNo, uint16(3)), "split.no is uint16 3, want an integer from 0 to 2"},
		{"a path", set(splitCount, uint16(3), splitNo, "../../etc/passwd"), "split.no is string ../../etc/passwd, want an integer"},
		{"tensors", set(splitCount, uint16(3), splitNo, uint16(0), splitTensors, int64(1<<40)), "split.tensors.count is int64 1099511627776"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w Writer
			c.fill(&w)
			path := PartName(filepath.Join(t.TempDir(), "x"), 1, 3)
			if err := w.create(path); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), path) {
				t.Errorf("got  %v\nwant %s", err, c.says)
			}
			if err := mustParse(t, readFile(t, path)).Check(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Check: %v, want %s", err, c.says)
			}
		})
	}
}

func TestCheckRefusesPartOfASplitModel(t *testing.T) {
	err := mustParse(t, part(1, 3, 1, nil)).Check()
	want := "not supported: part 2 of 2 of a split model, by itself; give one that stands beside the others"
	if !errors.Is(err, ErrUnsupported) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A name with a path in it leads nowhere but beside the part that was opened.
func TestNamesOfPartsComeFromThePathAlone(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o777); err != nil {
		t.Fatal(err)
	}
	path := PartName(filepath.Join(inner, "m"), 1, 2)
	if err := os.WriteFile(path, part(0, 3, 2, func(w *Writer) { w.Set("general.name", "../m") }), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(PartName(filepath.Join(dir, "m"), 2, 2), part(1, 3, 1, nil), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), inner) {
		t.Error(err)
	}
}

func TestDamageToPartsIsRefused(t *testing.T) {
	paths, _ := splitTiny(t, 3)
	var parts [][]byte
	for _, p := range paths {
		parts = append(parts, readFile(t, p))
	}
	values := []uint64{math.MaxUint64, 1 << 63, 1 << 31, math.MaxUint32}
	for i, data := range parts[1:] { // the first is like any file: damage_test.go
		list := slices.Clone(parts)
		data = bytes.Clone(data)
		list[i+1] = data
		fields, end := headerFields(data)
		n := allocated(func() {
			for _, f := range fields {
				old := bytes.Clone(data[f.at : f.at+f.width])
				for _, v := range values {
					f.set(data, v)
					if _, err := parseParts(list...); err == nil && (f.width == 8 || uint32(v) != 0) {
						t.Errorf("part %d, %s at byte %d set to %#x: no error", i+2, f.what, f.at, v)
					}
				}
				copy(data[f.at:], old)
			}
		})
		if per := n / uint64(len(fields)*len(values)); per > allocationLimit(0) {
			t.Errorf("part %d: %d bytes allocated a file", i+2, per)
		}
		for cut := 0; cut < end; cut += 7 {
			list[i+1] = data[:cut:cut]
			if _, err := parseParts(list...); err == nil {
				t.Errorf("part %d cut at byte %d: no error", i+2, cut)
			}
		}
	}
}

// All parts together have no more keys and tensors than one file may have.
func TestPartsShareTheLimits(t *testing.T) {
	many := func(no int, tensors uint64) []byte {
		r := header(tensors, 3).key(splitNo, Uint8).u8(byte(no)).key(splitCount, Uint8).u8(2).key(splitTensors, Uint32).u32(MaxTensors)
		for i := range tensors {
			r = r.tensor(fmt.Sprintf("%d.%x", no, i), 0, 32*i, 1)
		}
		return r.pad().zeros(32 * int(tensors))
	}
	first, half, more := many(0, MaxTensors/2), many(1, MaxTensors/2), many(1, MaxTensors/2+1)
	n := allocated(func() {
		if _, err := parseParts(first, half); err != nil {
			t.Error(err)
		}
	})
	if size := len(first) + len(half); n > allocationLimit(size) {
		t.Errorf("%d bytes allocated for %d", n, size)
	}
	if _, err := parseParts(first, more); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "32769 of them, at most 32768") {
		t.Error(err)
	}
}

// FuzzJoin reads arbitrary bytes as a model of two parts: nothing panics or allocates beyond the limit,
// and what is accepted keeps the invariants of File.
func FuzzJoin(f *testing.F) {
	f.Add(part(0, 3, 2, nil), part(1, 3, 1, nil))
	f.Add(part(1, 3, 2, nil), part(1, 3, 1, nil))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		n := allocated(func() {
			whole, err := parseParts(a, b)
			if err != nil {
				return
			}
			names := map[string]bool{}
			for i, x := range whole.Tensors {
				p, data := whole.Parts[x.Part], [][]byte{a, b}[x.Part]
				at := p.DataOffset + int64(x.Offset)
				if names[x.Name] || len(x.Data) > 0 && &data[at] != &x.Data[0] {
					t.Errorf("tensor %d, %s, is another one's or elsewhere", i, x.Name)
				}
				names[x.Name] = true
			}
			_ = whole.Check()
		})
		if n > allocationLimit(len(a)+len(b)) {
			t.Errorf("%d bytes allocated for %d", n, len(a)+len(b))
		}
	})
}
