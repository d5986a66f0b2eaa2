package relay

import (
	"bytes"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// counted returns what this process has read and written by read(2) and write(2) and their like, whether
// it was in memory of its own or not. splice(2) does not count there.
func counted(t testing.TB) (read, written int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skipf("this kernel does not count what a process reads: %v", err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "rchar":
			read = n
		case "wchar":
			written = n
		}
	}
	return read, written
}

// sendAll and receive move bytes by calls that /proc/self/io does not count, so that what is counted is
// the relay's.
func sendAll(nc net.Conn, p []byte) error {
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		for len(p) > 0 {
			n, err := unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_NOSIGNAL)
			if err == unix.EAGAIN {
				return false
			}
			if serr = err; err != nil {
				return true
			}
			p = p[n:]
		}
		return true
	})
	if err != nil {
		return err
	}
	return serr
}

func receive(nc net.Conn, p []byte) error {
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		for len(p) > 0 {
			n, _, err := unix.Recvfrom(int(fd), p, 0)
			if err == unix.EAGAIN {
				return false
			}
			if rerr = err; err != nil {
				return true
			}
			if n == 0 {
				rerr = io.ErrUnexpectedEOF
				return true
			}
			p = p[n:]
		}
		return true
	})
	if err != nil {
		return err
	}
	return rerr
}

// Between plain legs the kernel copies, metering and all: of 32 MiB each way this process sees none.
func TestPlainLegsAreCopiedByTheKernel(t *testing.T) {
	const size = 32 << 20
	for _, wrapped := range []bool{false, true} { // wrapped is the fault that the test is there to find
		a, ain := tcpPair(t, false)
		b, bin := tcpPair(t, false)
		near, far := leg{nc: ain}, leg{nc: bin, rest: []byte("early")}
		if wrapped {
			near.nc = struct{ net.Conn }{ain}
		}
		done := make(chan spliced, 1)
		go func() {
			up, down, err := splice(near, far, Limits{}.withDefaults(), func(uint64, uint64) {})
			done <- spliced{up, down, err}
		}()
		if _, err := io.ReadFull(a, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		before, beforeOut := counted(t)
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			want, got := bytes.Repeat([]byte("kvasir"), size/6), make([]byte, size/6*6)
			sent := make(chan error, 1)
			go func() { sent <- sendAll(way[0], want) }()
			if err := receive(way[1], got); err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil || !bytes.Equal(got, want) {
				t.Fatalf("bytes differ, or %v", err)
			}
		}
		read, written := counted(t)
		read, written = read-before, written-beforeOut
		_, _ = a.Close(), b.Close()
		if s := <-done; s != (spliced{size / 6 * 6, size/6*6 + 5, nil}) {
			t.Errorf("%+v", s)
		}
		t.Logf("wrapped %v: this process has read %d bytes and written %d of %d", wrapped, read, written, 2*size)
		if small := read < size/100 && written < size/100; small == wrapped {
			t.Errorf("wrapped %v: this process has read %d bytes and written %d of %d", wrapped, read, written, 2*size)
		}
	}
}

// The connections that a hub and a gateway splice are those that splice(2) takes, not wrappers.
func TestRelaysSpliceBareConnections(t *testing.T) {
	r := newRig(t, rigConfig{limits: quick})
	b := r.backbone(r.hubAt, nil)
	p, a := r.pair(b, r.gateAt)
	chunk, got := make([]byte, 16<<10), make([]byte, 16<<10)
	before, _ := counted(t)
	const rounds = 1000
	sent := make(chan error, 1)
	go func() {
		for range rounds {
			if _, err := p.Conn.Write(chunk); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range rounds {
		if _, err := io.ReadFull(a.Conn, got); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	read, _ := counted(t)
	// The backbone's end reads every byte once. Gateway and hub would each read it again.
	if read -= before; read > rounds*int64(len(chunk))*5/4 {
		t.Errorf("%d bytes were read for %d", read, rounds*len(chunk))
	}
}

// Nothing is held for a splice in which nothing goes: no pipe, no buffer.
func TestIdleSpliceHoldsNoPipe(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(files)
	}
	const splices = 50
	o := Limits{Tick: 10 * time.Millisecond}
	before := open()
	var ends []net.Conn
	for range splices {
		a, b, done := spliceOf(t, false, o)
		defer func() {
			_, _ = a.Close(), b.Close()
			<-done
		}()
		ends = append(ends, a, b)
	}
	for i := 0; i < len(ends); i += 2 { // wake each once
		if _, err := ends[i].Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ends[i+1], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the pipes are given back", func() bool {
		runtime.GC()                           // the pool of pipes lets go of them then
		return open()-before <= splices*4+2*16 // sockets, and what a pool of pipes may keep
	})
}

// A sender that ends behind bytes which the other side does not take is noticed.
func TestEndBehindUnreadBytesIsNoticed(t *testing.T) {
	for _, reset := range []bool{false, true} {
		a, ain := tcpPair(t, false)
		b, bin := tcpPair(t, false)
		// What the far side does not take fills its buffers and a pipe of 1 MiB; the rest, and the end
		// behind it, waits in the buffer of ain, where nobody reads it.
		_ = ain.(*net.TCPConn).SetReadBuffer(4 << 20)
		_ = bin.(*net.TCPConn).SetWriteBuffer(16 << 10)
		_ = b.(*net.TCPConn).SetReadBuffer(16 << 10)
		done := make(chan spliced, 1)
		go func() {
			up, down, err := splice(leg{nc: ain}, leg{nc: bin},
				Limits{Tick: 10 * time.Millisecond, Linger: 30 * time.Millisecond}.withDefaults(), nil)
			done <- spliced{up, down, err}
		}()
		if _, err := a.Write(make([]byte, 3<<20)); err != nil {
			t.Fatal(err)
		}
		if reset {
			_ = a.(*net.TCPConn).SetLinger(0)
		}
		_ = a.Close()
		select {
		case s := <-done:
			if s.err == nil {
				t.Errorf("reset %v: no error", reset)
			}
		case <-time.After(patience):
			t.Fatalf("reset %v: the splice goes on without its sender", reset)
		}
	}
}

// BenchmarkRelay compares a splice with what it is built on, in turns: MB/s of both and their ratio.
func BenchmarkRelay(b *testing.B) {
	for _, secure := range []bool{false, true} {
		name := "plain"
		if secure {
			name = "tls"
		}
		b.Run(name, func(b *testing.B) {
			const size = 128 << 20
			var own, bare time.Duration
			relayed(b, secure, 8<<20, true) // warm up
			b.ResetTimer()
			for i := range b.N {
				if i%2 == 0 {
					own += relayed(b, secure, size, true)
					bare += relayed(b, secure, size, false)
				} else {
					bare += relayed(b, secure, size, false)
					own += relayed(b, secure, size, true)
				}
			}
			total := float64(b.N) * size / 1e6
			b.ReportMetric(total/own.Seconds(), "MB/s-relay")
			b.ReportMetric(total/bare.Seconds(), "MB/s-bare")
			b.ReportMetric(bare.Seconds()/own.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// relayed sends size bytes from a client, with TLS on that leg if secure, through a copy to a server.
func relayed(b *testing.B, secure bool, size int, own bool) time.Duration {
	b.Helper()
	client, ain := tcpPair(b, secure)
	bin, server := tcpPair(b, false)
	done := make(chan error, 1)
	if own {
		go func() {
			_, _, err := splice(leg{nc: ain}, leg{nc: bin}, Limits{}.withDefaults(), func(uint64, uint64) {})
			done <- err
		}()
	} else {
		go func() {
			_, err := io.Copy(bin, ain)
			_ = bin.(*net.TCPConn).CloseWrite()
			done <- err
		}()
	}
	chunk := make([]byte, 64<<10)
	began := time.Now()
	go func() {
		for left := size; left > 0; left -= len(chunk) {
			if _, err := client.Write(chunk); err != nil {
				b.Error(err)
				return
			}
		}
		_ = client.(interface{ CloseWrite() error }).CloseWrite()
	}()
	buf := make([]byte, 256<<10)
	for got := 0; got < size; {
		n, err := server.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		got += n
	}
	took := time.Since(began)
	sever(client)
	sever(server)
	<-done
	return took
}
