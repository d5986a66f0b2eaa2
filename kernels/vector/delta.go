package vector

import (
	"encoding/binary"

	"kvasir/kernels/quant"
)

// Token is what one token brings to a state of DeltaNet, or to some of its columns: a value of K and Q a
// row, a value of V a column. Out, as long as V, is what it gets out of them.
type Token struct {
	K, Q, V, Out []float32
	Decay, Beta  float32
}

// Delta is a step of the gated delta rule on columns of a state, whose row a is the len(t.V) values at
// state[a*stride]:
//
//	S = S*Decay;  d = Beta * (V - S'K);  S = S + K d';  Out = S'Q
//
// with each product and sum rounded, and sums over rows upwards from +0. Columns do not depend on each
// other. 32 of them are walked twice before the next 32, so that what comes from memory comes once.
//
// A state that is kept as blocks of 32 columns, with a stride of 32 in each, is the fastest: rows that
// lie 512 bytes apart share a quarter of the sets of a first-level cache, and 32 columns of 128 rows do
// not fit there. The tokens of a prompt run through one block after the other, each block all of them.
func (o *Ops) Delta(state []float32, stride int, t *Token) {
	t.check(len(state), stride)
	if len(t.K) == 0 {
		clear(t.Out)
		return
	}
	n := o.tiles(len(t.V))
	if n > 0 {
		vecDelta(&t.Out[0], &state[0], &t.K[0], &t.Q[0], &t.V[0], n, stride, len(t.K), t.Decay, t.Beta)
	}
	for ; n < len(t.V); n += 32 {
		t.columns(state, stride, n, min(n+32, len(t.V)))
	}
}

// DeltaBF16 is Delta of a state that is kept as bfloat16, little-endian; stride is in values. The state
// becomes the nearest one; Out is that of the state before it.
func (o *Ops) DeltaBF16(state []byte, stride int, t *Token) {
	t.check(len(state)/2, stride)
	if len(t.K) == 0 {
		clear(t.Out)
		return
	}
	n := o.tiles(len(t.V))
	if n > 0 {
		vecDeltaBF16(&t.Out[0], &state[0], &t.K[0], &t.Q[0], &t.V[0], n, stride, len(t.K), t.Decay, t.Beta)
	}
	for ; n < len(t.V); n += 32 {
		t.columnsBF16(state, stride, n, min(n+32, len(t.V)))
	}
}

func (t *Token) check(values, stride int) {
	rows(len(t.K), len(t.V), values, stride)
	same("keys and queries", len(t.K), len(t.Q))
	same("values and results", len(t.V), len(t.Out))
}

// columns is Delta of up to 32 columns, lo to hi.
func (t *Token) columns(state []float32, stride, lo, hi int) {
	var sums, delta [32]float32
	for a, k := range t.K {
		for b, x := range state[a*stride+lo : a*stride+hi] {
			x = float32(x * t.Decay)
			state[a*stride+lo+b] = x
			sums[b] += float32(x * k)
		}
	}
	out := t.Out[lo:hi]
	for b, v := range t.V[lo:hi] {
		delta[b] = float32(t.Beta * (v - sums[b]))
	}
	clear(out)
	for a, k := range t.K {
		q := t.Q[a]
		for b, x := range state[a*stride+lo : a*stride+hi] {
			x += float32(k * delta[b])
			state[a*stride+lo+b] = x
			out[b] += float32(x * q)
		}
	}
}

// columnsBF16 is DeltaBF16 of up to 32 columns, lo to hi.
func (t *Token) columnsBF16(state []byte, stride, lo, hi int) {
	le := binary.LittleEndian
	var sums, delta [32]float32
	for a, k := range t.K {
		line := state[2*(a*stride+lo) : 2*(a*stride+hi)]
		for b := range hi - lo {
			x := float32(quant.BF16ToF32(le.Uint16(line[2*b:])) * t.Decay)
			sums[b] += float32(x * k)
		}
	}
	out := t.Out[lo:hi]
	for b, v := range t.V[lo:hi] {
		delta[b] = float32(t.Beta * (v - sums[b]))
	}
	clear(out)
	for a, k := range t.K {
		line, q := state[2*(a*stride+lo):2*(a*stride+hi)], t.Q[a]
		for b := range out {
			x := float32(quant.BF16ToF32(le.Uint16(line[2*b:])) * t.Decay)
			x += float32(k * delta[b])
			out[b] += float32(x * q)
			le.PutUint16(line[2*b:], quant.F32ToBF16(x))
		}
	}
}
