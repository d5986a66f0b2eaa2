//go:build linux

package link

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// BenchmarkSealedPath is what the way costs from one end to the other: a session within inner TLS within
// WebSocket over loopback TCP, both ends in this process. It counts processor time of the process, so
// that other processes matter little, by the bytes on the session and by end:
//
//	floor     loopback TCP and AES-GCM alone, in pieces of a chunk: less cannot be had
//	bare      chunks written to and read from the inner session, without a session of this package
//	slices    SliceData: a session's own cost, and no arithmetic
//	dispatch  512 rows out and their partials back, packing included
//
// What a chunk allocates is said less what it does without a session of this package, which is what
// crypto/tls does.
func BenchmarkSealedPath(b *testing.B) {
	var bare float64 // allocations a chunk
	b.Run("floor", func(b *testing.B) {
		x, y := loopback(b)
		measured(b, 0, func(n int) uint64 { return pump(b, encrypts{x, newGCM(b)}, encrypts{y, newGCM(b)}, n) })
		_, _ = x.Close(), y.Close()
	})
	b.Run("bare", func(b *testing.B) {
		x, y := sealedLoopback(b)
		bare = measured(b, 0, func(n int) uint64 { return pump(b, x, y, n) })
		_, _ = x.Close(), y.Close()
	})
	b.Run("slices", func(b *testing.B) {
		x, y := sealedLoopback(b)
		source := func(_ context.Context, _ wire.Hash, _ uint64, dst []byte) (int, uint64, error) {
			return len(dst), 1 << 40, nil
		}
		peers := make(chan SliceReader, 1)
		w := Worker{
			Experts: hashes{},
			Assign: func(_ context.Context, _ wire.Assign, fetch SliceReader) (moe.Experts, error) {
				peers <- fetch
				return hashes{}, nil
			},
		}
		r := join(b, x, y, w, Options{Slices: source}, Options{})
		if err := r.Assign(context.Background(), []wire.Slice{{Layer: 0, Lo: 0, Hi: 1, Hash: wire.Hash{1}}}); err != nil {
			b.Fatal(err)
		}
		fetch := <-peers
		var dsts [wire.MaxFetches][]byte
		for g := range dsts {
			dsts[g] = make([]byte, wire.MaxSliceData)
		}
		measured(b, bare, func(n int) uint64 {
			before := r.Stats()
			together(b, wire.MaxFetches, n, func(g int) error {
				_, _, err := fetch(context.Background(), wire.Hash{1}, 0, dsts[g])
				return err
			})
			return moved(r, before)
		})
		_ = r.end()
	})
	b.Run("dispatch", func(b *testing.B) {
		x, y := sealedLoopback(b)
		r := join(b, x, y, Worker{Experts: small13{}}, Options{}, Options{})
		batch := newBatch(b, seeded(1), moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, 512)
		var outs [3]moe.Partials
		measured(b, bare, func(n int) uint64 {
			before := r.Stats()
			together(b, len(outs), n, func(g int) error { return r.Forward(context.Background(), batch, &outs[g]) })
			return moved(r, before)
		})
		_ = r.end()
	})
}

// sealedLoopback is sealed without taps, which keep what they see.
func sealedLoopback(b *testing.B) (backbone, worker net.Conn) {
	x, y := loopback(b)
	return sealedOver(b, counts{x}, counts{y})
}

// counts counts the reads and writes of a connection.
type counts struct{ net.Conn }

var reads, writes atomic.Int64

func (c counts) Read(p []byte) (int, error) {
	reads.Add(1)
	return c.Conn.Read(p)
}

func (c counts) Write(p []byte) (int, error) {
	writes.Add(1)
	return c.Conn.Write(p)
}

// encrypts is a connection on which every Write is sealed in place, and what Read has read is opened, or
// would be, were it one piece: it costs the same.
type encrypts struct {
	net.Conn
	gcm cipher.AEAD
}

func newGCM(b *testing.B) cipher.AEAD {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	return gcm
}

var floorNonce [12]byte

func (e encrypts) Write(p []byte) (int, error) {
	e.gcm.Seal(p[:0], floorNonce[:], p[:len(p)-e.gcm.Overhead()], nil)
	return e.Conn.Write(p)
}

func (e encrypts) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if n > e.gcm.Overhead() {
		_, _ = e.gcm.Open(p[:0], floorNonce[:], p[:n], nil)
	}
	return n, err
}

// small13 answers with partials of 13 bits, as they are usual, and computes nothing: what its partials
// hold stays from one use to the next.
type small13 struct{}

func (small13) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	if out.Rows == b.Rows && out.Hidden == b.Hidden {
		return nil
	}
	out.Reset(b.Rows, b.Hidden)
	for i := range out.Sum {
		out.Sum[i] = int64(i*7919%8192) - 4096
	}
	return nil
}

func moved(r *rig, before Stats) uint64 {
	s := r.Stats()
	return s.BytesIn + s.BytesOut - before.BytesIn - before.BytesOut
}

// together runs do n times, on k goroutines.
func together(b *testing.B, k, n int, do func(g int) error) {
	var group sync.WaitGroup
	for g := range k {
		group.Go(func() {
			for i := g; i < n; i += k {
				if err := do(g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// pump sends n MiB in chunks.
func pump(b *testing.B, from, to net.Conn, n int) uint64 {
	total := n << 20
	var group sync.WaitGroup
	group.Go(func() {
		chunk := make([]byte, wire.MaxChunk)
		for left := total; left > 0; left -= len(chunk) {
			chunk = chunk[:min(left, len(chunk))]
			if _, err := from.Write(chunk); err != nil {
				b.Error(err)
				return
			}
		}
	})
	p := make([]byte, wire.MaxChunk)
	for left := total; left > 0; {
		n, err := io.ReadFull(to, p[:min(left, len(p))])
		if err != nil {
			b.Error(err)
			break
		}
		left -= n
	}
	group.Wait()
	return uint64(total)
}

// measured runs do, which moves some bytes n times, and reports what they cost. It returns allocations a
// chunk.
func measured(b *testing.B, bare float64, do func(n int) uint64) float64 {
	do(16)
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	r, w := reads.Load(), writes.Load()
	cpu := spent()
	b.ResetTimer()
	bytes := do(b.N)
	b.StopTimer()
	cpu = spent() - cpu
	runtime.ReadMemStats(&is)
	chunks := float64(bytes) / wire.MaxChunk
	allocs := float64(is.Mallocs-was.Mallocs) / chunks
	b.SetBytes(int64(bytes) / int64(b.N))
	b.ReportMetric(cpu.Seconds()/(float64(bytes)/1e9)/2, "cpu-s/GB/end")
	b.ReportMetric(allocs-bare, "allocs/chunk")
	b.ReportMetric(float64(reads.Load()-r)/chunks, "reads/chunk")
	b.ReportMetric(float64(writes.Load()-w)/chunks, "writes/chunk")
	return allocs
}

// spent returns the processor time of this process.
func spent() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
