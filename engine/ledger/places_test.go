package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"kvasir/internal/pgtest"
)

// tests ends the server that they have started.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if s, err := postgres(); err == nil {
		if db, err := ownerOnce(); err == nil {
			_ = db.Close() // the server ends
		}
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// postgres is one server for all tests; none is started unless it is asked for.
var postgres = sync.OnceValues(func() (*pgtest.Server, error) {
	if !asked.Load() {
		return nil, pgtest.ErrAbsent
	}
	return pgtest.Start()
})

var asked atomic.Bool

// both runs a test on both databases: temp is a place of one of them, by the name of the subtest.
func both(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("sqlite", f)
	t.Run("postgres", func(t *testing.T) {
		needPostgres(t)
		f(t)
	})
}

func needPostgres(t *testing.T) {
	t.Helper()
	asked.Store(true)
	if _, err := postgres(); errors.Is(err, pgtest.ErrAbsent) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// temp is the place of a new database.
func temp(t testing.TB) string {
	t.Helper()
	if !strings.Contains(t.Name()+"/", "/postgres/") {
		return filepath.Join(t.TempDir(), "ledger.db")
	}
	place := spaces.take(t)
	t.Cleanup(func() { spaces.give(t, place) })
	return place
}

// spaces are places in PostgreSQL. To make tables takes long there: they are used again, emptied.
var spaces pool

type pool struct {
	mu   sync.Mutex
	made int
	free []string
	used map[string]bool
}

func (p *pool) take(t testing.TB) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil {
		p.used = map[string]bool{}
	}
	var place string
	if n := len(p.free); n > 0 {
		place, p.free = p.free[n-1], p.free[:n-1]
	} else {
		s, err := postgres()
		must(t, err)
		p.made++
		place, err = s.Database(fmt.Sprintf("t%d", p.made))
		must(t, err)
	}
	p.used[place] = true
	return place
}

// give empties a place for another test, unless that was done. A test that has changed more than rows keeps it.
func (p *pool) give(t testing.TB, place string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.used[place] {
		return
	}
	delete(p.used, place)
	all := ""
	for _, k := range []kind{hubFile, walletFile} {
		space := spaceOf(t, place, k)
		for _, table := range tablesOf(t, space) {
			all += fmt.Sprintf("DELETE FROM %s.%s;", space, table)
			if table == "rates" {
				all += fmt.Sprintf("INSERT INTO %s.rates VALUES (0, %d);", space, Rate)
			}
		}
	}
	script(t, all)
	p.free = append(p.free, place)
}

// keep makes that give does nothing.
func (p *pool) keep(place string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, place)
}

// tablesOf are the tables of a name space, but for that of its version.
func tablesOf(t testing.TB, space string) (all []string) {
	t.Helper()
	rows, err := owner(t).QueryContext(context.WithoutCancel(t.Context()),
		"SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'goose_db_version' ORDER BY 1", space)
	must(t, err)
	defer func() { must(t, rows.Close()) }()
	for rows.Next() {
		var name string
		must(t, rows.Scan(&name))
		all = append(all, name)
	}
	must(t, rows.Err())
	return all
}

// script does many statements at once, for which foreign keys do not count.
func script(t testing.TB, all string) {
	t.Helper()
	_, err := owner(t).ExecContext(context.WithoutCancel(t.Context()), all)
	must(t, err)
}

// owner is the server's, which tests.Run closes.
func owner(t testing.TB) *sql.DB {
	t.Helper()
	db, err := ownerOnce()
	must(t, err)
	return db
}

var ownerOnce = sync.OnceValues(func() (*sql.DB, error) {
	s, err := postgres()
	if err != nil {
		return nil, err
	}
	place, err := s.Database("owner")
	if err != nil {
		return nil, err
	}
	return sql.Open("pgx", place+"&session_replication_role=replica")
})

// copyOf copies a database as a crash of the process would leave it, to a new place.
func copyOf(t testing.TB, from string, k kind) string {
	t.Helper()
	to := temp(t)
	if isURL(from) {
		copySpace(t, from, to, k)
	} else {
		copyFiles(t, from, to)
	}
	return to
}

func copyFiles(t testing.TB, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(from + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(to+suffix, data, 0o600))
	}
}

// spaceOf is the name space of a place.
func spaceOf(t testing.TB, place string, k kind) string {
	t.Helper()
	c, err := pgx.ParseConfig(place)
	must(t, err)
	return c.RuntimeParams["search_path"] + "_" + k.name
}

// copySpace copies the rows of what from is. The place to has the tables, or gets them.
func copySpace(t testing.TB, from, to string, k kind) {
	t.Helper()
	source, target, all := spaceOf(t, from, k), spaceOf(t, to, k), ""
	if tablesOf(t, target) == nil {
		f, err := openFile(context.WithoutCancel(t.Context()), to, k, nil)
		must(t, err)
		must(t, f.close())
	}
	for _, table := range tablesOf(t, source) {
		all += fmt.Sprintf("DELETE FROM %[2]s.%[3]s; INSERT INTO %[2]s.%[3]s SELECT * FROM %[1]s.%[3]s;", source, target, table)
	}
	script(t, all)
}
