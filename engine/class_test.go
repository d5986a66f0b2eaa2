package engine

import (
	"net"
	"strings"
	"testing"

	"kvasir/engine/worker"
	"kvasir/wire"
	"kvasir/wire/seal"
)

// TestAWorkerOfAnotherClassIsToldSo has a worker of class close come to an exact backbone, beside an exact one: each
// side says in one line why there is no session, the worker does not come again, and the other works on.
func TestAWorkerOfAnotherClassIsToldSo(t *testing.T) {
	v := newTown(t)
	good, other := seal.NewKey(), seal.NewKey()
	v.worker(good, nil)
	v.arrives(good)
	w := v.workerAs(worker.Config{
		Key: other, WrapConn: func(c net.Conn) net.Conn { return &closeClass{Conn: c} },
	})
	v.until("the backbone says it", func() bool { return v.log.count("worker did not come in") > 0 })
	<-w.ended // by itself: to come again is of no use
	v.generate(4, 1)
	const want = "the worker is of class close, the backbone of class exact: a swarm's arithmetic is of one class"
	if err := w.why; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the worker ends with %v, want %q", err, want)
	}
	if n := v.log.count(`worker did not come in`); n != 1 || v.log.count(want) < 1 {
		t.Errorf("the backbone says it %d times, want once:\n%s", n, v.log)
	}
	if v.find(other) != nil || v.find(good) == nil {
		t.Error("the wrong one works")
	}
}

// closeClass says of a worker that it is of class close.
type closeClass struct {
	net.Conn
	sent int
}

func (c *closeClass) Write(p []byte) (int, error) {
	const class = wire.HeaderLen + 7 // in the Hello, which is the first message
	if at := class - c.sent; at >= 0 && at < len(p) {
		p = append([]byte(nil), p...)
		p[at] = byte(wire.Close)
	}
	n, err := c.Conn.Write(p)
	c.sent += n
	return n, err
}
