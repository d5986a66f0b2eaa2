package model

// positionBlock is how many absolute positions are summed before sums are added to each other. It is
// part of the result's definition, and bounds what a later kernel may keep in registers.
const positionBlock = 256

// attention writes the attention block of w.in's rows into w.y.
//
// For each row: q, k, v = Wq h, Wk h, Wv h in heads; q and k are RMS-normed a head and turned by the
// rope; k and v join the sequence's cache; o = softmax(q k / sqrt(HeadDim)) v over the positions so far;
// in qwen35moe o is multiplied by sigmoid of the gate that Wq yields beside each head; y = Wo o. Query
// head h reads key/value head h / (Heads/KVHeads).
func (w *work) attention(a *attention) {
	m := w.m
	n := len(w.rows)
	qDim, kvDim := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	w.q = room(w.q, n*a.q.Out())
	w.k = room(w.k, n*kvDim)
	w.v = room(w.v, n*kvDim)
	w.o = room(w.o, n*qDim)
	w.matmul(w.q, a.q, &w.in, "the attention input")
	w.matmul(w.k, a.k, &w.in, "the attention input")
	w.matmul(w.v, a.v, &w.in, "the attention input")
	stride := m.HeadDim // from one query head to the next
	if a.gated {
		stride *= 2
	}
	w.split(n, n*(qDim+kvDim)*4, func(_ *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.normAndTurn(w.q[i*a.q.Out():(i+1)*a.q.Out()], stride, a.qNorm, i)
			w.normAndTurn(w.k[i*kvDim:(i+1)*kvDim], m.HeadDim, a.kNorm, i)
		}
	})
	positions := 0
	for _, r := range w.runs {
		c := &r.step.Seq.layers[w.layer]
		c.k = append(c.k, w.k[r.lo*kvDim:r.hi*kvDim]...)
		c.v = append(c.v, w.v[r.lo*kvDim:r.hi*kvDim]...)
		positions += (r.hi - r.lo) * (r.pos + r.hi - r.lo)
	}
	w.split(n*m.Heads, positions*qDim*2, func(wk *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.attend(wk, i/m.Heads, i%m.Heads, stride, a.gated)
		}
	})
	w.mid.set(w.o, qDim)
	w.matmul(w.y, a.out, &w.mid, "the attention output")
}

// normAndTurn prepares the heads of one row.
func (w *work) normAndTurn(heads []float32, stride int, norm []float32, i int) {
	m := w.m
	half := len(m.rope.freq)
	for at := 0; at < len(heads); at += stride {
		head := heads[at : at+m.HeadDim]
		w.rmsNorm(head, head, norm)
		m.rope.apply(w.ops, head, w.cos[i*half:(i+1)*half], w.sin[i*half:(i+1)*half])
	}
}

// attend computes head h of row i; stride is from one query head to the next. The maximum is exact; sums
// over positions run upwards within blocks of absolute positions, and blocks are added upwards.
func (w *work) attend(wk *worker, i, h, stride int, gated bool) {
	m := w.m
	r := w.rows[i]
	cache := &r.step.Seq.layers[w.layer]
	kvDim := m.KVHeads * m.HeadDim
	kv := h / (m.Heads / m.KVHeads) * m.HeadDim
	q := w.q[(i*m.Heads+h)*stride:][:stride]
	o := w.o[(i*m.Heads+h)*m.HeadDim:][:m.HeadDim]
	clear(o)
	wk.scores = room(wk.scores, r.pos+1)
	scores := wk.scores
	w.ops.Dots(scores, q[:m.HeadDim], cache.k[kv:], kvDim)
	w.ops.Scale(scores, 1/sqrt32(float32(m.HeadDim)))
	top := w.ops.Max(scores)
	total := float32(0)
	for lo := 0; lo < len(scores); lo += positionBlock {
		hi := min(lo+positionBlock, len(scores))
		total += w.addBlock(wk, o, scores[lo:hi], top, cache.v[lo*kvDim+kv:])
	}
	w.ops.Divide(o, total)
	if gated {
		gate := q[m.HeadDim:]
		w.ops.Sigmoid(gate)
		w.ops.Mul(o, o, gate)
	}
}

// addBlock adds one block of positions to o and returns the block's sum of exponentials, which take the
// place of the scores. v starts at the block's first position.
func (w *work) addBlock(wk *worker, o, scores []float32, top float32, v []float32) float32 {
	wk.sums = room(wk.sums, len(o))
	clear(wk.sums)
	w.ops.ExpLess(scores, top)
	total := float32(0)
	for _, e := range scores {
		total += e
	}
	w.ops.AddRows(wk.sums, scores, v, w.m.KVHeads*w.m.HeadDim)
	w.ops.AddTo(o, wk.sums)
	return total
}
