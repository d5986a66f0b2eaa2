package vector

// AddTo adds y to x.
func (o *Ops) AddTo(x, y []float32) {
	same("sum", len(x), len(y))
	n := o.whole(len(x))
	if n > 0 {
		vecAdd(&x[0], &y[0], n)
	}
	for i, v := range y[n:] {
		x[n+i] += v
	}
}

// Scale multiplies each x by s.
func (o *Ops) Scale(x []float32, s float32) {
	n := o.whole(len(x))
	if n > 0 {
		vecScale(&x[0], n, s)
	}
	for i, v := range x[n:] {
		x[n+i] = float32(v * s)
	}
}

// Divide divides each x by d.
func (o *Ops) Divide(x []float32, d float32) {
	n := o.whole(len(x))
	if n > 0 {
		vecDivide(&x[0], n, d)
	}
	for i, v := range x[n:] {
		x[n+i] = float32(v / d)
	}
}

// ScaleMul sets dst to (x*scale)*w, the last step of an RMS norm. dst may be x or w.
func (o *Ops) ScaleMul(dst, x, w []float32, scale float32) {
	same("product", len(dst), len(x))
	same("product", len(dst), len(w))
	n := o.whole(len(dst))
	if n > 0 {
		vecScaleMul(&dst[0], &x[0], &w[0], n, scale)
	}
	for i := n; i < len(dst); i++ {
		dst[i] = float32(float32(x[i]*scale) * w[i])
	}
}

// ScaleAdd adds x*s to y, rounded after each.
func (o *Ops) ScaleAdd(y, x []float32, s float32) {
	same("sum", len(y), len(x))
	n := o.whole(len(y))
	if n > 0 {
		vecScaleAdd(&y[0], &x[0], n, s)
	}
	for i, v := range x[n:] {
		y[n+i] += float32(v * s)
	}
}

// Mul sets dst to x*y. dst may be x or y.
func (o *Ops) Mul(dst, x, y []float32) {
	same("product", len(dst), len(x))
	same("product", len(dst), len(y))
	n := o.whole(len(dst))
	if n > 0 {
		vecMul(&dst[0], &x[0], &y[0], n)
	}
	for i := n; i < len(dst); i++ {
		dst[i] = float32(x[i] * y[i])
	}
}

// MulAdd adds x*y to dst, rounded after each: one tap of a convolution.
func (o *Ops) MulAdd(dst, x, y []float32) {
	same("sum", len(dst), len(x))
	same("sum", len(dst), len(y))
	n := o.whole(len(dst))
	if n > 0 {
		vecMulAdd(&dst[0], &x[0], &y[0], n)
	}
	for i := n; i < len(dst); i++ {
		dst[i] += float32(x[i] * y[i])
	}
}

// Turn turns each pair of lo and hi by an angle: lo, hi = lo*cos - hi*sin, lo*sin + hi*cos, rounded
// after each. It is what a rope does to the halves of a head.
func (o *Ops) Turn(lo, hi, cos, sin []float32) {
	same("turn", len(lo), len(hi))
	same("turn", len(lo), len(cos))
	same("turn", len(lo), len(sin))
	n := o.whole(len(lo))
	if n > 0 {
		vecTurn(&lo[0], &hi[0], &cos[0], &sin[0], n)
	}
	for i := n; i < len(lo); i++ {
		a, b := lo[i], hi[i]
		lo[i] = float32(a*cos[i]) - float32(b*sin[i])
		hi[i] = float32(a*sin[i]) + float32(b*cos[i])
	}
}
