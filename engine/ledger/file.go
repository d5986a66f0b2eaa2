package ledger

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"kvasir/wire/seal"
)

//go:embed migrations
var migrations embed.FS

// kind is what a database holds. The id stands in a file's header (application_id), so that no program
// takes one for the other; in PostgreSQL each kind has a name space of its own.
type kind struct {
	what  string
	id    int32
	name  string // of the name space, after the first part
	dir   string // of its migrations
	alone bool   // it is one process's, and a file in any case
}

var (
	hubFile    = kind{"a hub's ledger", 0x4b76_4875, "hub", "migrations/hub", false}
	walletFile = kind{"a gateway's wallets", 0x4b76_5761, "wallet", "migrations/wallet", false}
	outboxFile = kind{"an outbox of receipts", 0x4b76_4f75, "outbox", "migrations/outbox", true}
)

// file is a database of one of two sorts, which understand the same statements and have the same schema. In
// both one transaction writes at a time, whoever's it is, and sees all that was written before it.
//
// A SQLite file has three connections: the writer's, the checkpointer's, and one that reads. Other processes may have
// the same file open; a writer waits up to five seconds for another.
//
// A name space in PostgreSQL is shared by several hubs, or several gateways. A writer begins by taking the
// lock of the name space (pg_advisory_xact_lock), and waits for it up to fifteen seconds. Ids of the rows are
// therefore in the order in which they become visible, as with SQLite, and there is nothing to try again.
type file struct {
	path string // or where the database is, without a password
	db   *sql.DB
	lock *lock // of PostgreSQL; nil: SQLite
	w    *writer
	ck   *checkpointer // of SQLite

	once sync.Once // of close

	// step is set by tests, and called after every statement of a transaction and after its end.
	step func(statement string)
}

// openFile opens a database, or makes it, and brings it to the present schema. It is at a URL of PostgreSQL, or
// a SQLite file, of mode 0600 in a folder of mode 0700.
func openFile(ctx context.Context, path string, k kind, log *slog.Logger) (f *file, err error) {
	if isURL(path) && !k.alone {
		f, err = openPostgres(ctx, path, k)
	} else {
		f, err = openSQLite(ctx, path, k)
	}
	if err != nil {
		return nil, err
	}
	f.w = &writer{
		jobs: make(chan *job, groupMax), quit: make(chan struct{}), ended: make(chan struct{}), log: orDiscard(log),
		texts: map[[2]int]string{},
	}
	go f.run()
	if f.ck != nil {
		go f.checkpoints()
	}
	return f, nil
}

func openSQLite(ctx context.Context, path string, k kind) (_ *file, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	// SQLite gives its side files the mode of the file itself.
	created, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if err := errors.Join(created.Chmod(0o600), created.Close()); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	dataSync()
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("ledger: open %s: %w", path, err)
	}
	db.SetMaxOpenConns(3)
	f := &file{path: path, db: db, ck: newCheckpointer()}
	if err := f.prepare(ctx, k); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return f, nil
}

func dsn(path string) string {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/…
	}
	options := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {
			"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "temp_store(2)",
			// 16 MB of pages: a transaction that does not fit writes pages twice.
			"cache_size(-16000)",
			"wal_autocheckpoint(0)", // see checkpointer
		},
	}
	u := url.URL{Scheme: "file", Path: slashed, RawQuery: options.Encode()}
	return u.String()
}

// prepare checks that the file is of the kind, and not from the future, and migrates it.
func (f *file) prepare(ctx context.Context, k kind) error {
	var id int32
	var tables int
	// Both at one time: another process may be making them.
	err := f.db.QueryRowContext(ctx, "SELECT application_id, (SELECT count(*) FROM sqlite_master) FROM pragma_application_id").Scan(&id, &tables)
	if err != nil {
		return f.explain(err)
	}
	switch {
	case id == 0 && tables == 0:
		if _, err := f.db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", k.id)); err != nil {
			return f.explain(err)
		}
	case id != k.id:
		return fmt.Errorf("%w: %s is not %s; give the path of one, or of no file", ErrNotLedger, f.path, k.what)
	}
	return f.migrate(ctx, k, goose.DialectSQLite3)
}

// migrate brings the database to the present schema. It refuses one from the future. Two processes that do so to one
// file at once are in each other's way, step by step: who was not first with a step goes on from there.
func (f *file) migrate(ctx context.Context, k kind, dialect goose.Dialect) error {
	dir, err := fs.Sub(migrations, k.dir)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	for last := int64(-2); ; {
		version, err := f.upgrade(ctx, dialect, dir)
		if err == nil || errors.Is(err, ErrNewer) || version <= last {
			return err
		}
		last = version
	}
}

// upgrade migrates, and returns from which schema on; -1: that is not known.
func (f *file) upgrade(ctx context.Context, dialect goose.Dialect, dir fs.FS) (version int64, err error) {
	provider, err := goose.NewProvider(dialect, f.db, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return -1, fmt.Errorf("ledger: %w", err)
	}
	version, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return -1, f.explain(err)
	}
	if version > newest {
		return version, fmt.Errorf("%w: %s has schema %d, this program knows %d; install the newer program",
			ErrNewer, f.path, version, newest)
	}
	_, err = provider.Up(ctx)
	return version, f.explain(err)
}

// close ends the writer and closes the database. Only the first call does.
func (f *file) close() error {
	f.once.Do(func() { close(f.w.quit) })
	<-f.w.ended
	if f.ck != nil {
		<-f.ck.ended
	}
	return f.explain(f.db.Close())
}

// explain makes one clear line of what the database says.
func (f *file) explain(err error) error {
	if err != nil && f.lock != nil {
		return f.explainPostgres(err)
	}
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnbalanced):
		return err
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%w; put back a copy of %s", err, f.path)
	case !errors.As(err, &e):
		return fmt.Errorf("ledger: %s: %w", f.path, err)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %s cannot be read; put back a copy, or move it away to begin anew (%w)",
			ErrDamaged, f.path, err)
	case sqlite3.SQLITE_READONLY:
		return fmt.Errorf("ledger: %s may not be written; give this program the right to write it and its folder (%w)", f.path, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("ledger: no room on the disk of %s; nothing was lost (%w)", f.path, err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("ledger: %s is held by another process; try again (%w)", f.path, err)
	}
	return fmt.Errorf("ledger: %s: %w", f.path, err)
}

// own reports whether an error is about what was asked, and not about the file.
func own(err error) bool {
	for _, e := range []error{ErrNoSession, ErrNoReport, ErrWrongSession, ErrMeterBack, ErrFeedBack} {
		if errors.Is(err, e) {
			return true
		}
	}
	return refusal(err)
}

// querier is a database, or a transaction that only reads.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// snapshot has do read all as it is at the time of its first query, whatever others write meanwhile.
func (f *file) snapshot(ctx context.Context, do func(querier) error) error {
	options := sql.TxOptions{ReadOnly: true}
	if f.lock != nil {
		options.Isolation = sql.LevelRepeatableRead // SQLite has no other
	}
	t, err := f.db.BeginTx(ctx, &options)
	if err != nil {
		return f.explain(err)
	}
	defer func() { _ = t.Rollback() }() // nothing was written
	return do(t)
}

// each runs a query and calls row for each of its rows.
func (f *file) each(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return f.eachOf(ctx, f.db, row, query, args...)
}

func (f *file) eachOf(ctx context.Context, q querier, row func(scan func(...any) error) error, query string, args ...any) (err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return f.explain(err)
	}
	defer func() { err = f.explain(errors.Join(err, rows.Close())) }()
	for n := 1; rows.Next(); n++ {
		if err := row(rows.Scan); err != nil {
			return damage(err, n)
		}
	}
	return rows.Err()
}

// damage says in which row of an answer a column is damaged, in the place of how database/sql says that.
func damage(err error, row int) error {
	inner := errors.Unwrap(err)
	if !strings.HasPrefix(err.Error(), "sql: Scan error") || !errors.Is(inner, ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w, in row %d of what was asked for", inner, row)
}

// keyColumn scans the text of a key; a text that is none is damage.
type keyColumn struct{ key *seal.PublicKey }

func (c keyColumn) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("%w: a key is %T", ErrDamaged, v)
	}
	key, err := seal.ParsePublicKey(text)
	if err != nil {
		return fmt.Errorf("%w: key %.60q: %w", ErrDamaged, text, err)
	}
	*c.key = key
	return nil
}
