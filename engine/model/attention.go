package model

// positionBlock is how many absolute positions are summed before sums are added to each other. It is
// part of the result's definition, and a whole number of pages.
const positionBlock = 256

// scoreRoom is how many scores a worker keeps at a time, unless one row alone has more.
const scoreRoom = 1 << 18

// attention writes the attention block of w.in's rows into w.y. In the last layer it drops the rows after
// which no logits are wanted, once their keys and values are stored, and reports whether any are left.
//
// For each row: q, k, v = Wq h, Wk h, Wv h in heads; q and k are RMS-normed a head and turned by the
// rope; k and v join the sequence's pages; o = softmax(q k / sqrt(HeadDim)) v over the positions so far,
// keys and values as they are stored; in qwen35moe o is multiplied by sigmoid of the gate that Wq yields
// beside each head; y = Wo o. Query head h reads key/value head h / (Heads/KVHeads).
func (w *work) attention(a *attention, last bool) bool {
	m := w.m
	kvDim := m.KVHeads * m.HeadDim
	n := len(w.rows)
	w.k = room(w.k, n*kvDim)
	w.v = room(w.v, n*kvDim)
	const input = "the attention input"
	w.matmul(w.k, a.k, &w.in, input)
	w.matmul(w.v, a.v, &w.in, input)
	w.split(n, n*kvDim*4, func(_ *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.normAndTurn(w.k[i*kvDim:(i+1)*kvDim], m.HeadDim, a.kNorm, i)
		}
	})
	w.each(len(w.runs), n*kvDim*4, func(_ *worker, r int) { w.storeKV(w.runs[r]) })
	if last && !w.narrow() {
		return false
	}
	n = len(w.rows)
	qDim := m.Heads * m.HeadDim
	w.q = room(w.q, n*a.q.Out())
	w.o = room(w.o, n*qDim)
	w.matmul(w.q, a.q, &w.in, input)
	stride := m.HeadDim // from one query head to the next
	if a.gated {
		stride *= 2
	}
	w.split(n, n*qDim*4, func(_ *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			w.normAndTurn(w.q[i*a.q.Out():(i+1)*a.q.Out()], stride, a.qNorm, i)
		}
	})
	w.attend(stride)
	if a.gated {
		w.split(n*m.Heads, n*qDim*8, func(_ *worker, lo, hi int) {
			for i := lo; i < hi; i++ {
				gate := w.q[i*stride+m.HeadDim:][:m.HeadDim]
				w.ops.Sigmoid(gate)
				o := w.o[i*m.HeadDim:][:m.HeadDim]
				w.ops.Mul(o, o, gate)
			}
		})
	}
	w.mid.set(w.o, qDim)
	w.matmul(w.y, a.out, &w.mid, "the attention output")
	return true
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

// tile is rows of one sequence whose query heads share one key/value head.
type tile struct {
	lo, hi int // rows of the micro-batch, of one run
	head   int // key/value head
	stride int // from one query head to the next
}

// attend computes softmax(q k) v of all rows and heads into w.o. Rows of one sequence, and the query
// heads that share a key/value head, are computed together, so that a page is read from its format once.
func (w *work) attend(stride int) {
	m := w.m
	group := m.Heads / m.KVHeads
	w.tiles = w.tiles[:0]
	cost := 0
	for _, r := range w.runs {
		if r.lo == r.hi {
			continue
		}
		end := w.rows[r.hi-1].pos + 1
		cost += (r.hi - r.lo) * end
		rows := max(1, scoreRoom/(group*end))
		for lo := r.lo; lo < r.hi; lo += rows {
			for h := range m.KVHeads {
				w.tiles = append(w.tiles, tile{lo: lo, hi: min(lo+rows, r.hi), head: h, stride: stride})
			}
		}
	}
	w.each(len(w.tiles), cost*m.Heads*m.HeadDim*2, func(wk *worker, i int) { w.attendTile(wk, w.tiles[i]) })
}

// attendTile computes one tile.
func (w *work) attendTile(wk *worker, t tile) {
	m := w.m
	end := w.rows[t.hi-1].pos + 1
	heads := (t.hi - t.lo) * (m.Heads / m.KVHeads)
	wk.page = room(wk.page, PagePositions*m.HeadDim)
	wk.scores = room(wk.scores, heads*end)
	wk.sums = room(wk.sums, heads*m.HeadDim)
	wk.totals = room(wk.totals, heads)
	w.score(wk, t, end)
	scale := 1 / sqrt32(float32(m.HeadDim))
	for i := range heads {
		s := wk.scores[i*end:][:w.rows[t.row(w, i)].pos+1]
		w.ops.Scale(s, scale)
		wk.totals[i] = w.exponentials(s)
	}
	w.weigh(wk, t, end)
	for i := range heads {
		w.ops.Divide(w.result(t, i), wk.totals[i])
	}
}

// row returns the row of the micro-batch that head i of a tile is of: the heads of a row follow each
// other.
func (t tile) row(w *work, i int) int { return t.lo + i/(w.m.Heads/w.m.KVHeads) }

// query returns which of all query heads of the micro-batch head i of a tile is.
func (t tile) query(w *work, i int) int {
	group := w.m.Heads / w.m.KVHeads
	return t.row(w, i)*w.m.Heads + t.head*group + i%group
}

// result is where the result of head i of a tile goes.
func (w *work) result(t tile, i int) []float32 {
	return w.o[t.query(w, i)*w.m.HeadDim:][:w.m.HeadDim]
}

// within is how many positions of a page that begins at position lo a row at pos attends to.
func within(lo, pos int) int { return min(PagePositions, pos+1-lo) }

// score writes the dot products of all heads of a tile with the keys, page by page.
func (w *work) score(wk *worker, t tile, end int) {
	m := w.m
	seq := w.rows[t.lo].step.Seq
	heads := (t.hi - t.lo) * (m.Heads / m.KVHeads)
	at := m.layout.keys(w.layer, t.head)
	for lo := 0; lo < end; lo += PagePositions {
		w.load(wk.page, seq.pages[lo/PagePositions].Bytes, at, within(lo, end-1))
		for i := range heads {
			n := within(lo, w.rows[t.row(w, i)].pos)
			if n <= 0 {
				continue
			}
			q := w.q[t.query(w, i)*t.stride:][:m.HeadDim]
			w.ops.Dots(wk.scores[i*end+lo:][:n], q, wk.page[:n*m.HeadDim], m.HeadDim)
		}
	}
}

// exponentials replaces scores by exp(score - largest) and returns their sum. The maximum is exact; sums
// run upwards within blocks of absolute positions, and blocks are added upwards.
func (w *work) exponentials(scores []float32) float32 {
	w.ops.ExpLess(scores, w.ops.Max(scores))
	all := float32(0)
	for lo := 0; lo < len(scores); lo += positionBlock {
		total := float32(0)
		for _, e := range scores[lo:min(lo+positionBlock, len(scores))] {
			total += e
		}
		all += total
	}
	return all
}

// weigh adds the values, weighed by the exponentials, in the same order.
func (w *work) weigh(wk *worker, t tile, end int) {
	m := w.m
	seq := w.rows[t.lo].step.Seq
	heads := (t.hi - t.lo) * (m.Heads / m.KVHeads)
	at := m.layout.keys(w.layer, t.head) + m.layout.head
	clear(wk.sums)
	for i := range heads {
		clear(w.result(t, i))
	}
	for lo := 0; lo < end; lo += PagePositions {
		w.load(wk.page, seq.pages[lo/PagePositions].Bytes, at, within(lo, end-1))
		ends := (lo+PagePositions)%positionBlock == 0
		for i := range heads {
			pos := w.rows[t.row(w, i)].pos
			n := within(lo, pos)
			if n <= 0 {
				continue
			}
			sum := wk.sums[i*m.HeadDim:][:m.HeadDim]
			w.ops.AddRows(sum, wk.scores[i*end+lo:][:n], wk.page[:n*m.HeadDim], m.HeadDim)
			if ends || lo+n > pos {
				w.ops.AddTo(w.result(t, i), sum)
				clear(sum)
			}
		}
	}
}
