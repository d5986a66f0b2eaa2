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
