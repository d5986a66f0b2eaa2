package vector

import (
	"math"

	"kvasir/kernels/ref"
)

// Gate sets h to silu(g)*u, or to NaN where g or u is not finite. h may be g or u.
func (o *Ops) Gate(h, g, u []float32) {
	same("gate", len(h), len(g))
	same("gate", len(h), len(u))
	n := o.whole(len(h))
	if n > 0 {
		vecGate(&h[0], &g[0], &u[0], n)
	}
	for i := n; i < len(h); i++ {
		h[i] = ref.Gated(g[i], u[i])
	}
}

// Silu replaces each x by ref.Silu of it.
func (o *Ops) Silu(x []float32) {
	n := o.whole(len(x))
	if n > 0 {
		vecSilu(&x[0], n)
	}
	for i, v := range x[n:] {
		x[n+i] = ref.Silu(v)
	}
}

// sigmoidMin is where exp(-x) leaves its range.
const sigmoidMin = -88

// Sigmoid replaces each x by 1 / (1 + exp(-x)); 0 below -88.
func (o *Ops) Sigmoid(x []float32) {
	n := o.whole(len(x))
	if n > 0 {
		vecSigmoid(&x[0], n)
	}
	for i, v := range x[n:] {
		y := float32(0)
		if !(v < sigmoidMin) {
			y = 1 / (1 + ref.Exp(-v))
		}
		x[n+i] = y
	}
}

// Exp replaces each x by ref.Exp of it, for x up to 88.
func (o *Ops) Exp(x []float32) { o.ExpLess(x, 0) }

// ExpLess replaces each x by ref.Exp(x - top), for x - top up to 88.
func (o *Ops) ExpLess(x []float32, top float32) {
	n := o.whole(len(x))
	if n > 0 {
		vecExp(&x[0], n, top)
	}
	for i, v := range x[n:] {
		x[n+i] = ref.Exp(v - top)
	}
}

// Max returns the largest x, NaN if there is one among them, and minus infinity of none. A zero is
// +0.
func (o *Ops) Max(x []float32) float32 {
	top := float32(math.Inf(-1))
	n := o.whole(len(x))
	if n > 0 {
		top = vecMax(&x[0], n)
	}
	for _, v := range x[n:] {
		top = max(top, v)
	}
	if top == 0 {
		return 0
	}
	return top
}

// Softmax replaces each x by exp(x - max) / sum, where the sum is SumF32's. If a value is NaN or
// plus infinity, or all are minus infinity, all become NaN.
func (o *Ops) Softmax(x []float32) {
	top := o.Max(x)
	if top-top != 0 { // not finite: exp could make a number of a NaN
		nan := float32(math.NaN())
		for i := range x {
			x[i] = nan
		}
		return
	}
	o.ExpLess(x, top)
	o.Divide(x, o.SumF32(x))
}
