package batches

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite" // the driver
)

//go:embed migrations
var migrations embed.FS

// applicationID stands in the header of the database, so that no program takes it for another's.
const applicationID = 0x4b76_4261

// Options are for Open.
type Options struct {
	Answerer Answerer
	Groups   int // of lines that are computed at a time; 8
	Now      func() time.Time
	Log      *slog.Logger // nil: none
}

// Store is files and batches in a folder. One process has it at a time; the caller sees to that.
type Store struct {
	dir   string
	o     Options
	db    *sql.DB
	queue *river.Client[*sql.Tx]
	ctx   context.Context // of all work
	stop  context.CancelFunc

	mu      sync.Mutex
	running map[string]*runs // batches with lines under way; under mu
}

// runs is the groups of a batch that are under way.
type runs struct {
	ctx    context.Context
	cancel context.CancelFunc
	groups int
}

// warnings lets through what a person needs to know of the queue.
type warnings struct{ slog.Handler }

// Enabled is slog.Handler's.
func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// Open opens the store in a folder, or makes it, and goes on with the batches that have not ended.
func Open(ctx context.Context, dir string, o Options) (_ *Store, err error) {
	if o.Groups <= 0 {
		o.Groups = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	s := &Store{dir: dir, o: o, running: map[string]*runs{}}
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o700); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	if err := s.openDatabase(ctx); err != nil {
		return nil, err
	}
	if err := s.tidy(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.startQueue(ctx); err != nil {
		s.stop()
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

func (s *Store) openDatabase(ctx context.Context) error {
	path := filepath.Join(s.dir, "batches.db")
	// SQLite gives its side files the mode of the file itself.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/…
	}
	u := url.URL{Scheme: "file", Path: slashed, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}
	if s.db, err = sql.Open("sqlite", u.String()); err != nil {
		return fmt.Errorf("batches: open %s: %w", path, err)
	}
	s.db.SetMaxOpenConns(1)
	if err := s.migrate(ctx, path); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// migrate brings the database to the present schema, ours and the queue's.
func (s *Store) migrate(ctx context.Context, path string) error {
	var id, tables int
	if err := s.db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrStore, path, err)
	}
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrStore, path, err)
	}
	switch {
	case id == 0 && tables == 0:
		if _, err := s.db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
	case id != applicationID:
		return fmt.Errorf("%w: %s is another program's", ErrStore, path)
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.db, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	have, newest, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if have > newest {
		return fmt.Errorf("%w: %s is of a newer version of this program", ErrStore, path)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	m, err := rivermigrate.New(riversqlite.New(s.db), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// Close lets no further group begin, gives up the lines under way and returns. They are computed again
// the next time.
func (s *Store) Close() error {
	s.stop()
	// Its workers have ended by their context; whatever time it takes, nothing else needs.
	err := s.queue.Stop(context.WithoutCancel(s.ctx))
	return errors.Join(err, s.db.Close())
}

// path is where a file lies. IDs are this package's own.
func (s *Store) path(id string) string { return filepath.Join(s.dir, "files", id) }

func newID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return prefix + hex.EncodeToString(b[:])
}

// inTx runs f in a transaction.
func (s *Store) inTx(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // err says more
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}
