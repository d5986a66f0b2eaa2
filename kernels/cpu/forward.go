package cpu

import (
	"context"
	"fmt"
	"sync"

	"kvasir/internal/moe"
	"kvasir/kernels/matmul"
	"kvasir/kernels/ref"
)

// Experts of a batch are computed in three steps, each cut into tasks that the threads share out:
//
//  1. Rows are looked at and brought into records, once each, however many experts they go to.
//  2. For each expert and each 256 values of h: gate, up, SwiGLU, and h to int8. With at most 64 rows a
//     task, so that an expert that many rows have picked is shared out too.
//  3. For each share of the output's columns: down of every expert, the gate weights, and the sums. A
//     column belongs to one task, so nobody waits to add.
//
// Every weight is read once a batch, from one end of an expert to the other; in step 2 again for each 64
// rows, from the cache.

// rowsAtOnce is the most rows of a task.
const rowsAtOnce = 64

// hBlock is how many values of h a task of step 2 makes: a block of Q8K.
const hBlock = 256

// call is a batch under way, and the memory for it, which is kept from one to the next.
type call struct {
	ctx   context.Context
	layer *Layer
	batch *moe.Batch
	out   *moe.Partials

	mu     sync.Mutex   // status, in step 3
	status []moe.Status // of rows

	records matmul.Records // of rows, where gate and up are repacked
	picks   []pick         // by expert
	first   []int32        // of each expert, in picks
	at      []int32        // group's
	used    []int32        // experts with picks
	tasks   []gateUpTask

	blocks  int            // of h
	hStatus []moe.Status   // of picks x blocks
	h       matmul.Records // of picks, where down is repacked
	hQ      []int8         // of picks, where it is not
	hScales []float32
	hF      []float32

	columns int // tasks of step 3
}

// pick is one pick of the batch.
type pick struct {
	row    int32
	weight float32
	status moe.Status
}

// gateUpTask is picks lo to hi-1 of an expert and one block of h.
type gateUpTask struct{ expert, block, lo, hi int32 }

// Forward implements moe.Experts.
func (l *Layer) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := l.check(b); err != nil {
		return err
	}
	be := l.b
	be.mu.Lock()
	defer be.mu.Unlock()
	if err := ctx.Err(); err != nil { // after the wait for others
		return fmt.Errorf("layer %d: %w", b.Layer, err)
	}
	c := &be.call
	c.ctx, c.layer, c.batch, c.out = ctx, l, b, out
	defer c.release()

	out.Reset(b.Rows, b.Hidden)
	c.prepare()
	be.team.run((b.Rows+rowsPerTask-1)/rowsPerTask, rowsJob{c})
	c.group()
	be.team.run(len(c.tasks), gateUpJob{c})
	c.judge()
	be.team.run(c.columns, downJob{c})
	if err := ctx.Err(); err != nil {
		out.Reset(0, b.Hidden)
		return fmt.Errorf("layer %d: %w", b.Layer, err)
	}
	for r, s := range c.status {
		out.Fault(r, s)
	}
	return nil
}

// keepPicks is up to how many picks the memory of a call is kept for the next one.
const keepPicks = 1 << 15

// release forgets what belongs to the caller, and what an unusually large batch has taken.
func (c *call) release() {
	picks := len(c.batch.Expert)
	c.ctx, c.layer, c.batch, c.out = nil, nil, nil, nil
	if picks > keepPicks {
		c.h, c.hQ, c.hScales, c.hF = matmul.Records{}, nil, nil, nil
	}
}

// prepare makes room for the batch.
func (c *call) prepare() {
	l, b := c.layer, c.batch
	c.status = grown(c.status, b.Rows)
	if l.packedRows() {
		c.records.Reset(b.Format, b.Hidden, b.Rows)
	}
	c.blocks = (l.length + hBlock - 1) / hBlock
	c.hStatus = grown(c.hStatus, len(b.Expert)*c.blocks)
	switch {
	case l.packedH():
		c.h.Reset(l.hFormat, l.length, len(b.Expert))
	case l.hFormat == moe.RowF32:
		c.hF = grown(c.hF, len(b.Expert)*l.length)
	default:
		c.hQ = grown(c.hQ, len(b.Expert)*l.length)
		c.hScales = grown(c.hScales, len(b.Expert)*l.hFormat.Scales(l.length))
	}
	c.columns = min(panels(l.hidden), tasksEach*l.b.Threads())
	width := matmul.PanelRows * (panels(l.hidden)/c.columns + 1)
	for _, w := range l.b.team.workers {
		l.b.room(w, rowsAtOnce, max(l.hidden, l.length), max(width, hBlock))
	}
}

// packedRows reports whether rows are brought into records, and packedH whether h is.
func (l *Layer) packedRows() bool { return l.b.kernel != nil && l.format != moe.RowF32 }
func (l *Layer) packedH() bool    { return l.b.kernel != nil && l.hFormat != moe.RowF32 }

// rowsJob is step 1.
type rowsJob struct{ *call }

func (c rowsJob) do(_ *worker, task, _ int) {
	for r := task * rowsPerTask; r < min(task*rowsPerTask+rowsPerTask, c.batch.Rows); r++ {
		x := c.batch.Row(r)
		c.status[r], _ = ref.CheckRow(x)
		if c.status[r] == moe.OK && c.layer.packedRows() {
			c.records.Set(r, x)
		}
	}
}

// group sorts the picks of good rows by expert and cuts step 2 into tasks.
func (c *call) group() {
	b, experts := c.batch, len(c.layer.experts)
	c.first = grown(c.first, experts+1)
	clear(c.first)
	for r := range b.Rows {
		if c.status[r] == moe.OK {
			for _, e := range b.Expert[b.First[r]:b.First[r+1]] {
				c.first[e+1]++
			}
		}
	}
	c.used = c.used[:0]
	for e := range experts {
		if c.first[e+1] > 0 {
			c.used = append(c.used, int32(e))
		}
		c.first[e+1] += c.first[e]
	}
	c.picks = grown(c.picks, int(c.first[experts]))
	c.at = append(c.at[:0], c.first...)
	for r := range b.Rows {
		if c.status[r] != moe.OK {
			continue
		}
		expert, weight := b.Picks(r)
		for i, e := range expert {
			c.picks[c.at[e]] = pick{row: int32(r), weight: weight[i]}
			c.at[e]++
		}
	}
	c.tasks = c.tasks[:0]
	for _, e := range c.used {
		for block := range c.blocks {
			for lo := c.first[e]; lo < c.first[e+1]; lo += rowsAtOnce {
				hi := min(lo+rowsAtOnce, c.first[e+1])
				c.tasks = append(c.tasks, gateUpTask{e, int32(block), lo, hi})
			}
		}
	}
}

// gateUpJob is step 2.
type gateUpJob struct{ *call }

func (c gateUpJob) do(w *worker, task, after int) {
	if c.ctx.Err() != nil {
		return
	}
	l, t := c.layer, &c.tasks[task]
	e := &l.experts[t.expert]
	lo := int(t.block) * hBlock
	hi := min(lo+hBlock, l.length)
	n, width := int(t.hi-t.lo), hi-lo

	w.x.reset()
	for _, p := range c.picks[t.lo:t.hi] {
		if l.packedRows() {
			w.x.records.Add(&c.records, int(p.row))
		} else {
			w.x.rows = append(w.x.rows, c.batch.Row(int(p.row)))
		}
	}
	w.gate, w.up = w.gate[:n*width], w.up[:n*width]
	l.b.mul(w, result{w.gate, width}, &e.gate, lo, hi, &w.x, e.up.bytes(lo, hi))
	l.b.mul(w, result{w.up, width}, &e.up, lo, hi, &w.x, c.nextGate(after))

	h := w.hidden[:width]
	for i := range n {
		l.b.ops.Gate(h, w.gate[i*width:(i+1)*width], w.up[i*width:(i+1)*width])
		at := int(t.lo) + i
		c.hStatus[at*c.blocks+int(t.block)] = c.keep(w, at, lo, h)
	}
}

// nextGate returns the weights that the task begins with.
func (c gateUpJob) nextGate(task int) []byte {
	if task < 0 {
		return nil
	}
	t := &c.tasks[task]
	lo := int(t.block) * hBlock
	return c.layer.experts[t.expert].gate.bytes(lo, min(lo+hBlock, c.layer.length))
}

// keep quantises a part of the h of a pick, from value lo on, and puts it where step 3 finds it.
func (c *call) keep(w *worker, pick, lo int, h []float32) moe.Status {
	l := c.layer
	f, n := l.hFormat, len(h)
	row := moe.Row{Format: f}
	switch {
	case l.packedH():
		row.Q, row.Scales = w.quants[:n], w.scales[:f.Scales(n)]
		status, _ := l.b.ops.QuantizeRow(row, h)
		c.h.SetPart(pick, lo, row)
		return status
	case f == moe.RowF32:
		row.F = c.hF[pick*l.length+lo:][:n]
	default:
		row.Q = c.hQ[pick*l.length+lo:][:n]
		row.Scales = c.hScales[pick*f.Scales(l.length)+lo/f.Block():][:f.Scales(n)]
	}
	status, _ := l.b.ops.QuantizeRow(row, h)
	return status
}

// hRow returns the h of a pick, where down is not repacked.
func (c *call) hRow(pick int) moe.Row {
	n := c.layer.length
	row := moe.Row{Format: c.layer.hFormat}
	if row.Format == moe.RowF32 {
		row.F = c.hF[pick*n : (pick+1)*n]
		return row
	}
	scales := row.Format.Scales(n)
	row.Q, row.Scales = c.hQ[pick*n:(pick+1)*n], c.hScales[pick*scales:(pick+1)*scales]
	return row
}

// judge gives picks, and their rows, the status of their h.
func (c *call) judge() {
	for i := range c.picks {
		p := &c.picks[i]
		for _, s := range c.hStatus[i*c.blocks : (i+1)*c.blocks] {
			p.status = max(p.status, s)
		}
		c.status[p.row] = max(c.status[p.row], p.status)
	}
}

// downJob is step 3.
type downJob struct{ *call }

func (c downJob) do(w *worker, task, after int) {
	lo, hi := share(c.layer.hidden, task, c.columns)
	for i, e := range c.used {
		if c.ctx.Err() != nil {
			return
		}
		var next []byte
		switch {
		case i+1 < len(c.used):
			next = c.layer.experts[c.used[i+1]].down.bytes(lo, hi)
		case after >= 0:
			next = c.layer.experts[c.used[0]].down.bytes(share(c.layer.hidden, after, c.columns))
		}
		for at := c.first[e]; at < c.first[e+1]; at += rowsAtOnce {
			c.down(w, &c.layer.experts[e].down, int(at), int(min(at+rowsAtOnce, c.first[e+1])), lo, hi, next)
		}
	}
}

// down computes columns lo to hi-1 for a run of picks of one expert and adds them up.
func (c downJob) down(w *worker, m *Matrix, first, last, lo, hi int, next []byte) {
	l := c.layer
	w.x.reset()
	for i := first; i < last; i++ {
		switch {
		case c.picks[i].status != moe.OK: // its row has no partial
		case l.packedH():
			w.x.records.Add(&c.h, i)
		default:
			w.x.rows = append(w.x.rows, c.hRow(i))
		}
	}
	width := hi - lo
	w.out = grown(w.out, (last-first)*width)
	l.b.mul(w, result{w.out, width}, m, lo, hi, &w.x, next)
	y := w.out
	for _, p := range c.picks[first:last] {
		if p.status != moe.OK {
			continue
		}
		sum := c.out.Row(int(p.row))[lo:hi]
		if s := l.b.ops.AddPick(sum, y[:width], p.weight, l.exponent); s != moe.OK {
			c.mu.Lock()
			c.status[p.row] = max(c.status[p.row], s)
			c.mu.Unlock()
		}
		y = y[width:]
	}
}
