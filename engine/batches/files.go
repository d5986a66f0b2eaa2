package batches

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	f, err := s.stage(func(w io.Writer) error {
		n, err := io.Copy(w, io.LimitReader(r, MaxBytes+1))
		if err == nil && n > MaxBytes {
			err = fmt.Errorf("%w: more than %d bytes", ErrTooBig, int64(MaxBytes))
		}
		return err
	})
	if err != nil {
		return File{}, err
	}
	defer f.drop()
	f.File = File{newID(filePrefix), purpose, name, f.Bytes, s.now()}
	if err := s.keep(f); err != nil {
		return File{}, err
	}
	return f.File, s.inTx(ctx, func(tx *sql.Tx) error {
		if err := insertFile(ctx, tx, f.File); err != nil {
			return err
		}
		return own(ctx, tx, "files", f.ID)
	})
}

func (s *Store) now() time.Time { return s.o.Now().Truncate(time.Second) }

const (
	// newPrefix begins the names of files that are not whole.
	newPrefix = "new-"
	// strayTime is how old a file is that another node has not recorded, before it counts as left behind.
	strayTime = 24 * time.Hour
)

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
		if s.db.shared {
			if i, err := e.Info(); err != nil || time.Since(i.ModTime()) < strayTime {
				continue // another node may be about to record it, or has removed it
			}
		}
		if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("batches: %w", err)
		}
	}
	return nil
}

// staged is a file that is whole, and not under its name yet.
type staged struct {
	File
	path string
}

// drop deletes it, unless it was kept.
func (f staged) drop() {
	if f.path != "" {
		_ = os.Remove(f.path) // kept, it is not there; else it is tidied up later
	}
}

// stage makes a file, whole or not at all. Who calls it drops it.
func (s *Store) stage(fill func(io.Writer) error) (f staged, err error) {
	tmp, err := os.CreateTemp(s.path("."), newPrefix+"*")
	if err != nil {
		return f, fmt.Errorf("batches: %w", err)
	}
	f.path = tmp.Name()
	err = errors.Join(fill(tmp), tmp.Sync())
	if err == nil {
		f.Bytes, err = tmp.Seek(0, io.SeekCurrent)
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		f.drop()
		return staged{}, err
	}
	return f, nil
}

// keep puts a file under its name, for good.
func (s *Store) keep(f staged) error {
	if err := errors.Join(os.Rename(f.path, s.path(f.ID)), syncDir(s.path("."))); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
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
	_, err := tx.ExecContext(ctx, "INSERT INTO files (id, purpose, name, bytes, created) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
		f.ID, f.Purpose, f.Name, f.Bytes, f.Created.Unix())
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// isID reports whether something could have an ID. Databases differ in what other texts they take.
func isID(id string) bool {
	return len(id) <= maxName && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// File returns what is known of a file.
func (s *Store) File(ctx context.Context, id string) (File, error) {
	if !isID(id) {
		return File{}, fmt.Errorf("%w: file %.100q", ErrNotFound, id)
	}
	list, err := s.files(ctx, "WHERE id = $1", id)
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
	return s.files(ctx, "ORDER BY created DESC, id")
}

func (s *Store) files(ctx context.Context, where string, args ...any) (list []File, err error) {
	from, args := theirs(ctx, "files", args)
	rows, err := s.db.QueryContext(ctx, "SELECT id, purpose, name, bytes, created FROM "+from+" "+where, args...)
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
	if _, err := s.File(ctx, id); err != nil { // it may be another's
		return err
	}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if err := s.db.turn(ctx, tx); err != nil { // no batch is begun over it
			return err
		}
		var needed int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM batches WHERE input = $1 AND ended = 0", id).Scan(&needed); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		if needed > 0 {
			return fmt.Errorf("%w: cancel the batch first", ErrInUse)
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM files WHERE id = $1", id)
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
