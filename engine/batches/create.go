package batches

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/riverqueue/river"
)

// Work is what a batch is to do.
type Work struct {
	Input    string // file
	Endpoint string
	Metadata map[string]string
	// Stamp is the second that stands in the answers. Zero: that in which the input was added, so that two
	// batches over one file have the same answers, byte for byte.
	Stamp time.Time
}

// Create begins a batch over a file. One whose lines are not right is recorded as Failed, with what is
// wrong with them, and costs nothing.
func (s *Store) Create(ctx context.Context, w Work) (*Batch, error) {
	file, err := s.File(ctx, w.Input)
	if err != nil {
		return nil, err
	}
	if w.Stamp.IsZero() {
		w.Stamp = file.Created
	}
	f, err := s.Content(ctx, w.Input)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	lines, bad, err := checkLines(f, w.Endpoint, s.o.Answerer)
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	b := &Batch{
		ID: newID("batch_"), Input: w.Input, Endpoint: w.Endpoint, Metadata: w.Metadata, Status: InProgress,
		Created: s.now(), Total: len(lines), Validation: bad, Model: s.o.Model, stamp: w.Stamp, owner: OwnerOf(ctx).ID,
	}
	b.Expires = b.Created.Add(Window)
	if len(bad) > 0 {
		b.Status, b.Ended, b.Total, lines = Failed, b.Created, 0, nil
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if err := s.db.turn(ctx, tx); err != nil {
			return err
		}
		if err := isThere(ctx, tx, w.Input); err != nil {
			return err // it was deleted while it was read
		}
		if err := makeRoom(ctx, tx); err != nil {
			return err
		}
		turn, err := s.turn(ctx, tx)
		if err != nil {
			return err
		}
		if err := insertBatch(ctx, tx, b, turn); err != nil {
			return err
		}
		if err := own(ctx, tx, "batches", b.ID); err != nil {
			return err
		}
		if err := insertLines(ctx, tx, b.ID, lines); err != nil {
			return err
		}
		if len(lines) == 0 {
			return nil
		}
		return s.insertGroups(ctx, tx, b.ID, lines, turn)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func isThere(ctx context.Context, tx *sql.Tx, file string) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM files WHERE id = $1", file).Scan(&n); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if n == 0 {
		return fmt.Errorf("%w: file %.100q", ErrNotFound, file)
	}
	return nil
}

// makeRoom bounds how many batches there are.
func makeRoom(ctx context.Context, tx *sql.Tx) error {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM batches WHERE ended = 0").Scan(&n); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if n >= maxOpen {
		return ErrFull
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM batches WHERE ended != 0 AND number <= (SELECT max(number) FROM batches) - $1
		AND NOT EXISTS (SELECT 1 FROM lines WHERE batch = batches.id)`, maxEnded)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

func insertBatch(ctx context.Context, tx *sql.Tx, b *Batch, turn int64) error {
	metadata, err := json.Marshal(b.Metadata)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	wrong, err := json.Marshal(b.Validation)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO batches (id, number, input, endpoint, metadata, status, created, expires, ended, total, errors,
		model, stamp, turn) VALUES ($1, (SELECT coalesce(max(number), 0) + 1 FROM batches), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		b.ID, b.Input, b.Endpoint, string(metadata), b.Status, b.Created.Unix(), b.Expires.Unix(), unix(b.Ended), b.Total, string(wrong),
		b.Model, b.stamp.Unix(), turn)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func insertLines(ctx context.Context, tx *sql.Tx, batch string, lines []place) error {
	st, err := tx.PrepareContext(ctx, "INSERT INTO lines (batch, line, custom_id, start, length) VALUES ($1, $2, $3, $4, $5)")
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer st.Close() //nolint:errcheck // the transaction's end tells
	for _, l := range lines {
		if _, err := st.ExecContext(ctx, batch, l.line, l.id, l.start, l.length); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
	}
	return nil
}

// Groups are taken in the order of their turns, which River knows as times: one a millisecond, from place0 on,
// for 20 years. The first group of a batch has the turn that the others have come to, so batches have turns
// one after another, and none waits until those before it have ended.
var (
	place0   = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	turnsEnd = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
)

// querier is a database, or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// turn is what the batches have come to: the one that has come least far.
func (s *Store) turn(ctx context.Context, q querier) (n int64, err error) {
	err = q.QueryRowContext(ctx, "SELECT coalesce(min(turn + (completed + failed) / $1), 0) FROM batches WHERE status = $2 AND model = $3",
		groupLines, InProgress, s.o.Model).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("batches: %w", err)
	}
	return n, nil
}

func (s *Store) insertGroups(ctx context.Context, tx *sql.Tx, batch string, lines []place, turn int64) error {
	var jobs []river.InsertManyParams
	for lo := 0; lo < len(lines); lo += groupLines {
		hi := min(lo+groupLines, len(lines))
		at := place0.Add(time.Duration(turn+int64(len(jobs))) * time.Millisecond)
		jobs = append(jobs, river.InsertManyParams{
			Args:       groupArgs{batch, lines[lo].line, lines[hi-1].line},
			InsertOpts: &river.InsertOpts{Queue: s.groupQueue(), ScheduledAt: at},
		})
	}
	for lo := 0; lo < len(jobs); lo += 100 { // a statement takes so many values
		if _, err := s.queue.InsertManyTx(ctx, tx, jobs[lo:min(lo+100, len(jobs))]); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
	}
	// For River, whatever has a time is for later.
	_, err := tx.ExecContext(ctx, "UPDATE river_job SET state = 'available' WHERE state = 'scheduled' AND queue = $1 AND scheduled_at < $2",
		s.groupQueue(), s.db.time(turnsEnd))
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// Batch returns a batch as it stands.
func (s *Store) Batch(ctx context.Context, id string) (*Batch, error) {
	if !isID(id) {
		return nil, fmt.Errorf("%w: batch %.100q", ErrNotFound, id)
	}
	list, err := s.batches(ctx, "WHERE id = $1", id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: batch %.100q", ErrNotFound, id)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Batches returns up to limit batches, the newest first, those older than after; empty: from the newest on.
func (s *Store) Batches(ctx context.Context, after string, limit int) ([]*Batch, error) {
	return s.batches(ctx, `WHERE $1 = '' OR number < (SELECT number FROM batches WHERE id = $1)
		ORDER BY number DESC LIMIT $2`, after, limit)
}

func (s *Store) batches(ctx context.Context, where string, args ...any) (list []*Batch, err error) {
	from, args := theirs(ctx, "batches", args)
	rows, err := s.db.QueryContext(ctx, `SELECT id, input, endpoint, metadata, status, created, expires, ended, total, completed,
		failed, output, error_file, errors, model, stamp, owner FROM `+from+" "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		b := &Batch{}
		var metadata, wrong string
		var created, expires, ended, stamp int64
		if err := rows.Scan(&b.ID, &b.Input, &b.Endpoint, &metadata, &b.Status, &created, &expires, &ended, &b.Total, &b.Completed,
			&b.Failed, &b.Output, &b.ErrorFile, &wrong, &b.Model, &stamp, &b.owner); err != nil {
			return nil, fmt.Errorf("batches: %w", err)
		}
		b.Created, b.Expires, b.stamp = time.Unix(created, 0), time.Unix(expires, 0), time.Unix(stamp, 0)
		if ended != 0 {
			b.Ended = time.Unix(ended, 0)
		}
		if err := json.Unmarshal([]byte(metadata), &b.Metadata); err != nil {
			return nil, fmt.Errorf("batches: metadata of %s: %w", b.ID, err)
		}
		if err := json.Unmarshal([]byte(wrong), &b.Validation); err != nil {
			return nil, fmt.Errorf("batches: errors of %s: %w", b.ID, err)
		}
		list = append(list, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	return list, nil
}

// Cancel has a batch ended. What is done stays, and is in its output.
func (s *Store) Cancel(ctx context.Context, id string) (*Batch, error) {
	b, err := s.Batch(ctx, id)
	if err != nil {
		return nil, err
	}
	if b.Done() {
		return b, fmt.Errorf("%w: it is %s", ErrEnded, b.Status)
	}
	if err := s.finish(ctx, id, Cancelled); err != nil {
		return nil, err
	}
	return s.Batch(ctx, id)
}
