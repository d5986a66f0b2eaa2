package sample

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"kvasir/kernels/vector"
)

// chunk is how many logits share a maximum. Most of what follows looks at the maxima first, and then
// only into chunks that can have what it looks for.
const chunk = 256

// scan is what one pass over logits tells.
type scan struct {
	ops    *vector.Ops
	x      []float32
	maxima []float32 // of each chunk
	top    float32   // the largest
	least  []float32 // for kth
}

// read looks at all logits once.
func (s *scan) read(x []float32) error {
	s.x, s.maxima = x, s.maxima[:0]
	for rest := x; len(rest) > 0; {
		n := min(chunk, len(rest))
		s.maxima = append(s.maxima, s.ops.Max(rest[:n]))
		rest = rest[n:]
	}
	s.top = s.ops.Max(s.maxima)
	if s.top != s.top || s.top > math.MaxFloat32 {
		s.x = nil
		return fmt.Errorf("%w: %g at token %d", ErrLogits, s.top, slices.IndexFunc(x, func(v float32) bool {
			return v != v || v > math.MaxFloat32
		}))
	}
	return nil
}

// part returns the logits of a chunk, and the id of the first.
func (s *scan) part(c int) ([]float32, int) {
	lo := c * chunk
	return s.x[lo:min(lo+chunk, len(s.x))], lo
}

// argmax returns the lowest of the tokens with the largest logit.
func (s *scan) argmax() int32 {
	x, first := s.part(slices.Index(s.maxima, s.top))
	return int32(first + slices.Index(x, s.top))
}

// kth returns a logit that at least k tokens reach: the k-th largest of the maxima, of which there are
// as many.
func (s *scan) kth(k int) float32 {
	s.least = s.least[:0]
	for _, v := range s.maxima {
		s.least = insert(s.least, -v, k)
	}
	return -s.least[k-1]
}

// insert puts v into a list in ascending order that keeps the n least.
func insert[T cmp.Ordered](list []T, v T, n int) []T {
	if len(list) == n && v >= list[n-1] {
		return list
	}
	i, _ := slices.BinarySearch(list, v)
	list = append(list, v)
	copy(list[i+1:], list[i:])
	list[i] = v
	return list[:min(n, len(list))]
}

// A key holds a token and its logit, and the order of keys as numbers is that of the tokens: the
// largest logit first, the lower id first of equal ones. Zeros of both signs are equal.
func keyOf(x float32, id int) uint64 {
	if x == 0 {
		x = 0
	}
	return uint64(^ordered(x))<<32 | uint64(id)
}

// ordered returns a number for x, the larger the larger x is; minus zero comes just before zero.
func ordered(x float32) uint32 {
	b := math.Float32bits(x)
	return b ^ (uint32(int32(b)>>31) | 1<<31)
}

func idOf(key uint64) int32 { return int32(uint32(key)) }

func logitOf(key uint64) float32 {
	b := ^uint32(key >> 32)
	if b>>31 != 0 {
		b &^= 1 << 31
	} else {
		b = ^b
	}
	return math.Float32frombits(b)
}

// largest appends the keys of the n likeliest tokens, in order, to an empty list.
func (s *scan) largest(list []uint64, n int) []uint64 {
	floor := float32(-math.MaxFloat32) // minus infinity is impossible
	if n <= len(s.maxima) {
		floor = max(floor, s.kth(n))
	}
	for c, m := range s.maxima {
		if m < floor {
			continue
		}
		x, first := s.part(c)
		for i, v := range x {
			if v >= floor {
				list = insert(list, keyOf(v, first+i), n)
			}
		}
	}
	return list
}

var impossible = func() (list [64]float32) {
	for i := range list {
		list[i] = float32(math.Inf(-1))
	}
	return list
}()

// forbid makes the logits of all tokens impossible whose bits are not set.
func forbid(x []float32, allowed []uint64) {
	for w, word := range allowed {
		part := x[w*64 : min(w*64+64, len(x))]
		switch {
		case word == math.MaxUint64:
		case bits.OnesCount64(word) <= 32:
			var kept [64]float32
			copy(kept[:], part)
			copy(part, impossible[:])
			for ; word != 0; word &= word - 1 {
				if i := bits.TrailingZeros64(word); i < len(part) {
					part[i] = kept[i]
				}
			}
		default:
			for word = ^word; word != 0; word &= word - 1 {
				if i := bits.TrailingZeros64(word); i < len(part) {
					part[i] = impossible[0]
				}
			}
		}
	}
}
