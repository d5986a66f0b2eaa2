package ref

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// goldenFiles makes all golden files, from fixed seeds.
func goldenFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	add := func(name string, f goldenFile) {
		f.Arithmetic = Arithmetic
		for i := range f.Cases {
			if err := f.run(&f.Cases[i]); err != nil {
				t.Fatalf("%s, %s: %v", name, f.Cases[i].Name, err)
			}
		}
		data, err := json.MarshalIndent(f, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		files[strings.ToLower(name)+".json"] = append(data, '\n')
	}
	add("recip", goldenFile{Operation: "recip", Cases: recipCases()})
	add("exp", goldenFile{Operation: "exp", Cases: expCases()})
	add("silu", goldenFile{Operation: "silu", Cases: siluCases()})
	for f := moe.RowF32; f.Valid(); f++ {
		add("row-"+f.String(), goldenFile{Operation: "row", Row: f.String(), Cases: rowCases(f)})
	}
	for _, f := range quant.Supported() {
		add("dequantize-"+f.String(), goldenFile{Operation: "dequantize", Weights: f.String(), Cases: dequantizeCases(f)})
		for _, rf := range rowFormatsOf(f) {
			add(fmt.Sprintf("dot-%s-%s", f, rf), goldenFile{Operation: "dot", Weights: f.String(), Row: rf.String(), Cases: dotCases(f, rf)})
		}
	}
	for _, c := range triples[:9] {
		add(fmt.Sprintf("expert-%s-%s-%s", c.gate, c.up, c.down), goldenFile{
			Operation: "expert", Gate: c.gate.String(), Up: c.up.String(), Down: c.down.String(),
			Row: RowFormat(c.gate, c.up).String(), Cases: expertCases(c.gate, c.up, c.down),
		})
	}
	add("gatedsum", goldenFile{Operation: "gatedsum", Cases: gatedSumCases()})
	add("packing", goldenFile{Operation: "packing", Cases: packingCases()})
	return files
}

func recipCases() []goldenCase {
	var powers, mantissas, anywhere []float32
	for e := -64; e <= 64; e++ {
		powers = append(powers, pow2(e))
	}
	src := source(201)
	for i := range 512 { // evenly over a binade, and its ends
		mantissas = append(mantissas, math.Float32frombits(0x3F800000+uint32(i<<14+src.intn(1<<14))))
	}
	mantissas = append(mantissas, 1, math.Nextafter32(1, 2), math.Nextafter32(2, 1))
	for range 256 {
		anywhere = append(anywhere, math.Float32frombits(uint32(127-64+src.intn(128))<<23|uint32(src.intn(1<<23))))
	}
	return []goldenCase{
		{Name: "powers of two", X: packF32(powers...)},
		{Name: "mantissas", X: packF32(mantissas...)},
		{Name: "anywhere", X: packF32(anywhere...)},
	}
}

func expCases() []goldenCase {
	var grid []float32
	for i := -87 * 4; i <= 88*4; i++ {
		grid = append(grid, float32(i)/4)
	}
	src := source(202)
	var anywhere []float32
	for range 512 {
		anywhere = append(anywhere, float32(src.intn(175<<16))/(1<<16)-87)
	}
	var turns []float32 // where n goes up by one
	for k := -125; k <= 125; k += 10 {
		x := float32(float64(2*k+1) * math.Ln2 / 2)
		turns = append(turns, math.Nextafter32(x, -100), x, math.Nextafter32(x, 100))
	}
	return []goldenCase{
		{Name: "steps of a quarter", X: packF32(grid...)},
		{Name: "anywhere", X: packF32(anywhere...)},
		{Name: "where n turns", X: packF32(turns...)},
		{Name: "edges", X: packF32(0, float32(math.Copysign(0, -1)), 0x1p-149, 0x1p-30, -0x1p-30, -87,
			math.Nextafter32(-87, -88), -1e30, -inf, 88)},
	}
}

func siluCases() []goldenCase {
	var grid []float32
	for i := -45 * 4; i <= 45*4; i++ {
		grid = append(grid, float32(i)/4)
	}
	src := source(203)
	var anywhere []float32
	for range 512 {
		anywhere = append(anywhere, float32(4*src.activation()))
	}
	return []goldenCase{
		{Name: "steps of a quarter", X: packF32(grid...)},
		{Name: "anywhere", X: packF32(anywhere...)},
		{Name: "edges", X: packF32(0, 0x1p-30, -0x1p-30, -44, math.Nextafter32(-44, -45), -1e30, 87, 88, 1e30, 0x1p40)},
	}
}

func rowCases(f moe.RowFormat) []goldenCase {
	src := source(204)
	edge := func(name string, x ...float32) goldenCase { return goldenCase{Name: name, X: packF32(x...)} }
	small, large := float32(0x1p-40), float32(0x1p40)
	outlier := src.activations(64)
	outlier[20], outlier[40] = 1e4, -1e4
	cases := []goldenCase{
		edge("activations, the last block short", src.activations(512+44)...),
		edge("outliers of 1e4", outlier...),
		edge("zeros", make([]float32, 40)...),
		edge("one value", -3),
		edge("ties go to even", 127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5),
		edge("amax 2^-40", small, -small/2, small/3),
		edge("amax just below 2^-40", math.Nextafter32(small, 0), -small/2),
		edge("amax just above 2^-40", math.Nextafter32(small, 1), -small/2),
		edge("amax 2^40", large/2, -large),
		edge("amax just below 2^40", math.Nextafter32(large, 0), -large/2),
		edge("amax just above 2^40: range", 1, 2, math.Nextafter32(large, inf)),
		edge("NaN after range", 1, -2*large, nan),
		edge("infinity", 1, 2, 3, -inf, inf),
		edge("subnormals", 0x1p-149, 0x1p-130, 1),
		edge("only subnormals", 0x1p-149, -0x1p-127),
	}
	for e := -39; e < 40; e += 6 { // amax of all sizes, over many mantissas
		x := src.activations(70)
		for i := range x {
			x[i] = float32(math.Ldexp(float64(x[i])/512, e))
		}
		cases = append(cases, edge(fmt.Sprintf("around 2^%d", e), x...))
	}
	return cases
}

func dequantizeCases(f quant.Format) []goldenCase {
	values, bytes := f.Block()
	blocks := max(2, 64/values)
	synthetic := make([]byte, blocks*bytes)
	quant.Synthetic(synthetic, f, 205)
	cases := []goldenCase{{Name: "synthetic", Weights: synthetic}}
	if f.IsFloat() {
		return append(cases, goldenCase{Name: "largest and smallest", Weights: extremeFloats(f)})
	}
	return append(cases,
		goldenCase{Name: "value bits 1, scale bits 1", Weights: filled(f, 0xff, 0xff)},
		goldenCase{Name: "all bits 0", Weights: make([]byte, bytes)},
		goldenCase{Name: "smallest scales", Weights: scaled16(f, 0x0001, 206)},
		goldenCase{Name: "largest scales", Weights: scaled16(f, 0x7bff, 206)})
}

// extremeFloats is the largest number, the smallest normal and subnormal, and minus zero.
func extremeFloats(f quant.Format) []byte {
	switch f {
	case quant.F32:
		return packF32(math.MaxFloat32, 0x1p-126, 0x1p-149, float32(math.Copysign(0, -1)))
	case quant.F16:
		return []byte{0xff, 0x7b, 0x00, 0x04, 0x01, 0x00, 0x00, 0x80}
	}
	return []byte{0x7f, 0x7f, 0x80, 0x00, 0x01, 0x00, 0x00, 0x80}
}

// halvesOf is where the binary16 scales and minimums of a block stand.
var halvesOf = map[quant.Format][]int{
	quant.Q4_0: {0}, quant.Q4_1: {0, 2}, quant.Q5_0: {0}, quant.Q5_1: {0, 2}, quant.Q8_0: {0},
	quant.Q2K: {80, 82}, quant.Q3K: {108}, quant.Q4K: {0, 2}, quant.Q5K: {0, 2}, quant.Q6K: {208},
	quant.IQ4NL: {0}, quant.IQ4XS: {0},
}

// scaled16 is a block of random values whose binary16 scales are all h; MXFP4 has its smallest
// scale for a small h and its largest for a large one.
func scaled16(f quant.Format, h uint16, seed uint64) []byte {
	_, bytes := f.Block()
	b := make([]byte, bytes)
	quant.Synthetic(b, f, seed)
	for _, i := range halvesOf[f] {
		binary.LittleEndian.PutUint16(b[i:], h)
	}
	if f == quant.MXFP4 {
		b[0] = 80
		if h > 0x3c00 {
			b[0] = 190
		}
	}
	return b
}

func dotCases(f quant.Format, rf moe.RowFormat) []goldenCase {
	values, _ := f.Block()
	in := max(2*values, 64)
	if values == 1 {
		in = 77 // the lanes do not come out even
	}
	m := syntheticMatrix(f, in, 3, 207)
	rows := func(x ...moe.Row) (g []goldenRow) {
		for _, r := range x {
			g = append(g, packRow(r))
		}
		return g
	}
	src := source(208)
	outlier := src.activations(in)
	outlier[in/3] = 1e4
	cases := []goldenCase{{
		Name: "synthetic", In: in, Out: 3, Weights: m.Data,
		Rows: rows(append(randomRows(rf, 2, in, 209), rowOf(rf, outlier), newRow(rf, in))...),
	}}
	if f.IsFloat() {
		return append(cases, goldenCase{
			Name: "one value", In: 1, Out: 1, Weights: m.Data[:len(m.Data)/in/3], Rows: rows(rowOf(rf, []float32{-3})),
		})
	}
	block := func(name string, weights []byte, x ...moe.Row) {
		cases = append(cases, goldenCase{Name: name, In: values, Out: 1, Weights: weights, Rows: rows(x...)})
	}
	flat := func(v float32) moe.Row {
		x := make([]float32, values)
		for i := range x {
			x[i] = v
		}
		return rowOf(rf, x)
	}
	low, high := flat(-1), flat(1)
	block("value bits 1, scale bits 1, rows all -127 and 127", filled(f, 0xff, 0xff), low, high)
	block("value bits 1, scale bytes 0x80", filled(f, 0xff, 0x80), low, high)
	block("all bits 0", make([]byte, len(filled(f, 0, 0))), low, high)
	block("value bits 0, scale bits 1", filled(f, 0, 0xff), low, high, flat(0))
	block("value bytes 0x80, scale bytes 0x80", filled(f, 0x80, 0x80), low, high)
	block("smallest scales, small rows", scaled16(f, 0x0001, 210), flat(0x1p-40), flat(-0x1.8p-40), flat(1))
	block("largest scales, large rows", scaled16(f, 0x7bff, 211), flat(0x1p40), flat(-0x1p39), flat(1))
	block("negative scales", scaled16(f, 0xbc00, 212), low, high)
	if f == quant.MXFP4 {
		b := scaled16(f, 1, 213)
		b[0] = 79
		block("exponent byte 79: zeros", b, low, high)
	}
	return cases
}

func expertCases(gate, up, down quant.Format) []goldenCase {
	hidden, length := sizeFor(40, gate, up), sizeFor(33, down)
	pool := func(f quant.Format, in, rows int, seed uint64) blob { return syntheticMatrix(f, in, rows, seed).Data }
	rf := RowFormat(gate, up)
	e := &Expert{Gate: syntheticMatrix(gate, hidden, 1, 1), Up: syntheticMatrix(up, hidden, 1, 1)}
	c := goldenCase{
		Name: "rows and faults", In: hidden, Out: length,
		Gate: pool(gate, hidden, 5, 214), Up: pool(up, hidden, 7, 215), Down: pool(down, length, 6, 216),
	}
	for _, x := range append(rowsWithFaults(e, 7), newRow(rf, hidden)) {
		c.Rows = append(c.Rows, packRow(x))
	}
	large := c
	large.Name = "h beyond 2^40, weights of up as of gate"
	large.Up = c.Gate
	m, err := repeated(gate.String(), hidden, length, c.Gate)
	if err != nil || gate != up {
		return []goldenCase{c}
	}
	large.Rows = []goldenRow{packRow(largest(&m, rf))}
	return []goldenCase{c, large}
}

func gatedSumCases() []goldenCase {
	src := source(217)
	cases := []goldenCase{}
	add := func(name string, exponent int, picks ...goldenPick) {
		cases = append(cases, goldenCase{Name: name, Exponent: &exponent, Picks: picks})
	}
	p := func(w float32, y ...float32) goldenPick { return goldenPick{W: packF32(w), Y: packF32(y...)} }
	for _, e := range []int{MinExponent, 0, 11, DefaultExponent, 33} {
		add(fmt.Sprintf("8 picks at E = %d", e), e,
			p(0.31, src.activations(24)...), p(0.22, src.activations(24)...), p(0.13, src.activations(24)...),
			p(0.11, src.activations(24)...), p(0.09, src.activations(24)...), p(0.07, src.activations(24)...),
			p(0.05, src.activations(24)...), p(0.02, src.activations(24)...))
	}
	below := math.Nextafter32(0x1p40, 0)
	add("ties go to even", 0, p(1, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5))
	add("the product is rounded first", 0, p(1+0x1p-23, 8388607.5, 1.5, 0x1.fffffep22))
	add("weights of zero, negative, tiny", 20, p(0, 1, -1), p(-0.5, 1, -1), p(0x1p-140, 1, 0x1p40))
	add("largest values, many picks", 0, p(1, below, -below), p(1, below, -below), p(1, below, -below))
	add("range above", 0, p(1, 5, 0x1p40), p(1, 1, 1))
	add("range below", 8, p(1, 1, 1), p(1, 5, -0x1p32))
	add("E = 40", 40, p(1, 0.5, -0.25, 0x1p-41))
	add("range at E = 40", 40, p(1, 1, 0))
	add("infinite y, weight 0", 0, p(0, inf, 1))
	add("NaN weight", 0, p(1, 2, 3), p(nan, 0, 0))
	add("range, then nonfinite", 0, p(1, 0x1p40, 0), p(inf, 1, 1))
	add("nonfinite, then range", 0, p(inf, 1, 1), p(1, 0x1p40, 0))
	add("the product overflows", 0, p(1e30, 1e30, 1))
	add("the scaled product overflows", 40, p(1, 1e30, 1))
	return cases
}

func packingCases() []goldenCase {
	src := source(218)
	random := func(n, bits int) []int64 {
		v := make([]int64, n)
		for i := range v {
			v[i] = int64(src.next()) >> (64 - bits)
		}
		return v
	}
	sum := func(name string, v ...int64) goldenCase { return goldenCase{Name: name, Sum: packI64(v...)} }
	cases := []goldenCase{
		sum("one zero", 0), sum("a block of zeros and one more", make([]int64, 257)...),
		sum("minus one", -1), sum("one", 1), sum("-1 and 0 fit one bit", 0, -1, -1, 0, 0, 0, 0, 0, -1),
		sum("three bits", 3, -4, 1), sum("13 bits across words", repeat(6, 4095, -4096)...),
		sum("a short last block", random(300, 13)...),
		sum("blocks of several widths", append(append(append(random(256, 5), make([]int64, 256)...), random(256, 31)...), random(8, 20)...)...),
	}
	for _, w := range []int{1, 7, 8, 9, 16, 17, 32, 33, 47, 48, 49, 51, 52} {
		cases = append(cases, sum(fmt.Sprintf("%d bits", w), append(random(20, w), -1<<(w-1))...))
	}
	refused := func(name string, values int, packed ...byte) {
		cases = append(cases, goldenCase{Name: "refused: " + name, Values: values, Packed: packed})
	}
	refused("53 bits", 1, 0x35, 0, 0, 0, 0, 0, 0, 0x10)
	refused("width 255", 1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0)
	refused("cut short", 3, 13, 0xff, 0x0f, 0, 0xfe)
	refused("nothing after the width", 2, 8)
	refused("zeros with a width", 2, 1, 0)
	refused("a bit too many", 2, 3, 9)
	refused("padding", 1, 2, 5)
	refused("the last padding bit", 1, 2, 0x81)
	refused("no second width", 257, 0)
	return cases
}
