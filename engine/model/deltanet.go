package model

import "kvasir/kernels/vector"

// deltaNet writes the gated DeltaNet block of w.in's rows into w.y, by the recurrence alone, also for
// prompts.
//
// For each row: u = Wqkv h (queries, keys, values), z = Wz h, beta = sigmoid(Wb h),
// g = a softplus(Wa h + dt); c = silu(causal convolution of u over the last Conv rows); q and k are
// scaled to length 1 a head, q also by 1/sqrt(State). For each value head, with the key head of its
// number modulo KeyHeads and a state S of State x State: S = S exp(g); d = beta (v - S'k); S = S + k d';
// o = S'q. Then y = Wo (rms(o) norm silu(z)).
func (w *work) deltaNet(d *deltaNet) {
	c := w.m.Delta
	n := len(w.rows)
	w.q = room(w.q, n*c.Channels())
	w.k = room(w.k, n*c.Channels())
	w.v = room(w.v, n*c.Inner())
	w.o = room(w.o, n*c.Inner())
	w.beta = room(w.beta, n*c.ValHeads)
	w.alpha = room(w.alpha, n*c.ValHeads)
	const input = "the DeltaNet input"
	w.matmul(w.q, d.qkv, &w.in, input)
	w.matmul(w.v, d.z, &w.in, input)
	w.matmul(w.beta, d.beta, &w.in, input)
	w.matmul(w.alpha, d.alpha, &w.in, input)
	w.ops.Sigmoid(w.beta)
	for i, a := range w.alpha {
		h := i % c.ValHeads
		g := float32(d.a[h] * softplus(a+d.dtBias[h]))
		w.alpha[i] = min(g, 0) // a is negative in every sound file
	}
	w.ops.Exp(w.alpha)
	w.convolve(d)
	w.each(len(w.runs)*c.ValHeads, n*c.ValHeads*c.State*c.State*4, func(_ *worker, i int) {
		w.recur(w.runs[i/c.ValHeads], i%c.ValHeads)
	})
	w.split(n*c.ValHeads, n*c.Inner()*8, func(_ *worker, lo, hi int) {
		for i := lo * c.State; i < hi*c.State; i += c.State {
			o := w.o[i : i+c.State]
			w.rmsNorm(o, o, d.norm)
			w.ops.Gate(o, w.v[i:i+c.State], o)
		}
	})
	w.mid.set(w.o, c.Inner())
	w.matmul(w.y, d.out, &w.mid, "the DeltaNet output")
}

// convolve runs the causal convolution: inputs in w.q, results in w.k, ready for the recurrence. The last
// inputs of each run stay in its sequence for the next row.
func (w *work) convolve(d *deltaNet) {
	c := w.m.Delta
	n, width := len(w.rows), c.Channels()
	w.split(n, n*width*(c.Conv+8), func(_ *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.convolveRow(d, i)
		}
	})
	for _, r := range w.runs {
		past := w.past(r)
		// Oldest first, and each source lies after its place, so no input is overwritten before it moved.
		for j := range c.Conv - 1 {
			copy(past[j*width:][:width], w.input(r, r.hi-c.Conv+1+j))
		}
	}
}

// convolveRow does it for one row. Taps are added oldest first.
func (w *work) convolveRow(d *deltaNet, i int) {
	c := w.m.Delta
	width := c.Channels()
	out := w.k[i*width:][:width]
	clear(out)
	for j := range c.Conv {
		w.ops.MulAdd(out, d.conv[j*width:][:width], w.input(w.runs[w.rows[i].run], i-c.Conv+1+j))
	}
	w.ops.Silu(out)
	w.scaleHeads(out)
}

// input returns input i of the convolution of a run: a row of the micro-batch, or before the run one of
// those that the sequence has kept.
func (w *work) input(r run, i int) []float32 {
	c := w.m.Delta
	width := c.Channels()
	if i < r.lo {
		return w.past(r)[(i-r.lo+c.Conv-1)*width:][:width]
	}
	return w.q[i*width:][:width]
}

// past is the last Conv-1 inputs of the convolution that a run's sequence keeps, oldest first.
func (w *work) past(r run) []float32 {
	c := w.m.Delta
	return r.step.Seq.state.Floats[w.m.layout.conv[w.layer]:][:(c.Conv-1)*c.Channels()]
}

// scaleHeads scales the queries and keys of one row to length 1 a head, and the queries by 1/sqrt(State).
func (w *work) scaleHeads(row []float32) {
	c := w.m.Delta
	width := c.KeyHeads * c.State
	for at := 0; at < 2*width; at += c.State {
		w.l2Norm(row[at : at+c.State])
	}
	w.ops.Scale(row[:width], 1/sqrt32(float32(c.State)))
}

// stateColumns is how many values of a state's rows are kept together: a state is blocks of so many
// columns, all rows of the first block, then of the next, as vector.Delta wants it.
const stateColumns = 32

// recur runs the recurrence of one value head over one run, one block of columns after the other: they do
// not depend on each other. Sums over the key index go upwards. A state that is kept in BF16 is rounded
// after every token, so that it does not matter where a run ends.
func (w *work) recur(r run, h int) {
	m, c := w.m, w.m.Delta
	s := c.State
	state := r.step.Seq.state
	for lo := 0; lo < s; lo += stateColumns {
		n := min(stateColumns, s-lo)
		at := m.layout.delta[w.layer] + m.layout.state.bytes()*(h*s*s+lo*s)
		for i := r.lo; i < r.hi; i++ {
			t := w.deltaToken(i, h, lo, n)
			if m.layout.state == StateBF16 {
				w.ops.DeltaBF16(state.Bytes[at:][:2*n*s], n, &t)
			} else {
				w.ops.Delta(state.Floats[at/4:][:n*s], n, &t)
			}
		}
	}
}

// deltaToken is what row i brings to n columns of value head h, from lo on.
func (w *work) deltaToken(i, h, lo, n int) vector.Token {
	c := w.m.Delta
	s := c.State
	keyHead := h % c.KeyHeads
	row := w.k[i*c.Channels():][:c.Channels()]
	return vector.Token{
		Q:     row[keyHead*s:][:s],
		K:     row[(c.KeyHeads+keyHead)*s:][:s],
		V:     row[(2*c.KeyHeads+h)*s+lo:][:n],
		Out:   w.o[i*c.Inner()+h*s+lo:][:n],
		Decay: w.alpha[i*c.ValHeads+h], Beta: w.beta[i*c.ValHeads+h],
	}
}
