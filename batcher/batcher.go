// Package batcher stands between those who need experts and those who hold them: it turns many calls
// into few dispatches, and lets no executor's death change or lose a row.
//
// Every piece implements moe.Experts, so that pieces stack:
//
//	layer -> Dispatcher -+-> Lane -> executor (a session, local experts)
//	                     +-> Lane -> executor
//	                     +-> local fallback
//
// A Dispatcher divides a batch by what its members hold (Set, Split): a row goes once to an executor
// however many of its experts are there. The parts run at the same time, the first answer to a row is written
// into the caller's sums and the others are added as integers, and what one executor does not answer goes to
// another. Rows stay where they are until they are computed, or put on the wire. A Lane is
// the queue before one executor: rows of many calls become one batch, closed by rows, bytes or deadline,
// and several batches are under way at once. What a lane decides is in a core without clock, goroutine
// or lock; time comes in as an argument.
//
// Sums are exact integers, so neither who computed a pick, nor how often it was tried, nor the order of
// the answers can be seen in a result.
package batcher

import (
	"errors"
	"fmt"

	"kvasir/internal/moe"
)

// Errors of this package; test with errors.Is.
var (
	// ErrFull: so much is waiting already that the call is refused. Nothing of it was computed; send
	// less at a time, or send it again later.
	ErrFull = errors.New("batcher: queue is full")
	// ErrClosed: the lane was closed before the call was answered.
	ErrClosed = errors.New("batcher: lane is closed")
	// ErrNowhere: nobody who holds an expert of the call answered, and nobody joined in time.
	ErrNowhere = errors.New("batcher: expert held nowhere")
	// ErrAnswer: an executor's answer does not have the shape of its batch.
	ErrAnswer = errors.New("batcher: answer does not fit the batch")
)

// checkAnswer returns an error, wrapping ErrAnswer, when out is not an answer to b. An executor may be a
// stranger's.
func checkAnswer(b *moe.Batch, out *moe.Partials) error {
	if !out.Fit(b.Rows, b.Hidden) {
		return fmt.Errorf("%w: %d rows of %d with %d values and %d statuses, want %d rows of %d",
			ErrAnswer, out.Rows, out.Hidden, len(out.Sum), len(out.Status), b.Rows, b.Hidden)
	}
	all := moe.OK // is valid only if each of them is
	for _, s := range out.Status {
		all |= s
	}
	if all.Valid() {
		return nil
	}
	for r, s := range out.Status {
		if !s.Valid() {
			return fmt.Errorf("%w: row %d has status %d, want 0 to %d", ErrAnswer, r, s, moe.NonFinite)
		}
	}
	return nil
}
