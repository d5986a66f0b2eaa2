//go:build linux && !race

package slab

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childEnv tells this test binary to be the child of TestTheSystemLocksWithinItsLimit.
const childEnv = "KVASIR_TEST_MEMLOCK"

func TestTheSystemLocksWithinItsLimit(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		child(t)
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestTheSystemLocksWithinItsLimit$", "-test.v")
	c.Env = append(os.Environ(), childEnv+"=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// child lowers the limit of a process that does nothing else. Whoever may lock without limit gives that
// up on this thread first.
func child(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	if err := unix.Capset(&head, &data[0]); err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []uint64{2 << 20, 0} {
		if limit > was.Cur {
			t.Logf("no more than %d bytes may be locked here", was.Cur)
			continue
		}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		locked, why := Probe(4 << 20)
		if locked > int64(limit) || limit > 0 && locked == 0 || !strings.Contains(why, "locked memory") && limit > 0 {
			t.Errorf("limit %d: %d bytes are locked, %q", limit, locked, why)
		}
		if why == "" {
			t.Errorf("limit %d: no reason why not more is locked", limit)
		}
	}
	a := New(Options{}) // memory that cannot be locked is of use
	s := get(t, a, 100_000)
	for i := range s.Bytes() {
		s.Bytes()[i] = byte(i)
	}
	if st := a.Stats(); st.Pinned != 0 || st.Bytes == 0 {
		t.Errorf("with a limit of 0: %+v", st)
	}
	s.Release()
	a.giveBackAll()
}

func TestRegionsAreMappedOutsideTheHeap(t *testing.T) {
	a := New(Options{})
	s := get(t, a, 3<<20)
	resident := func() bool {
		var vec [1]byte
		page := uintptr(unsafe.Pointer(&s.mem[0]))
		_, _, e := unix.Syscall(unix.SYS_MINCORE, page, 1, uintptr(unsafe.Pointer(&vec[0])))
		return e == 0
	}
	if !resident() {
		t.Error("the slab's pages are not mapped")
	}
	s.Release()
	a.giveBackAll()
	if resident() {
		t.Error("the slab's pages are mapped after they were given back")
	}
}
