// Package moe is the vocabulary that every floor of Kvasir shares: a Batch of rows with their picks
// goes to an executor, and Partials come back.
//
// Words (all of them are in ARCHITECTURE.md): a row is the hidden state of one token at one layer; a
// pick is one (row, expert) pair with its gate weight; a batch is the rows of one layer that are bound
// for one executor; a partial is the answer to one row, the gated sum over the experts that this
// executor holds, as fixed-point integers.
//
// The package holds no arithmetic. What the numbers mean is defined in
// kernels/ref.
package moe

import (
	"context"
	"errors"
)

// Experts turns a batch into partials. Local kernels, a lane, a remote session and a dispatcher all
// implement it; a function call and an ocean look the same to the layer above.
type Experts interface {
	// Forward fills out with the partials of b, one for each row, in the order of b's rows. It sizes
	// out itself (Partials.Reset), so out needs only room.
	//
	// The caller owns both. Forward reads b and writes out until it returns and keeps neither; when it
	// returns, also with an error or a cancelled context, nothing will touch them again. It is safe for
	// concurrent use with different batches.
	//
	// An error means that the batch as a whole could not run, and that out holds nothing. What is wrong
	// with one row is in out.Status and leaves the other rows untouched.
	Forward(ctx context.Context, b *Batch, out *Partials) error
}

// Errors that executors return; test with errors.Is.
var (
	// ErrNotHeld: the batch names a layer or an expert that this executor does not hold. Another
	// executor may run it.
	ErrNotHeld = errors.New("moe: expert not held here")
	// ErrInvalid: the batch breaks a rule of Batch.Validate. No executor will run it.
	ErrInvalid = errors.New("moe: invalid batch")
)

// Limits on what one batch may claim. They bound every allocation that a batch can cause; each is
// checked by Shape.Check and Batch.Validate.
const (
	MaxRows    = 4096    // rows a batch
	MaxHidden  = 1 << 15 // values a row
	MaxTopK    = 64      // picks a row
	MaxExperts = 1 << 12 // experts a layer
	MaxLayers  = 1 << 10 // layers a model
)

// Status says whether a row's partial is good. A faulted row fails its own sequence only; its values in
// Partials are zero. Where several picks of a row fault differently the largest status is reported, so
// the answer does not depend on the order of the picks.
type Status uint8

const (
	OK        Status = iota // the partial is exact
	Wide                    // this executor sums in 32 bits and the row needs 64: send it elsewhere
	Range                   // a value left the fixed-point range, |v| >= 2^40, or a row's amax > 2^40
	NonFinite               // NaN or infinity in the row, in a weight, or on the way
)

// String returns the status as it is written in DESIGN section 4: ok, wide, range, nonfinite.
func (s Status) String() string {
	switch s {
	case OK:
		return "ok"
	case Wide:
		return "wide"
	case Range:
		return "range"
	case NonFinite:
		return "nonfinite"
	}
	return "unknown status"
}

// Valid reports whether s is one of the four statuses.
func (s Status) Valid() bool { return s <= NonFinite }

// RowFormat says how the values of a row are stored and travel.
type RowFormat uint8

const (
	RowF32 RowFormat = iota // float32 values; for experts whose gate or up is not an integer format
	RowQ8K                  // int8 with a float32 scale every 256 values; gate and up are K-quants
	RowQ8                   // int8 with a float32 scale every 32 values; gate and up are Q8_0 or MXFP4
)

// String returns the name used in messages and on the wire's documentation.
func (f RowFormat) String() string {
	switch f {
	case RowF32:
		return "F32"
	case RowQ8K:
		return "Q8K"
	case RowQ8:
		return "Q8"
	}
	return "unknown row format"
}

// Valid reports whether f is one of the three formats.
func (f RowFormat) Valid() bool { return f <= RowQ8 }

// Block returns how many values share one scale; 0 for RowF32, which has none.
func (f RowFormat) Block() int {
	switch f {
	case RowQ8K:
		return 256
	case RowQ8:
		return 32
	}
	return 0
}

// Scales returns how many scales a row of n values has. The last block may be shorter.
func (f RowFormat) Scales(n int) int {
	b := f.Block()
	if b == 0 {
		return 0
	}
	return (n + b - 1) / b
}
