package moe

import (
	"bytes"
	"fmt"
	"unsafe"

	"kvasir/internal/slab"
)

// Shape is what all rows of a batch have in common.
type Shape struct {
	Layer  int       // layer of the model, from 0
	Hidden int       // values a row
	Format RowFormat // how the values are stored
}

// Check returns an error, wrapping ErrInvalid, that names the first field out of its limits.
func (s Shape) Check() error {
	switch {
	case s.Layer < 0 || s.Layer >= MaxLayers:
		return fmt.Errorf("%w: layer %d, want 0 to %d", ErrInvalid, s.Layer, MaxLayers-1)
	case s.Hidden < 1 || s.Hidden > MaxHidden:
		return fmt.Errorf("%w: hidden size %d, want 1 to %d", ErrInvalid, s.Hidden, MaxHidden)
	case !s.Format.Valid():
		return fmt.Errorf("%w: row format %d, want 0 (F32), 1 (Q8K) or 2 (Q8)", ErrInvalid, s.Format)
	}
	return nil
}

// Batch is the rows of one layer bound for one executor, with their picks: a struct of arrays in one
// slab, so that it can be copied to a socket or a device without being walked.
//
// Invariants, checked by Validate:
//
//  1. Q, Scales and F hold exactly Rows rows of Shape's format; the arrays of the other formats are
//     empty.
//  2. First has Rows+1 entries, starts at 0, never falls, and ends at the number of picks; a row has 1
//     to MaxTopK picks.
//  3. Expert and Weight have one entry a pick. A row may pick an expert twice.
//  4. No value of Q is -128.
//
// Of a batch that borrows its rows (Borrow) Q, Scales and F are empty. So who is given a batch asks Row for
// a row, or Hold.
type Batch struct {
	Shape
	Rows int

	Q      []int8    // Rows x Hidden; RowQ8K and RowQ8
	Scales []float32 // Rows x Format.Scales(Hidden); RowQ8K and RowQ8
	F      []float32 // Rows x Hidden; RowF32

	First  []int32   // picks of row r are First[r] to First[r+1]
	Expert []uint16  // expert of each pick
	Weight []float32 // gate weight of each pick

	maxRows, maxPicks int // room in the slab
	slab              *slab.Slab

	// Where rows lie that the batch has borrowed: rows of from, or one by one. Both nil: they are its own.
	from  *Batch
	index []int32
	rows  []borrowed
}

// NewBatch returns an empty batch with room for rows rows and picks picks of shape s, in memory of the
// Go heap.
func NewBatch(s Shape, rows, picks int) (*Batch, error) { return newBatch(s, rows, picks, false) }

// NewPinnedBatch is NewBatch in page-locked memory, which a device can read, as far as there is some left.
// Its owner calls Release when nothing uses the batch, or a view of it, any more.
func NewPinnedBatch(s Shape, rows, picks int) (*Batch, error) { return newBatch(s, rows, picks, true) }

// Release gives the memory of a pinned batch back. The batch is of no use then.
func (b *Batch) Release() {
	s := b.slab
	*b = Batch{}
	s.Release()
}

func newBatch(s Shape, rows, picks int, pinned bool) (*Batch, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if rows < 1 || rows > MaxRows {
		return nil, fmt.Errorf("%w: room for %d rows, want 1 to %d", ErrInvalid, rows, MaxRows)
	}
	if picks < rows || picks > rows*MaxTopK {
		return nil, fmt.Errorf("%w: room for %d picks of %d rows, want 1 to %d a row", ErrInvalid, picks, rows, MaxTopK)
	}
	b := &Batch{Shape: s, maxRows: rows, maxPicks: picks}
	c := carver{pinned: pinned}
	for range 2 { // the first pass measures, the second cuts
		if s.Format == RowF32 {
			b.F = carve[float32](&c, rows*s.Hidden)
		} else {
			b.Q = carve[int8](&c, rows*s.Hidden)
			b.Scales = carve[float32](&c, rows*s.Format.Scales(s.Hidden))
		}
		b.First = carve[int32](&c, rows+1)
		b.Expert = carve[uint16](&c, picks)
		b.Weight = carve[float32](&c, picks)
		c.allocate()
	}
	b.slab = c.slab
	b.Reset(s.Layer)
	return b, nil
}

// Reset empties the batch and moves it to another layer of the same shape. Its room stays.
func (b *Batch) Reset(layer int) {
	b.Layer, b.Rows = layer, 0
	b.Q, b.Scales, b.F = b.Q[:0], b.Scales[:0], b.F[:0]
	b.from, b.index, b.rows = nil, nil, b.rows[:0]
	b.First = append(b.First[:0], 0)
	b.Expert, b.Weight = b.Expert[:0], b.Weight[:0]
}

// Room reports whether one more row with the given number of picks fits.
func (b *Batch) Room(picks int) bool {
	return b.Rows < b.maxRows && len(b.Expert)+picks <= b.maxPicks
}

// Grow appends one row with the given picks, copied, and returns the row's number. Its values are
// stale: the caller fills Row. The caller has asked Room.
func (b *Batch) Grow(expert []uint16, weight []float32) int {
	if len(expert) != len(weight) || !b.Room(len(expert)) {
		panic(fmt.Sprintf("BUG: batch of %d rows grown by %d experts and %d weights without room",
			b.Rows, len(expert), len(weight)))
	}
	r := b.Rows
	b.Rows++
	if b.Format == RowF32 {
		b.F = b.F[:b.Rows*b.Hidden]
	} else {
		b.Q = b.Q[:b.Rows*b.Hidden]
		b.Scales = b.Scales[:b.Rows*b.Format.Scales(b.Hidden)]
	}
	b.Expert = append(b.Expert, expert...)
	b.Weight = append(b.Weight, weight...)
	b.First = append(b.First, int32(len(b.Expert)))
	return r
}

// Row is the values of one row, in the format of its batch: Q and Scales, or F.
type Row struct {
	Format RowFormat
	Q      []int8    // one value each; RowQ8K and RowQ8
	Scales []float32 // one a block
	F      []float32 // one value each; RowF32
}

// Row returns a view of row r, valid until the batch is reset.
func (b *Batch) Row(r int) Row {
	for b.from != nil {
		b, r = b.from, int(b.index[r])
	}
	if b.rows != nil {
		b, r = b.rows[r].from, int(b.rows[r].row)
	}
	if b.Format == RowF32 {
		return Row{Format: RowF32, F: b.F[r*b.Hidden : (r+1)*b.Hidden : (r+1)*b.Hidden]}
	}
	n := b.Format.Scales(b.Hidden)
	return Row{
		Format: b.Format,
		Q:      b.Q[r*b.Hidden : (r+1)*b.Hidden : (r+1)*b.Hidden],
		Scales: b.Scales[r*n : (r+1)*n : (r+1)*n],
	}
}

// Picks returns views of the experts and gate weights of row r.
func (b *Batch) Picks(r int) (expert []uint16, weight []float32) {
	lo, hi := b.First[r], b.First[r+1]
	return b.Expert[lo:hi:hi], b.Weight[lo:hi:hi]
}

// Validate checks the invariants of Batch for a layer of the given number of experts, and returns an
// error, wrapping ErrInvalid, that names the first row and value that breaks one. Scales and weights of
// any value pass: what they make of a row is that row's status.
func (b *Batch) Validate(experts int) error {
	if err := b.ValidateShape(experts); err != nil {
		return err
	}
	if i := indexOfLeast(b.Q); i >= 0 {
		return fmt.Errorf("%w: row %d, value %d is -128, want -127 to 127", ErrInvalid, i/b.Hidden, i%b.Hidden)
	}
	for r := range b.borrows() {
		if i := indexOfLeast(b.Row(r).Q); i >= 0 {
			return fmt.Errorf("%w: row %d, value %d is -128, want -127 to 127", ErrInvalid, r, i)
		}
	}
	return nil
}

// indexOfLeast returns the index of the first -128, or -1. The standard library looks for bytes with the
// processor's vectors.
func indexOfLeast(q []int8) int {
	if len(q) == 0 {
		return -1
	}
	return bytes.IndexByte(unsafe.Slice((*byte)(unsafe.Pointer(&q[0])), len(q)), 0x80)
}

// ValidateShape is Validate without the look at every value: after it a batch can be walked safely, and
// who only passes it on need not do more.
func (b *Batch) ValidateShape(experts int) error {
	if err := b.Check(); err != nil {
		return err
	}
	if b.Rows < 1 || b.Rows > MaxRows {
		return fmt.Errorf("%w: %d rows, want 1 to %d", ErrInvalid, b.Rows, MaxRows)
	}
	q, scales, f := b.Rows*b.Hidden, b.Rows*b.Format.Scales(b.Hidden), 0
	switch {
	case b.rows != nil:
		if n := b.borrows(); n != b.Rows {
			return fmt.Errorf("%w: %d rows are borrowed, want %d", ErrInvalid, n, b.Rows)
		}
		q, scales = 0, 0
	case b.Format == RowF32:
		q, f = 0, q
	}
	if len(b.Q) != q || len(b.Scales) != scales || len(b.F) != f {
		return fmt.Errorf("%w: %d int8, %d scales and %d float values, want %d, %d and %d for %d %s rows of %d",
			ErrInvalid, len(b.Q), len(b.Scales), len(b.F), q, scales, f, b.Rows, b.Format, b.Hidden)
	}
	return b.validatePicks(experts)
}

func (b *Batch) validatePicks(experts int) error {
	if len(b.First) != b.Rows+1 || b.First[0] != 0 {
		return fmt.Errorf("%w: %d pick offsets for %d rows, want one more than rows, from 0", ErrInvalid, len(b.First), b.Rows)
	}
	last := int64(0)
	for r, first := range b.First[1:] {
		// Offsets come from a peer: compared as int64, since their difference may not fit an int32.
		if n := int64(first) - last; n < 1 || n > MaxTopK {
			return fmt.Errorf("%w: row %d has %d picks, want 1 to %d", ErrInvalid, r, n, MaxTopK)
		}
		last = int64(first)
	}
	picks := int(b.First[b.Rows])
	if len(b.Expert) != picks || len(b.Weight) != picks {
		return fmt.Errorf("%w: %d experts and %d weights for %d picks", ErrInvalid, len(b.Expert), len(b.Weight), picks)
	}
	if int(orOf(b.Expert)) < experts { // only if each of them is
		return nil
	}
	for i, e := range b.Expert {
		if int(e) >= experts {
			return fmt.Errorf("%w: pick %d asks for expert %d of %d", ErrInvalid, i, e, experts)
		}
	}
	return nil
}

// orOf returns all values or'ed: eight at a time, since every batch is looked at, and so are its parts.
func orOf(x []uint16) (all uint16) {
	for ; len(x) >= 8; x = x[8:] {
		all |= x[0] | x[1] | x[2] | x[3] | x[4] | x[5] | x[6] | x[7]
	}
	for _, v := range x {
		all |= v
	}
	return all
}
