package experts

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"kvasir/engine/gguf"
	"kvasir/kernels/ref"
)

// Hash names a model: two machines that have the same one compute the same bits from it. It is SHA-256
// over, numbers little-endian:
//
//	"kvasir model 1\x00"
//	4  version of the arithmetic
//	4  how many exponents the profile has, then 4 each
//	for each tensor, in the order of their names:
//	  4  length of the name, then the name
//	  4  format, as ggml numbers it
//	  4  how many dimensions, then 8 each
//	  4  how many hashes, then 32 each: SHA-256 of the bytes of each expert of a routed tensor, or of
//	     all of another
//
// Metadata does not count, nor how tensors are divided among files or aligned in them.
type Hash [sha256.Size]byte

// HashModel reads all weights of f.
func HashModel(f *gguf.File, p ref.Profile) Hash {
	h := sha256.New()
	_, _ = h.Write([]byte("kvasir model 1\x00")) // a hash takes all it is given
	var b []byte
	put := func(n int) { b = binary.LittleEndian.AppendUint32(b, uint32(n)) }
	put(ref.Arithmetic)
	put(len(p.Exponents))
	for _, e := range p.Exponents {
		put(e)
	}
	list := slices.Clone(f.Tensors)
	slices.SortFunc(list, func(x, y *gguf.Tensor) int { return cmp.Compare(x.Name, y.Name) })
	for _, t := range list {
		put(len(t.Name))
		b = append(b, t.Name...)
		put(int(t.Format))
		put(len(t.Dims))
		for _, d := range t.Dims {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		parts := 1
		if strings.Contains(t.Name, "_exps.") && len(t.Dims) == 3 {
			parts = t.Dims[2]
		}
		put(parts)
		for i := range parts {
			sum := hashPart(f, t, i, parts)
			b = append(b, sum[:]...)
		}
		_, _ = h.Write(b)
		b = b[:0]
	}
	return Hash(h.Sum(nil))
}

// hashPart is SHA-256 of the bytes of one of the equal parts of t, whose pages it gives back.
func hashPart(f *gguf.File, t *gguf.Tensor, i, parts int) Hash {
	size := len(t.Data) / parts
	part := t.Data[i*size : (i+1)*size]
	sum := sha256.Sum256(part)
	f.Forget(part)
	return sum
}

// HashProfile names a profile, so that two sides can tell in what they differ.
func HashProfile(p ref.Profile) Hash {
	b := []byte("kvasir profile 1\x00")
	for _, e := range append([]int{ref.Arithmetic}, p.Exponents...) {
		b = binary.LittleEndian.AppendUint32(b, uint32(e))
	}
	return sha256.Sum256(b)
}
