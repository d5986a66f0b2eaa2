package kerneltest

import (
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// scene says what a layer is like.
type scene struct {
	triple
	hidden, ffn int
	experts     int
	weights     []weights // of the experts, over and over; none: synthetic
	exponent    int
}

// smallScene is a layer of the smallest sizes from n on that t allows.
func smallScene(t triple, n, experts int) scene {
	return scene{triple: t, hidden: sizeFor(n, t.gate, t.up), ffn: sizeFor(n, t.down), experts: experts,
		exponent: ref.DefaultExponent}
}

func (c scene) String() string { return fmt.Sprintf("%s %dx%d", c.triple, c.hidden, c.ffn) }

// layerNumber is the number of all layers here: not 0, which is what is forgotten.
const layerNumber = 3

// layer returns a layer over fresh weights.
func (c scene) layer(s *source) *ref.Layer {
	l := &ref.Layer{Number: layerNumber, Exponent: c.exponent, Experts: make([]*ref.Expert, c.experts)}
	for i := range l.Experts {
		w := weights{}
		if len(c.weights) > 0 {
			w = c.weights[i%len(c.weights)]
		}
		l.Experts[i] = w.expert(c.triple, c.hidden, c.ffn, s)
	}
	return l
}

// crowd says what the rows of a batch are like and what they pick.
type crowd struct {
	rows  int
	kinds []rowKind // of the rows, over and over; none: activations
	topK  int       // picks of random experts with weights from 0 to 1
	pick  func(r int) ([]uint16, []float32)
	level bool // see there; the weights are other ones then
}

// batch returns a batch for l.
func (c crowd) batch(l *ref.Layer, s *source) *moe.Batch {
	held := heldBy(l)
	e := l.Experts[held[0]]
	if len(c.kinds) == 0 {
		c.kinds = []rowKind{activations}
	}
	if c.pick == nil {
		c.pick = func(int) ([]uint16, []float32) { return randomPicks(held, c.topK, s) }
	}
	b := emptyBatch(moe.Shape{Layer: l.Number, Hidden: e.Gate.In, Format: e.RowFormat()}, c.rows)
	for r := range c.rows {
		b.Grow(c.pick(r))
		fillRow(b.Row(r), c.kinds[r%len(c.kinds)], s)
	}
	if c.level {
		level(l, b, s)
	}
	return b
}

// emptyBatch returns a batch with room for rows and all picks that they may have.
func emptyBatch(shape moe.Shape, rows int) *moe.Batch {
	b, err := moe.NewBatch(shape, rows, rows*moe.MaxTopK)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

func heldBy(l *ref.Layer) []uint16 {
	var held []uint16
	for n, e := range l.Experts {
		if e != nil {
			held = append(held, uint16(n))
		}
	}
	return held
}

// randomPicks returns up to n of the experts, none twice, with weights from 0 to 1.
func randomPicks(held []uint16, n int, s *source) (expert []uint16, weight []float32) {
	for _, i := range s.permutation(len(held))[:min(n, len(held))] {
		expert = append(expert, held[i])
		weight = append(weight, gateWeight(s))
	}
	return expert, weight
}

// gateWeight returns a weight as a router gives it.
func gateWeight(s *source) float32 { return float32(float32(1+s.intn(1<<16)) * 0x1p-16) }

// part returns a batch of some rows of b, in the order given.
func part(b *moe.Batch, rows []int) *moe.Batch {
	p := emptyBatch(b.Shape, len(rows))
	for _, r := range rows {
		to := p.Row(p.Grow(b.Picks(r)))
		from := b.Row(r)
		copy(to.Q, from.Q)
		copy(to.Scales, from.Scales)
		copy(to.F, from.F)
	}
	return p
}

// partOf returns those rows of p that part returns of its batch.
func partOf(p *moe.Partials, rows []int) *moe.Partials {
	var q moe.Partials
	q.Reset(len(rows), p.Hidden)
	for i, r := range rows {
		q.Status[i] = p.Status[r]
		copy(q.Row(i), p.Row(r))
	}
	return &q
}

// numbers returns lo to hi-1.
func numbers(lo, hi int) []int {
	n := make([]int, 0, hi-lo)
	for i := lo; i < hi; i++ {
		n = append(n, i)
	}
	return n
}

// triples are the formats of experts that are tried: each alike, as real models mix them, and such
// that rows, h or both come in every format.
var triples = []triple{
	{quant.Q4K, quant.Q4K, quant.Q4K},
	{quant.Q5K, quant.Q5K, quant.Q5K},
	{quant.Q6K, quant.Q6K, quant.Q6K},
	{quant.Q8_0, quant.Q8_0, quant.Q8_0},
	{quant.MXFP4, quant.MXFP4, quant.MXFP4},
	{quant.F16, quant.F16, quant.F16},
	{quant.BF16, quant.BF16, quant.BF16},
	{quant.F32, quant.F32, quant.F32},
	{quant.Q5_0, quant.Q5_0, quant.Q5_0},
	{quant.Q4_0, quant.Q4_0, quant.Q4_0},
	{quant.Q4_1, quant.Q4_1, quant.Q5_1},
	{quant.Q2K, quant.Q2K, quant.Q3K}, // K-quants whose rows are floats all the same
	{quant.IQ4XS, quant.IQ4XS, quant.IQ4NL},

	{quant.Q4K, quant.Q4K, quant.Q6K}, // Q4_K_M
	{quant.Q4K, quant.Q4K, quant.Q5_0},
	{quant.Q4K, quant.Q6K, quant.Q5K},
	{quant.Q5K, quant.Q4K, quant.Q8_0},
	{quant.Q6K, quant.Q5K, quant.MXFP4},
	{quant.Q4K, quant.Q4K, quant.BF16},
	{quant.Q8_0, quant.MXFP4, quant.Q4K},
	{quant.MXFP4, quant.Q8_0, quant.F16},
	{quant.Q8_0, quant.Q8_0, quant.Q5_0},
	{quant.Q4K, quant.Q8_0, quant.MXFP4}, // unlike: rows of floats
	{quant.F16, quant.Q4K, quant.Q4K},
	{quant.Q5_0, quant.F32, quant.Q6K},
	{quant.BF16, quant.BF16, quant.Q8_0},
	{quant.F32, quant.MXFP4, quant.Q5K},
	{quant.Q4K, quant.Q3K, quant.Q2K},
}

// triplesOf returns those that b computes. Without floats only those whose rows and h are integers.
func triplesOf(b Backend, floats bool) []triple {
	var list []triple
	for _, t := range triples {
		integer := ref.RowFormat(t.gate, t.up) != moe.RowF32 && ref.HiddenFormat(t.down) != moe.RowF32
		if b.takes(t.gate, t.up, t.down) && (integer || floats) {
			list = append(list, t)
		}
	}
	return list
}

// fewTriples returns up to n of triplesOf, of different kinds, looking from one of them on: so that
// not every check takes the same ones.
func fewTriples(b Backend, n, from int) []triple {
	all := triplesOf(b, true)
	var list []triple
	seen := map[[2]moe.RowFormat]bool{}
	for i := range all {
		t := all[(from+i)%len(all)]
		kind := [2]moe.RowFormat{ref.RowFormat(t.gate, t.up), ref.HiddenFormat(t.down)}
		if len(list) < n && !seen[kind] {
			list, seen[kind] = append(list, t), true
		}
	}
	return list
}

// sizeFor returns the smallest size from n on that is whole blocks of all formats.
func sizeFor(n int, formats ...quant.Format) int {
	block := 1
	for _, f := range formats {
		values, _ := f.Block()
		block = max(block, values)
	}
	return (n + block - 1) / block * block
}
