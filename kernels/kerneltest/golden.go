package kerneltest

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// goldenDir is where the golden vectors stand, from the root of the module on. Their layout is told
// in README.md there.
const goldenDir = "kernels/ref/testdata/golden"

// blob is bytes, in a file as hex.
type blob []byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *blob) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

func (b blob) float32s() []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

type goldenFile struct {
	Operation, Gate, Up, Down, Weights, Row string
	Arithmetic                              int
	Cases                                   []goldenCase
}

type goldenCase struct {
	Name                    string
	In, Out                 int
	Weights, Gate, Up, Down blob
	Rows                    []struct{ Q, Scales, F blob }
	Y                       blob
	Status                  []string
}

// goldenSteps puts the vectors of dot products through MatMul, and those of experts through Layer.
func goldenSteps(b Backend, _ bool) []step {
	return []step{
		{"matmul", func(t testing.TB, s *source) error {
			if b.MatMul == nil {
				return skip("the backend has no MatMul")
			}
			return eachGolden("dot-*.json", func(f *goldenFile, c *goldenCase) error { return f.runDot(t, b, c) })
		}},
		{"experts", func(t testing.TB, s *source) error {
			return eachGolden("expert-*.json", func(f *goldenFile, c *goldenCase) error { return f.runExpert(t, b, c) })
		}},
	}
}

// eachGolden calls f for each case of the files of a pattern.
func eachGolden(pattern string, f func(*goldenFile, *goldenCase) error) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(root, goldenDir, pattern))
	if err != nil || len(paths) == 0 {
		return errors.Join(fmt.Errorf("no golden files %s in %s", pattern, filepath.Join(root, goldenDir)), err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var file goldenFile
		if err := json.Unmarshal(data, &file); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if file.Arithmetic != ref.Arithmetic || len(file.Cases) == 0 {
			return fmt.Errorf("%s has %d cases of arithmetic %d, this is %d", path, len(file.Cases), file.Arithmetic, ref.Arithmetic)
		}
		for i := range file.Cases {
			if err := f(&file, &file.Cases[i]); err != nil {
				return fmt.Errorf("%s, %s: %w", filepath.Base(path), file.Cases[i].Name, err)
			}
		}
	}
	return nil
}

// moduleRoot looks for go.mod from the folder of the package under test upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the folder that the test runs in: run it by go test")
		}
		dir = up
	}
}

func (f *goldenFile) rows(c *goldenCase) []moe.Row {
	format := moe.RowF32
	for format.Valid() && format.String() != f.Row {
		format++
	}
	var x []moe.Row
	for _, r := range c.Rows {
		row := moe.Row{Format: format, F: r.F.float32s(), Scales: r.Scales.float32s()}
		for _, q := range r.Q {
			row.Q = append(row.Q, int8(q))
		}
		x = append(x, row)
	}
	return x
}

func formatNamed(name string) (quant.Format, error) {
	for _, f := range quant.Supported() {
		if f.String() == name {
			return f, nil
		}
	}
	return 0, fmt.Errorf("no format %q", name)
}

func (f *goldenFile) runDot(t testing.TB, b Backend, c *goldenCase) error {
	format, err := formatNamed(f.Weights)
	if err != nil {
		return err
	}
	if !b.takes(format) || b.NoFloatRows && f.Row == moe.RowF32.String() && ref.HiddenFormat(format) != moe.RowF32 {
		return nil
	}
	m, err := ref.NewMatrix(format, c.In, c.Out, c.Weights)
	if err != nil {
		return err
	}
	x := f.rows(c)
	got := make([]float32, len(x)*c.Out)
	b.MatMul(t, &m)(got, x)
	return sameFloats(got, c.Y.float32s())
}

// matrix makes out rows of those given, over and over.
func (c *goldenCase) matrix(name string, in, out int, first blob) (ref.Matrix, error) {
	f, err := formatNamed(name)
	if err != nil {
		return ref.Matrix{}, err
	}
	size, err := f.RowBytes(in)
	if err != nil {
		return ref.Matrix{}, err
	}
	var data []byte
	for o := range out {
		at := o * size % len(first)
		data = append(data, first[at:at+size]...)
	}
	return ref.NewMatrix(f, in, out, data)
}

// runExpert runs each row through a layer of one expert, with weight 1. What y comes to then is
// plain: an integer that the file's y gives too.
func (f *goldenFile) runExpert(t testing.TB, b Backend, c *goldenCase) error {
	gate, err1 := c.matrix(f.Gate, c.In, c.Out, c.Gate)
	up, err2 := c.matrix(f.Up, c.In, c.Out, c.Up)
	down, err3 := c.matrix(f.Down, c.Out, c.In, c.Down)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if !b.takes(gate.Format, up.Format, down.Format) {
		return nil
	}
	l := &ref.Layer{Number: layerNumber, Exponent: ref.DefaultExponent,
		Experts: []*ref.Expert{{Gate: gate, Up: up, Down: down}}}
	x := f.rows(c)
	batch := emptyBatch(moe.Shape{Layer: layerNumber, Hidden: c.In, Format: x[0].Format}, len(x))
	var w moe.Partials
	w.Reset(len(x), c.In)
	y := c.Y.float32s()
	for r := range x {
		row := batch.Row(batch.Grow([]uint16{0}, []float32{1}))
		copy(row.Q, x[r].Q)
		copy(row.Scales, x[r].Scales)
		copy(row.F, x[r].F)
		for st := moe.OK; st.Valid(); st++ {
			if strings.EqualFold(st.String(), c.Status[r]) {
				w.Fault(r, st)
			}
		}
		if w.Status[r] == moe.OK {
			w.Fault(r, ref.AddPick(w.Row(r), y[r*c.In:(r+1)*c.In], 1, l.Exponent))
		}
	}
	return agreeWith(b.Layer(t, l), batch, &w)
}
