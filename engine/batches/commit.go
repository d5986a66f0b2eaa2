package batches

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
)

// Limits of a transaction of answers.
const (
	commitMax   = 256
	commitBytes = 8 << 20
)

// result is the answer of a line on its way into the database.
type result struct {
	batch  string
	line   int
	status int
	answer []byte
	done   chan<- error // has room
}

// record writes the answer of a line, unless it has one, or the batch has ended; after the last one the
// batch's end is asked for. It returns when the answer is safe.
func (s *Store) record(ctx context.Context, b *Batch, line, status int, out []byte) error {
	done := make(chan error, 1)
	select {
	case s.answers <- &result{b.ID, line, status, out, done}:
		return <-done
	case <-ctx.Done():
		return s.stopped(ctx, b.ID)
	}
}

// commits records answers until there are none to come. A transaction costs a write to the disk that is
// waited for, whatever is in it; so it has all answers that came while the one before was written.
func (s *Store) commits() {
	var list []*result
	for first := range s.answers {
		list = append(list[:0], first)
		for bytes := len(first.answer); len(list) < commitMax && bytes < commitBytes; {
			var next *result
			select {
			case next = <-s.answers:
			default:
			}
			if next == nil {
				break
			}
			list = append(list, next)
			bytes += len(next.answer)
		}
		err := s.commit(context.WithoutCancel(s.ctx), list) // what is computed is not thrown away
		for _, r := range list {
			r.done <- err
		}
		clear(list)
	}
}

// commit records answers in one transaction.
func (s *Store) commit(ctx context.Context, list []*result) error {
	// Every node takes the locks of several batches in one order.
	slices.SortStableFunc(list, func(a, b *result) int {
		return cmp.Or(cmp.Compare(a.batch, b.batch), cmp.Compare(a.line, b.line))
	})
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for len(list) > 0 {
			n := 1
			for n < len(list) && list[n].batch == list[0].batch {
				n++
			}
			if err := s.commitBatch(ctx, tx, list[:n]); err != nil {
				return err
			}
			list = list[n:]
		}
		return nil
	})
}

// commitBatch records answers of one batch.
func (s *Store) commitBatch(ctx context.Context, tx *sql.Tx, list []*result) error {
	// Changed first, the batch is locked: it does not end, and nobody else answers its lines, until all is in.
	res, err := tx.ExecContext(ctx, "UPDATE batches SET status = status WHERE id = $1 AND status = $2", list[0].batch, InProgress)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	put, err := tx.PrepareContext(ctx, "UPDATE lines SET status = $1, answer = $2 WHERE batch = $3 AND line = $4 AND status IS NULL")
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer put.Close() //nolint:errcheck // the transaction's end tells
	completed, failed := 0, 0
	for _, r := range list {
		res, err := put.ExecContext(ctx, r.status, r.answer, r.batch, r.line)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		switch n, err := res.RowsAffected(); {
		case err != nil:
			return fmt.Errorf("batches: %w", err)
		case n == 0: // another node was first
		case r.status == http.StatusOK:
			completed++
		default:
			failed++
		}
	}
	var left int
	err = tx.QueryRowContext(ctx, `UPDATE batches SET completed = completed + $1, failed = failed + $2 WHERE id = $3
		RETURNING total - completed - failed`, completed, failed, list[0].batch).Scan(&left)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if left > 0 {
		return nil
	}
	return s.finishTx(ctx, tx, list[0].batch, Completed)
}
