package cpu

import (
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// Matrix is y = W x in the form in which it is computed on: repacked, or as it is in the file. It does not
// change.
type Matrix struct {
	arena  *Arena        // keeps packed alive
	shape  ref.Matrix    // without its bytes where they are repacked
	takes  moe.RowFormat // of its rows
	packed matmul.Packed
}

func (m *Matrix) isPacked() bool { return m.packed.Out > 0 }

// NewMatrix returns m for the dense products of a backbone, with rows of format f, and repacks it into a
// where that is quicker to compute on; Keeps tells. The error says what does not fit.
func (b *Backend) NewMatrix(a *Arena, m *ref.Matrix, f moe.RowFormat) (*Matrix, error) {
	h := &Matrix{}
	if err := b.hold(h, a, m, f); err != nil {
		return nil, err
	}
	return h, nil
}

// Keeps reports whether m still needs the bytes that it was made from.
func (m *Matrix) Keeps() bool { return !m.isPacked() }

// In returns how many weights a row of m has.
func (m *Matrix) In() int { return m.shape.In }

// Out returns how many rows m has.
func (m *Matrix) Out() int { return m.shape.Out }

// Takes returns the format of the rows that m is multiplied with.
func (m *Matrix) Takes() moe.RowFormat { return m.takes }

// hold fills h with m, for rows of format f, after a look at every block of it.
func (b *Backend) hold(h *Matrix, a *Arena, m *ref.Matrix, f moe.RowFormat) error {
	if _, err := ref.NewMatrix(m.Format, m.In, m.Out, m.Data); err != nil {
		return err
	}
	if f == moe.RowQ8K && !m.Format.IsK() || f == moe.RowQ8 && !m.Format.IsBlock32() {
		return fmt.Errorf("%w: %s rows for weights in %s", ref.ErrShape, f, m.Format)
	}
	if !f.Valid() {
		return fmt.Errorf("%w: row format %d", ref.ErrShape, f)
	}
	*h = Matrix{arena: a, shape: *m, takes: f}
	size := b.packedBytes(m, f)
	if size == 0 {
		return quant.Check(m.Format, m.Data)
	}
	dst, err := a.alloc(size)
	if err != nil {
		return err
	}
	if h.packed, err = matmul.Pack(dst, m); err != nil {
		return err
	}
	h.shape.Data = nil
	return nil
}

// packedBytes returns how much of an arena m takes, for rows of format f: 0 where it is not repacked.
func (b *Backend) packedBytes(m *ref.Matrix, f moe.RowFormat) int {
	if b.kernel == nil || f == moe.RowF32 || !matmul.Packs(m.Format) {
		return 0
	}
	n, err := matmul.PackedBytes(m.Format, m.In, m.Out)
	if err != nil {
		panic("BUG: " + err.Error()) // the shape has been looked at
	}
	return n
}

// bytes returns the bytes of rows lo to hi-1 of m, whose numbers are multiples of a panel's, or hi is the
// end.
func (m *Matrix) bytes(lo, hi int) []byte {
	if m.isPacked() {
		return m.packed.Bytes(lo/matmul.PanelRows, panels(hi))
	}
	n := len(m.shape.Data) / m.shape.Out
	return m.shape.Data[lo*n : hi*n]
}

// panels returns how many panels n rows take.
func panels(n int) int { return (n + matmul.PanelRows - 1) / matmul.PanelRows }

// operand is rows in the form in which a matrix takes them: records where it is repacked, rows where not.
type operand struct {
	records matmul.Rows
	rows    []moe.Row
}

func (x *operand) reset() {
	x.records.Reset()
	x.rows = x.rows[:0]
}

// result is where a product goes: value o of row r, for o from lo on, to dst[r*stride + o - lo].
type result struct {
	dst    []float32
	stride int
}

// mul multiplies the rows x with rows lo to hi-1 of m; lo is a multiple of matmul.PanelRows. after is
// what will be read next.
func (b *Backend) mul(w *worker, y result, m *Matrix, lo, hi int, x *operand, after []byte) {
	if m.isPacked() {
		w.product = matmul.Product{
			M: &m.packed, Lo: lo / matmul.PanelRows, Hi: panels(hi), X: x.records,
			Dst: y.dst, Stride: y.stride, After: after,
		}
		b.kernel.Mul(w.matmul, &w.product)
		w.product = matmul.Product{} // keep nothing alive
		return
	}
	if m.takes == moe.RowF32 {
		b.mulFloat(w, y, m, lo, hi, x.rows)
		return
	}
	part := ref.Matrix{Format: m.shape.Format, In: m.shape.In, Out: hi - lo, Data: m.bytes(lo, hi)}
	w.part = grown(w.part, len(x.rows)*part.Out)
	part.MatMul(w.part, x.rows, 0, part.Out, &w.scratch)
	for r := range x.rows {
		copy(y.dst[r*y.stride:], w.part[r*part.Out:(r+1)*part.Out])
	}
}

// floatRows is how many rows of weights are dequantised at a time: every row of the batch is read once for
// all of them. With few rows, which stay in the first cache, weights should do so too.
const (
	floatRows    = 12
	floatRowsFew = 3
)

// mulFloat is mul for rows of float32.
func (b *Backend) mulFloat(w *worker, y result, m *Matrix, lo, hi int, rows []moe.Row) {
	in, most := m.shape.In, floatRows
	if len(rows) <= floatRowsFew {
		most = floatRowsFew
	}
	w.weights = grown(w.weights, most*in)
	for o := lo; o < hi; o += most {
		n := min(most, hi-o)
		b.ops.Dequantize(w.weights[:n*in], m.shape.Format, m.bytes(o, o+n))
		for r := range rows {
			b.ops.Dots(y.dst[r*y.stride+o-lo:][:n], rows[r].F, w.weights, in)
		}
	}
}

// smallProduct is the number of products below which a matrix is multiplied by one thread: waking the
// others takes longer.
const smallProduct = 1 << 20

// tasksEach is into how many tasks for each thread columns are cut. At the end threads wait for the one with
// the last task: with 4 that took 5 % of the time of an expert layer of 64 rows, and with 16 looking for the
// rows of each task takes more than is won.
const tasksEach = 8

// MatMul sets dst[r*Out + o] to value o of W x[r] for all rows, which have the format that m takes.
func (b *Backend) MatMul(dst []float32, m *Matrix, x []moe.Row) {
	if len(dst) < len(x)*m.Out() {
		panic(fmt.Sprintf("BUG: %d rows of %d into %d values", len(x), m.Out(), len(dst)))
	}
	if len(x) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := &b.dense
	d.dst, d.m = dst, m
	d.x.reset()
	for i, row := range x {
		if row.Format != m.takes {
			panic(fmt.Sprintf("BUG: row %d is %s, the matrix takes %s", i, row.Format, m.takes))
		}
	}
	if m.isPacked() {
		d.records.Reset(m.takes, m.In(), len(x))
		d.rows = x
		b.team.run((len(x)+rowsPerTask-1)/rowsPerTask, denseRows{d})
		for i := range x {
			d.x.records.Add(&d.records, i)
		}
	} else {
		d.x.rows = append(d.x.rows, x...)
	}
	tasks := 1
	if len(x)*m.In()*m.Out() > smallProduct {
		tasks = min(panels(m.Out()), tasksEach*b.Threads())
	}
	d.b, d.tasks = b, tasks
	for _, w := range b.team.workers {
		b.room(w, min(len(x), rowsAtOnce), m.In(), matmul.PanelRows*(panels(m.Out())/tasks+1))
	}
	b.team.run(tasks, denseColumns{d})
	d.dst, d.m, d.rows = nil, nil, nil
	clear(d.x.rows)
}

// rowsPerTask is how many rows are brought into records at a time.
const rowsPerTask = 16

// dense is a product of a backbone under way.
type dense struct {
	b       *Backend
	dst     []float32
	m       *Matrix
	rows    []moe.Row
	records matmul.Records
	x       operand
	tasks   int
}

type denseRows struct{ *dense }

func (d denseRows) do(_ *worker, task, _ int) {
	for i := task * rowsPerTask; i < min(task*rowsPerTask+rowsPerTask, len(d.rows)); i++ {
		d.records.Set(i, d.rows[i])
	}
}

type denseColumns struct{ *dense }

func (d denseColumns) do(w *worker, task, after int) {
	lo, hi := d.columns(task)
	var next []byte
	if after >= 0 {
		next = d.m.bytes(d.columns(after))
	}
	d.b.mul(w, result{d.dst[lo:], d.m.Out()}, d.m, lo, hi, &d.x, next)
}

// columns returns the share of a task.
func (d denseColumns) columns(task int) (lo, hi int) { return share(d.m.Out(), task, d.tasks) }

// share cuts n rows of weights into tasks of whole panels.
func share(n, task, tasks int) (lo, hi int) {
	p := panels(n)
	lo, hi = p*task/tasks*matmul.PanelRows, p*(task+1)/tasks*matmul.PanelRows
	return lo, min(hi, n)
}
