package ws

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// drip writes b, a byte each time that has passed, until a write goes wrong.
func drip(nc net.Conn, b []byte, each time.Duration) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for i := range b {
			time.Sleep(each)
			if _, err := nc.Write(b[i : i+1]); err != nil {
				return
			}
		}
	}()
	return done
}

// A sender of a byte now and then is alive, but gets no further with that than a message's time.
func TestSlowSendersAreCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		each time.Duration
	}{
		{"a message, a byte a second", wire(Server, fB(stars(1000))), time.Second},
		{"a ping, a byte a second", wire(Server, fP(stars(125))), time.Second},
		{"a ping within a message", wire(Server, fb("x"), fP(stars(125))), time.Second},
		{"fragments, a byte in 40 s", wire(Server, fb("x"), fc("x"), fc("x")), 40 * time.Second},
		{"nothing", nil, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range readers {
				bubble(t, func(t *testing.T) {
					near, far := net.Pipe()
					out := collect(far)
					c := New(near, Server, nil, Options{})
					start, done := time.Now(), drip(far, tt.in, tt.each)
					err := r.read(c)
					took := time.Since(start)
					oneClearLine(t, err, ErrSilent)
					// A byte, the rest of a header, the rest of a message.
					if took < DefaultIdle || took > tt.each+2*DefaultIdle {
						t.Errorf("%s: cut after %v", r.name, took)
					}
					c.CloseNow()
					<-done
					<-out.done
				})
			}
		})
	}
}

// What takes long because there is much of it, or because its reader is slow, is not a slow sender's:
// each message is waited for anew, also where the end of one and the beginning of the next always
// come together, and so is each silence between them.
func TestLongStreamsAreNotCut(t *testing.T) {
	glued := func(f frame) (parts [][]byte) { // each read ends in the midst of a frame
		b := f.wire(Server)
		parts = append(parts, b[:len(b)-3])
		for range 9 {
			parts = append(parts, append(bytes.Clone(b[len(b)-3:]), b[:len(b)-3]...))
		}
		return append(parts, b[len(b)-3:])
	}
	apart := func(fs ...frame) (parts [][]byte) { // each frame in two parts
		for range 5 {
			for _, f := range fs {
				b := f.wire(Server)
				parts = append(parts, b[:len(b)-2], b[len(b)-2:])
			}
		}
		return parts
	}
	for _, tt := range []struct {
		name  string
		parts [][]byte
	}{
		{"texts, glued", glued(fT(stars(100)))},
		{"binary, glued", glued(fB(stars(100)))},
		{"pings, glued", glued(fP(stars(100)))},
		{"pings and texts apart", apart(fP("p"), fT("text"))},
		{"pongs and binary apart", apart(fO("p"), fB("data"))},
	} {
		for _, r := range readers {
			t.Run(tt.name+"/"+r.name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					near, far := net.Pipe()
					out := collect(far)
					c := New(near, Server, nil, Options{DropText: true})
					go func() {
						for _, part := range tt.parts {
							time.Sleep(30 * time.Second)
							if _, err := far.Write(part); err != nil {
								return
							}
						}
						_, _ = far.Write(code(4000, "all").wire(Server))
					}()
					var closed *CloseError
					if err := r.read(c); !errors.As(err, &closed) || closed.Code != 4000 {
						t.Errorf("ended with %v", err)
					}
					_ = c.Close(StatusNormal, "")
					<-out.done
				})
			})
		}
	}
}

func TestSlowReadersAreNotCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		go func() { _, _ = far.Write(fB(stars(10_000)).wire(Server)) }()
		s, p := NetConn(c), make([]byte, Readahead)
		for n := 0; n < 10_000; {
			time.Sleep(time.Hour)
			m, err := s.Read(p)
			if err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			n += m
		}
		c.CloseNow()
	})
}

// A user that moves its deadline again and again does not make a silent peer one that is alive.
func TestDeadlineDoesNotProlongSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Second):
					_ = c.SetReadDeadline(time.Now().Add(time.Hour))
				}
			}
		}()
		start := time.Now()
		_, _, err := c.ReadMessage(nil)
		if !errors.Is(err, ErrSilent) || time.Since(start) != DefaultIdle {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		close(stop)
		<-done
		c.CloseNow()
		_ = far.Close()
	})
}
