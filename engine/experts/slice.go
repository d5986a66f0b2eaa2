package experts

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
)

// Slice is the routed experts of one layer of a file: what a worker may hold, all of it or some experts.
// Blocks of multi-token prediction have experts too and are layers like others, after those of the trunk.
type Slice struct {
	Layer   int
	Experts int
	Bytes   int64
	MTP     bool           // a block of multi-token prediction
	Tensors []*gguf.Tensor // in the order of their names; dims are in, out, experts
}

// Slices returns the layers of f that have routed experts, in order. The error says which of them is not
// to be divided into experts.
func Slices(f *gguf.File) ([]*Slice, error) {
	byLayer := map[int]*Slice{}
	var list []*Slice
	for _, t := range f.Tensors {
		layer, rest, ok := blockOf(t.Name)
		if !ok || !strings.Contains(rest, "_exps.") || len(t.Dims) != 3 {
			continue
		}
		if t.Dims[2] > moe.MaxExperts {
			return nil, fmt.Errorf("tensor %s has %d experts; at most %d are supported", t.Name, t.Dims[2], moe.MaxExperts)
		}
		s := byLayer[layer]
		if s == nil {
			s = &Slice{Layer: layer, Experts: t.Dims[2]}
			byLayer[layer] = s
			list = append(list, s)
		}
		if t.Dims[2] != s.Experts {
			return nil, fmt.Errorf("tensor %s has %d experts, %s has %d", t.Name, t.Dims[2], s.Tensors[0].Name, s.Experts)
		}
		s.Tensors = append(s.Tensors, t)
		s.Bytes += int64(len(t.Data))
	}
	for _, t := range f.Tensors {
		if layer, rest, ok := blockOf(t.Name); ok && strings.HasPrefix(rest, "nextn.") && byLayer[layer] != nil {
			byLayer[layer].MTP = true
		}
	}
	for _, s := range list {
		slices.SortFunc(s.Tensors, func(a, b *gguf.Tensor) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(list, func(a, b *Slice) int { return cmp.Compare(a.Layer, b.Layer) })
	return list, nil
}

// blockOf cuts "blk.7.ffn_up_exps.weight" after the number.
func blockOf(name string) (layer int, rest string, ok bool) {
	name, ok = strings.CutPrefix(name, "blk.")
	number, rest, dot := strings.Cut(name, ".")
	layer, err := strconv.Atoi(number)
	return layer, rest, ok && dot && err == nil && layer >= 0 && strconv.Itoa(layer) == number
}

// Formats are the formats of the slice's tensors, each once, in the order of the tensors' names.
func (s *Slice) Formats() []string {
	var list []string
	for _, t := range s.Tensors {
		if f := t.Format.String(); !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	return list
}

// HashExpert names one expert, wherever it stands: a worker that has fetched the bytes of an expert can
// tell whether they are right. It is SHA-256 over, numbers little-endian:
//
//	"kvasir expert 1\x00"
//	4  how many tensors
//	for each tensor of the layer's routed experts, in the order of their names:
//	  4  length of the name behind "blk.N.", then that: "ffn_down_exps.weight"
//	  4  format, as ggml numbers it
//	  8  values a row, 8 rows
//	  32 SHA-256 of the bytes of this expert, the same that HashModel takes
//
// It reads the expert's weights, whose pages of f it gives back.
func (s *Slice) HashExpert(f *gguf.File, expert int) Hash {
	sums := make([]Hash, len(s.Tensors))
	for i, t := range s.Tensors {
		sums[i] = hashPart(f, t, expert, s.Experts)
	}
	return s.Shape().Hash(sums)
}

// Hash names the slice. It is SHA-256 over, numbers little-endian:
//
//	"kvasir slice 1\x00"
//	4  layer
//	4  how many experts, then 32 each: HashExpert
//
// So whoever trusts the hash of a slice can check a list of its experts' hashes, and by that any expert.
// Neither the other layers nor how tensors are divided among files count.
func (s *Slice) Hash(f *gguf.File) Hash {
	list := make([]Hash, s.Experts)
	for i := range list {
		list[i] = s.HashExpert(f, i)
	}
	return HashSlice(s.Layer, list)
}
