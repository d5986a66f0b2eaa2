package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Limits of PostgreSQL's connections.
const (
	connections = 8
	lockMax     = 15 * time.Second
	// A process that stops in a transaction, and does not die, must not hold up the others.
	idleMax = time.Minute
	// Nor may one that cannot be reached any more.
	silenceMax = 15 * time.Second
)

// isURL reports whether a database is PostgreSQL's.
func isURL(path string) bool {
	return strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://")
}

// lock is the one that writers of a name space take; nil: SQLite has its own.
type lock struct{ kind, space int32 }

// take waits until no other transaction writes, and holds them off until this one ends.
func (l *lock) take(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1, $2)", l.kind, l.space)
	return err
}

// openPostgres opens a name space, or makes it: of the first name in the address' search_path, or else
// "kvasir", and the kind. So a hub and a gateway can be given the same address. No error shows the password.
func openPostgres(ctx context.Context, address string, k kind) (_ *file, err error) {
	c, err := pgx.ParseConfig(address)
	if err != nil { // which would show the address
		return nil, fmt.Errorf("%w: want postgres://USER:PASSWORD@HOST:PORT/DATABASE", ErrNotLedger)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = silenceMax
	}
	first, _, _ := strings.Cut(c.RuntimeParams["search_path"], ",")
	if first = strings.Trim(strings.TrimSpace(first), `"`); first == "" {
		first = "kvasir"
	}
	space := first + "_" + k.name
	quoted := pgx.Identifier{space}.Sanitize()
	c.RuntimeParams["search_path"] = quoted
	for name, value := range map[string]string{
		"synchronous_commit":                  "on", // in any case: what was acknowledged is on the disk
		"lock_timeout":                        fmt.Sprint(lockMax.Milliseconds()),
		"idle_in_transaction_session_timeout": fmt.Sprint(idleMax.Milliseconds()),
		"tcp_user_timeout":                    fmt.Sprint(silenceMax.Milliseconds()),
	} {
		if c.RuntimeParams[name] == "" || name == "synchronous_commit" {
			c.RuntimeParams[name] = value
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(space)) // it returns no error
	f := &file{
		path: fmt.Sprintf("%s:%d, database %s, %s", c.Host, c.Port, c.Database, space),
		db:   stdlib.OpenDB(*c), lock: &lock{k.id, int32(h.Sum32())},
	}
	f.db.SetMaxOpenConns(connections)
	if err := f.preparePostgres(ctx, space, quoted, k); err != nil {
		return nil, errors.Join(err, f.db.Close())
	}
	return f, nil
}

// preparePostgres makes the name space where there is none, and migrates it; one process at a time does.
func (f *file) preparePostgres(ctx context.Context, space, quoted string, k kind) (err error) {
	c, err := f.db.Conn(ctx)
	if err != nil {
		return f.explain(err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// Who only opens the database does not wait for who writes.
	which, change := f.lock.kind, ^f.lock.space
	if _, err := c.ExecContext(ctx, "SELECT pg_advisory_lock($1, $2)", which, change); err != nil {
		return f.explain(err)
	}
	defer func() { // the connection goes back to others
		_, e := c.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1, $2)", which, change)
		err = errors.Join(err, f.explain(e))
	}()
	var there, ours, others bool
	// Who may not make name spaces may be given one.
	err = c.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
		EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'goose_db_version'),
		EXISTS (SELECT FROM pg_tables WHERE schemaname = $1)`, space).Scan(&there, &ours, &others)
	switch {
	case err != nil:
		return f.explain(err)
	case others && !ours:
		return fmt.Errorf("%w: %s is not %s; give another search_path", ErrNotLedger, f.path, k.what)
	case !there:
		if _, err := c.ExecContext(ctx, "CREATE SCHEMA "+quoted); err != nil {
			return f.explain(err)
		}
	}
	return f.migrate(ctx, k, goose.DialectPostgres)
}

// explainPostgres is explain for PostgreSQL.
func (f *file) explainPostgres(err error) error {
	var e *pgconn.PgError
	switch {
	case errors.Is(err, ErrUnbalanced):
		return err
	case errors.Is(err, ErrDamaged):
		return fmt.Errorf("%w; put back a copy of %s", err, f.path)
	case !errors.As(err, &e):
		return fmt.Errorf("ledger: %s: %w", f.path, oneLine{err})
	}
	switch e.Code {
	case "XX001", "XX002": // data_corrupted, index_corrupted
		return fmt.Errorf("%w: %s cannot be read; put back a copy (%w)", ErrDamaged, f.path, oneLine{err})
	case "53100": // disk_full
		return fmt.Errorf("ledger: no room on the disk of %s; nothing was lost (%w)", f.path, oneLine{err})
	case "25006": // read_only_sql_transaction
		return fmt.Errorf("ledger: %s may not be written; give the address of the server that may, or the right to (%w)", f.path, oneLine{err})
	case "55P03": // lock_not_available
		return fmt.Errorf("ledger: %s is held by another process; try again (%w)", f.path, oneLine{err})
	}
	return fmt.Errorf("ledger: %s: %w", f.path, oneLine{err})
}

// oneLine is an error whose text has no line breaks.
type oneLine struct{ error }

// Error returns the text.
func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }

// Unwrap returns the error.
func (e oneLine) Unwrap() error { return e.error }

// health has the database look whether its own file can be trusted; PostgreSQL keeps its files itself.
func (f *file) health(ctx context.Context) error {
	if f.lock != nil {
		return nil
	}
	var health string
	if err := f.db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&health); err != nil {
		return f.explain(err)
	}
	if health != "ok" {
		return f.explain(fmt.Errorf("%w: %s", ErrDamaged, health))
	}
	return nil
}
