package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sliceBytes is the most that is copied between two looks at the clock. It also bounds what the
	// kernel holds in the pipe of a splice for a side that takes nothing.
	sliceBytes = 256 << 10
	// copyBytes is a buffer for legs that the kernel cannot copy between: one TLS record.
	copyBytes = 16 << 10
)

var copyBuffers = sync.Pool{New: func() any {
	b := make([]byte, copyBytes)
	return &b
}}

// A leg is one end of a splice.
type leg struct {
	nc   net.Conn
	rest []byte // read from nc before, goes first
}

// A cable is a splice under way: two goroutines, one a direction. An end of one direction is passed on
// as such, and the other has Limits.Linger to end too; an error ends both at once.
type cable struct {
	a, b  net.Conn
	o     Limits
	count func(up, down uint64) // told the totals at most every Limits.Tick and direction, may be nil

	up, down atomic.Uint64 // bytes from a to b, and back
	last     atomic.Int64  // when a byte came last, in nanoseconds since began
	began    time.Time

	mu    sync.Mutex
	err   error // the first
	ended int   // directions
	timer *time.Timer
}

// splice copies between two connections until both directions have ended, and closes both. The error
// is nil when both ended in order. up counts from a to b.
func splice(a, b leg, o Limits, count func(up, down uint64)) (up, down uint64, err error) {
	c := &cable{a: a.nc, b: b.nc, o: o, count: count, began: time.Now()}
	c.timer = time.AfterFunc(time.Hour, c.cut)
	c.timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.end(c.copy(a.nc, b.nc, b.rest, &c.down), a.nc)
	}()
	c.end(c.copy(b.nc, a.nc, a.rest, &c.up), b.nc)
	<-done
	c.timer.Stop()
	c.cut()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up.Load(), c.down.Load(), c.err
}

// copy copies one direction: early, which has been read from src, then src to its end.
func (c *cable) copy(dst, src net.Conn, early []byte, sum *atomic.Uint64) error {
	watch := time.AfterFunc(c.o.Stall, func() {
		c.fail(ErrStuck)
		c.cut()
	})
	defer watch.Stop()
	if len(early) > 0 {
		n, err := dst.Write(early)
		c.add(sum, n)
		if err != nil {
			return err
		}
	}
	var told time.Time
	pending := len(early) > 0
	for {
		now := time.Now()
		if pending && now.Sub(told) >= c.o.Tick/2 && c.count != nil {
			c.count(c.up.Load(), c.down.Load())
			told, pending = now, false
		}
		watch.Reset(c.o.Stall + c.o.Tick)
		if err := src.SetReadDeadline(now.Add(c.o.Tick)); err != nil {
			return err
		}
		n, err := copySlice(dst, src)
		c.add(sum, int(n))
		pending = pending || n > 0
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded): // of the read: writes have none
			if idle := time.Since(c.began) - time.Duration(c.last.Load()); idle > c.o.Idle {
				return fmt.Errorf("%w for %v", ErrIdle, c.o.Idle)
			}
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // TLS that ends without goodbye
			return nil
		default:
			return err
		}
	}
}

func (c *cable) add(sum *atomic.Uint64, n int) {
	if n > 0 {
		sum.Add(uint64(n))
		c.last.Store(int64(time.Since(c.began)))
	}
}

// copySlice copies up to sliceBytes, until src ends or its deadline passes. Between two TCP connections
// the kernel does it, where it can.
func copySlice(dst, src net.Conn) (n int64, err error) {
	_, from := src.(*net.TCPConn)
	_, to := dst.(*net.TCPConn)
	if from && to {
		return io.CopyN(dst, src, sliceBytes)
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for n < sliceBytes {
		r, err := src.Read(*buf)
		if r > 0 {
			w, werr := dst.Write((*buf)[:r])
			n += int64(w)
			if werr != nil {
				return n, werr
			}
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// end ends one direction, whose bytes went to dst.
func (c *cable) end(err error, dst net.Conn) {
	if err == nil {
		half, ok := dst.(interface{ CloseWrite() error })
		if ok {
			// The far side may have gone altogether. Then reading from it says so.
			_ = half.CloseWrite()
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.ended++; c.ended == 1 {
				c.timer.Reset(c.o.Linger)
			}
			return
		}
	}
	c.fail(err)
	c.cut()
}

func (c *cable) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.ended == 0 {
		c.err = err
	}
}

func (c *cable) cut() {
	sever(c.a)
	sever(c.b)
}
