package vector

// These run down the rows of a matrix and sum by columns: rows upwards, columns independent of each
// other, each product and sum rounded. Assembly takes 32 columns at a time and keeps their sums in
// registers.

// AddRows adds e[p] times row p of v to dst, for each p upwards: the weighted values of attention. Row
// p is the len(dst) values at v[p*stride].
func (o *Ops) AddRows(dst, e, v []float32, stride int) {
	rows(len(e), len(dst), len(v), stride)
	if len(e) == 0 {
		return
	}
	n := o.tiles(len(dst))
	if n > 0 {
		vecAddRows(&dst[0], &e[0], &v[0], n, stride, len(e))
	}
	if n == len(dst) {
		return
	}
	out := dst[n:]
	for p, s := range e {
		for d, x := range v[p*stride+n:][:len(out)] {
			out[d] += float32(s * x)
		}
	}
}

// DeltaRead multiplies a state of DeltaNet by decay, and sets delta to the sum of its rows, each times
// its value of k. The state has len(k) rows of len(delta) values.
func (o *Ops) DeltaRead(delta, state, k []float32, decay float32) {
	width := len(delta)
	same("state", len(state), len(k)*width)
	clear(delta)
	if len(k) == 0 {
		return
	}
	n := o.tiles(width)
	if n > 0 {
		vecDeltaRead(&delta[0], &state[0], &k[0], n, width, len(k), decay)
	}
	if n == width {
		return
	}
	out := delta[n:]
	for a, ka := range k {
		line := state[a*width+n:][:len(out)]
		for b, x := range line {
			x = float32(x * decay)
			line[b] = x
			out[b] += float32(x * ka)
		}
	}
}

// DeltaWrite adds delta times k[a] to row a of a state, and sets out to the sum of the rows, each
// times its value of q.
func (o *Ops) DeltaWrite(out, state, k, q, delta []float32) {
	width := len(delta)
	same("state", len(out), width)
	same("state", len(q), len(k))
	same("state", len(state), len(k)*width)
	clear(out)
	if len(k) == 0 {
		return
	}
	n := o.tiles(width)
	if n > 0 {
		vecDeltaWrite(&out[0], &state[0], &k[0], &q[0], &delta[0], n, width, len(k))
	}
	if n == width {
		return
	}
	sums, delta := out[n:], delta[n:]
	for a, ka := range k {
		line, qa := state[a*width+n:][:len(delta)], q[a]
		for b, x := range line {
			x += float32(ka * delta[b])
			line[b] = x
			sums[b] += float32(x * qa)
		}
	}
}
