package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// disk is a disk that can be full, or fail when it is to write out what it was given. It stands between SQLite
// and the operating system: the default VFS is one whose files, where they lie in a folder of a disk, write and
// sync by way of it.
type disk struct {
	full, broken atomic.Bool
	syncs        atomic.Int64
}

var (
	disks     sync.Map // *disk by folder
	files     sync.Map // *disk by the address of SQLite's file
	faultOnce sync.Once
	realVFS   *sqlite3.Tsqlite3_vfs
	faultVFS  sqlite3.Tsqlite3_vfs
	realIO    sqlite3.Tsqlite3_io_methods // all files write and sync by the same
	faultMu   sync.Mutex
	faultIO   = map[uintptr]*sqlite3.Tsqlite3_io_methods{} // by the real ones
)

// faulty returns methods of a file that are the real ones, but for writing and syncing.
func faulty(tls *libc.TLS, real uintptr) uintptr {
	faultMu.Lock()
	defer faultMu.Unlock()
	m := faultIO[real]
	if m == nil {
		m = (*sqlite3.Tsqlite3_io_methods)(at(libc.Xmalloc(tls, sqlite3.Tsize_t(unsafe.Sizeof(*m))))) // for good; SQLite holds no memory of Go's
		*m = *(*sqlite3.Tsqlite3_io_methods)(at(real))
		if realIO.FxWrite == 0 {
			realIO = *m
		}
		m.FxWrite, m.FxSync = pointer(faultWrite), pointer(faultSync)
		faultIO[real] = m
	}
	return uintptr(unsafe.Pointer(m))
}

// at is memory of SQLite's.
func at(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// pointer is what SQLite takes for the address of a function.
func pointer(f any) uintptr { return (*[2]uintptr)(unsafe.Pointer(&f))[1] }

type (
	opens  = func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32
	writes = func(*libc.TLS, uintptr, uintptr, int32, int64) int32
	syncs  = func(*libc.TLS, uintptr, int32) int32
)

func faultOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32 {
	rc := (*(*opens)(unsafe.Pointer(&struct{ uintptr }{realVFS.FxOpen})))(tls, vfs, name, file, flags, out)
	f := (*sqlite3.Tsqlite3_file)(at(file))
	if rc != sqlite3.SQLITE_OK || name == 0 || f.FpMethods == 0 {
		return rc
	}
	if d, ok := disks.Load(filepath.Dir(libc.GoString(name))); ok {
		files.Store(file, d)
		f.FpMethods = faulty(tls, f.FpMethods)
	}
	return rc
}

func faultWrite(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32 {
	if d, ok := files.Load(file); ok && d.(*disk).full.Load() {
		return sqlite3.SQLITE_FULL
	}
	return (*(*writes)(unsafe.Pointer(&struct{ uintptr }{realIO.FxWrite})))(tls, file, data, n, offset)
}

func faultSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	if d, ok := files.Load(file); ok {
		d.(*disk).syncs.Add(1)
		if d.(*disk).broken.Load() {
			return sqlite3.SQLITE_IOERR_FSYNC
		}
	}
	return (*(*syncs)(unsafe.Pointer(&struct{ uintptr }{realIO.FxSync})))(tls, file, flags)
}

// newDisk returns a folder on a disk of its own.
func newDisk(t *testing.T) (*disk, string) {
	t.Helper()
	faultOnce.Do(func() {
		tls := libc.NewTLS()
		defer tls.Close()
		name, err := libc.CString("kvasir-fault")
		must(t, err)
		realVFS = (*sqlite3.Tsqlite3_vfs)(at(sqlite3.Xsqlite3_vfs_find(tls, 0)))
		faultVFS = *realVFS
		faultVFS.FzName, faultVFS.FpNext, faultVFS.FxOpen = name, 0, pointer(faultOpen)
		if rc := sqlite3.Xsqlite3_vfs_register(tls, uintptr(unsafe.Pointer(&faultVFS)), 1); rc != sqlite3.SQLITE_OK {
			t.Fatalf("SQLite's VFS cannot be replaced: %d", rc)
		}
	})
	d, folder := &disk{}, t.TempDir()
	disks.Store(folder, d)
	return d, folder
}

// faults are the two ways in which a disk refuses.
var faults = map[string]func(d *disk, on bool){
	"full":  func(d *disk, on bool) { d.full.Store(on) },
	"fsync": func(d *disk, on bool) { d.broken.Store(on) },
}

// A disk refuses what a hub, its backbone's and worker's outboxes and a gateway write, each in turn, while work
// goes on. Nobody is told that anything is stored which is not; each says so once, and counts; and when the disk
// writes again, all comes right.
func TestADiskThatRefusesLosesAndAcknowledgesNothing(t *testing.T) {
	for name, set := range faults {
		t.Run(name, func(t *testing.T) {
			d, folder := newDisk(t)
			s := newSwarm(t, 1)
			ctx := t.Context()
			path := filepath.Join(folder, "hub.db")
			var said bytes.Buffer
			log := slog.New(slog.NewTextHandler(&said, nil))
			h, err := OpenHub(ctx, path, log)
			must(t, err)
			w, err := OpenWallet(ctx, filepath.Join(folder, "wallet.db"), s.root.Public(), log)
			must(t, err)
			box, err := OpenOutbox(ctx, filepath.Join(folder, "outbox.db"), log)
			must(t, err)
			must(t, h.Begin(ctx, s.session(1, 0)))
			r := s.reporter(1, 0)
			one, two := next(t, r, 1), next(t, r, 2)
			_, err = h.Append(ctx, one)
			must(t, err)
			poll(t, w, h)

			set(d, true)
			for range 3 { // whoever waits for an acknowledgement tries again
				_, err = h.Append(ctx, two)
				wantError(t, err, ErrUnwritten)
				g, err := h.Receive(ctx, Item{Grant: s.grant, Report: two})
				wantError(t, err, ErrUnwritten)
				if g != (Given{}) {
					t.Fatalf("acknowledged: %+v", g)
				}
				wantError(t, box.Put(ctx, Item{Hub: "hub", Grant: s.grant, Report: two}), ErrUnwritten)
				_, err = w.Poll(ctx, "hub", s.entries(one, two))
				wantError(t, err, ErrUnwritten)
			}
			page, err := h.After(ctx, Mark{}, PageMax) // it is still read
			must(t, err)
			n, err := box.Waiting(ctx)
			must(t, err)
			b, err := w.Balance(ctx, s.workers[0])
			must(t, err)
			if page.Last != 1 || n != 0 || b.Pending != perPick {
				t.Fatalf("the hub has %d reports, the outbox %d, the worker %d nKVR", page.Last, n, b.Pending)
			}
			if got := h.Counts()["ledger_unwritten"]; got != 6 {
				t.Errorf("%d of the hub's entries are counted, want 6", got)
			}
			if got := strings.Count(said.String(), "cannot be written"); got != 3 {
				t.Errorf("said %d times, want once by each of three:\n%s", got, &said)
			}

			set(d, false)
			must(t, box.Put(ctx, Item{Hub: "hub", Grant: s.grant, Report: two}))
			must(t, box.Flush(ctx, "hub", h.Receive))
			poll(t, w, h)
			wantPending(t, w, s.workers, 3*perPick)
			if got := strings.Count(said.String(), "is written again"); got != 3 {
				t.Errorf("said %d times that it is written again:\n%s", got, &said)
			}
			must(t, errors.Join(h.Close(), w.Close(), box.Close()))
			again := openHub(t, path) // and it is on the disk
			page, err = again.After(ctx, Mark{}, PageMax)
			must(t, err)
			if page.Last != 2 {
				t.Fatalf("the hub has %d reports", page.Last)
			}
		})
	}
}

// SQLite's own limit of a file, which refuses in the middle of a transaction: one of a group is too much.
func TestAFullFileRefusesOneAndStoresOthers(t *testing.T) {
	s := newSwarm(t, 1)
	h := openHub(t, filepath.Join(t.TempDir(), "hub.db"))
	var pages int
	must(t, h.file.update(t.Context(), func(t *tx) error { // of the writer's connection
		ctx := context.Background()
		if err := t.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
			return err
		}
		return t.QueryRowContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", pages+3)).Scan(&pages)
	}))
	stored := 0
	var refused error
	for n := range 200 {
		if err := h.Begin(t.Context(), Session{ID: SessionID{1, byte(n)}, Worker: s.workers[0], Backbone: s.grant, Start: epoch}); err != nil {
			refused = err
			break
		}
		stored++
	}
	wantError(t, refused, ErrUnwritten)
	if !strings.Contains(refused.Error(), "no room on the disk") || strings.Contains(refused.Error(), "\n") {
		t.Errorf("not one clear line: %v", refused)
	}
	must(t, h.Meter(t.Context(), Count{SessionID{1, 0}, 5, 6})) // needs no room
	work, err := h.Work(t.Context())
	must(t, err)
	if len(work) != 1 || work[0].Sessions != int64(stored) || work[0].ToWorker != 5 {
		t.Fatalf("%+v, want %d sessions", work, stored)
	}
}
