package gguf

import (
	"fmt"
	"slices"
	"testing"

	peer "github.com/gpustack/gguf-parser-go"

	"kvasir/kernels/quant"
)

// Another reader of the format finds the same in the same files.
func TestAnotherReaderFindsTheSame(t *testing.T) {
	for _, path := range []string{
		tinyPath,
		"../model/testdata/mini/mini35k-q4_k_m.gguf",
		"../model/testdata/mini/mini3-f32.gguf",
	} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() }) //nolint:errcheck // only read
		theirs, err := peer.ParseGGUFFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(theirs.Size) != f.Size || theirs.TensorDataStartOffset != f.DataOffset ||
			uint32(theirs.Header.Version) != f.Version {
			t.Errorf("%s: size %d, data at %d, version %d", path, f.Size, f.DataOffset, f.Version)
		}
		compareMetadata(t, f, theirs.Header.MetadataKV)
		compareTensors(t, f, theirs.TensorInfos)
	}
}

func compareMetadata(t *testing.T, f *File, theirs peer.GGUFMetadataKVs) {
	t.Helper()
	if len(theirs) != len(f.Meta) {
		t.Errorf("%s: %d metadata, want %d", f.Name, len(f.Meta), len(theirs))
		return
	}
	for i, kv := range f.Meta {
		want := theirs[i]
		if kv.Key != want.Key || uint32(kv.Value.Type()) != uint32(want.ValueType) {
			t.Errorf("%s: metadata %d is %q, %s, want %q, %v", f.Name, i, kv.Key, kv.Value.TypeName(), want.Key, want.ValueType)
			continue
		}
		var got, exp any
		var err error
		switch kv.Value.Type() {
		case String:
			got, err = f.String(kv.Key)
			exp = want.ValueString()
		case Bool:
			got, err = f.Bool(kv.Key)
			exp = want.ValueBool()
		case Float32, Float64:
			got, err = f.Float(kv.Key)
			exp = peer.ValueNumeric[float64](want)
		case Array:
			got, exp, err = arrays(f, kv, want.ValueArray())
		default:
			got, err = f.Int(kv.Key)
			exp = peer.ValueNumeric[int64](want)
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(exp) {
			t.Errorf("%s: %s is %v, %v, want %v", f.Name, kv.Key, got, err, exp)
		}
	}
}

func arrays(f *File, kv KV, want peer.GGUFMetadataKVArrayValue) (got, exp any, err error) {
	switch kv.Value.elem {
	case String:
		got, err = f.Strings(kv.Key)
		return got, want.ValuesString(), err
	case Bool:
		got, err = f.Bools(kv.Key)
		return got, want.ValuesBool(), err
	case Float32, Float64:
		got, err = f.Floats(kv.Key)
		return got, peer.ValuesNumeric[float64](want), err
	}
	got, err = f.Ints(kv.Key)
	return got, peer.ValuesNumeric[int64](want), err
}

func compareTensors(t *testing.T, f *File, theirs peer.GGUFTensorInfos) {
	t.Helper()
	if len(theirs) != len(f.Tensors) {
		t.Errorf("%s: %d tensors, want %d", f.Name, len(f.Tensors), len(theirs))
		return
	}
	for i, x := range f.Tensors {
		want := theirs[i]
		same := slices.EqualFunc(x.Dims, want.Dimensions, func(a int, b uint64) bool { return uint64(a) == b })
		if x.Name != want.Name || !same || uint32(x.Format) != uint32(want.Type) || x.Offset != want.Offset ||
			uint64(len(x.Data)) != want.Bytes() {
			t.Errorf("%s: tensor %d is %s %s %s at %d, %d bytes, want %+v", f.Name, i, x.Name, x.Format, x.Shape(), x.Offset, len(x.Data), want)
		}
	}
}

// The sizes of all formats, the unsupported ones too, are what another reader has. It still knows
// formats that ggml has removed, numbers 31 to 33 and 36 to 38.
func TestBlockSizesAreThoseOfAnotherReader(t *testing.T) {
	removed := []uint32{4, 5, 31, 32, 33, 36, 37, 38}
	for n := range uint32(256) {
		values, size := block(quant.Format(n))
		want, ok := peer.GGMLType(n).Trait()
		if !ok || slices.Contains(removed, n) {
			want = peer.GGMLTypeTrait{}
		}
		if uint64(values) != want.BlockSize || uint64(size) != want.TypeSize {
			t.Errorf("format %d, %s: %d values in %d bytes, want %d in %d", n, quant.Format(n), values, size, want.BlockSize, want.TypeSize)
		}
	}
}

// Another reader puts the parts of a split model together in the same way.
func TestAnotherReaderReadsThePartsWritten(t *testing.T) {
	paths, _ := splitTiny(t, 3)
	f, err := Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // only read
	theirs, err := peer.ParseGGUFFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if int64(theirs.Size) != f.Size || len(theirs.SplitSizes) != len(f.Parts) {
		t.Fatalf("%d bytes in %d parts, want %d in %d", f.Size, len(f.Parts), theirs.Size, len(theirs.SplitSizes))
	}
	for i, p := range f.Parts {
		if p.Size != int64(theirs.SplitSizes[i]) || p.DataOffset != theirs.SplitTensorDataStartOffsets[i] {
			t.Errorf("part %d: %d bytes, data at %d, want %d at %d", i, p.Size, p.DataOffset, theirs.SplitSizes[i], theirs.SplitTensorDataStartOffsets[i])
		}
	}
	compareTensors(t, f, theirs.TensorInfos)
}
