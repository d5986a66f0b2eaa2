package ws

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

// A way to carry bytes: write and read are called once for a chunk, at the two ends.
type way struct {
	name        string
	write, read func(chunk []byte) error
}

// ways are those that are compared: bare TCP, ours from a client and from a server, and what gobwas
// does when left to itself. Each has a connection of its own.
func ways(b *testing.B) []way {
	bare := func(nc net.Conn) func(chunk []byte) error {
		return func(chunk []byte) error { _, err := nc.Write(chunk); return err }
	}
	x, y := loopback(b)
	all := []way{{"bare", bare(x), func(chunk []byte) error { _, err := io.ReadFull(y, chunk[:len(chunk)-Readahead]); return err }}}
	for _, role := range []Role{Client, Server} {
		x, y := loopback(b)
		out, in := New(x, role, nil, Options{Message: 1 << 20}), New(y, 1-role, nil, Options{Message: 1 << 20})
		slab := make([]byte, Headroom+1<<20)
		all = append(all, way{role.String(),
			func(chunk []byte) error { return out.WriteSlab(Binary, slab[:Headroom+len(chunk)]) },
			func(chunk []byte) error { _, _, err := in.ReadMessage(chunk); return err }})
	}
	p, q := loopback(b)
	return append(all, way{"gobwas",
		func(chunk []byte) error { return ws.WriteFrame(p, ws.MaskFrame(ws.NewBinaryFrame(chunk))) },
		func([]byte) error {
			f, err := ws.ReadFrame(q) //nolint:staticcheck // deprecated for the reason that it is measured for
			ws.UnmaskFrameInPlace(f)
			return err
		}})
}

// BenchmarkMiB carries 1 MiB a turn in chunks of one size over loopback TCP, by each way in turn,
// so that what else the machine does meets all of them. Of each way it says the median rate, and
// what share of bare TCP's it is; of ours, what a turn allocates.
func BenchmarkMiB(b *testing.B) {
	for _, size := range []int{1 << 10, 16000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			all := ways(b)
			took := make([][]time.Duration, len(all))
			allocs := make([]uint64, len(all))
			for i := range b.N {
				for j := range all {
					w := (i + j) % len(all)
					d, n := carry(b, all[w], size)
					took[w], allocs[w] = append(took[w], d), allocs[w]+n
				}
			}
			base := median(took[0])
			for w, t := range took {
				m := median(t)
				b.ReportMetric(float64(1<<20)/1e6/m.Seconds(), all[w].name+"-MB/s")
				b.ReportMetric(100*float64(base)/float64(m), all[w].name+"-%bare")
				b.ReportMetric(float64(allocs[w])/float64(b.N), all[w].name+"-allocs")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// carry moves 1 MiB and returns how long that took and how often it allocated.
func carry(b *testing.B, w way, size int) (time.Duration, uint64) {
	out, in := make([]byte, size), make([]byte, size+Readahead)
	chunks := func(f func([]byte) error, chunk []byte) error {
		for left := 1 << 20; left > 0; left -= size {
			if err := f(chunk[:min(left, size)+len(chunk)-size]); err != nil {
				return err
			}
		}
		return nil
	}
	start, done := make(chan struct{}), make(chan error)
	go func() {
		<-start
		done <- chunks(w.write, out)
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	close(start)
	err := chunks(w.read, in)
	d := time.Since(began)
	if werr := <-done; err != nil || werr != nil {
		b.Fatal(w.name, err, werr)
	}
	runtime.ReadMemStats(&after)
	return d, after.Mallocs - before.Mallocs
}

func median(t []time.Duration) time.Duration {
	t = slices.Sorted(slices.Values(t))
	return t[len(t)/2]
}

func BenchmarkMask(b *testing.B) {
	p := make([]byte, 16022)
	b.SetBytes(int64(len(p)))
	for range b.N {
		ws.Cipher(p, [4]byte{1, 2, 3, 4}, 0)
	}
}
