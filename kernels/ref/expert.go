package ref

import (
	"fmt"

	"kvasir/internal/moe"
)

// Expert is the three matrices of one expert: y = down(silu(gate x) * (up x)).
type Expert struct {
	Gate, Up, Down Matrix

	// Float is the reference mode: rows come as float32 and h is not quantised, whatever the
	// formats of the weights. It serves comparisons with implementations that keep activations in
	// float.
	Float bool
}

// RowFormat returns the format of the rows that e takes.
func (e *Expert) RowFormat() moe.RowFormat {
	if e.Float {
		return moe.RowF32
	}
	return RowFormat(e.Gate.Format, e.Up.Format)
}

func (e *Expert) hiddenFormat() moe.RowFormat {
	if e.Float {
		return moe.RowF32
	}
	return HiddenFormat(e.Down.Format)
}

// Check returns an error, wrapping ErrShape, unless the three matrices fit together.
func (e *Expert) Check() error {
	for _, m := range []struct {
		name string
		*Matrix
	}{{"gate", &e.Gate}, {"up", &e.Up}, {"down", &e.Down}} {
		if _, err := NewMatrix(m.Format, m.In, m.Out, m.Data); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if e.Gate.In > moe.MaxHidden {
		return fmt.Errorf("%w: rows of %d values, want at most %d", ErrShape, e.Gate.In, moe.MaxHidden)
	}
	if e.Up.In != e.Gate.In || e.Up.Out != e.Gate.Out || e.Down.In != e.Gate.Out || e.Down.Out != e.Gate.In {
		return fmt.Errorf("%w: gate is %dx%d, up %dx%d, down %dx%d (in x out), want up as gate and down turned round",
			ErrShape, e.Gate.In, e.Gate.Out, e.Up.In, e.Up.Out, e.Down.In, e.Down.Out)
	}
	return nil
}

// Forward sets y to what e makes of one row, and returns the row's status; y is all zeros unless
// that is moe.OK. It is the definition; ForwardRows gives the same bits.
func (e *Expert) Forward(y []float32, x moe.Row, s *Scratch) moe.Status {
	if x.Format != e.RowFormat() {
		panic(fmt.Sprintf("BUG: a %s row for an expert that takes %s", x.Format, e.RowFormat()))
	}
	y = y[:e.Down.Out]
	if st, _ := CheckRow(x); st != moe.OK {
		clear(y)
		return st
	}
	s.h = grown(s.h, e.Gate.Out)
	for o := range s.h {
		g := e.Gate.Dot(o, x)
		u := e.Up.Dot(o, x)
		s.h[o] = gated(g, u)
	}
	h := s.rows.reset(e.hiddenFormat(), 1, len(s.h))[0]
	if st, _ := QuantizeRow(h, s.h); st != moe.OK {
		clear(y)
		return st
	}
	for o := range y {
		y[o] = e.Down.Dot(o, h)
	}
	return finish(y)
}

// finish returns the status of y, which becomes zeros unless all of it is finite.
func finish(y []float32) moe.Status {
	for _, v := range y {
		if !finite(v) {
			clear(y)
			return moe.NonFinite
		}
	}
	return moe.OK
}

// ForwardRows does what Forward does, for many rows, and decodes the weights once. y holds the
// values of row r from r*Down.Out on; status has one entry a row.
func (e *Expert) ForwardRows(y []float32, x []moe.Row, status []moe.Status, s *Scratch) {
	hidden, length := e.Down.Out, e.Gate.Out
	y, status = y[:len(x)*hidden], status[:len(x)]
	for r := range x {
		if x[r].Format != e.RowFormat() {
			panic(fmt.Sprintf("BUG: a %s row for an expert that takes %s", x[r].Format, e.RowFormat()))
		}
		status[r], _ = CheckRow(x[r])
	}
	s.g, s.u, s.h = grown(s.g, len(x)*length), grown(s.u, len(x)*length), grown(s.h, length)
	e.Gate.MatMul(s.g, x, 0, length, s)
	e.Up.MatMul(s.u, x, 0, length, s)

	h := s.rows.reset(e.hiddenFormat(), len(x), length)
	for r := range h {
		g, u := s.g[r*length:(r+1)*length], s.u[r*length:(r+1)*length]
		for i := range s.h {
			s.h[i] = gated(g[i], u[i])
		}
		if st, _ := QuantizeRow(h[r], s.h); status[r] == moe.OK {
			status[r] = st
		}
	}
	e.Down.MatMul(y, h, 0, hidden, s)
	for r := range x {
		row := y[r*hidden : (r+1)*hidden]
		if status[r] != moe.OK {
			clear(row)
			continue
		}
		status[r] = finish(row)
	}
}
