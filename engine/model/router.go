package model

import (
	"context"

	"kvasir/internal/moe"
)

// minWeightSum keeps the renormalisation of gate weights from dividing by almost nothing.
const minWeightSum = 1.0 / (1 << 14)

// moe adds the mixture of experts of w.in's rows to the residual stream.
//
// For each row: logits = Wr h in float32; p = softmax over all experts; the picks are the TopK largest
// logits, ties to the lower index; their weights are p / max(sum of the picked p, 2^-14). The routed
// experts are computed by experts, as fixed-point partials; the shared expert, sigmoid(mix h) times
// down(silu(gate h) up h), is computed here while they are away.
func (w *work) moe(ctx context.Context, experts moe.Experts, ly *layer) error {
	m := w.m
	b, err := w.dispatch(ly)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if b.Rows > 0 {
		go func() { done <- experts.Forward(ctx, b, &w.partials) }()
	} else {
		done <- nil
	}
	if ly.shared != nil {
		w.shared(ly.shared)
	}
	if err := <-done; err != nil {
		return err
	}
	if ly.shared == nil {
		clear(w.y)
	}
	for r, i := range w.sent {
		if status := w.partials.Status[r]; status != moe.OK {
			w.fail(i, "an expert's answer", status, -1)
		}
	}
	w.split(len(w.sent), len(w.sent)*m.Hidden*4, func(wk *worker, lo, hi int) {
		wk.sums = room(wk.sums, m.Hidden)
		for r := lo; r < hi; r++ {
			w.ops.Floats(wk.sums, w.partials.Row(r), m.profile.Exponents[w.layer])
			w.ops.AddTo(w.y[w.sent[r]*m.Hidden:][:m.Hidden], wk.sums)
		}
	})
	w.addRows(w.x, w.y)
	return nil
}

// dispatch routes all rows and returns the batch for the experts. w.sent tells which row of the
// micro-batch each row of the batch is: rows of failed sequences stay at home.
func (w *work) dispatch(ly *layer) (*moe.Batch, error) {
	m := w.m
	n := len(w.rows)
	w.route = room(w.route, n*m.Experts)
	m.backend.MatMul(w.route, ly.router, w.as(&w.in, moe.RowF32, "the router input"))
	b := w.batch[ly.rowFormat]
	if b == nil {
		var err error
		shape := moe.Shape{Layer: w.layer, Hidden: m.Hidden, Format: ly.rowFormat}
		if b, err = moe.NewPinnedBatch(shape, BatchRows, BatchRows*m.TopK); err != nil {
			return nil, err
		}
		w.batch[ly.rowFormat] = b
	}
	b.Reset(w.layer)
	w.sent = w.sent[:0]
	travel := w.as(&w.in, ly.rowFormat, "the expert input")
	var expert [moe.MaxTopK]uint16
	var weight [moe.MaxTopK]float32
	for i := range n {
		if !w.pick(i, expert[:m.TopK], weight[:m.TopK]) {
			continue
		}
		r := b.Row(b.Grow(expert[:m.TopK], weight[:m.TopK]))
		copy(r.Q, travel[i].Q)
		copy(r.Scales, travel[i].Scales)
		copy(r.F, travel[i].F)
		w.sent = append(w.sent, i)
	}
	return b, nil
}

// pick chooses the experts of row i, best first, and their weights. It reports false for a row of a
// sequence that has failed, here at the latest: NaN cannot be routed.
func (w *work) pick(i int, expert []uint16, weight []float32) bool {
	if w.rows[i].step.Err != nil {
		return false
	}
	p := w.route[i*w.m.Experts:][:w.m.Experts]
	if e := w.notFinite(p); e >= 0 {
		w.fail(i, "the router's logit", moe.NonFinite, e)
		return false
	}
	topK(p, expert)
	w.ops.Softmax(p)
	sum := float32(0)
	for j, e := range expert {
		weight[j] = p[e]
		sum += p[e]
	}
	sum = max(sum, minWeightSum)
	for j := range weight {
		weight[j] = float32(weight[j] / sum)
	}
	return true
}

// topK fills pick with the indices of the largest values of x, largest first, ties to the lower index.
func topK(x []float32, pick []uint16) {
	n := 0
	for i, v := range x {
		if n == len(pick) && v <= x[pick[n-1]] {
			continue
		}
		if n < len(pick) {
			n++
		}
		at := n - 1
		for at > 0 && x[pick[at-1]] < v {
			pick[at] = pick[at-1]
			at--
		}
		pick[at] = uint16(i)
	}
}

// shared writes the weighed shared expert of w.in's rows into w.y.
func (w *work) shared(s *sharedExpert) {
	m := w.m
	n := len(w.rows)
	w.gate = room(w.gate, n*s.gate.Out())
	w.up = room(w.up, n*s.up.Out())
	w.matmul(w.gate, s.gate, &w.in, "the shared expert's input")
	w.matmul(w.up, s.up, &w.in, "the shared expert's input")
	w.split(n, len(w.gate)*8, func(_ *worker, lo, hi int) {
		lo, hi = lo*s.gate.Out(), hi*s.gate.Out()
		w.ops.Gate(w.gate[lo:hi], w.gate[lo:hi], w.up[lo:hi])
	})
	w.mid.set(w.gate, s.gate.Out())
	w.matmul(w.y, s.down, &w.mid, "the shared expert's middle")
	for i := range n {
		mix := sigmoid(w.ops.DotF32(s.mix, w.h[i*m.Hidden:][:m.Hidden]))
		w.ops.Scale(w.y[i*m.Hidden:][:m.Hidden], mix)
	}
}
