package batches

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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	_ "modernc.org/sqlite" // the driver
)

//go:embed migrations
var migrations embed.FS

// applicationID stands in the header of the database, so that no program takes it for another's; on
// PostgreSQL it is the lock under which the schema is changed, and batches are begun.
const applicationID = 0x4b76_4261

// database is what the two kinds differ in. All other statements are the same, and number their arguments
// from $1 on, which both know.
type database struct {
	*sql.DB
	kind    goose.Dialect
	driver  riverdriver.Driver[*sql.Tx]
	seconds string // its clock, in Unix seconds
	tried   string // the node that has tried a job of River's last
	shared  bool   // by several nodes
}

func (d *database) time(t time.Time) any {
	if d.shared {
		return t
	}
	return t.UTC().Format("2006-01-02 15:04:05.000") // as River writes it
}

// turn has the transaction wait until it is the only one that begins a batch. SQLite has one at a time.
func (d *database) turn(ctx context.Context, tx *sql.Tx) error {
	if !d.shared {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", applicationID); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// openSQLite opens the database in a folder, or makes it.
func openSQLite(ctx context.Context, dir string) (*database, error) {
	path := filepath.Join(dir, "batches.db")
	// SQLite gives its side files the mode of the file itself.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("batches: %w", err)
	}
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/…
	}
	u := url.URL{Scheme: "file", Path: slashed, RawQuery: url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("batches: open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	d := &database{
		DB: db, kind: goose.DialectSQLite3, driver: riversqlite.New(db),
		seconds: "unixepoch()", tried: "json_extract(attempted_by, '$[#-1]')",
	}
	if err := d.claim(ctx, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if err := d.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return d, nil
}

// claim refuses the database of another program, and marks a new one.
func (d *database) claim(ctx context.Context, path string) error {
	var id, tables int
	if err := d.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrStore, path, err)
	}
	if err := d.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrStore, path, err)
	}
	switch {
	case id == 0 && tables == 0:
		if _, err := d.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
	case id != applicationID:
		return fmt.Errorf("%w: %s is another program's", ErrStore, path)
	}
	return nil
}

// Limits of PostgreSQL's connections.
const (
	connections = 16
	// A node that stops in a transaction, and does not die, must not hold up the others.
	idleMax = time.Minute
	// Nor may one that cannot be reached any more.
	silenceMax = 15 * time.Second
)

// openPostgres opens a database that several nodes share. Its error never shows the password.
func openPostgres(ctx context.Context, address string) (*database, error) {
	c, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("%w: want postgres://USER:PASSWORD@HOST:PORT/DATABASE: %w", ErrStore, err)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = silenceMax
	}
	for name, value := range map[string]string{
		"synchronous_commit":                  "on",
		"idle_in_transaction_session_timeout": fmt.Sprint(idleMax.Milliseconds()),
		"tcp_user_timeout":                    fmt.Sprint(silenceMax.Milliseconds()),
	} {
		if c.RuntimeParams[name] == "" {
			c.RuntimeParams[name] = value
		}
	}
	db := stdlib.OpenDB(*c)
	db.SetMaxOpenConns(connections)
	d := &database{
		DB: db, kind: goose.DialectPostgres, driver: riverdatabasesql.New(db), shared: true,
		seconds: "extract(epoch FROM clock_timestamp())::bigint", tried: "attempted_by[array_upper(attempted_by, 1)]",
	}
	if err := d.migrateAlone(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s:%d, database %s: %w", c.Host, c.Port, c.Database, err), db.Close())
	}
	return d, nil
}

// migrateAlone is migrate, by one node at a time.
func (d *database) migrateAlone(ctx context.Context) (err error) {
	c, err := d.Conn(ctx)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.ExecContext(ctx, "SELECT pg_advisory_lock($1)", applicationID); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer func() { // the connection goes back to others
		_, e := c.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", applicationID)
		err = errors.Join(err, e)
	}()
	return d.migrate(ctx)
}

// migrate brings the database to the present schema, ours and the queue's.
func (d *database) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	p, err := goose.NewProvider(d.kind, d.DB, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	have, newest, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if have > newest {
		return fmt.Errorf("%w: it is of a newer version of this program", ErrStore)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	m, err := rivermigrate.New(d.driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}
