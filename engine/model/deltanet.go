package model

import "kvasir/kernels/ref"

// deltaNet writes the gated DeltaNet block of w.in's rows into w.y, by the recurrence alone, also for
// prompts.
//
// For each row: u = Wqkv h (queries, keys, values), z = Wz h, beta = sigmoid(Wb h),
// g = a softplus(Wa h + dt); c = silu(causal convolution of u over the last Conv rows); q and k are
// scaled to length 1 a head, q also by 1/sqrt(State). For each value head, with the key head of its
// number modulo KeyHeads and a state S of State x State: S = S exp(g); d = beta (v - S'k); S = S + k d';
// o = S'q. Then y = Wo (rms(o) norm silu(z)).
func (w *work) deltaNet(d *deltaNet) {
	m := w.m
	c := m.Delta
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
	for i := range w.beta {
		h := i % c.ValHeads
		w.beta[i] = sigmoid(w.beta[i])
		g := float32(d.a[h] * softplus(w.alpha[i]+d.dtBias[h]))
		w.alpha[i] = ref.Exp(min(g, 0)) // a is negative in every sound file
	}
	for _, r := range w.runs {
		w.convolve(d, r)
	}
	for i := range n {
		qk := w.k[i*c.Channels():][:2*c.KeyHeads*c.State]
		scale := 1 / sqrt32(float32(c.State))
		for at := 0; at < len(qk); at += c.State {
			l2Norm(qk[at:at+c.State], m.Eps)
		}
		for j, q := range qk[:c.KeyHeads*c.State] {
			qk[j] = float32(q * scale)
		}
	}
	heads := len(w.runs) * c.ValHeads
	w.split(heads, n*c.ValHeads*c.State*c.State*4, func(wk *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.recur(wk, w.runs[i/c.ValHeads], i%c.ValHeads)
		}
	})
	for i := 0; i < n*c.Inner(); i += c.State {
		o := w.o[i : i+c.State]
		rmsNorm(o, o, d.norm, m.Eps)
		for j, z := range w.v[i : i+c.State] {
			o[j] = float32(o[j] * ref.Silu(z))
		}
	}
	w.mid.set(w.o, c.Inner())
	w.matmul(w.y, d.out, &w.mid, "the DeltaNet output")
}

// convolve runs the causal convolution of one run: inputs in w.q, results in w.k. Taps are added oldest
// first. The last inputs stay in the sequence for its next row.
func (w *work) convolve(d *deltaNet, r run) {
	c := w.m.Delta
	width := c.Channels()
	past := r.step.Seq.layers[w.layer].conv
	input := func(t int) []float32 { // t is counted from row r.lo, and negative in the past
		if t < 0 {
			return past[(t+c.Conv-1)*width:][:width]
		}
		return w.q[(r.lo+t)*width:][:width]
	}
	n := r.hi - r.lo
	for t := range n {
		out := w.k[(r.lo+t)*width:][:width]
		clear(out)
		for j := range c.Conv {
			taps := d.conv[j*width:][:width]
			for ch, u := range input(t - c.Conv + 1 + j)[:len(out)] {
				out[ch] += float32(taps[ch] * u)
			}
		}
		for ch, x := range out {
			out[ch] = ref.Silu(x)
		}
	}
	// Oldest first, and each source lies after its place, so no input is overwritten before it moved.
	for j := range c.Conv - 1 {
		copy(past[j*width:][:width], input(n-c.Conv+1+j))
	}
}

// recur runs the recurrence of one value head over one run. Sums over the key index go upwards; the
// loops inside run over the values, which are independent of each other.
func (w *work) recur(wk *worker, r run, h int) {
	c := w.m.Delta
	s := c.State
	keyHead := h % c.KeyHeads
	state := r.step.Seq.layers[w.layer].delta[h*s*s:][:s*s]
	wk.sums = room(wk.sums, s)
	delta := wk.sums
	for i := r.lo; i < r.hi; i++ {
		row := w.k[i*c.Channels():][:c.Channels()]
		q := row[keyHead*s:][:s]
		k := row[(c.KeyHeads+keyHead)*s:][:s]
		v := row[(2*c.KeyHeads+h)*s:][:s]
		o := w.o[i*c.Inner()+h*s:][:s]
		decay, beta := w.alpha[i*c.ValHeads+h], w.beta[i*c.ValHeads+h]
		clear(delta)
		for a, ka := range k {
			line := state[a*s:][:s]
			for b, x := range line {
				x = float32(x * decay)
				line[b] = x
				delta[b] += float32(x * ka)
			}
		}
		for b, x := range v {
			delta[b] = float32(beta * (x - delta[b]))
		}
		clear(o)
		for a, ka := range k {
			line, qa := state[a*s:][:s], q[a]
			for b, x := range line {
				x += float32(ka * delta[b])
				line[b] = x
				o[b] += float32(x * qa)
			}
		}
	}
}
