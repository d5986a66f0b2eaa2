package model

import (
	"slices"
	"sync"
	"sync/atomic"

	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/vector"
)

// work is the memory of one Forward under way. It is reused, so that steady decoding allocates little.
type work struct {
	m       *Model
	ops     *vector.Ops
	workers []*worker

	rows   []row
	runs   []run
	tokens []int32
	wanted []int // rows whose logits are wanted
	tiles  []tile
	ends   []int // of the rows of each step, among the wanted ones
	layer  int   // layer under way, for messages

	x, h, y  []float32 // rows x Hidden: the residual stream, its norm, a block's result
	cos, sin []float32 // rows x RopeDims/2
	in, mid  acts      // inputs of matrices: the normed rows, and what stands between two matrices

	q, k, v, o  []float32 // attention and DeltaNet
	beta, alpha []float32
	out         []float32 // logits of the wanted rows
	gate, up    []float32 // shared expert
	route       []float32 // rows x Experts
	sent        []int     // row of the micro-batch for each row of the batch

	*travel
}

// travel is the memory of what goes to the experts and comes back: page-locked, so that a device or a socket
// can take it from there. Nothing collects it: it is in one work at a time, or in a list of its model's.
type travel struct {
	batch    [moe.RowQ8 + 1]*moe.Batch // by row format
	partials moe.Partials
}

// maxTravels is how many a model keeps that nobody uses: as many as micro-batches are under way as a rule.
const maxTravels = 16

// travels is those that nobody uses. It is safe for concurrent use.
type travels struct {
	mu     sync.Mutex
	idle   []*travel // at most maxTravels
	closed bool
}

func (l *travels) take() *travel {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle)
	if n == 0 {
		t := &travel{}
		t.partials.Pin()
		return t
	}
	t := l.idle[n-1]
	l.idle[n-1], l.idle = nil, l.idle[:n-1]
	return t
}

func (l *travels) put(t *travel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.idle) == maxTravels {
		t.release()
		return
	}
	l.idle = append(l.idle, t)
}

// close gives all memory back: what is idle now, and the rest as soon as it is.
func (l *travels) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.idle {
		t.release()
	}
	l.idle, l.closed = nil, true
}

func (t *travel) release() {
	for _, b := range t.batch {
		if b != nil {
			b.Release()
		}
	}
	t.partials.Release()
}

// worker is the memory of one goroutine of a split.
type worker struct {
	page   []float32 // keys or values of one head
	scores []float32 // of the heads of a tile, one a position
	sums   []float32
	totals []float32
}

func newWork(m *Model, workers int) *work {
	w := &work{
		m:       m,
		ops:     m.ops,
		workers: make([]*worker, workers),
	}
	for i := range w.workers {
		w.workers[i] = &worker{}
	}
	return w
}

// release forgets the steps, so that a pooled work keeps no sequence alive.
func (w *work) release() {
	clear(w.rows[:cap(w.rows)])
	clear(w.runs[:cap(w.runs)])
	w.rows, w.runs = w.rows[:0], w.runs[:0]
}

// room returns s with length n, its values stale.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// inline is the amount of work, in multiply-adds, below which calling other threads costs more than it gains.
const inline = 1 << 16

// shares is how many each thread gets of what is split, so that one that begins late takes fewer.
const shares = 4

// split calls fn for contiguous shares of 0 to n and waits. ops is the whole work in multiply-adds. Shares
// decide who computes a value, never what it is.
func (w *work) split(n, ops int, fn func(wk *worker, lo, hi int)) {
	if len(w.workers) < 2 || ops < inline {
		fn(w.workers[0], 0, n)
		return
	}
	parts := min(n, shares*len(w.workers))
	w.m.backend.Each(parts, func(thread, i int) {
		fn(w.workers[thread], n*i/parts, n*(i+1)/parts)
	})
}

// each calls fn for each of 0 to n-1, which may differ in work, and waits. ops is as for split.
func (w *work) each(n, ops int, fn func(wk *worker, i int)) {
	if len(w.workers) < 2 || ops < inline {
		for i := range n {
			fn(w.workers[0], i)
		}
		return
	}
	w.m.backend.Each(n, func(thread, i int) { fn(w.workers[thread], i) })
}

// apart calls fn for each of 0 to n-1 and waits, as each does, on goroutines of its own: fn is the caller's,
// and may take long.
func (w *work) apart(n int, fn func(i int)) {
	var next atomic.Int64
	some := func() {
		for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
			fn(i)
		}
	}
	var wg sync.WaitGroup
	for range min(len(w.workers), n) - 1 {
		wg.Go(some)
	}
	some()
	wg.Wait()
}

// acts are the inputs of matrices: rows of float32, and the forms in which matrices of different formats
// want them, each made once, when first asked for.
type acts struct {
	dim   int
	f     []float32
	owner []int // row of the micro-batch for each row here; nil: the same
	forms [3]form
}

type form struct {
	made   bool
	rows   []moe.Row
	faults []fault // of rows
	q      []int8
	scales []float32
	f      []float32
}

// fault is what ref.QuantizeRow says of a row.
type fault struct {
	status moe.Status
	index  int
}

// set makes a the rows of f, dim values each.
func (a *acts) set(f []float32, dim int) {
	a.dim, a.f, a.owner = dim, f, nil
	for i := range a.forms {
		a.forms[i].made = false
	}
}

func (a *acts) n() int { return len(a.f) / a.dim }

// row returns the row of the micro-batch that row r is of.
func (a *acts) row(r int) int {
	if a.owner != nil {
		return a.owner[r]
	}
	return r
}

// as returns the rows in a format. A row that has no such form fails its sequence and reads as zeros.
func (w *work) as(a *acts, format moe.RowFormat, where string) []moe.Row {
	fm := &a.forms[format]
	if fm.made {
		return fm.rows
	}
	fm.made = true
	n, blocks := a.n(), format.Scales(a.dim)
	if cap(fm.rows) < n {
		fm.rows, fm.faults = make([]moe.Row, n), make([]fault, n)
	}
	fm.rows, fm.faults = fm.rows[:n], fm.faults[:n]
	if format == moe.RowF32 {
		fm.f = room(fm.f, n*a.dim)
	} else {
		if cap(fm.q) < n*a.dim {
			fm.q = make([]int8, n*a.dim)
		}
		fm.q = fm.q[:n*a.dim]
		fm.scales = room(fm.scales, n*blocks)
	}
	for r := range n {
		row := moe.Row{Format: format}
		if format == moe.RowF32 {
			row.F = fm.f[r*a.dim : (r+1)*a.dim]
		} else {
			row.Q, row.Scales = fm.q[r*a.dim:(r+1)*a.dim], fm.scales[r*blocks:(r+1)*blocks]
		}
		fm.rows[r] = row
	}
	w.split(n, n*a.dim*4, func(_ *worker, lo, hi int) {
		for r := lo; r < hi; r++ {
			fm.faults[r].status, fm.faults[r].index = w.ops.QuantizeRow(fm.rows[r], a.f[r*a.dim:(r+1)*a.dim])
		}
	})
	for r, f := range fm.faults {
		if f.status != moe.OK {
			w.fail(a.row(r), where, f.status, f.index)
		}
	}
	return fm.rows
}

// matmul writes rows x mx.Out() values: each row of a through the matrix, in the format that it takes.
func (w *work) matmul(dst []float32, mx *cpu.Matrix, a *acts, where string) {
	w.m.backend.MatMul(dst, mx, w.as(a, mx.Takes(), where))
	if w.ops.Finite(dst) {
		return
	}
	// A weight or a scale of the file is damaged. Caught here, since exp and the softmax may make numbers
	// of NaN again.
	for r := range a.n() {
		if i := w.notFinite(dst[r*mx.Out() : (r+1)*mx.Out()]); i >= 0 {
			w.fail(a.row(r), "what came of "+where, moe.NonFinite, i)
		}
	}
}

// notFinite returns the index of the first value of x that is NaN or infinite, or -1.
func (w *work) notFinite(x []float32) int {
	if w.ops.Finite(x) {
		return -1
	}
	return slices.IndexFunc(x, func(v float32) bool { return v-v != 0 })
}

// normRows writes the RMS norm of each row of src.
func (w *work) normRows(dst, src, weight []float32) {
	d := w.m.Hidden
	w.split(len(src)/d, len(src)*4, func(_ *worker, lo, hi int) {
		for i := lo * d; i < hi*d; i += d {
			w.rmsNorm(dst[i:i+d], src[i:i+d], weight)
		}
	})
}

// addRows adds the rows of y to those of x.
func (w *work) addRows(x, y []float32) {
	d := w.m.Hidden
	w.split(len(x)/d, len(x), func(_ *worker, lo, hi int) {
		w.ops.AddTo(x[lo*d:hi*d], y[lo*d:hi*d])
	})
}

// turn computes the rope's angles for each row.
func (w *work) turn() {
	half := len(w.m.rope.freq)
	w.cos = room(w.cos, len(w.rows)*half)
	w.sin = room(w.sin, len(w.rows)*half)
	for i, r := range w.rows {
		w.m.rope.angles(w.cos[i*half:(i+1)*half], w.sin[i*half:(i+1)*half], r.pos)
	}
}
