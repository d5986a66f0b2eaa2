package kerneltest

import (
	"fmt"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// formatSteps tries each combination of formats with weights as trained models have them and with
// random ones.
func formatSteps(b Backend, short bool) []step {
	c := scene{hidden: 512, ffn: 256, experts: 4, exponent: ref.DefaultExponent,
		weights: []weights{{}, {anyDigits, calm}}}
	rows := crowd{rows: 13, topK: 3, kinds: []rowKind{activations, anyValues, outliers, zeroBlocks}, level: true}
	if short {
		c.hidden, c.experts, rows.rows, rows.topK = 256, 2, 4, 2
	}
	var steps []step
	for _, t := range triplesOf(b, true) {
		c.triple = t
		steps = append(steps, layerStep(t.String(), b, c, rows))
	}
	if b.MatMul == nil {
		return steps
	}
	for _, f := range b.formats() {
		steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
			return productsOf(t, b, f, []product{{512, 48, 9}}, s)
		}})
	}
	return steps
}

// layerStep is a step that runs one batch of which some rows are good.
func layerStep(name string, b Backend, c scene, rows crowd) step {
	return step{name, func(t testing.TB, s *source) error {
		l := c.layer(s)
		if err := agree(b.Layer(t, l), l, rows.batch(l, s), true); err != nil {
			return fmt.Errorf("%s, %d rows: %w", c, rows.rows, err)
		}
		return nil
	}}
}

// extremeSteps tries digits and scales at their ends against rows at theirs.
func extremeSteps(b Backend, short bool) []step {
	var steps []step
	if b.MatMul != nil {
		for _, f := range b.formats() {
			steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
				return extremeProducts(t, b, f, short, s)
			}})
		}
	}
	// Each expert has weights of one kind. Each row picks one of them, so that each kind of row meets
	// each kind of weights. Many are faults; which ones is part of the question.
	rows := crowd{rows: len(extremes()) * int(rowKinds), kinds: allKinds(), level: true}
	rows.pick = func(r int) ([]uint16, []float32) {
		return []uint16{uint16(r / int(rowKinds))}, []float32{0.5}
	}
	list := triplesOf(b, true)
	if short {
		list = fewTriples(b, 4, 0)
	}
	for i, t := range list {
		c := smallScene(t, 64, len(extremes()))
		c.weights, c.exponent = extremes(), []int{ref.MinExponent, 0, ref.DefaultExponent}[i%3]
		steps = append(steps, layerStep(t.String(), b, c, rows))
	}
	return steps
}

func extremeProducts(t testing.TB, b Backend, f quant.Format, short bool, s *source) error {
	in, out := sizeFor(96, f), 17
	if !short {
		in = sizeFor(512, f)
	}
	for _, w := range extremes() {
		m := w.matrix(f, in, out, s)
		mul := b.MatMul(t, m)
		for _, rf := range b.rowFormats(f) {
			if err := agreeMatMul(mul, m, rowsOf(rf, int(rowKinds), in, s, allKinds()...), s); err != nil {
				return fmt.Errorf("%s (rows: %v): %w", w, allKinds(), err)
			}
		}
	}
	return nil
}

// product is the shape of a matrix and of the rows that it meets.
type product struct{ in, out, rows int }

// products are those of format f that is whole blocks of; the rest is left out.
func productsOf(t testing.TB, b Backend, f quant.Format, list []product, s *source) error {
	for _, p := range list {
		if _, err := f.RowBytes(p.in); err != nil {
			continue
		}
		m := weights{anyDigits, calm}.matrix(f, p.in, p.out, s)
		mul := b.MatMul(t, m)
		for _, rf := range b.rowFormats(f) {
			x := rowsOf(rf, p.rows, p.in, s, activations, anyValues)
			for range 2 { // packed once, used twice: nothing of the first stays
				if err := agreeMatMul(mul, m, x, s); err != nil {
					return err
				}
				x = x[:(len(x)+1)/2]
			}
		}
	}
	return nil
}

// raggedSteps tries numbers of rows and sizes that leave something over.
func raggedSteps(b Backend, short bool) []step {
	var steps []step
	if b.MatMul != nil {
		for _, f := range b.formats() {
			steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
				return productsOf(t, b, f, raggedProducts(f, short), s)
			}})
		}
	}
	for i, t := range fewTriples(b, 99, 9) {
		sizes := numbers(1, 34)
		if short {
			if i >= 5 {
				break
			}
			sizes = []int{33, 1, 2, 7, 8, 16, 17}
		} else if i < 4 {
			sizes = append([]int{512, 511}, sizes...)
		}
		steps = append(steps, step{"rows " + t.String(), func(tb testing.TB, s *source) error {
			return raggedRows(tb, b, smallScene(t, 32, 3), sizes, s)
		}})
	}
	for _, c := range raggedScenes(b, short) {
		steps = append(steps, layerStep(c.String(), b, c, crowd{rows: 2, topK: 2}))
	}
	return steps
}

// raggedProducts has each number of rows up to 33 and some large ones, outputs that fill no vector,
// and sizes as models have them.
func raggedProducts(f quant.Format, short bool) []product {
	block := sizeFor(1, f)
	var list []product
	for rows := 1; rows <= 33; rows++ {
		blocks := 1
		if !short {
			blocks += rows % 3
		}
		if block == 1 {
			blocks = rows*7%61 + 1
		}
		list = append(list, product{block * blocks, []int{1, 5, 17, 16, 33}[rows%5], rows})
	}
	list = append(list, product{96, 33, 7}, product{288, 18, 5}, product{800, 7, 4}, product{33, 5, 3}, product{100, 17, 8})
	if short {
		return append(list, product{block, 1, 65})
	}
	return append(list, product{max(block, 32), 17, 511}, product{max(block, 32), 5, 512}, product{1024, 31, 64},
		product{7168, 5, 3}, product{7168, 35, 9}, product{2880, 33, 3}, product{3072, 100, 5}, product{4096, 129, 2},
		product{1, 1, 1}, product{257, 2, 2}, product{32, 7168, 2})
}

// raggedRows runs batches of many sizes through one layer: what a large one left behind must not be
// seen in a small one.
func raggedRows(t testing.TB, b Backend, c scene, sizes []int, s *source) error {
	l := c.layer(s)
	x := b.Layer(t, l)
	for _, rows := range sizes {
		if err := agree(x, l, crowd{rows: rows, topK: 1 + rows%2}.batch(l, s), true); err != nil {
			return fmt.Errorf("%s, %d rows: %w", c, rows, err)
		}
	}
	return nil
}

// raggedScenes has hidden and FFN sizes of models and odd ones, where the formats allow them.
func raggedScenes(b Backend, short bool) []scene {
	sizes := [][2]int{{256, 7168}, {7168, 256}, {2048, 768}, {3072, 1024}, {4096, 512}, {2880, 2880}, {512, 800},
		{96, 32}, {800, 96}, {32, 800}, {288, 288}, {1024, 96}, {33, 5}, {1, 1}, {100, 257}}
	if short {
		sizes = [][2]int{{512, 256}, {256, 96}, {96, 32}, {800, 96}, {32, 288}, {33, 5}, {1, 1}}
	}
	var list []scene
	for i, size := range sizes {
		found := 0
		all := triplesOf(b, true)
		for k := range all { // each size with others of the combinations that fit
			t := all[(k+5*i)%len(all)]
			if fits(t, size[0], size[1]) && found < 2 {
				list = append(list, scene{triple: t, hidden: size[0], ffn: size[1], experts: 2, exponent: ref.DefaultExponent})
				found++
			}
		}
	}
	return list
}

func fits(t triple, hidden, ffn int) bool {
	return hidden%sizeFor(1, t.gate, t.up) == 0 && ffn%sizeFor(1, t.down) == 0
}

// pickSteps tries what rows may pick.
func pickSteps(b Backend, short bool) []step {
	var steps []step
	for i, t := range fewTriples(b, 99, 1) {
		if short && i >= 3 {
			break
		}
		c := smallScene(t, 64, 8)
		steps = append(steps,
			step{"weights and duplicates " + t.String(), func(tb testing.TB, s *source) error { return oddPicks(tb, b, c, s) }},
			step{"nobody's experts " + t.String(), func(tb testing.TB, s *source) error { return unpicked(tb, b, c, s) }},
		)
		if i < 2 {
			steps = append(steps, step{"hot expert " + t.String(), func(tb testing.TB, s *source) error {
				return hotExpert(tb, b, c, short, s)
			}})
		}
	}
	return steps
}

// oddPicks has one expert many times in a row, and weights that a router does not give.
func oddPicks(t testing.TB, b Backend, c scene, s *source) error {
	odd := []float32{0, minusZero, 1, -1, -0.3, 1e-30, 0x1p-126, 2, 1e3, -1e5, 1e9, 1e20, -3e38, 0x1p-149}
	for _, c.exponent = range []int{ref.MinExponent, 15, ref.MaxExponent} {
		l := c.layer(s)
		rows := crowd{rows: 2*len(odd) + 2, pick: func(r int) ([]uint16, []float32) {
			w := odd[r%len(odd)]
			a, z := uint16(s.intn(c.experts)), uint16(s.intn(c.experts))
			switch r / len(odd) {
			case 0:
				return []uint16{a}, []float32{w}
			case 1:
				return []uint16{a, a, z, a}, []float32{w, w, gateWeight(s), gateWeight(s)}
			}
			expert, weight := make([]uint16, moe.MaxTopK), make([]float32, moe.MaxTopK)
			for i := range expert { // more picks than experts
				expert[i], weight[i] = uint16(s.intn(c.experts)), gateWeight(s)
			}
			weight[s.intn(len(weight))] = w
			return expert, weight
		}}
		if err := agree(b.Layer(t, l), l, rows.batch(l, s), true); err != nil {
			return fmt.Errorf("%s, exponent %d, weights of single picks %g: %w", c, c.exponent, odd, err)
		}
	}
	return nil
}

// unpicked has experts that no row picks: first, last, all but one; and ones that are not held.
func unpicked(t testing.TB, b Backend, c scene, s *source) error {
	l := c.layer(s)
	l.Experts[0], l.Experts[4] = nil, nil
	x := b.Layer(t, l)
	for _, only := range [][]uint16{{1}, {7}, {2, 3}, {1, 7}, {5}} {
		rows := crowd{rows: 9, pick: func(int) ([]uint16, []float32) { return randomPicks(only, 2, s) }}
		if err := agree(x, l, rows.batch(l, s), true); err != nil {
			return fmt.Errorf("%s, picks of experts %d alone: %w", c, only, err)
		}
	}
	return nil
}

// hotExpert has one expert with most of the rows, and others with few.
func hotExpert(t testing.TB, b Backend, c scene, short bool, s *source) error {
	c.experts, c.exponent = 32, ref.DefaultExponent
	rows, hot := 512, 400
	if short {
		rows, hot = 64, 50
	}
	l := c.layer(s)
	order := s.permutation(rows)
	batch := crowd{rows: rows, pick: func(r int) ([]uint16, []float32) {
		expert, weight := randomPicks(numbered(1+s.intn(c.experts-1), c.experts), 1, s)
		if order[r] < hot {
			return append(expert, 0), append(weight, gateWeight(s))
		}
		return expert, weight
	}}.batch(l, s)
	if err := agree(b.Layer(t, l), l, batch, true); err != nil {
		return fmt.Errorf("%s, %d of %d rows pick expert 0: %w", c, hot, rows, err)
	}
	return nil
}

// numbered returns the experts lo to hi-1.
func numbered(lo, hi int) []uint16 {
	list := make([]uint16, 0, hi-lo)
	for i := lo; i < hi; i++ {
		list = append(list, uint16(i))
	}
	return list
}
