package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// faultSteps spoils single rows, single experts and single picks: each gets its status, and what is
// beside it gets the bits that it would have got.
func faultSteps(b Backend, short bool) []step {
	list := triplesOf(b, true)
	if short {
		list = fewTriples(b, 4, 0)
	}
	var steps []step
	for _, t := range list {
		c := smallScene(t, 64, 9)
		steps = append(steps,
			step{"rows " + t.String(), func(tb testing.TB, s *source) error { return faultyRows(tb, b, c, s) }},
			step{"weights " + t.String(), func(tb testing.TB, s *source) error { return faultyWeights(tb, b, c, s) }},
			step{"sums " + t.String(), func(tb testing.TB, s *source) error { return faultySums(tb, b, c, s) }},
		)
	}
	if b.MatMul == nil {
		return steps
	}
	for _, f := range b.formats() {
		steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
			return faultyProducts(t, b, f, s)
		}})
	}
	return steps
}

// beyond returns the float with the bits one further from zero.
func beyond(x float32) float32 { return math.Float32frombits(math.Float32bits(x) + 1) }

// within returns the float with the bits one nearer to zero.
func within(x float32) float32 { return math.Float32frombits(math.Float32bits(x) - 1) }

// oddValues are values or scales that make a row a fault, and some at the limits that do not.
func oddValues(f moe.RowFormat) []float32 {
	if f == moe.RowF32 {
		return []float32{nan, inf, -inf, 0x1p40, beyond(0x1p40), -0x1p40, -beyond(0x1p40), 3e38, 0x1p-149}
	}
	return []float32{nan, inf, -inf, -1, 0x1p-60, 0x1p-149, -0x1p-149, scaleMin, within(scaleMin), scaleMax, beyond(scaleMax),
		3e38, minusZero, -scaleMin}
}

// spoil puts v into the row, as a scale where it has scales.
func spoil(x moe.Row, v float32, s *source) {
	if x.Format == moe.RowF32 {
		x.F[s.intn(len(x.F))] = v
		return
	}
	x.Scales[s.intn(len(x.Scales))] = v
}

func faultyRows(t testing.TB, b Backend, c scene, s *source) error {
	l := c.layer(s)
	x := b.Layer(t, l)
	odd := oddValues(l.Experts[0].RowFormat())
	clean := crowd{rows: 3*len(odd) + 1, topK: 2}.batch(l, s)
	w, err := want(l, clean)
	if err != nil {
		return err
	}
	all := numbers(0, clean.Rows)
	dirty := part(clean, all)
	for i, v := range odd {
		spoil(dirty.Row(3*i+1), v, s)
	}
	last := dirty.Row(3 * 2) // two faults in a row: the larger one counts
	spoil(last, 0x1p60, s)
	spoil(last, nan, s)
	if err := agree(x, l, dirty, true); err != nil {
		return fmt.Errorf("%s, rows 1, 4, 7, … have %g: %w", c, odd, err)
	}
	// The neighbours, told apart from what ref makes of the spoilt batch.
	out := stale(dirty)
	if err := x.Forward(t.Context(), dirty, out); err != nil {
		return err
	}
	for i := range odd {
		for _, r := range []int{3*i + 2, 3*i + 3} {
			if r == 3*2 {
				continue
			}
			if err := samePartials(partOf(out, []int{r}), partOf(w, []int{r})); err != nil {
				return fmt.Errorf("%s: row %d is not what it is without faults in others: %w", c, r, err)
			}
		}
	}
	return nil
}

// plant makes the scale of block k of output o, or the value k of a float format, the given one.
func plant(m *ref.Matrix, o, k int, v float32) {
	_, size := m.Format.Block()
	row := len(m.Data) / m.Out
	b := m.Data[o*row+k*size:]
	switch m.Format {
	case quant.F32:
		le.PutUint32(b, math.Float32bits(v))
	case quant.BF16:
		le.PutUint16(b, quant.F32ToBF16(v))
	case quant.MXFP4: // has neither infinity nor, where it is let in, NaN: the largest
		b[0] = 190
	case quant.Q6K:
		le.PutUint16(b[208:], quant.F32ToF16(v))
	default:
		le.PutUint16(b, quant.F32ToF16(v))
	}
}

// plantMinimum plants a minimum where the format has them.
func plantMinimum(m *ref.Matrix, o, k int, v float32) {
	if m.Format == quant.Q4K || m.Format == quant.Q5K {
		_, size := m.Format.Block()
		le.PutUint16(m.Data[o*len(m.Data)/m.Out+k*size+2:], quant.F32ToF16(v))
	}
}

// lastBlock is the number of the last block of a row, or of its last value.
func lastBlock(m *ref.Matrix) int {
	values, _ := m.Format.Block()
	return m.In/values - 1
}

// faultyWeights has one expert for each place that a fault can come from; each row picks two.
func faultyWeights(t testing.TB, b Backend, c scene, s *source) error {
	l := c.layer(s)
	e := l.Experts // 0 and 8 are without fault
	plant(&e[1].Gate, 3, lastBlock(&e[1].Gate), nan)
	plant(&e[2].Up, c.ffn-1, 0, inf)
	plant(&e[3].Gate, 0, 0, -inf)
	plant(&e[4].Down, c.hidden-1, lastBlock(&e[4].Down), nan)
	plantMinimum(&e[5].Gate, 5, 0, inf)
	plantMinimum(&e[5].Down, 5, 0, nan)
	for _, m := range []*ref.Matrix{&e[6].Gate, &e[6].Up, &e[7].Gate, &e[7].Up} { // h beyond 2^40
		for k := range lastBlock(m) + 1 {
			plant(m, 7, k, 60000)
		}
	}
	plant(&e[7].Gate, 2, 0, nan) // and h not a number
	rows := crowd{rows: 60, kinds: []rowKind{activations, outliers, anyValues, zeroBlocks, allZero}}
	rows.pick = func(r int) ([]uint16, []float32) {
		first := uint16(r % c.experts)
		second := uint16(s.intn(c.experts))
		if r%4 == 0 { // an expert at fault does not count more or less for its weight
			return []uint16{first, 8}, []float32{0, 1}
		}
		return []uint16{first, second}, []float32{gateWeight(s), gateWeight(s)}
	}
	batch := rows.batch(l, s)
	// A row at fault stays what it is where the weights are at fault too.
	spoil(batch.Row(1), 0x1p60, s)
	spoil(batch.Row(10), 0x1p60, s)
	if err := agree(b.Layer(t, l), l, batch, true); err != nil {
		return fmt.Errorf("%s, experts 1 to 7 are at fault: %w", c, err)
	}
	return nil
}

// faultySums has gate weights that bring the largest value of a pick just below 2^40, to it, and
// beyond it.
func faultySums(t testing.TB, b Backend, c scene, s *source) error {
	l := c.layer(s)
	const rows = 24
	batch := crowd{rows: rows, topK: 2}.batch(l, s)
	y := make([]float32, c.hidden)
	var scratch ref.Scratch
	for r := range rows {
		expert, weight := batch.Picks(r) // views
		if st := l.Experts[expert[0]].Forward(y, batch.Row(r), &scratch); st != moe.OK {
			return fmt.Errorf("BUG: row %d is %s", r, st)
		}
		largest := float32(0)
		for _, v := range y {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		limit := float32(power(40-l.Exponent) / largest)
		weight[0] = math.Float32frombits(math.Float32bits(limit) + uint32(r%8) - 4)
		switch r {
		case 5, 13:
			weight[0] = float32(limit * 2)
		case 6, 14:
			weight[0], weight[1] = nan, 1e38
		case 7, 15:
			weight[0], weight[1] = -inf, limit
		case 16:
			weight[0] = -limit
		case 17:
			weight[0] = 3e38
		}
	}
	if err := agree(b.Layer(t, l), l, batch, true); err != nil {
		return fmt.Errorf("%s, values about 2^40: %w", c, err)
	}
	return nil
}

// faultyProducts multiplies rows that hold what is not a number: it stays in their outputs.
func faultyProducts(t testing.TB, b Backend, f quant.Format, s *source) error {
	in := 2 * sizeFor(32, f)
	m := weights{}.matrix(f, in, 17, s)
	plant(m, 3, lastBlock(m), inf)
	plant(m, 16, 0, nan)
	plantMinimum(m, 5, 0, -inf)
	mul := b.MatMul(t, m)
	for _, rf := range b.rowFormats(f) {
		odd := []float32{nan, inf, -inf, 3e38}
		x := rowsOf(rf, 3*len(odd)+1, in, s, activations, zeroBlocks)
		for i, v := range odd {
			spoil(x[3*i+1], v, s)
		}
		if err := agreeMatMul(mul, m, x, s); err != nil {
			return fmt.Errorf("rows 1, 4, 7, … have %g: %w", odd, err)
		}
	}
	return nil
}
