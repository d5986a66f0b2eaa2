package batches

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/riverqueue/river"
)

// Options are for Open.
type Options struct {
	Answerer Answerer
	// Model names what Answerer computes with, by at most 50 letters and digits. A batch is computed by
	// one model: nodes of others leave it alone.
	Model  string
	Groups int // of lines that are computed at a time; 8
	// Database is the address of a PostgreSQL database that several nodes share, as they share the
	// folder. Empty: SQLite, in the folder, which is this process's alone; the caller sees to that.
	Database string
	Now      func() time.Time
	Log      *slog.Logger // nil: none

	beat time.Duration // between signs of life of a node; 0: beatTime
}

// Store is files and batches in a folder.
type Store struct {
	dir   string
	o     Options
	id    string // of this node
	db    *database
	queue *river.Client[*sql.Tx]
	texts *budget
	ctx   context.Context // of all work
	stop  context.CancelFunc

	answers chan *result   // to be recorded
	ends    sync.WaitGroup // of who records them, and who keeps this node alive
	waiting string         // batches of other models that were told last; the heart's

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

func (o *Options) defaults() {
	if o.Groups <= 0 {
		o.Groups = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.beat == 0 {
		o.beat = beatTime
	}
}

// Open opens the store in a folder, or makes it, and goes on with the batches that have not ended.
func Open(ctx context.Context, dir string, o Options) (_ *Store, err error) {
	o.defaults()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	s := &Store{
		dir: dir, o: o, id: newID("node_"), texts: newBudget(textsMax), answers: make(chan *result, commitMax), running: map[string]*runs{},
	}
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o700); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	if o.Database == "" {
		s.db, err = openSQLite(ctx, dir)
	} else {
		s.db, err = openPostgres(ctx, o.Database)
	}
	if err != nil {
		return nil, err
	}
	if err := s.tidy(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.start(ctx); err != nil {
		s.stop()
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// start joins the nodes and begins to work.
func (s *Store) start(ctx context.Context) error {
	if err := s.beat(ctx); err != nil {
		return err
	}
	if err := s.startQueue(); err != nil {
		return err
	}
	s.ends.Go(s.commits)
	s.ends.Go(s.live)
	return nil
}

// Close lets no further group begin, gives up the lines under way and returns. They are computed again
// the next time, or by another node.
func (s *Store) Close() error {
	s.stop()
	ctx := context.WithoutCancel(s.ctx)
	// Its workers have ended by their context; whatever time it takes, nothing else needs.
	err := s.queue.Stop(ctx)
	close(s.answers) // nobody is left who would send
	s.ends.Wait()
	return errors.Join(err, s.leave(ctx), s.db.Close())
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
