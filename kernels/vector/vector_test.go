package vector

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// args is what an operation is given: vectors of n values, a matrix of rows of n values, stride
// apart, one value a row twice, and sums.
type args struct {
	x, y, z, u []float32
	m          []float32
	stride     int
	k, q       []float32
	i, j       []int64
	s          float32
	e          int
	results    []float32 // what is returned
}

func (a *args) floats() []*[]float32 { return []*[]float32{&a.x, &a.y, &a.z, &a.u, &a.m, &a.k, &a.q} }

func (a *args) returns(v ...float32) { a.results = append(a.results, v...) }

// copied returns a copy of a; its slices lie in the regions, if there are some.
func (a *args) copied(regions []*region, where int) *args {
	c := *a
	next := 0
	for _, s := range c.floats() {
		if regions == nil {
			*s = slices.Clone(*s)
			continue
		}
		to := place[float32](regions[next], len(*s), where)
		copy(to, *s)
		*s, next = to, next+1
	}
	for _, s := range []*[]int64{&c.i, &c.j} {
		if regions == nil {
			*s = slices.Clone(*s)
			continue
		}
		to := place[int64](regions[next], len(*s), where)
		copy(to, *s)
		*s, next = to, next+1
	}
	return &c
}

// unlike says in what a and want differ.
func (a *args) unlike(want *args) string {
	for k, s := range a.floats() {
		if d := unlike(*s, *want.floats()[k]); d != "" {
			return fmt.Sprintf("argument %c: %s", "xyzumkq"[k], d)
		}
	}
	if d := unlikeSums(a.i, want.i); d != "" {
		return d
	}
	return unlike(a.results, want.results)
}

// operation is one of Ops beside its definition, both changing args.
type operation struct {
	name string
	run  func(o *Ops, a *args)
	want func(a *args)
}

func each(x []float32, f func(i int) float32) {
	for i := range x {
		x[i] = f(i)
	}
}

// split64 makes two float32 of a float64, so that all its bits are compared.
func split64(v float64) (lo, hi float32) {
	b := math.Float64bits(v)
	if v != v {
		return nan, nan
	}
	return float32(b & 0xffffff), float32(b >> 24 & 0xffffff)
}

func truth(v bool) float32 {
	if v {
		return 1
	}
	return 0
}

var operations = []operation{
	{"Gate", func(o *Ops, a *args) { o.Gate(a.x, a.y, a.z) }, func(a *args) {
		each(a.x, func(i int) float32 { return ref.Gated(a.y[i], a.z[i]) })
	}},
	{"Gate in place", func(o *Ops, a *args) { o.Gate(a.y, a.y, a.z) }, func(a *args) {
		each(a.y, func(i int) float32 { return ref.Gated(a.y[i], a.z[i]) })
	}},
	{"Silu", func(o *Ops, a *args) { o.Silu(a.x) }, func(a *args) {
		each(a.x, func(i int) float32 { return ref.Silu(a.x[i]) })
	}},
	{"Sigmoid", func(o *Ops, a *args) { o.Sigmoid(a.x) }, func(a *args) {
		each(a.x, func(i int) float32 {
			if a.x[i] < -88 {
				return 0
			}
			return 1 / (1 + ref.Exp(-a.x[i]))
		})
	}},
	{"Exp", func(o *Ops, a *args) { o.Exp(a.x) }, func(a *args) {
		each(a.x, func(i int) float32 { return ref.Exp(a.x[i]) })
	}},
	{"ExpLess", func(o *Ops, a *args) { o.ExpLess(a.x, a.s) }, func(a *args) {
		each(a.x, func(i int) float32 { return ref.Exp(a.x[i] - a.s) })
	}},
	{"Max", func(o *Ops, a *args) { a.returns(o.Max(a.x)) }, func(a *args) {
		top := -inf
		for _, v := range a.x {
			top = max(top, v)
		}
		a.returns(top + 0)
	}},
	{"Softmax", func(o *Ops, a *args) { o.Softmax(a.x) }, softmax},
	{"AddSums", func(o *Ops, a *args) { o.AddSums(a.i, a.j) }, func(a *args) {
		for i, v := range a.j {
			a.i[i] += v
		}
	}},
	{"AddPick", func(o *Ops, a *args) { a.returns(float32(o.AddPick(a.i, a.x, a.s, a.e))) }, func(a *args) {
		a.returns(float32(ref.AddPick(a.i, a.x, a.s, a.e)))
	}},
	{"Floats", func(o *Ops, a *args) { o.Floats(a.x, a.i, a.e) }, func(a *args) {
		each(a.x, func(i int) float32 { return ref.Float(a.i[i], a.e) })
	}},
	{"SumF32", func(o *Ops, a *args) { a.returns(o.SumF32(a.x)) }, func(a *args) { a.returns(ref.SumF32(a.x)) }},
	{"DotF32", func(o *Ops, a *args) { a.returns(o.DotF32(a.x, a.y)) }, func(a *args) {
		a.returns(ref.DotF32(a.x, a.y))
	}},
	{"SumSquares", func(o *Ops, a *args) { a.returns(split64(o.SumSquares(a.x))) }, func(a *args) {
		a.returns(split64(ref.SumSquares(a.x)))
	}},
	{"Dots", func(o *Ops, a *args) { o.Dots(a.k, a.x, a.m, a.stride) }, func(a *args) {
		each(a.k, func(r int) float32 { return ref.DotF32(a.m[r*a.stride:][:len(a.x)], a.x) })
	}},
	{"AddTo", func(o *Ops, a *args) { o.AddTo(a.x, a.y) }, func(a *args) {
		each(a.x, func(i int) float32 { return a.x[i] + a.y[i] })
	}},
	{"Scale", func(o *Ops, a *args) { o.Scale(a.x, a.s) }, func(a *args) {
		each(a.x, func(i int) float32 { return float32(a.x[i] * a.s) })
	}},
	{"Divide", func(o *Ops, a *args) { o.Divide(a.x, a.s) }, func(a *args) {
		each(a.x, func(i int) float32 { return float32(a.x[i] / a.s) })
	}},
	{"ScaleMul", func(o *Ops, a *args) { o.ScaleMul(a.x, a.y, a.z, a.s) }, func(a *args) {
		each(a.x, func(i int) float32 { return float32(float32(a.y[i]*a.s) * a.z[i]) })
	}},
	{"ScaleMul in place", func(o *Ops, a *args) { o.ScaleMul(a.x, a.x, a.z, a.s) }, func(a *args) {
		each(a.x, func(i int) float32 { return float32(float32(a.x[i]*a.s) * a.z[i]) })
	}},
	{"ScaleAdd", func(o *Ops, a *args) { o.ScaleAdd(a.y, a.x, a.s) }, func(a *args) {
		each(a.y, func(i int) float32 { return a.y[i] + float32(a.x[i]*a.s) })
	}},
	{"Mul", func(o *Ops, a *args) { o.Mul(a.x, a.y, a.z) }, func(a *args) {
		each(a.x, func(i int) float32 { return float32(a.y[i] * a.z[i]) })
	}},
	{"MulAdd", func(o *Ops, a *args) { o.MulAdd(a.x, a.y, a.z) }, func(a *args) {
		each(a.x, func(i int) float32 { return a.x[i] + float32(a.y[i]*a.z[i]) })
	}},
	{"Turn", func(o *Ops, a *args) { o.Turn(a.x, a.y, a.z, a.u) }, func(a *args) {
		x := slices.Clone(a.x)
		each(a.x, func(i int) float32 { return float32(x[i]*a.z[i]) - float32(a.y[i]*a.u[i]) })
		each(a.y, func(i int) float32 { return float32(x[i]*a.u[i]) + float32(a.y[i]*a.z[i]) })
	}},
	{"Finite", func(o *Ops, a *args) { a.returns(truth(o.Finite(a.x))) }, func(a *args) {
		a.returns(truth(!slices.ContainsFunc(a.x, func(v float32) bool { return v-v != 0 })))
	}},
	{"AddRows", func(o *Ops, a *args) { o.AddRows(a.x, a.k, a.m, a.stride) }, func(a *args) {
		for p, e := range a.k {
			each(a.x, func(d int) float32 { return a.x[d] + float32(e*a.m[p*a.stride+d]) })
		}
	}},
}

// softmax is the definition, of values that are all finite or else NaN.
func softmax(a *args) {
	if len(a.x) == 0 {
		return
	}
	top := slices.Max(a.x)
	for _, v := range a.x {
		if v != v {
			top = nan
		}
	}
	if top-top != 0 {
		top = nan
	}
	each(a.x, func(i int) float32 { return ref.Exp(a.x[i] - top) })
	sum := ref.SumF32(a.x)
	each(a.x, func(i int) float32 { return float32(a.x[i] / sum) })
	if top != top {
		each(a.x, func(int) float32 { return nan })
	}
}

func randomArgs(n, rows, kind int, r *rand.Rand) *args {
	a := &args{stride: n + r.IntN(4)*7, e: r.IntN(49) - 8}
	for _, s := range []*[]float32{&a.x, &a.y, &a.z, &a.u} {
		*s = make([]float32, n)
		fill(*s, kind, r)
	}
	a.m = make([]float32, max(0, (rows-1)*a.stride+n))
	a.k, a.q = make([]float32, rows), make([]float32, rows)
	a.i, a.j = make([]int64, n), make([]int64, n)
	fill(a.m, kind, r)
	fill(a.k, kind, r)
	fill(a.q, kind, r)
	fillSums(a.i, 1+r.IntN(53), r)
	fillSums(a.j, 1+r.IntN(51), r)
	one := []float32{0}
	fill(one, min(kind, extreme), r)
	a.s = one[0]
	return a
}

// TestOperationsGiveTheBitsOfTheirDefinition runs all operations of all variants between guards.
func TestOperationsGiveTheBitsOfTheirDefinition(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		regions := make([]*region, 9)
		for i := range regions {
			regions[i] = newRegion(t, 200<<10)
		}
		for turn, n := range lengths {
			for kind := range kinds {
				rows := (turn + kind) % 9
				a := randomArgs(n, rows, kind, r)
				for _, op := range operations {
					want := a.copied(nil, 0)
					op.want(want)
					got := a.copied(regions, (turn+kind)%places)
					op.run(o, got)
					if d := got.unlike(want); d != "" {
						t.Errorf("%s, %d %s values, %d rows: %s", op.name, n, kindNames[kind], rows, d)
					}
					for i, g := range regions {
						if !g.intact() {
							t.Fatalf("%s, %d %s values, %d rows: wrote outside argument %d", op.name, n, kindNames[kind], rows, i)
						}
					}
				}
			}
		}
	})
}

// TestAddPickLooksBeforeItAdds puts one value at or beyond the limits into each place of a row.
func TestAddPickLooksBeforeItAdds(t *testing.T) {
	bad := []float32{0x1p40, -0x1p40, 0x1.fffffep39, -0x1.fffffep39, inf, -inf, nan, 0x1p31, -0x1p31, 0x1.fffffep30, math.MaxFloat32}
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, seed := newRand(t)
		for _, n := range []int{1, 8, 13, 32, 41} {
			for at := range n {
				for _, v := range bad {
					y, got := make([]float32, n), make([]int64, n)
					fill(y, ordinary, r)
					fillSums(got, 40, r)
					y[at] = v
					want := slices.Clone(got)
					st, wantSt := o.AddPick(got, y, 1, 0), ref.AddPick(want, y, 1, 0)
					if d := unlikeSums(got, want); d != "" || st != wantSt {
						t.Fatalf("seed %#x: value %d of %d is %g: status %v, want %v; %s", seed, at, n, v, st, wantSt, d)
					}
				}
			}
		}
	})
}

func TestForTakesAssemblyOnlyWhereItIs(t *testing.T) {
	if For(variant.Portable).simd() {
		t.Error("the portable variant runs assembly")
	}
	for _, v := range variant.Available()[1:] {
		if !For(v).simd() {
			t.Errorf("%v is here and runs no assembly", v)
		}
	}
	if a, _ := variant.Active(); Active() != For(a.Variant) {
		t.Errorf("Active is not For(%v)", a.Variant)
	}
}

// TestLengthsThatDoNotFitPanic makes one argument of each operation too short.
func TestLengthsThatDoNotFitPanic(t *testing.T) {
	long, short := make([]float32, 64), make([]float32, 56)
	sums := make([]int64, 64)
	eachVariant(t, func(t *testing.T, o *Ops) {
		for name, f := range map[string]func(){
			"Gate":           func() { o.Gate(long, short, long) },
			"Gate, up":       func() { o.Gate(long, long, short) },
			"AddSums":        func() { o.AddSums(sums, sums[:56]) },
			"AddPick":        func() { o.AddPick(sums, short, 1, 0) },
			"AddPick, E":     func() { o.AddPick(sums, long, 1, ref.MaxExponent+1) },
			"Floats":         func() { o.Floats(long, sums[:56], 0) },
			"Floats, E":      func() { o.Floats(long, sums, ref.MinExponent-1) },
			"DotF32":         func() { o.DotF32(long, short) },
			"Dots":           func() { o.Dots(long[:3], short, make([]float32, 3*56-1), 56) },
			"Dots, stride":   func() { o.Dots(long[:1], short, long, -1) },
			"AddTo":          func() { o.AddTo(short, long) },
			"ScaleMul":       func() { o.ScaleMul(long, short, long, 1) },
			"ScaleMul, w":    func() { o.ScaleMul(long, long, short, 1) },
			"ScaleAdd":       func() { o.ScaleAdd(long, short, 1) },
			"Mul":            func() { o.Mul(long, short, long) },
			"Mul, y":         func() { o.Mul(long, long, short) },
			"MulAdd":         func() { o.MulAdd(long, short, long) },
			"MulAdd, y":      func() { o.MulAdd(long, long, short) },
			"Turn":           func() { o.Turn(long, short, long, long) },
			"Turn, sin":      func() { o.Turn(long, long, long, short) },
			"AddRows":        func() { o.AddRows(long, long[:2], make([]float32, 127), 64) },
			"QuantizeRow":    func() { o.QuantizeRow(moe.Row{Format: moe.RowF32, F: short}, long) },
			"QuantizeRow, q": func() { o.QuantizeRow(moe.Row{Format: moe.RowQ8, Q: make([]int8, 63), Scales: long[:2]}, long) },
			"Dequantize":     func() { o.Dequantize(long, 1, make([]byte, 126)) },
			"Dequantize, f":  func() { o.Dequantize(long, 3, make([]byte, 128)) },
		} {
			if !panics(f) {
				t.Errorf("%s did not panic", name)
			}
		}
	})
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestOperationsDoNotAllocate(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		for _, n := range []int{70, 512} {
			a := randomArgs(n, 5, ordinary, r)
			a.s, a.e = 1, 10
			fillSums(a.i, 20, r)
			fillSums(a.j, 20, r)
			a.results = make([]float32, 0, 4096)
			for _, op := range operations {
				if allocs := testing.AllocsPerRun(3, func() { a.results = a.results[:0]; op.run(o, a) }); allocs != 0 {
					t.Errorf("%s of %d values allocates %v times", op.name, n, allocs)
				}
			}
		}
	})
}
