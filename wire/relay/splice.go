package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Between two looks at the clock a direction copies a slice. It is as long as fits into a small part of
// Limits.Tick at the pace that bytes go, so that counts are fresh where they crawl, and calls few where
// they fly.
const (
	sliceMin = 16 << 10
	sliceMax = 64 << 20
)

// copyBytes is a buffer for legs that the kernel cannot copy between: two TLS records.
const copyBytes = 32 << 10

var copyBuffers = sync.Pool{New: func() any {
	b := make([]byte, copyBytes)
	return &b
}}

// A leg is one end of a splice.
type leg struct {
	nc    net.Conn
	rest  []byte  // read from nc before, goes first
	tolls []*toll // what bytes from it and to it are held to
}

// A cable is a splice under way: two goroutines, one a direction. An end of one direction is passed on
// as such, and the other has Limits.Linger to end too; an error ends both at once. A direction in which
// nothing goes costs its goroutine and nothing else: no buffer, no pipe, no timer.
type cable struct {
	o        Limits
	count    func(up, down uint64) // told the totals at most every Limits.Tick and direction, may be nil
	tolls    []*toll
	up, down *way // from a to b, and back
	began    time.Time
	last     atomic.Int64  // when a byte came last, in nanoseconds since began
	done     chan struct{} // closed by cut

	mu        sync.Mutex
	err       error // the first
	lingering bool
	timer     *time.Timer
	once      sync.Once
}

// A way is one direction of a cable.
type way struct {
	c        *cable
	dst, src net.Conn
	to, from net.Conn        // what is copied between: dst and src, without the TLS that they have shed
	bare     bool            // from is a socket, and keeps nothing that it has read
	kernel   bool            // it can copy by itself: both are TCP
	raw      syscall.RawConn // of the socket that src reads from; nil: not known
	dry      bool            // src has given all that it has read from there
	slice    int             // bytes, see sliceMin

	sum   atomic.Uint64
	busy  atomic.Int64 // since when a slice is under way, as last; 0: none is
	watch *time.Timer  // of look
}

// splice copies between two connections until both directions have ended, and closes both. The error
// is nil when both ended in order. up counts from a to b.
func splice(a, b leg, o Limits, count func(up, down uint64)) (up, down uint64, err error) {
	c := &cable{o: o, count: count, tolls: slices.Concat(a.tolls, b.tolls), began: time.Now(), done: make(chan struct{})}
	c.up, c.down = newWay(c, b.nc, a.nc), newWay(c, a.nc, b.nc)
	c.timer = time.AfterFunc(time.Hour, c.cut)
	c.timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.down.end(c.down.copy(b.rest))
	}()
	c.up.end(c.up.copy(a.rest))
	<-done
	c.timer.Stop()
	c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up.sum.Load(), c.down.sum.Load(), c.err
}

func newWay(c *cable, dst, src net.Conn) *way {
	w := &way{c: c, dst: dst, src: src, to: dst, from: src, slice: 4 * sliceMin}
	w.strip()
	if s, ok := socketOf(src).(*net.TCPConn); ok && canWait {
		w.raw, _ = s.SyscallConn() // nil, should it fail: then reads wait
	}
	w.watch = time.AfterFunc(time.Hour, w.look)
	w.watch.Stop()
	return w
}

// strip takes off both sides the TLS that they have shed.
func (w *way) strip() {
	if s, ok := w.from.(*shedding); ok && s.heard.Load() {
		w.from = s.Conn
	}
	if s, ok := w.to.(*shedding); ok && s.bareOut.Load() {
		w.to = s.Conn
	}
	was := w.bare
	_, w.bare = w.from.(*net.TCPConn)
	_, to := w.to.(*net.TCPConn)
	w.kernel, w.dry = w.bare && to, w.dry || w.bare && !was
}

// copy copies one direction: early, which has been read from src, then src to its end.
func (w *way) copy(early []byte) error {
	defer w.watch.Stop()
	if len(early) > 0 {
		w.begin()
		n, err := w.dst.Write(early)
		w.add(n)
		w.busy.Store(0)
		if err != nil {
			return err
		}
	}
	var told time.Time
	untold := len(early) > 0
	for {
		if !untold && w.dry && w.raw != nil {
			if err := w.await(); err != nil {
				return err
			}
		}
		now := time.Now()
		if untold && now.Sub(told) >= w.c.o.Tick/2 {
			w.tell()
			told, untold = now, false
		}
		if err := w.src.SetReadDeadline(now.Add(w.c.o.Tick / 2)); err != nil {
			return err
		}
		n, err := w.copySlice(now)
		if n > 0 {
			untold, w.dry = true, w.bare
			w.strip()
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded): // of the read: writes have none
			w.dry = w.dry || n == 0
			if err := w.idle(); err != nil {
				return err
			}
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // TLS that ends without goodbye
			return nil
		default:
			return err
		}
	}
}

// await waits until there is something to read, an end included.
func (w *way) await() error {
	for {
		last := w.c.began.Add(time.Duration(w.c.last.Load()))
		if err := w.src.SetReadDeadline(last.Add(w.c.o.Idle)); err != nil {
			return err
		}
		err := w.raw.Read(readable)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := w.idle(); err != nil { // or else the other direction was busy
			return err
		}
	}
}

// idle returns an error where no byte came from either side for too long.
func (w *way) idle() error {
	if quiet := time.Since(w.c.began) - time.Duration(w.c.last.Load()); quiet >= w.c.o.Idle {
		return fmt.Errorf("%w for %v", ErrIdle, w.c.o.Idle)
	}
	return nil
}

// copySlice copies up to a slice, until src ends or its deadline passes.
func (w *way) copySlice(began time.Time) (n int64, err error) {
	w.begin()
	defer w.busy.Store(0)
	if w.kernel {
		// ReadFrom knows *io.LimitedReader over *net.TCPConn, and calls splice(2) where there is one.
		n, err = io.CopyN(w.to, w.from, int64(w.slice))
	} else {
		n, err = w.copyThrough()
	}
	w.add(int(n))
	if n > 0 && len(w.c.tolls) > 0 {
		w.pay(int(n))
	}
	if err == nil {
		w.slice = nextSlice(w.slice, time.Since(began), w.c.o.Tick)
	}
	return n, err
}

// nextSlice is how long the slice after one of n bytes is, which took so long.
func nextSlice(n int, took, tick time.Duration) int {
	switch {
	case took < tick/16:
		return min(2*n, sliceMax)
	case took > tick/4:
		return max(n/2, sliceMin)
	}
	return n
}

// copyThrough copies a buffer's worth by memory of this process, as TLS needs it.
func (w *way) copyThrough() (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	r, err := w.from.Read((*buf)[:min(len(*buf), w.slice)])
	if r == 0 {
		return 0, err
	}
	n, werr := w.to.Write((*buf)[:r])
	if werr != nil {
		return int64(n), werr
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil // it comes again
	}
	return int64(n), err
}

// pay waits for as long as the limits on bytes want after n of them. cut ends it.
func (w *way) pay(n int) {
	var d time.Duration
	for _, t := range w.c.tolls {
		d = max(d, t.take(n, time.Now()))
	}
	if d <= 0 {
		return
	}
	w.begin()
	t := time.NewTimer(min(d, w.c.o.Stall/2)) // it is not dst that is slow
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.c.done:
	}
}

func (w *way) add(n int) {
	if n > 0 {
		w.sum.Add(uint64(n))
		w.c.last.Store(int64(time.Since(w.c.began)))
	}
}

func (w *way) tell() {
	if w.c.count != nil {
		w.c.count(w.c.up.sum.Load(), w.c.down.sum.Load())
	}
}

// begin says that a slice is under way, for look.
func (w *way) begin() {
	w.busy.Store(max(int64(time.Since(w.c.began)), 1))
	w.watch.Reset(w.c.o.Tick)
}

// look runs when a slice has taken longer than a read may, so that it is dst that takes nothing. An end
// of src, which nobody would read then, is an end all the same.
func (w *way) look() {
	since := w.busy.Load()
	if since == 0 {
		return
	}
	switch quiet := time.Since(w.c.began) - time.Duration(since); {
	case quiet >= w.c.o.Stall:
		w.c.fail(ErrStuck)
		w.c.cut()
		return
	case quiet >= w.c.o.Tick && w.raw != nil && hungUp(w.raw):
		w.c.fail(fmt.Errorf("%w, and the other side took nothing", ErrGone))
		w.c.linger()
	}
	w.watch.Reset(w.c.o.Tick)
}

// end ends one direction.
func (w *way) end(err error) {
	if err == nil {
		if half, ok := w.dst.(interface{ CloseWrite() error }); ok {
			w.c.linger() // before CloseWrite, which TLS writes and which may therefore wait
			// The far side may have gone altogether. Then reading from it says so.
			_ = half.CloseWrite()
			return
		}
	}
	w.c.fail(err)
	w.c.cut()
}

// linger begins the time in which both directions have to end.
func (c *cable) linger() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lingering {
		c.lingering = true
		c.timer.Reset(c.o.Linger)
	}
}

func (c *cable) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !c.lingering {
		c.err = err
	}
}

func (c *cable) cut() {
	c.once.Do(func() { close(c.done) })
	sever(c.up.src)
	sever(c.down.src)
}
