package sample

import (
	"math"
	"math/bits"
	"slices"

	"kvasir/kernels/ref"
)

const (
	weightBits = 39 // the likeliest token weighs 2^39: the largest power that gated sums take
	weightTop  = 1 << weightBits

	headChunks = 64   // how many of the largest chunks the head is looked for in
	headMax    = 4096 // tokens of a head; beyond, they are counted in piles before any is sorted
	pileCount  = 1024
	keysKept   = 1 << 14 // longer lists are not kept: they come from logits that are nearly all equal
)

// order is the tokens in the order in which they are drawn from, sorted only where somebody looks.
//
//  1. Piles are neighbours in that order, the likeliest first. Of each it is known how many tokens
//     it has and what they weigh together. At most one is open: its tokens are sorted in keys.
//  2. At first there is the head, open, which has all tokens of at least some logit, and the rest, of
//     which only the weight is known. Nearly always the head is enough: the mass of real
//     distributions lies on few tokens. If it is not, spread makes piles of about equal steps of the
//     logit, any of which can be opened.
//  3. Tokens are left out that cannot be drawn: those whose weight is below least, or whose logit is
//     below floor.
//
// Since weights are whole numbers, results do not depend on which of these ways is taken.
type order struct {
	p *Params
	s *scan

	scale float32 // 1 / temperature
	least int64   // 1, or more where min-p comes first
	minP  int64   // what min-p asks of a weight
	depth float32 // no token farther below the largest logit has the weight least, at temperature 1
	share uint64  // TopP in units of 2^-53

	top   float32 // the largest logit
	floor float32
	piles []pile
	keys  []uint64
	sizes []int64 // weights of keys
	wide  bool    // piles are those of spread
	step  float32 // piles for each unit of the logit
	heavy int     // how many tokens have the weight minP, of the head or of all; no limit if least sees to it

	minus, buf [chunk]float32
	sums       [chunk]int64
}

// pile is a number of tokens and their weight.
type pile struct {
	count int
	sum   int64
}

func newOrder(p *Params, s *scan) *order {
	o := &order{p: p, s: s, scale: 1 / max(p.Temperature, temperatureMin), least: 1}
	share := float64(float64(p.TopP) * (1 << 53))
	o.share = uint64(share) // exact: a float32 has fewer bits, unless it is below 2^-29
	m := float64(float64(p.MinP) * weightTop)
	o.minP = int64(m)
	if float64(o.minP) < m {
		o.minP++
	}
	if o.minP > 1 && p.TopP == 1 {
		o.least = o.minP // min-p depends on top-p's outcome only through what is left
	}
	// 1 more than exact covers the rounding of weights and all else.
	o.depth = float32(float64(weightBits*math.Ln2) - ln(float64(o.least)) + 1)
	return o
}

// weight returns the weight of a logit. It is float for float what weights does.
func (o *order) weight(x float32) int64 {
	return whole(ref.Exp(float32((x - o.top) * o.scale)))
}

// whole rounds e * 2^39 to a whole number, ties to even.
func whole(e float32) int64 {
	const magic = 0x1.8p52
	v := float64(float64(e)*weightTop) + magic
	return int64(math.Float64bits(v)) - int64(math.Float64bits(magic))
}

// weights returns the weights of part of the logits before they are rounded, until the next call.
func (o *order) weights(x []float32) []float32 {
	w := o.buf[:len(x)]
	copy(w, o.minus[:])
	o.s.ops.AddTo(w, x)
	if o.scale != 1 {
		o.s.ops.Scale(w, o.scale)
	}
	o.s.ops.Exp(w)
	return w
}

// draw chooses with the random number u, a fraction of 2^64.
func (o *order) draw(u uint64) int32 {
	top := o.s.top
	o.top, o.floor = top, top-float32(o.depth*max(o.p.Temperature, temperatureMin))
	for i := range o.minus {
		o.minus[i] = -top
	}
	id, ok := int32(0), false
	if o.head() {
		id, ok = o.choose(u)
	}
	if !ok {
		o.spread()
		if id, ok = o.choose(u); !ok {
			panic("BUG: a pile that cannot be opened")
		}
	}
	if cap(o.keys) > keysKept {
		o.keys, o.sizes = nil, nil
	}
	return id
}

// choose does steps 6 and 7. It reports false if it would have to look at the rest.
func (o *order) choose(u uint64) (id int32, ok bool) {
	var end pile
	for _, p := range o.piles {
		end.count, end.sum = end.count+p.count, end.sum+p.sum
	}
	if k := o.p.TopK; k > 0 && k < end.count {
		if end, _, ok = o.prefix(pile{k, math.MaxInt64}); !ok {
			return 0, false
		}
	}
	if o.p.TopP < 1 {
		if end, _, ok = o.prefix(pile{math.MaxInt, o.part(end.sum)}); !ok {
			return 0, false
		}
	}
	if o.heavy < end.count { // with a rest, top-p has just ended in the head, or there is no such limit
		if end, _, ok = o.prefix(pile{o.heavy, math.MaxInt64}); !ok {
			return 0, false
		}
	}
	t, _ := bits.Mul64(u, uint64(end.sum))
	_, id, ok = o.prefix(pile{math.MaxInt, int64(t) + 1})
	return id, ok
}

// part returns TopP of sum, rounded up, and 1 at least.
func (o *order) part(sum int64) int64 {
	hi, lo := bits.Mul64(o.share, uint64(sum))
	part := int64(hi<<11 | lo>>53)
	if lo<<11 != 0 {
		part++
	}
	return max(1, part)
}

// prefix returns the shortest beginning of the order that has the count or the sum of want, and its
// last token. It reports false if that lies in the rest.
func (o *order) prefix(want pile) (end pile, last int32, ok bool) {
	for i, p := range o.piles {
		if end.count+p.count < want.count && end.sum+p.sum < want.sum {
			end.count, end.sum = end.count+p.count, end.sum+p.sum
			continue
		}
		if o.wide {
			o.open(uint(i))
		} else if i > 0 {
			return end, 0, false
		}
		for j, key := range o.keys {
			end.count, end.sum = end.count+1, end.sum+o.sizes[j]
			if end.count >= want.count || end.sum >= want.sum {
				return end, idOf(key), true
			}
		}
		if o.wide {
			break
		}
	}
	panic("BUG: not so many tokens")
}

// head finds the head and the rest. It reports false if the head is too long to be worth sorting.
func (o *order) head() bool {
	floor, complete := o.floor, true
	switch k, chunks := o.p.TopK, len(o.s.maxima); {
	case k > 0 && k <= chunks:
		o.floor = max(o.floor, o.s.kth(k)) // the rest are not among the first k
		floor = o.floor
	case headChunks < chunks:
		floor = max(o.floor, o.s.kth(headChunks))
		complete = floor == o.floor
	}
	o.wide = false
	if o.keys = o.keys[:0]; !o.gather(floor) {
		return false
	}
	slices.Sort(o.keys)
	o.heavy = math.MaxInt
	head := o.weigh()
	o.piles = append(o.piles[:0], head)
	if complete {
		return true
	}
	if o.least > 1 {
		return false // all could not be told from those with the weight least
	}
	rest := o.all() - head.sum
	o.piles = append(o.piles, pile{len(o.s.x), rest})
	return true
}

// gather adds to keys all tokens whose logit is at least floor, and reports false if they are too many.
func (o *order) gather(floor float32) bool {
	for c, m := range o.s.maxima {
		if m < floor {
			continue
		}
		x, first := o.s.part(c)
		for i, v := range x {
			if v >= floor {
				o.keys = append(o.keys, keyOf(v, first+i))
			}
		}
		if len(o.keys) > headMax {
			return false
		}
	}
	return true
}

// weigh sets sizes to the weights of keys, which are sorted, and drops those that weigh less than least.
// Where min-p is asked for it counts how many are heavy enough.
func (o *order) weigh() pile {
	var all pile
	o.sizes = o.sizes[:0]
	heavy := 0
	for _, key := range o.keys {
		w := o.weight(logitOf(key))
		if w < o.least {
			break
		}
		o.sizes = append(o.sizes, w)
		all.count, all.sum = all.count+1, all.sum+w
		if w >= o.minP {
			heavy++
		}
	}
	o.keys = o.keys[:all.count]
	if o.minP > o.least && !o.wide {
		o.heavy = heavy
	}
	return all
}

// all returns the sum of all weights.
func (o *order) all() int64 {
	clear(o.sums[:])
	for c, m := range o.s.maxima {
		if m < o.floor {
			continue // they weigh nothing
		}
		x, _ := o.s.part(c)
		w := o.weights(x)
		if st := o.s.ops.AddPick(o.sums[:len(w)], w, 1, weightBits); st != 0 {
			panic("BUG: a weight out of range")
		}
	}
	sum := int64(0)
	for _, v := range o.sums {
		sum += v
	}
	return sum
}

// spread counts all tokens that can be drawn in piles of equal steps of the logit.
func (o *order) spread() {
	if o.piles = o.piles[:0]; cap(o.piles) < pileCount {
		o.piles = make([]pile, pileCount)
	}
	o.piles = o.piles[:pileCount]
	clear(o.piles)
	o.wide, o.step = true, 0
	if span := o.top - o.floor; span > 0 {
		o.step = (pileCount - 1) / span
	}
	heavy := 0
	piles, floor, least := (*[pileCount]pile)(o.piles), o.floor, o.least
	for c, m := range o.s.maxima {
		if m < floor {
			continue
		}
		x, _ := o.s.part(c)
		w := o.weights(x)[:len(x)]
		for i, v := range x {
			size := whole(w[i])
			if v < floor || size < least {
				continue
			}
			p := &piles[o.pileOf(v)]
			p.count++
			p.sum += size
			if size >= o.minP {
				heavy++
			}
		}
	}
	o.heavy = math.MaxInt
	if o.minP > o.least {
		o.heavy = heavy
	}
}

// pileOf returns the pile of a logit, floor or more: the larger the logit, the earlier or the same.
func (o *order) pileOf(x float32) uint {
	return min(pileCount-1, uint(int32(float32((o.top-x)*o.step))))
}

// open sorts the tokens of a pile.
func (o *order) open(pile uint) {
	o.keys = o.keys[:0]
	lo, hi := o.floor, o.top
	if o.step > 0 { // most others are told by their logits: one pile more on either side covers rounding
		lo = max(lo, o.top-float32((float32(pile)+2)/o.step))
		hi = min(hi, o.top-float32((float32(pile)-1)/o.step))
	}
	// One comparison, which is nearly always false; 1 more on either side is for zeros of both signs.
	from := ordered(lo) - 1
	width := ordered(hi) + 1 - from
	for c, m := range o.s.maxima {
		if m < lo {
			continue
		}
		x, first := o.s.part(c)
		for i, v := range x {
			if ordered(v)-from <= width && v >= o.floor && o.pileOf(v) == pile {
				o.keys = append(o.keys, keyOf(v, first+i))
			}
		}
	}
	slices.Sort(o.keys)
	o.weigh()
}
