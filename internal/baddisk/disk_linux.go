package baddisk

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Fault is how a disk refuses.
type Fault int32

// The faults.
const (
	None  Fault = iota
	Full        // nothing is written any more
	Fsync       // what was written cannot be brought to the disk
)

// Disk is a folder whose databases can be made to fail. It is safe for concurrent use.
type Disk struct {
	refuses atomic.Pointer[refusal]
}

type refusal struct {
	file  string
	fault Fault
}

// Refuse has the database of this name, with the files that SQLite keeps beside it, refuse from now on what is
// written; "": all of the folder. Fault None is the end of it.
func (d *Disk) Refuse(file string, f Fault) { d.refuses.Store(&refusal{file, f}) }

// open is a file of SQLite's on a Disk.
type open struct {
	disk *Disk
	name string
}

// meets reports whether the file has a fault.
func (o *open) meets(f Fault) bool {
	r := o.disk.refuses.Load()
	return r != nil && r.fault == f && strings.HasPrefix(o.name, r.file)
}

var (
	disks     sync.Map // *Disk by folder
	files     sync.Map // *open by the address of SQLite's file
	faultOnce sync.Once
	faultErr  error // of faultOnce
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
	path := libc.GoString(name)
	if d, ok := disks.Load(filepath.Dir(path)); ok {
		files.Store(file, &open{d.(*Disk), filepath.Base(path)})
		f.FpMethods = faulty(tls, f.FpMethods)
	}
	return rc
}

func faultWrite(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32 {
	if o, ok := files.Load(file); ok && o.(*open).meets(Full) {
		return sqlite3.SQLITE_FULL
	}
	return (*(*writes)(unsafe.Pointer(&struct{ uintptr }{realIO.FxWrite})))(tls, file, data, n, offset)
}

func faultSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	if o, ok := files.Load(file); ok && o.(*open).meets(Fsync) {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	return (*(*syncs)(unsafe.Pointer(&struct{ uintptr }{realIO.FxSync})))(tls, file, flags)
}

// New makes a disk of a folder, in which no database is open yet.
func New(folder string) (*Disk, error) {
	faultOnce.Do(func() { faultErr = replace() })
	if faultErr != nil {
		return nil, faultErr
	}
	d := &Disk{}
	disks.Store(folder, d)
	return d, nil
}

// replace puts a VFS before SQLite's own, for good.
func replace() error {
	tls := libc.NewTLS()
	defer tls.Close()
	name, err := libc.CString("kvasir-fault")
	if err != nil {
		return fmt.Errorf("baddisk: %w", err)
	}
	found := sqlite3.Xsqlite3_vfs_find(tls, 0)
	if found == 0 {
		return errors.New("baddisk: SQLite has no VFS")
	}
	realVFS = (*sqlite3.Tsqlite3_vfs)(at(found))
	faultVFS = *realVFS
	faultVFS.FzName, faultVFS.FpNext, faultVFS.FxOpen = name, 0, pointer(faultOpen)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, uintptr(unsafe.Pointer(&faultVFS)), 1); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("baddisk: SQLite's VFS cannot be replaced: %d", rc)
	}
	return nil
}
