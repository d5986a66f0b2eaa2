package batches

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"kvasir/engine/serve"
)

// end ends a batch with a status: no line is recorded any more, what is done is put into files, and then
// the batch has ended. Killed in between it is called again, and makes the same files.
func (s *Store) end(ctx context.Context, id, status string) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		var now string
		if err := tx.QueryRowContext(ctx, "SELECT status FROM batches WHERE id = ? AND ended = 0", id).Scan(&now); err != nil {
			return err
		}
		if now != InProgress {
			return nil // another call was killed, or is under way
		}
		_, err := tx.ExecContext(ctx, "UPDATE batches SET status = ? WHERE id = ?", Finalizing, id)
		return err
	})
	if err == sql.ErrNoRows {
		return nil // it has ended
	}
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	s.mu.Lock()
	if r := s.running[id]; r != nil {
		r.cancel()
	}
	s.mu.Unlock()
	b, err := s.Batch(ctx, id)
	if err != nil {
		return err
	}
	output, err := s.results(ctx, b, "batch_output", status, "status = 200")
	if err != nil {
		return err
	}
	failed, err := s.results(ctx, b, "batch_error", status, "status IS NOT 200")
	if err != nil {
		return err
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, f := range []File{output, failed} {
			if f.ID == "" {
				continue
			}
			if err := insertFile(ctx, tx, f); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "UPDATE batches SET status = ?, ended = ?, output = ?, error_file = ? WHERE id = ? AND ended = 0",
			status, s.now().Unix(), output.ID, failed.ID, id)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		// The answers are in the files now.
		if _, err := tx.ExecContext(ctx, "UPDATE lines SET answer = NULL WHERE batch = ?", id); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		return nil
	})
}

// results makes a file of some of a batch's lines; none where there are none. Its id is a function of the
// batch's, so that a second try replaces what a first one has left.
func (s *Store) results(ctx context.Context, b *Batch, kind, status, which string) (File, error) {
	id := serve.NewStamp(b.Created, []byte(b.ID), []byte(kind)).ID
	f := File{ID: "file-" + id, Purpose: "batch_output", Name: b.ID + "_" + kind + ".jsonl", Created: s.now()}
	found := false
	n, err := s.write(f.ID, func(w io.Writer) error {
		rows, err := s.db.QueryContext(ctx, "SELECT custom_id, status, answer FROM lines WHERE batch = ? AND "+which+" ORDER BY line", b.ID)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		defer rows.Close() //nolint:errcheck // Err tells
		out := bufio.NewWriter(w)
		for rows.Next() {
			found = true
			var custom string
			var code sql.NullInt64
			var answer []byte
			if err := rows.Scan(&custom, &code, &answer); err != nil {
				return fmt.Errorf("batches: %w", err)
			}
			if err := writeLine(out, b, custom, int(code.Int64), answer, status); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		return out.Flush()
	})
	if !found {
		f = File{}
	}
	f.Bytes = n
	return f, err
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
