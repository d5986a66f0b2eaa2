package batches

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// filePrefix begins the ids of files.
const filePrefix = "file-"

// AddFile takes a file of at most MaxBytes.
func (s *Store) AddFile(ctx context.Context, name, purpose string, r io.Reader) (File, error) {
	var count int
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM files").Scan(&count); err != nil {
		return File{}, fmt.Errorf("batches: %w", err)
	}
	if count >= maxFiles {
		return File{}, fmt.Errorf("%w: there are %d files; delete some", ErrTooBig, count)
	}
	id := newID(filePrefix)
	n, err := s.write(id, func(w io.Writer) error {
		n, err := io.Copy(w, io.LimitReader(r, MaxBytes+1))
		if err == nil && n > MaxBytes {
			err = fmt.Errorf("%w: more than %d bytes", ErrTooBig, int64(MaxBytes))
		}
		return err
	})
	if err != nil {
		return File{}, err
	}
	f := File{id, purpose, name, n, s.now()}
	return f, s.inTx(ctx, func(tx *sql.Tx) error { return insertFile(ctx, tx, f) })
}

func (s *Store) now() time.Time { return s.o.Now().Truncate(time.Second) }

// newPrefix begins the names of files that are not whole.
const newPrefix = "new-"

// tidy removes what a killed process has left: files that are not whole, or were never recorded.
func (s *Store) tidy(ctx context.Context) error {
	list, err := s.Files(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, f := range list {
		known[f.ID] = true
	}
	found, err := os.ReadDir(s.path("."))
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	for _, e := range found {
		name := e.Name()
		if known[name] || !strings.HasPrefix(name, newPrefix) && !strings.HasPrefix(name, filePrefix) {
			continue
		}
		if err := os.Remove(s.path(name)); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
	}
	return nil
}

// write makes a file, whole or not at all.
func (s *Store) write(id string, fill func(io.Writer) error) (n int64, err error) {
	tmp, err := os.CreateTemp(s.path("."), newPrefix+"*")
	if err != nil {
		return 0, fmt.Errorf("batches: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name()) // err says more
		}
	}()
	if err := errors.Join(fill(tmp), tmp.Sync()); err != nil {
		return 0, errors.Join(err, tmp.Close())
	}
	n, err = tmp.Seek(0, io.SeekCurrent)
	if err := errors.Join(err, tmp.Close(), os.Rename(tmp.Name(), s.path(id)), syncDir(s.path("."))); err != nil {
		return 0, fmt.Errorf("batches: %w", err)
	}
	return n, nil
}

// syncDir makes a new name in a folder last. On Windows there is no such call, and no need.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func insertFile(ctx context.Context, tx *sql.Tx, f File) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO files (id, purpose, name, bytes, created) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		f.ID, f.Purpose, f.Name, f.Bytes, f.Created.Unix())
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// File returns what is known of a file.
func (s *Store) File(ctx context.Context, id string) (File, error) {
	list, err := s.files(ctx, "WHERE id = ?", id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: file %.100q", ErrNotFound, id)
	}
	if err != nil {
		return File{}, err
	}
	return list[0], nil
}

// Files returns all files, the newest first.
func (s *Store) Files(ctx context.Context) ([]File, error) {
	return s.files(ctx, "ORDER BY created DESC, rowid DESC")
}

func (s *Store) files(ctx context.Context, where string, args ...any) (list []File, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, purpose, name, bytes, created FROM files "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var f File
		var created int64
		if err := rows.Scan(&f.ID, &f.Purpose, &f.Name, &f.Bytes, &created); err != nil {
			return nil, fmt.Errorf("batches: %w", err)
		}
		f.Created = time.Unix(created, 0)
		list = append(list, f)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	return list, nil
}

// Content opens a file. The caller closes it.
func (s *Store) Content(ctx context.Context, id string) (*os.File, error) {
	f, err := s.File(ctx, id) // so that only what was added here is a path
	if err != nil {
		return nil, err
	}
	r, err := os.Open(s.path(f.ID))
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	return r, nil
}

// DeleteFile deletes a file that no batch needs.
func (s *Store) DeleteFile(ctx context.Context, id string) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		var needed int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM batches WHERE input = ? AND ended = 0", id).Scan(&needed); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		if needed > 0 {
			return fmt.Errorf("%w: cancel the batch first", ErrInUse)
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM files WHERE id = ?", id)
		if err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(fmt.Errorf("%w: file %.100q", ErrNotFound, id), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}
