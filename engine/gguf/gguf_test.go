package gguf

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"kvasir/kernels/quant"
)

func TestParseReadsKvasirTiny(t *testing.T) {
	data := readFile(t, tinyPath)
	f, err := Parse(data, "tiny")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}
	arch, err := f.String("general.architecture")
	if err != nil || arch != "qwen35moe" {
		t.Errorf("architecture %q, %v", arch, err)
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil || len(tokens) != 2048 || tokens[2047] != "<|im_end|>" {
		t.Errorf("%d tokens, %v", len(tokens), err)
	}
	sections, err := f.Ints("qwen35moe.rope.dimension_sections")
	if err != nil || !slices.Equal(sections, []int64{6, 5, 5, 0}) {
		t.Errorf("sections %v, %v", sections, err)
	}
	eps, err := f.Float("qwen35moe.attention.layer_norm_rms_epsilon")
	if err != nil || float32(eps) != 1e-6 {
		t.Errorf("epsilon %v, %v", eps, err)
	}
	x, err := f.Tensor("blk.3.ffn_up_exps.weight")
	if err != nil || x.Shape() != "[256 256 16]" || x.Format != quant.Q4K || len(x.Data) != 256*16*144 {
		t.Errorf("tensor %+v, %v", x, err)
	}
	if got := x.Values(); got != 256*256*16 {
		t.Errorf("%d values", got)
	}
}

func TestTensorDataIsViewsOfTheFile(t *testing.T) {
	data := small(t, 3)
	f := mustParse(t, data)
	if f.Size != int64(len(data)) || f.DataOffset%32 != 0 || f.Alignment != 32 {
		t.Errorf("size %d, data at %d, alignment %d", f.Size, f.DataOffset, f.Alignment)
	}
	for i, tensor := range f.Tensors {
		if want := bytes.Repeat([]byte{byte(i + 1)}, len(tensor.Data)); !bytes.Equal(tensor.Data, want) {
			t.Errorf("%s: % x", tensor.Name, tensor.Data)
		}
		if cap(tensor.Data) != len(tensor.Data) || cap(tensor.Dims) != len(tensor.Dims) {
			t.Errorf("%s: an append would write over what follows", tensor.Name)
		}
		if at := data[f.DataOffset+int64(tensor.Offset):]; &at[0] != &tensor.Data[0] {
			t.Errorf("%s is a copy", tensor.Name)
		}
	}
}

// getters calls a getter by the name of its type.
var getters = map[string]func(f *File, key string) (any, error){
	"uint":    func(f *File, k string) (any, error) { return f.Uint(k) },
	"int":     func(f *File, k string) (any, error) { return f.Int(k) },
	"float":   func(f *File, k string) (any, error) { return f.Float(k) },
	"bool":    func(f *File, k string) (any, error) { return f.Bool(k) },
	"string":  func(f *File, k string) (any, error) { return f.String(k) },
	"uints":   func(f *File, k string) (any, error) { return f.Uints(k) },
	"ints":    func(f *File, k string) (any, error) { return f.Ints(k) },
	"floats":  func(f *File, k string) (any, error) { return f.Floats(k) },
	"bools":   func(f *File, k string) (any, error) { return f.Bools(k) },
	"strings": func(f *File, k string) (any, error) { return f.Strings(k) },
}

// fileOf is a file with one piece of metadata, "key".
func fileOf(t *testing.T, value any) *File {
	t.Helper()
	var w Writer
	w.Set("key", value)
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return mustParse(t, out.Bytes())
}

func TestGettersReturnValues(t *testing.T) {
	const min64 = math.MinInt64
	for _, c := range []struct {
		name  string
		value any
		want  map[string]any // by getter; every other one refuses
	}{
		{"uint8", uint8(255), map[string]any{"uint": uint64(255), "int": int64(255), "uints": []uint64{255}, "ints": []int64{255}}},
		{"int8", int8(-1), map[string]any{"int": int64(-1), "ints": []int64{-1}}},
		{"int8, not negative", int8(7), map[string]any{"uint": uint64(7), "int": int64(7), "uints": []uint64{7}, "ints": []int64{7}}},
		{"uint16", uint16(65535), map[string]any{"uint": uint64(65535), "int": int64(65535), "uints": []uint64{65535}, "ints": []int64{65535}}},
		{"int16", int16(-32768), map[string]any{"int": int64(-32768), "ints": []int64{-32768}}},
		{"uint32", uint32(math.MaxUint32), map[string]any{"uint": uint64(math.MaxUint32), "int": int64(math.MaxUint32), "uints": []uint64{math.MaxUint32}, "ints": []int64{math.MaxUint32}}},
		{"int32", int32(math.MinInt32), map[string]any{"int": int64(math.MinInt32), "ints": []int64{math.MinInt32}}},
		{"uint64", uint64(math.MaxUint64), map[string]any{"uint": uint64(math.MaxUint64), "uints": []uint64{math.MaxUint64}}},
		{"int64", int64(min64), map[string]any{"int": int64(min64), "ints": []int64{min64}}},
		{"float32", float32(1e-6), map[string]any{"float": float64(float32(1e-6)), "floats": []float64{float64(float32(1e-6))}}},
		{"float64", 1e-6, map[string]any{"float": 1e-6, "floats": []float64{1e-6}}},
		{"bool", true, map[string]any{"bool": true, "bools": []bool{true}}},
		{"string", "a\xff\nb", map[string]any{"string": "a\xff\nb"}},
		{"uint8s", []uint8{0, 255}, map[string]any{"uints": []uint64{0, 255}, "ints": []int64{0, 255}}},
		{"int32s", []int32{1, -2}, map[string]any{"ints": []int64{1, -2}}},
		{"uint64s", []uint64{1, math.MaxUint64}, map[string]any{"uints": []uint64{1, math.MaxUint64}}},
		{"float32s", []float32{0.5, -2}, map[string]any{"floats": []float64{0.5, -2}}},
		{"float64s", []float64{0.1}, map[string]any{"floats": []float64{0.1}}},
		{"bools", []bool{true, false, true}, map[string]any{"bools": []bool{true, false, true}}},
		{"strings", []string{"", "b", "\x00"}, map[string]any{"strings": []string{"", "b", "\x00"}}},
		{"no strings", []string{}, map[string]any{"strings": []string{}}},
	} {
		f := fileOf(t, c.value)
		for getter, call := range getters {
			got, err := call(f, "key")
			want, ok := c.want[getter]
			switch {
			case !ok && !errors.Is(err, ErrType):
				t.Errorf("%s as %s: %v, %v, want ErrType", c.name, getter, got, err)
			case ok && (err != nil || !equal(got, want)):
				t.Errorf("%s as %s: %v, %v, want %v", c.name, getter, got, err, want)
			}
		}
	}
}

func equal(a, b any) bool {
	switch a := a.(type) {
	case []uint64:
		return slices.Equal(a, b.([]uint64))
	case []int64:
		return slices.Equal(a, b.([]int64))
	case []float64:
		return slices.Equal(a, b.([]float64))
	case []bool:
		return slices.Equal(a, b.([]bool))
	case []string:
		return slices.Equal(a, b.([]string))
	}
	return a == b
}

func TestGettersNameWhatIsMissing(t *testing.T) {
	f := fileOf(t, "x")
	for getter, call := range getters {
		_, err := call(f, "qwen3moe.block_count")
		if !errors.Is(err, ErrMissing) || err.Error() != `metadata "qwen3moe.block_count": missing; give a complete model file` {
			t.Errorf("%s: %v", getter, err)
		}
	}
	_, err := f.Tensor("output.weight")
	if !errors.Is(err, ErrMissing) || err.Error() != `tensor "output.weight": missing; give a complete model file` {
		t.Errorf("tensor: %v", err)
	}
}

func TestGettersNameTypesFoundAndWanted(t *testing.T) {
	_, err := fileOf(t, "four").Uint("key")
	if want := `metadata "key": wrong type: string four, want an integer >= 0; give a complete model file`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = fileOf(t, []float32{1, 2}).Strings("key")
	if want := "wrong type: array of float32 [1 2], want array of strings"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDefaultsStandInForMissingKeysOnly(t *testing.T) {
	f := fileOf(t, []string{"of no scalar type"})
	check := func(name string, got, want any, missing, wrong error) {
		t.Helper()
		if got != want || missing != nil {
			t.Errorf("%s of a missing key: %v, %v, want %v", name, got, missing, want)
		}
		if !errors.Is(wrong, ErrType) {
			t.Errorf("%s of a wrong type: %v, want ErrType", name, wrong)
		}
	}
	u, err := f.UintOr("none", 7)
	_, wrong := f.UintOr("key", 7)
	check("UintOr", u, uint64(7), err, wrong)
	i, err := f.IntOr("none", -7)
	_, wrong = f.IntOr("key", -7)
	check("IntOr", i, int64(-7), err, wrong)
	x, err := f.FloatOr("none", 1e4)
	_, wrong = f.FloatOr("key", 1e4)
	check("FloatOr", x, 1e4, err, wrong)
	b, err := f.BoolOr("none", true)
	_, wrong = f.BoolOr("key", true)
	check("BoolOr", b, true, err, wrong)
	s, err := f.StringOr("none", "def")
	_, wrong = f.StringOr("key", "def")
	check("StringOr", s, "def", err, wrong)
	if got, err := fileOf(t, uint32(5)).UintOr("key", 7); got != 5 || err != nil {
		t.Errorf("a key that is there: %d, %v, want 5", got, err)
	}
}

func TestDescribeShortensMetadata(t *testing.T) {
	for _, c := range []struct {
		value       any
		typ, String string
	}{
		{uint32(7), "uint32", "7"},
		{int64(-7), "int64", "-7"},
		{uint64(math.MaxUint64), "uint64", "18446744073709551615"},
		{float32(1e-6), "float32", "1e-06"},
		{0.1, "float64", "0.1"},
		{false, "bool", "false"},
		{`say "hello"`, "string", `say "hello"`},
		{"clear\x1b[2J\nscreen\u202e", "string", `clear\x1b[2J\nscreen\u202e`},
		{strings.Repeat("ab", 500), "string", strings.Repeat("ab", 30) + "… (1000 bytes)"},
		{[]int32{6, 5, 5, 0}, "array of int32", "[6 5 5 0]"},
		{[]bool{true, false}, "array of bool", "[true false]"},
		{make([]uint8, 9), "array of uint8", "[9 uint8s]"},
		{[]float64{}, "array of float64", "[]"},
		{make([]string, 2048), "array of string", "[2048 strings]"},
	} {
		got := fileOf(t, c.value).Describe()
		if want := (Entry{"key", c.typ, c.String}); len(got) != 1 || got[0] != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestCheckNamesWhatIsNotSupported(t *testing.T) {
	var w Writer
	w.Add("fine.weight", 0, []int{8}, Bytes(make([]byte, 32)))
	w.Add("blk.0.ffn_up_exps.weight", 17, []int{256, 2}, Bytes(make([]byte, 148)))
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	f := mustParse(t, out.Bytes()) // so that it can be looked at
	want := `not supported: tensor "blk.0.ffn_up_exps.weight" has format IQ2_XS; give the model in ` + supportedFormats()
	for _, format := range []string{"F32, ", "Q8_0, ", "Q4_K, ", " or MXFP4"} {
		if !strings.Contains(want, format) {
			t.Errorf("%q does not name %q", want, format)
		}
	}
	_, errTensor := f.Tensor("blk.0.ffn_up_exps.weight")
	for _, err := range []error{f.Check(), errTensor} {
		if !errors.Is(err, ErrUnsupported) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if _, err := f.Tensor("fine.weight"); err != nil {
		t.Error(err)
	}
	if !f.HasTensor("blk.0.ffn_up_exps.weight") || f.HasTensor("none") {
		t.Error("HasTensor is wrong")
	}
}
