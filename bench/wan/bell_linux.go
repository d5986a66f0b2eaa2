package wan

import (
	"container/heap"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// early is how long before the time the bell gets up: the kernel wakes a thread 20 to 80 µs late.
const early = 100 * time.Microsecond

// bell wakes waiters at the link's time to a few microseconds. The runtime's own timers come up to
// a millisecond late on Linux, since an idle runtime waits in epoll by the millisecond; a timerfd
// wakes it in time and costs no thread. run is its goroutine.
type bell struct {
	now  func() time.Duration
	fd   int
	file *os.File // fd, for the poller

	mu      sync.Mutex
	waiters waiters
	closed  bool // fd may be another file's by now
}

// newBell returns a bell on the clock now, or nil where waiting has to be left to the runtime.
func newBell(now func() time.Duration) *bell {
	if !clockMoves() {
		return nil
	}
	const clockMonotonic = 1
	const flags = syscall.O_NONBLOCK | syscall.O_CLOEXEC
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, flags, 0)
	if errno != 0 {
		return nil
	}
	return &bell{now: now, fd: int(fd), file: os.NewFile(fd, "timerfd")}
}

// close ends run. Those who wait are woken by the link, and wait no more.
func (b *bell) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	_ = b.file.Close()
}

// run rings until close.
func (b *bell) run() {
	var ticks [8]byte
	for {
		if _, err := b.file.Read(ticks[:]); err != nil {
			return
		}
		for b.ring() {
			runtime.Gosched()
		}
	}
}

// ring wakes those whose time has come. It returns true if the next is so near that it is not worth
// going to sleep.
func (b *bell) ring() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for len(b.waiters) > 0 && b.waiters[0].at <= now {
		signal(heap.Pop(&b.waiters).(*waiter).rung)
	}
	if len(b.waiters) == 0 {
		return false
	}
	if b.waiters[0].up <= now {
		return true
	}
	b.armLocked(now)
	return false
}

// armLocked sets the kernel's timer for the first waiter.
func (b *bell) armLocked(now time.Duration) {
	if b.closed {
		return
	}
	left := max(b.waiters[0].up-now, 1) // zero would disarm it
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(int64(left))}
	// The only errors are those of bad arguments.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(b.fd), 0,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}

func (b *bell) await(t time.Duration, change, due <-chan struct{}, w *waiter) error {
	b.add(w, t)
	defer b.remove(w)
	select {
	case <-w.rung:
		return nil
	case <-change:
		return nil
	case <-due:
		return os.ErrDeadlineExceeded
	}
}

func (b *bell) add(w *waiter, t time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.rung == nil {
		w.rung = make(chan struct{}, 1)
	}
	if w.at, w.up = t, t; !w.lax {
		w.up -= early
	}
	heap.Push(&b.waiters, w)
	if w.index == 0 {
		b.armLocked(b.now())
	}
}

func (b *bell) remove(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&b.waiters, w.index)
	}
}

// waiters is a heap, the one first for whom the bell gets up first.
type waiters []*waiter

func (s waiters) Len() int           { return len(s) }
func (s waiters) Less(i, j int) bool { return s[i].up < s[j].up }

func (s waiters) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *waiters) Push(x any) {
	w := x.(*waiter)
	w.index = len(*s)
	*s = append(*s, w)
}

func (s *waiters) Pop() any {
	last := len(*s) - 1
	w := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	w.index = -1
	return w
}
