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
	s.cancel(id)
	return nil
}

// cancel ends what runs of a batch here. Other nodes see by themselves that it has ended.
func (s *Store) cancel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running[id]; r != nil {
		r.cancel()
	}
}

func (s *Store) finishTx(ctx context.Context, tx *sql.Tx, id, status string) error {
	until := Finalizing
	if status == Cancelled {
		until = Cancelling
	}
	res, err := tx.ExecContext(ctx, "UPDATE batches SET status = $1 WHERE id = $2 AND status = $3", until, id, InProgress)
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
	defer output.drop()
	failed, err := s.results(ctx, b, "batch_error", status, "(status IS NULL OR status != 200)")
	if err != nil {
		return err
	}
	defer failed.drop()
	if err := s.inTx(ctx, func(tx *sql.Tx) error { return s.endTx(ctx, tx, b, status, output, failed) }); err != nil {
		return err
	}
	return s.purge(ctx, id)
}

// endTx records the end of a batch, and keeps its files, unless it has ended. So of two nodes that end it,
// as one seemed dead, the second, which may have read lines while the first deleted them, keeps nothing.
func (s *Store) endTx(ctx context.Context, tx *sql.Tx, b *Batch, status string, output, failed staged) error {
	res, err := tx.ExecContext(ctx, "UPDATE batches SET status = $1, ended = $2, output = $3, error_file = $4 WHERE id = $5 AND ended = 0",
		status, s.now().Unix(), output.ID, failed.ID, b.ID)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	for _, f := range []staged{output, failed} {
		if f.ID == "" {
			continue
		}
		if err := s.keep(f); err != nil {
			return err
		}
		if err := insertFile(ctx, tx, f.File); err != nil {
			return err
		}
		if err := inherit(ctx, tx, f.ID, b.ID); err != nil {
			return err
		}
	}
	return nil
}

// Lines that are read, or deleted, while nobody else has the database.
const (
	readLines   = 16 // an answer may have megabytes
	deleteLines = 100
)

// purge deletes the lines of a batch that has ended: its answers are in files.
func (s *Store) purge(ctx context.Context, id string) error {
	for {
		res, err := s.db.ExecContext(ctx, `DELETE FROM lines WHERE batch = $1 AND line IN
			(SELECT line FROM lines WHERE batch = $1 ORDER BY line LIMIT $2)`, id, deleteLines)
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
func (s *Store) results(ctx context.Context, b *Batch, kind, status, which string) (staged, error) {
	var first int
	err := s.db.QueryRowContext(ctx, "SELECT line FROM lines WHERE batch = $1 AND "+which+" LIMIT 1", b.ID).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		return staged{}, nil
	}
	if err != nil {
		return staged{}, fmt.Errorf("batches: %w", err)
	}
	f, err := s.stage(func(w io.Writer) error {
		out := bufio.NewWriter(w)
		for last, n := 0, readLines; n == readLines; {
			var err error
			if last, n, err = s.someResults(ctx, out, b, status, which, last); err != nil {
				return err
			}
		}
		return out.Flush()
	})
	f.File = File{
		ID:      filePrefix + serve.NewStamp(b.Created, []byte(b.ID), []byte(kind)).ID,
		Purpose: "batch_output", Name: b.ID + "_" + kind + ".jsonl", Bytes: f.Bytes, Created: s.now(),
	}
	return f, err
}

// someResults writes the next lines behind line last, and returns the last one and how many they are.
func (s *Store) someResults(ctx context.Context, w io.Writer, b *Batch, status, which string, last int) (int, int, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT line, custom_id, status, answer FROM lines WHERE batch = $1 AND line > $2 AND "+which+
		" ORDER BY line LIMIT $3", b.ID, last, readLines)
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
