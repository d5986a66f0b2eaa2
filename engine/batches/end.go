package batches

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/riverqueue/river"

	"kvasir/engine/serve"
)

// finish has a batch ended with a status, unless it ends already: no line is recorded any more, and a job
// puts what is done into files. That job is inserted with the change, so a batch ends whoever is killed, or
// has gone, in between; and it is the only one, so nobody writes the same files beside it.
func (s *Store) finish(ctx context.Context, id, status string) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error { return s.finishTx(ctx, tx, id, status) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running[id]; r != nil {
		r.cancel()
	}
	return nil
}

func (s *Store) finishTx(ctx context.Context, tx *sql.Tx, id, status string) error {
	until := Finalizing
	if status == Cancelled {
		until = Cancelling
	}
	res, err := tx.ExecContext(ctx, "UPDATE batches SET status = ? WHERE id = ? AND status = ?", until, id, InProgress)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := s.queue.InsertTx(ctx, tx, endArgs{id, status}, &river.InsertOpts{Queue: endQueue}); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// end is what finish has asked for. Killed in the middle it is called again, and makes the same files.
func (s *Store) end(ctx context.Context, id, status string) error {
	b, err := s.Batch(ctx, id)
	if err != nil {
		return err
	}
	if b.Done() {
		return s.purge(ctx, id)
	}
	output, err := s.results(ctx, b, "batch_output", status, "status = 200")
	if err != nil {
		return err
	}
	failed, err := s.results(ctx, b, "batch_error", status, "status IS NOT 200")
	if err != nil {
		return err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, f := range []File{output, failed} {
			if f.ID == "" {
				continue
			}
			if err := insertFile(ctx, tx, f); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "UPDATE batches SET status = ?, ended = ?, output = ?, error_file = ? WHERE id = ?",
			status, s.now().Unix(), output.ID, failed.ID, id)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.purge(ctx, id)
}

// Lines that are read, or deleted, while nobody else has the database.
const (
	readLines   = 16 // an answer may have megabytes
	deleteLines = 100
)

// purge deletes the lines of a batch that has ended: its answers are in files.
func (s *Store) purge(ctx context.Context, id string) error {
	for {
		res, err := s.db.ExecContext(ctx, `DELETE FROM lines WHERE batch = ? AND line IN
			(SELECT line FROM lines WHERE batch = ? ORDER BY line LIMIT ?)`, id, id, deleteLines)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		if n, err := res.RowsAffected(); err != nil || n < deleteLines {
			return err
		}
	}
}

// results makes a file of some of a batch's lines; none where there are none. Its id is a function of the
// batch's, so that a second try replaces what a first one has left.
func (s *Store) results(ctx context.Context, b *Batch, kind, status, which string) (File, error) {
	id := serve.NewStamp(b.Created, []byte(b.ID), []byte(kind)).ID
	f := File{ID: filePrefix + id, Purpose: "batch_output", Name: b.ID + "_" + kind + ".jsonl", Created: s.now()}
	var first int
	err := s.db.QueryRowContext(ctx, "SELECT line FROM lines WHERE batch = ? AND "+which+" LIMIT 1", b.ID).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("batches: %w", err)
	}
	f.Bytes, err = s.write(f.ID, func(w io.Writer) error {
		out := bufio.NewWriter(w)
		for last, n := 0, readLines; n == readLines; {
			var err error
			if last, n, err = s.someResults(ctx, out, b, status, which, last); err != nil {
				return err
			}
		}
		return out.Flush()
	})
	return f, err
}

// someResults writes the next lines behind line last, and returns the last one and how many they are.
func (s *Store) someResults(ctx context.Context, w io.Writer, b *Batch, status, which string, last int) (int, int, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT line, custom_id, status, answer FROM lines WHERE batch = ? AND line > ? AND "+which+
		" ORDER BY line LIMIT ?", b.ID, last, readLines)
	if err != nil {
		return last, 0, fmt.Errorf("batches: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	n := 0
	for ; rows.Next(); n++ {
		var custom string
		var code sql.NullInt64
		var answer []byte
		if err := rows.Scan(&last, &custom, &code, &answer); err != nil {
			return last, n, fmt.Errorf("batches: %w", err)
		}
		if err := writeLine(w, b, custom, int(code.Int64), answer, status); err != nil {
			return last, n, err
		}
	}
	if err := rows.Err(); err != nil {
		return last, n, fmt.Errorf("batches: %w", err)
	}
	return last, n, nil
}

// writeLine writes a line of the output. code is 0 where the batch has ended without it.
func writeLine(w io.Writer, b *Batch, custom string, code int, answer []byte, status string) error {
	id := serve.NewStamp(b.Created, []byte(custom)).ID
	l := outputLine{ID: "batch_req_" + id, CustomID: custom}
	if code == 0 {
		l.Error = &outputError{codes[status], "the batch ended before this line was answered"}
	} else {
		l.Response = &outputResponse{code, "req_" + id, answer}
	}
	if code != 0 && code != http.StatusOK {
		l.Error = &outputError{"request_failed", "see the response"}
	}
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("batches: line %q: %w", custom, err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
