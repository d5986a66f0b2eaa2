package ref

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const goldenDir = "testdata/golden"

// The types below are the layout of the golden files; testdata/golden/README.md tells it in words.

// blob is bytes, in a file as hex.
type blob []byte

func (b blob) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(b)), nil }

func (b *blob) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

type goldenFile struct {
	Operation  string       `json:"operation"`
	Arithmetic int          `json:"arithmetic"`
	Gate       string       `json:"gate,omitempty"`    // expert
	Up         string       `json:"up,omitempty"`      // expert
	Down       string       `json:"down,omitempty"`    // expert
	Weights    string       `json:"weights,omitempty"` // dot, dequantize
	Row        string       `json:"row,omitempty"`     // row, dot, expert
	Cases      []goldenCase `json:"cases"`
}

type goldenCase struct {
	Name string `json:"name"`

	// Inputs.
	X        blob         `json:"x,omitempty"`        // functions, row: float32
	In       int          `json:"in,omitempty"`       // dot: weights an output; expert: hidden
	Out      int          `json:"out,omitempty"`      // dot: outputs; expert: FFN
	Weights  blob         `json:"weights,omitempty"`  // dot, dequantize
	Gate     blob         `json:"gate,omitempty"`     // expert: the first rows; they repeat
	Up       blob         `json:"up,omitempty"`       // likewise
	Down     blob         `json:"down,omitempty"`     // likewise
	Rows     []goldenRow  `json:"rows,omitempty"`     // dot, expert
	Exponent *int         `json:"exponent,omitempty"` // gatedsum
	Picks    []goldenPick `json:"picks,omitempty"`    // gatedsum
	Sum      blob         `json:"sum,omitempty"`      // packing: int64; gatedsum: the result
	Values   int          `json:"values,omitempty"`   // packing: of bytes that are refused

	// Results.
	Y      blob       `json:"y,omitempty"`      // float32
	Status []string   `json:"status,omitempty"` // row, gatedsum: one; expert: one a row
	At     *int       `json:"at,omitempty"`     // row: index of the first value with the status; -1
	Made   *goldenRow `json:"made,omitempty"`   // row
	Float  blob       `json:"float,omitempty"`  // gatedsum: the sums as float32
	Packed blob       `json:"packed,omitempty"` // packing
}

type goldenRow struct {
	Q      blob `json:"q,omitempty"`      // int8
	Scales blob `json:"scales,omitempty"` // float32
	F      blob `json:"f,omitempty"`      // float32
}

type goldenPick struct {
	W blob `json:"w"`
	Y blob `json:"y"`
}

func packF32(x ...float32) blob {
	var b blob
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (b blob) float32s() []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

func packI64(x ...int64) blob {
	var b blob
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func (b blob) int64s() []int64 {
	x := make([]int64, len(b)/8)
	for i := range x {
		x[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return x
}

func packRow(x moe.Row) goldenRow {
	r := goldenRow{Scales: packF32(x.Scales...), F: packF32(x.F...)}
	for _, q := range x.Q {
		r.Q = append(r.Q, byte(q))
	}
	return r
}

func (r goldenRow) row(f moe.RowFormat) moe.Row {
	x := moe.Row{Format: f}
	if f == moe.RowF32 {
		x.F = r.F.float32s()
		return x
	}
	x.Scales = r.Scales.float32s()
	for _, q := range r.Q {
		x.Q = append(x.Q, int8(q))
	}
	return x
}

func formatNamed(name string) quant.Format {
	for _, f := range quant.Supported() {
		if f.String() == name {
			return f
		}
	}
	panic("no format " + name)
}

func rowFormatNamed(name string) moe.RowFormat {
	for f := moe.RowF32; f.Valid(); f++ {
		if f.String() == name {
			return f
		}
	}
	panic("no row format " + name)
}

// run fills in the results of a case.
func (f *goldenFile) run(c *goldenCase) error {
	switch f.Operation {
	case "recip":
		c.Y = mapF32(c.X, Recip)
	case "exp":
		c.Y = mapF32(c.X, Exp)
	case "silu":
		c.Y = mapF32(c.X, Silu)
	case "row":
		x := c.X.float32s()
		row := newRow(rowFormatNamed(f.Row), len(x))
		st, at := QuantizeRow(row, x)
		made := packRow(row)
		c.Status, c.At, c.Made = []string{st.String()}, &at, &made
	case "dequantize":
		format := formatNamed(f.Weights)
		values, bytes := format.Block()
		y := make([]float32, len(c.Weights)/bytes*values)
		quant.Dequantize(y, format, c.Weights)
		c.Y = packF32(y...)
	case "dot":
		return f.runDot(c)
	case "expert":
		return f.runExpert(c)
	case "gatedsum":
		runGatedSum(c)
	case "packing":
		if c.Values == 0 {
			c.Packed = AppendPartial(nil, c.Sum.int64s())
			return nil
		}
		if n, err := ParsePartial(make([]int64, c.Values), c.Packed); err == nil {
			return fmt.Errorf("%d of %d bytes are read, want them refused", n, len(c.Packed))
		}
	default:
		return fmt.Errorf("no operation %q", f.Operation)
	}
	return nil
}

func mapF32(x blob, f func(float32) float32) blob {
	y := x.float32s()
	for i, v := range y {
		y[i] = f(v)
	}
	return packF32(y...)
}

func (f *goldenFile) rows(c *goldenCase) []moe.Row {
	var x []moe.Row
	for _, r := range c.Rows {
		x = append(x, r.row(rowFormatNamed(f.Row)))
	}
	return x
}

func (f *goldenFile) runDot(c *goldenCase) error {
	m, err := NewMatrix(formatNamed(f.Weights), c.In, c.Out, c.Weights)
	if err != nil {
		return err
	}
	var y []float32
	for _, x := range f.rows(c) {
		for o := range m.Out {
			v := m.Dot(o, x)
			if !finite(v) {
				return fmt.Errorf("value %d is %g: the bits of what is not a number are no result", o, v)
			}
			y = append(y, v)
		}
	}
	got := make([]float32, len(y))
	m.MatMul(got, f.rows(c), 0, m.Out, new(Scratch))
	if !sameBits(got, y) {
		return fmt.Errorf("MatMul gives other bits than Dot")
	}
	c.Y = packF32(y...)
	return nil
}

// repeated is a matrix of out rows made of the given ones, over and over.
func repeated(format string, in, out int, first blob) (Matrix, error) {
	f := formatNamed(format)
	bytes, err := f.RowBytes(in)
	if err != nil {
		return Matrix{}, err
	}
	var data []byte
	for o := range out {
		at := o * bytes % len(first)
		data = append(data, first[at:at+bytes]...)
	}
	return NewMatrix(f, in, out, data)
}

func (f *goldenFile) runExpert(c *goldenCase) (err error) {
	var e Expert
	if e.Gate, err = repeated(f.Gate, c.In, c.Out, c.Gate); err != nil {
		return err
	}
	if e.Up, err = repeated(f.Up, c.In, c.Out, c.Up); err != nil {
		return err
	}
	if e.Down, err = repeated(f.Down, c.Out, c.In, c.Down); err != nil {
		return err
	}
	if err := e.Check(); err != nil {
		return err
	}
	c.Y, c.Status = nil, nil
	for _, x := range f.rows(c) {
		y := make([]float32, c.In)
		st := e.Forward(y, x, new(Scratch))
		c.Y, c.Status = append(c.Y, packF32(y...)...), append(c.Status, st.String())
	}
	return nil
}

func runGatedSum(c *goldenCase) {
	sum := make([]int64, len(c.Picks[0].Y)/4)
	status := moe.OK
	for _, p := range c.Picks {
		status = max(status, AddPick(sum, p.Y.float32s(), p.W.float32s()[0], *c.Exponent))
	}
	if status != moe.OK {
		clear(sum)
	}
	float := make([]float32, len(sum))
	for i, v := range sum {
		float[i] = Float(v, *c.Exponent)
	}
	c.Sum, c.Float, c.Status = packI64(sum...), packF32(float...), []string{status.String()}
}

// TestGolden computes every case of every file from the inputs in the file, as another
// implementation would, and compares the results; and it compares the files with what -update would
// write.
func TestGolden(t *testing.T) {
	want := goldenFiles(t)
	if *update {
		for name, data := range want {
			if err := os.WriteFile(filepath.Join(goldenDir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	paths, err := filepath.Glob(filepath.Join(goldenDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != len(want) {
		t.Errorf("%d golden files, want %d: remove what is old, run with -update", len(paths), len(want))
	}
	total := 0
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			total += len(data)
			checkGolden(t, data)
			if !bytes.Equal(data, want[filepath.Base(path)]) {
				t.Error("the file is not what -update writes")
			}
		})
	}
	if total > 1_500_000 {
		t.Errorf("the golden files have %d bytes, want at most 1,500,000", total)
	}
}

func checkGolden(t *testing.T, data []byte) {
	t.Helper()
	var f goldenFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	if f.Arithmetic != Arithmetic {
		t.Errorf("the file is of arithmetic %d, this is %d", f.Arithmetic, Arithmetic)
	}
	for _, c := range f.Cases {
		got := c
		if err := f.run(&got); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		a, errA := json.Marshal(got)
		b, errB := json.Marshal(c)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: the results are %s, want %s", c.Name, a, b)
		}
	}
}
