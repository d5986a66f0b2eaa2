package ws

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/gobwas/ws"
)

// BenchmarkFrames sends frames over loopback TCP, client to server, and counts payload bytes. bare
// is the same bytes without frames; gobwas is what that package does when left to itself.
func BenchmarkFrames(b *testing.B) {
	for _, n := range []int{1 << 10, 16022, 1 << 20} {
		o := Options{Message: 1 << 20}
		slab := make([]byte, Headroom+n)
		in := make([]byte, n)
		b.Run(fmt.Sprintf("bare/%d", n), func(b *testing.B) {
			transfer(b, n, func(nc net.Conn) error { _, err := nc.Write(slab[Headroom:]); return err },
				func(nc net.Conn) error { _, err := io.ReadFull(nc, in); return err })
		})
		var c, s *Conn
		b.Run(fmt.Sprintf("ws/%d", n), func(b *testing.B) {
			c, s = nil, nil
			transfer(b, n, func(nc net.Conn) error {
				if c == nil {
					c = New(nc, Client, nil, o)
				}
				return c.WriteSlab(Binary, slab)
			}, func(nc net.Conn) error {
				if s == nil {
					s = New(nc, Server, nil, o)
				}
				_, _, err := s.ReadMessage(in)
				return err
			})
		})
		b.Run(fmt.Sprintf("gobwas/%d", n), func(b *testing.B) {
			transfer(b, n, func(nc net.Conn) error {
				return ws.WriteFrame(nc, ws.MaskFrame(ws.NewBinaryFrame(slab[Headroom:])))
			}, func(nc net.Conn) error {
				f, err := ws.ReadFrame(nc) //nolint:staticcheck // deprecated for the reason that it is measured for
				ws.UnmaskFrameInPlace(f)
				return err
			})
		})
	}
}

// transfer runs write and read, each for a frame, at the two ends of a connection.
func transfer(b *testing.B, n int, write, read func(net.Conn) error) {
	x, y := loopback(b)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	done := make(chan error, 1)
	b.ResetTimer()
	go func() {
		for range b.N {
			if err := write(x); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range b.N {
		if err := read(y); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func BenchmarkMask(b *testing.B) {
	p := make([]byte, 16022)
	b.SetBytes(int64(len(p)))
	for range b.N {
		ws.Cipher(p, [4]byte{1, 2, 3, 4}, 0)
	}
}
