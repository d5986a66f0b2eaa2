package ledger

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"modernc.org/sqlite"
)

// The log is copied by others than who commits, and begins anew though somebody always writes.
func TestTheLogBeginsAnewWhileOthersWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	h := openHub(t, path)
	must(t, h.file.update(t.Context(), func(t *tx) error { // of the writer's goroutine
		t.f.ck.every, t.f.ck.long = 16, 64
		return nil
	}))
	s := newSwarm(t, 1)
	must(t, h.Begin(t.Context(), s.session(1, 0)))
	const same, most = 100, 10000
	length, since, commits := int64(0), 0, 0
	for ; since < same && commits < most; commits++ {
		must(t, h.Meter(t.Context(), Count{SessionID{1}, int64(commits), 0}))
		info, err := os.Stat(path + "-wal")
		must(t, err)
		if since++; info.Size() != length {
			length, since = info.Size(), 0
		}
	}
	if commits == most {
		t.Fatalf("after %d commits the log has %d bytes, and grows", commits, length)
	}
	t.Logf("%d commits, %d bytes", commits, length)
	var auto int
	must(t, h.file.update(t.Context(), func(t *tx) error {
		return t.QueryRowContext(context.Background(), "PRAGMA wal_autocheckpoint").Scan(&auto)
	}))
	if auto != 0 {
		t.Errorf("who commits copies after %d pages", auto)
	}
	if runtime.GOOS == "linux" && !sqlite.FdatasyncEnabled() {
		t.Error("files are brought to the disk by fsync")
	}
}

// Nobody copies the log under a reader; it is copied when he has gone.
func TestAReaderOfOldRowsStopsNoCheckpointForGood(t *testing.T) {
	h := openHub(t, filepath.Join(t.TempDir(), "hub.db"))
	must(t, h.file.update(t.Context(), func(t *tx) error {
		t.f.ck.every, t.f.ck.long = 1, 1
		return nil
	}))
	s := newSwarm(t, 1)
	must(t, h.Begin(t.Context(), s.session(1, 0)))
	must(t, h.file.snapshot(t.Context(), func(q querier) error {
		bytes := func() (n int64) {
			must(t, h.file.eachOf(t.Context(), q, func(scan func(...any) error) error { return scan(&n) }, "SELECT to_worker FROM sessions"))
			return n
		}
		before := bytes()
		for n := range int64(20) {
			must(t, h.Meter(t.Context(), Count{SessionID{1}, n, 0}))
		}
		if after := bytes(); after != before {
			t.Errorf("%d bytes are seen, which were written later", after)
		}
		return nil
	}))
	must(t, h.Meter(t.Context(), Count{SessionID{1}, 20, 0}))
	got, err := h.Session(t.Context(), SessionID{1})
	must(t, err)
	if got.ToWorker != 20 {
		t.Errorf("%d bytes, want 20", got.ToWorker)
	}
}

// A log that has become long, for there was always somebody who wrote, is copied to its end by who writes.
func TestALongLogIsCopiedByTheWriter(t *testing.T) {
	h := openHub(t, filepath.Join(t.TempDir(), "hub.db"))
	s := newSwarm(t, 1)
	must(t, h.file.update(t.Context(), func(t *tx) error {
		t.f.ck.every = 1 << 30 // nobody else copies
		return nil
	}))
	must(t, h.Begin(t.Context(), s.session(1, 0)))
	write := func(n int64) { must(t, h.Meter(t.Context(), Count{SessionID{1}, n, 0})) }
	for n := range int64(60) {
		write(n)
	}
	h.file.ck.rest.Store(true)
	write(60) // before this the log is copied, and it begins anew with this
	var busy, length, copied int
	must(t, h.file.db.QueryRowContext(t.Context(), "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &length, &copied))
	if length >= 20 {
		t.Errorf("the log has %d pages, as of 60 transactions", length)
	}
}
