package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
)

// writer is what alone writes to a file: one goroutine, until close. It takes all jobs that wait, does them in
// one transaction, and answers them when that is on the disk:
//
//	update --+
//	update --+--> BEGIN, job, job, job, COMMIT (one fsync) --> answers
//	update --+            meanwhile others wait, and make the next group
//
// A job that is refused leaves nothing, and the others stay. Most are refused before they have written anything.
// Where one has, the group is given up and done again with a savepoint before each, which is a quarter slower;
// and where the database itself fails in a job, each is done in a transaction of its own. There is no waiting for
// a group to grow: a single job is written at once.
type writer struct {
	jobs  chan *job // those that wait; who sends one waits for it
	quit  chan struct{}
	ended chan struct{}
	log   *slog.Logger

	failed atomic.Uint64 // jobs that could not be written
	groups atomic.Uint64 // transactions

	// Of the goroutine.
	conn     *sql.Conn // nil: to be had
	prepared map[string]*sql.Stmt
	texts    map[[2]int]string // of statements that insert rows
	trouble  bool              // was told
	changed  bool              // by the transaction: one that changes nothing does not meet the disk
}

// groupMax is the most jobs of a transaction.
const groupMax = 512

// ErrClosed: the ledger was closed.
var ErrClosed = errors.New("ledger: closed")

// ErrUnwritten: the database has not stored what it was given, as where the disk is full. Nothing of it was
// acknowledged, and it is worth another try. The ledger's log has said so, once.
var ErrUnwritten = errors.New("ledger: not written")

// job is what update is asked for.
type job struct {
	ctx   context.Context
	about *SessionID // of a hub, which it will look at; nil: none
	do    func(*tx) error
	state atomic.Int32
	err   error
	done  chan struct{} // closed when err holds
}

// States of a job. One that waits may be given up by who asked, and else is answered.
const (
	waits int32 = iota
	begun
	givenUp
)

// update runs do in a transaction, which may be that of others too. When it returns nil, what do has written is
// on the disk; else nothing of it is. Errors of this package come back as they are. do may be run twice, of
// which the first time leaves nothing.
func (f *file) update(ctx context.Context, do func(*tx) error) error { return f.updateOf(ctx, nil, do) }

// updateOf is update that looks at a session of a hub: those of a group are read at once.
func (f *file) updateOf(ctx context.Context, about *SessionID, do func(*tx) error) error {
	j := &job{ctx: ctx, about: about, do: do, done: make(chan struct{})}
	select {
	case f.w.jobs <- j:
	case <-f.w.quit:
		return f.explain(ErrClosed)
	case <-ctx.Done():
		return f.explain(ctx.Err())
	}
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		if j.state.CompareAndSwap(waits, givenUp) {
			return f.explain(ctx.Err())
		}
	case <-f.w.ended:
		if j.state.CompareAndSwap(waits, givenUp) {
			return f.explain(ErrClosed)
		}
	}
	<-j.done // do may use what is the caller's
	return j.err
}

// run is the goroutine.
func (f *file) run() {
	defer close(f.w.ended)
	for {
		select {
		case j := <-f.w.jobs:
			f.write(f.waiting(j))
		case <-f.w.quit:
			f.drop()
			return
		}
	}
}

// waiting returns a job with those that wait.
func (f *file) waiting(j *job) []*job {
	group := make([]*job, 0, 16)
	for {
		if j.state.CompareAndSwap(waits, begun) {
			group = append(group, j)
		}
		if len(group) == groupMax {
			return group
		}
		select {
		case j = <-f.w.jobs:
		default:
			return group
		}
	}
}

// write does jobs and answers them.
func (f *file) write(group []*job) {
	if len(group) == 0 {
		return
	}
	again, err := f.group(group, false)
	if again && len(group) > 1 {
		again, err = f.group(group, true)
	}
	if again && len(group) > 1 {
		for _, j := range group {
			f.write([]*job{j})
		}
		return
	}
	if err != nil {
		f.w.failed.Add(uint64(len(group)))
	}
	f.told(err)
	for _, j := range group {
		if err != nil {
			j.err = fmt.Errorf("%w: %w", ErrUnwritten, f.explain(err))
		} else if j.err != nil && !own(j.err) {
			j.err = f.explain(j.err)
		}
		close(j.done)
	}
}

// told says once that nothing can be written, and once that it can again.
func (f *file) told(err error) {
	switch {
	case err != nil && !f.w.trouble:
		f.w.log.Error("the ledger cannot be written: nothing is acknowledged until it can", "error", f.explain(err))
	case err == nil && f.w.trouble && f.w.changed:
		f.w.log.Info("the ledger is written again", "not_written", f.w.failed.Load())
	}
	f.w.trouble = err != nil || f.w.trouble && !f.w.changed
}

// group does jobs in one transaction, and with care can undo one of them. An error is the database's, or of one
// that cannot be undone, and nothing is written; again says that it came of one of the jobs.
func (f *file) group(jobs []*job, care bool) (again bool, err error) {
	ctx := context.Background() // who asked may be gone, the others are not
	step := f.step
	if step == nil {
		step = func(string) {}
	}
	t := &tx{f: f, step: step}
	f.w.changed = false
	f.copyRest(ctx)
	if err := f.begin(ctx, t); err != nil {
		return false, f.giveUp(ctx, err)
	}
	step("BEGIN")
	if !care {
		if err := t.fetch(ctx, jobs); err != nil {
			return true, f.giveUp(ctx, err)
		}
	}
	refused := 0
	for _, j := range jobs {
		j.err, t.wrote = nil, false
		if !care {
			j.err = t.attempt(j)
		} else if j.err, err = t.try(ctx, func() error { return t.attempt(j) }); err != nil {
			return true, f.giveUp(ctx, err)
		}
		if j.err != nil {
			if !t.whole(j) || t.wrote && !care && len(jobs) > 1 {
				return true, f.giveUp(ctx, j.err)
			}
			refused++
		}
	}
	if refused == len(jobs) {
		f.w.changed = false
		_ = f.giveUp(ctx, nil) // there is nothing to write
		return false, nil
	}
	if err := t.flush(ctx); err != nil {
		return true, f.giveUp(ctx, err)
	}
	if err := t.plain(ctx, "COMMIT"); err != nil {
		return false, f.giveUp(ctx, err)
	}
	f.w.groups.Add(1)
	f.written()
	step("COMMIT")
	return false, nil
}

// attempt does a job, unless nobody waits for it any more.
func (t *tx) attempt(j *job) error {
	if err := j.ctx.Err(); err != nil {
		return err
	}
	return j.do(t)
}

// whole reports whether the transaction is what it was before a job that has an error of its own.
func (t *tx) whole(j *job) bool {
	return ours(j.err) || j.ctx.Err() != nil && errors.Is(j.err, j.ctx.Err())
}

// ours reports whether an error was made by this package, and the database is as it was.
func ours(err error) bool {
	return own(err) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrUnbalanced) || errors.Is(err, ErrRate)
}

// begin begins a transaction.
func (f *file) begin(ctx context.Context, t *tx) (err error) {
	if f.w.conn == nil {
		wait, cancel := context.WithTimeout(ctx, silenceMax)
		defer cancel()
		if f.w.conn, err = f.db.Conn(wait); err != nil {
			f.w.conn = nil
			return err
		}
		f.w.prepared = map[string]*sql.Stmt{}
	}
	if f.lock == nil {
		return t.plain(ctx, "BEGIN IMMEDIATE")
	}
	if err := t.plain(ctx, "BEGIN"); err != nil {
		return err
	}
	return f.lock.take(ctx, f.w.conn)
}

// giveUp leaves a transaction, and returns err. A connection to PostgreSQL that has failed is not used again.
func (f *file) giveUp(ctx context.Context, err error) error {
	if f.w.conn == nil {
		return err
	}
	// SQLite has done so itself after some errors, and says that there is none.
	_, e := f.w.conn.ExecContext(ctx, "ROLLBACK")
	if f.lock != nil && (err != nil || e != nil) {
		_ = f.w.conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = f.w.conn.Close() // err says more
		f.w.conn = nil
	}
	return err
}

// drop lets the connection go.
func (f *file) drop() {
	for _, s := range f.w.prepared {
		_ = s.Close() // the connection ends
	}
	if f.w.conn != nil {
		_ = f.w.conn.Close()
	}
}

// tx is a transaction of the writer's goroutine. An error of one of its statements is the end of it.
type tx struct {
	f     *file
	step  func(string)
	wrote bool // in this job

	rows    [intos][]any // to be inserted
	flushed uint64       // times that they were
	book    *book        // nil: nothing is known of a wallet's database

	// What is known of a hub's database, with the rows above.
	chains map[SessionID]*chain
	next   int64 // id of the next entry; 0: not known
}

// try does something, and when it returns an error of this package, undoes what it has written. err is the
// database's.
func (t *tx) try(ctx context.Context, do func() error) (refused, err error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	if err := t.plain(ctx, "SAVEPOINT attempt"); err != nil {
		return nil, err
	}
	refused = do()
	if refused != nil {
		if !ours(refused) && ctxErr(refused) == nil {
			return nil, refused
		}
		t.forget()
		if err := t.plain(ctx, "ROLLBACK TO SAVEPOINT attempt"); err != nil {
			return nil, err
		}
	} else if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return refused, t.plain(ctx, "RELEASE SAVEPOINT attempt")
}

func ctxErr(err error) error {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return e
		}
	}
	return nil
}

// plain runs a statement that tests do not count, also where ctx has ended.
func (t *tx) plain(ctx context.Context, query string) error {
	ctx = context.WithoutCancel(ctx)
	s, err := t.prepare(ctx, query) //nolint:sqlclosecheck // drop closes it
	if err == nil && s != nil {
		_, err = s.ExecContext(ctx)
	} else if err == nil {
		_, err = t.f.w.conn.ExecContext(ctx, query)
	}
	return err
}

// prepare returns a statement that SQLite need not read again; nil: PostgreSQL's driver keeps them itself. Their
// texts are a few, which are the program's.
func (t *tx) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if t.f.lock != nil {
		return nil, nil
	}
	if s := t.f.w.prepared[query]; s != nil {
		return s, nil
	}
	s, err := t.f.w.conn.PrepareContext(ctx, query)
	if err == nil {
		t.f.w.prepared[query] = s
	}
	return s, err
}

// QueryContext runs a query, of which ctx stops the beginning only: the transaction is also others'.
func (t *tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	s, err := t.prepare(ctx, query) //nolint:sqlclosecheck // drop closes it
	switch {
	case err != nil:
		return nil, err
	case s != nil:
		return s.QueryContext(ctx, args...)
	}
	return t.f.w.conn.QueryContext(ctx, query, args...)
}

// QueryRowContext is QueryContext for one row.
func (t *tx) QueryRowContext(ctx context.Context, query string, args ...any) scanner {
	rows, err := t.QueryContext(ctx, query, args...) //nolint:rowserrcheck // Scan asks
	return scanner{rows, err}
}

// scanner is a query for one row; see sql.Row.
type scanner struct {
	rows *sql.Rows
	err  error
}

// Scan reads the row and ends the query; without a row it returns sql.ErrNoRows.
func (s scanner) Scan(to ...any) (err error) {
	if s.err != nil {
		return s.err
	}
	defer func() { err = errors.Join(err, s.rows.Close()) }()
	if !s.rows.Next() {
		if err := s.rows.Err(); err != nil {
			return err
		}
		return sql.ErrNoRows
	}
	if err := s.rows.Scan(to...); err != nil {
		return err
	}
	return s.rows.Err()
}

func (t *tx) exec(ctx context.Context, query string, args ...any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.wrote = true
	if err := t.flush(ctx); err != nil {
		return err
	}
	return t.send(ctx, query, args)
}

// send runs a statement that writes.
func (t *tx) send(ctx context.Context, query string, args []any) error {
	ctx = context.WithoutCancel(ctx)
	s, err := t.prepare(ctx, query) //nolint:sqlclosecheck // drop closes it
	var done sql.Result
	if err == nil && s != nil {
		done, err = s.ExecContext(ctx, args...)
	} else if err == nil {
		done, err = t.f.w.conn.ExecContext(ctx, query, args...)
	}
	if err == nil {
		n, nerr := done.RowsAffected()
		t.f.w.changed = t.f.w.changed || n > 0 || nerr != nil
	}
	t.step(query)
	return err
}
