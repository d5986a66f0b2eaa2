package experts

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// Tensor is one tensor of an expert, as it lies in a file.
type Tensor struct {
	Name    string // behind "blk.N.": "ffn_down_exps.weight"
	Format  quant.Format
	In, Out int // values a row, rows
}

// Shape is the tensors of an expert, in the order of their names: the same for all experts of a layer.
type Shape []Tensor

// ErrShape: tensors that no expert is made of. Wrong weights, or a model that is not supported.
var ErrShape = errors.New("experts: these tensors make no expert")

// The names of an expert's tensors. Some files keep gate and up in one: the rows of gate, then those of up.
const (
	downName   = "ffn_down_exps.weight"
	gateName   = "ffn_gate_exps.weight"
	upName     = "ffn_up_exps.weight"
	gateUpName = "ffn_gate_up_exps.weight"
)

// maxRows bounds the rows of a tensor: what lies between gate and down, twice for a fused one.
const maxRows = 1 << 18

// Shape returns the tensors of an expert of s.
func (s *Slice) Shape() Shape {
	list := make(Shape, len(s.Tensors))
	for i, t := range s.Tensors {
		_, name, _ := blockOf(t.Name)
		list[i] = Tensor{Name: name, Format: t.Format, In: t.Dims[0], Out: t.Dims[1]}
	}
	return list
}

// Bytes returns how many bytes the tensor of one expert has. The tensor has passed Shape.Check.
func (t Tensor) Bytes() int {
	n, err := t.Format.RowBytes(t.In)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return n * t.Out
}

// Check returns an error, wrapping ErrShape, unless s can be computed on.
func (s Shape) Check() error {
	for i, t := range s {
		if i > 0 && s[i-1].Name >= t.Name {
			return fmt.Errorf("%w: %q does not come after %q", ErrShape, t.Name, s[i-1].Name)
		}
		if t.In < 1 || t.Out < 1 || t.In > maxRows || t.Out > maxRows {
			return fmt.Errorf("%w: %q has %d rows of %d values; at most %d of either", ErrShape, t.Name, t.Out, t.In, maxRows)
		}
		if _, err := t.Format.RowBytes(t.In); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrShape, t.Name, err)
		}
	}
	at, err := s.roles()
	if err != nil {
		return err
	}
	gate, up, down := s[at.gate], s[at.up], s[at.down]
	if at.fused() {
		if gate.Out%2 != 0 {
			return fmt.Errorf("%w: %s has %d rows, want gate and up alike", ErrShape, gate.Name, gate.Out)
		}
		gate.Out /= 2
		up = gate
	}
	if gate.In != up.In || gate.Out != up.Out || down.In != gate.Out || down.Out != gate.In {
		return fmt.Errorf("%w: gate is %d x %d, up %d x %d, down %d x %d", ErrShape,
			gate.In, gate.Out, up.In, up.Out, down.In, down.Out)
	}
	if gate.In > moe.MaxHidden {
		return fmt.Errorf("%w: rows of %d values; at most %d", ErrShape, gate.In, moe.MaxHidden)
	}
	return nil
}

// roles is which tensor is which.
type roles struct{ gate, up, down int }

func (r roles) fused() bool { return r.gate == r.up }

func (s Shape) roles() (roles, error) {
	r := roles{-1, -1, -1}
	for i, t := range s {
		switch t.Name {
		case downName:
			r.down = i
		case gateName:
			r.gate = i
		case upName:
			r.up = i
		case gateUpName:
			r.gate, r.up = i, i
		default:
			return r, fmt.Errorf("%w: %q is not known", ErrShape, t.Name)
		}
	}
	if r.down < 0 || r.gate < 0 || r.up < 0 || len(s) == 3 && r.fused() || len(s) > 3 {
		return r, fmt.Errorf("%w: want gate, up and down, or gate_up and down; there are %d tensors", ErrShape, len(s))
	}
	return r, nil
}

// Expert returns an expert over its tensors' bytes, which it keeps. s has passed Check.
func (s Shape) Expert(data [][]byte, float bool) (*ref.Expert, error) {
	at, err := s.roles()
	if err != nil {
		return nil, err
	}
	matrix := func(i, out int, b []byte) ref.Matrix {
		m, e := ref.NewMatrix(s[i].Format, s[i].In, out, b)
		if e != nil {
			err = fmt.Errorf("tensor %s: %w", s[i].Name, e)
		}
		return m
	}
	e := &ref.Expert{Float: float, Down: matrix(at.down, s[at.down].Out, data[at.down])}
	if at.fused() {
		half, b := s[at.gate].Out/2, data[at.gate]
		e.Gate = matrix(at.gate, half, b[:len(b)/2:len(b)/2])
		e.Up = matrix(at.up, half, b[len(b)/2:])
	} else {
		e.Gate = matrix(at.gate, s[at.gate].Out, data[at.gate])
		e.Up = matrix(at.up, s[at.up].Out, data[at.up])
	}
	return e, err
}

// Hash names an expert of this shape by SHA-256 of the bytes of each of its tensors, as Slice.HashExpert
// tells.
func (s Shape) Hash(sums []Hash) Hash {
	b := binary.LittleEndian.AppendUint32([]byte("kvasir expert 1\x00"), uint32(len(s)))
	for i, t := range s {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Name)))
		b = append(b, t.Name...)
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Format))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.In))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.Out))
		b = append(b, sums[i][:]...)
	}
	return sha256.Sum256(b)
}

// HashSlice names experts of one layer by their hashes, as Slice.Hash tells.
func HashSlice(layer int, list []Hash) Hash {
	h := sha256.New()
	b := binary.LittleEndian.AppendUint32([]byte("kvasir slice 1\x00"), uint32(layer))
	_, _ = h.Write(binary.LittleEndian.AppendUint32(b, uint32(len(list)))) // a hash takes all it is given
	for i := range list {
		_, _ = h.Write(list[i][:]) // here too
	}
	return Hash(h.Sum(nil))
}

// Memory returns how much memory an expert takes when it is ready to be computed on, whatever the
// processor does with its format. s has passed Check.
func (s Shape) Memory() int64 {
	at, err := s.roles()
	if err != nil {
		panic("BUG: " + err.Error())
	}
	size := func(i, out int) int64 {
		t := s[i]
		t.Out = out
		n := t.Bytes()
		if matmul.Packs(t.Format) {
			if packed, err := matmul.PackedBytes(t.Format, t.In, t.Out); err == nil {
				n = max(n, packed)
			}
		}
		return int64(n)
	}
	if at.fused() {
		return 2*size(at.gate, s[at.gate].Out/2) + size(at.down, s[at.down].Out)
	}
	return size(at.gate, s[at.gate].Out) + size(at.up, s[at.up].Out) + size(at.down, s[at.down].Out)
}
