package ledger

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
)

// checkpointer copies SQLite's log back into the file, on a connection of its own: who waits for a commit does not
// wait for that. What is written meanwhile it does not copy, and so the log would grow for as long as somebody
// writes. Where it has become long the writer copies the rest itself, between two transactions; that is little, and
// the log begins anew with the next one.
type checkpointer struct {
	wake  chan struct{} // holds one
	ended chan struct{}
	rest  atomic.Bool // is to be copied by the writer

	every, long int // pages: see newCheckpointer

	pages int // written to the log since the last wake; the writer's
}

// newCheckpointer returns one that copies after every 4 MB of the log, and has the writer copy the rest where that
// is of 64 MB: each time some milliseconds, for which all wait who wait for a commit.
func newCheckpointer() *checkpointer {
	return &checkpointer{wake: make(chan struct{}, 1), ended: make(chan struct{}), every: 1000, long: 16000}
}

// checkpoints is the goroutine, which ends after the writer.
func (f *file) checkpoints() {
	defer close(f.ck.ended)
	ctx := context.Background()
	var c *sql.Conn
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for {
		select {
		case <-f.w.ended:
			return
		case <-f.ck.wake:
		}
		var err error
		if c == nil {
			if c, err = f.db.Conn(ctx); err != nil {
				c = nil
				continue
			}
		}
		// Where it cannot be copied the log grows, and SQLite says so when it is full. An old snapshot that somebody
		// still reads, or the checkpoint of another process, is no error.
		var busy, length, copied int
		err = c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &length, &copied)
		if err == nil && length >= f.ck.long {
			f.ck.rest.Store(true)
		}
	}
}

// written counts what a transaction has added to the log, and has it copied now and then.
func (f *file) written() {
	if f.ck == nil {
		return
	}
	_ = f.w.conn.Raw(func(c any) error {
		n, _, err := c.(sqlite.DBStatus).Status(sqlite.DBStatusCacheWrite, true)
		f.ck.pages += n
		return err
	})
	if f.ck.pages < f.ck.every {
		return
	}
	f.ck.pages = 0
	select {
	case f.ck.wake <- struct{}{}:
	default: // it copies
	}
}

// copyRest copies the rest of the log where it is long.
func (f *file) copyRest(ctx context.Context) {
	if f.ck != nil && f.w.conn != nil && f.ck.rest.CompareAndSwap(true, false) {
		_, _ = f.w.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)") // as above
	}
}

// dataSync has SQLite bring its files to the disk by fdatasync, as it does where it is built on Linux: what is
// needed to read them back is there then, and only the time of the change may not be.
var dataSync = sync.OnceFunc(func() {
	_, _ = sqlite.Fdatasync(true) // where there is none, by fsync
})
