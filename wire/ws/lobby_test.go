package ws

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLobbyKeepsBinaryAndTakesText(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []frame
		text []string
		rest []frame
		pong []frame
	}{
		{"nothing", nil, nil, nil, nil},
		{"text", list(fT("here"), fT("here")), []string{"here", "here"}, nil, nil},
		{"early binary", list(fT("here"), fB("hello")), []string{"here"}, list(fB("hello")), nil},
		{"text after early binary", list(fB("1"), fT("a"), fB("2"), fT("b")), []string{"a", "b"}, list(fB("1"), fB("2")), nil},
		{"fragments", list(fb("1"), fP("p"), fc("2"), fC("3"), ft("a"), fO(""), fc("b"), fC("c")), []string{"abc"},
			list(fb("1"), fc("2"), fC("3")), list(fO("p"))},
		{"binary without an end", list(fT("a"), fb("1"), fc("2")), []string{"a"}, list(fb("1"), fc("2")), nil},
		{"text without an end", list(fB("1"), fT("a"), ft("b"), fP("p"), fc("c")), []string{"a"},
			list(fB("1"), ft("b"), fc("c")), list(fO("p"))},
		{"empty text", list(fT(""), ft(""), fC("")), []string{"", ""}, nil, nil},
	} {
		for _, chop := range []int{1, 3, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d a write", tt.name, chop), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					near, far := net.Pipe()
					out := collect(far)
					l := NewLobby(New(near, Server, nil, Options{}), 16<<10)
					go func() {
						for b := range slices.Chunk(wire(Server, tt.in...), chop) {
							_, _ = far.Write(b)
						}
						synctest.Wait()
						_ = l.Interrupt()
					}()
					var text []string
					for {
						p, err := l.Read()
						if err != nil {
							if !errors.Is(err, os.ErrDeadlineExceeded) {
								t.Fatal(err)
							}
							break
						}
						text = append(text, string(p))
					}
					nc, rest, err := l.Detach()
					if err != nil || nc != near {
						t.Fatal(err)
					}
					if !slices.Equal(text, tt.text) || !bytes.Equal(rest, wire(Server, tt.rest...)) {
						t.Errorf("text %q, rest %x; want %q, %x", text, rest, tt.text, wire(Server, tt.rest...))
					}
					_ = nc.Close()
					<-out.done
					if got := frames(t, Server, out.bytes()); !slices.Equal(got, tt.pong) {
						t.Errorf("sent %v", got)
					}
				})
			})
		}
	}
}

// Whatever moment it is interrupted at, and however the bytes come, text read and bytes handed over
// together are all there is.
func TestLobbyHandsOverAtAnyByte(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	in := list(fT("here"), fB("one"), fP("p"), ft("he"), fc("r"), fC("e"), fb("tw"), fC("o"), fT("here"))
	b := wire(Server, in...)
	for cut := range len(b) + 1 {
		head := rnd.IntN(cut + 1) // glued to the upgrade
		bubble(t, func(t *testing.T) {
			near, far := net.Pipe()
			out := collect(far)
			l := NewLobby(New(near, Server, bytes.Clone(b[:head]), Options{}), 16<<10)
			go func() {
				_, _ = far.Write(b[head:cut])
				synctest.Wait()
				_ = l.Interrupt()
			}()
			texts := 0
			for {
				if _, err := l.Read(); err != nil {
					break
				}
				texts++
			}
			nc, rest, err := l.Detach()
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = far.Write(b[cut:]); _ = far.Close() }()
			c := New(nc, Server, rest, Options{})
			slab, binary := make([]byte, 100), ""
			for {
				op, n, err := c.ReadMessage(slab)
				if err != nil {
					break
				}
				if op == Text {
					texts++
				} else {
					binary += string(slab[:n])
				}
			}
			if texts != 3 || binary != "onetwo" {
				t.Errorf("cut at %d, %d glued: %d texts, binary %q", cut, head, texts, binary)
			}
			c.CloseNow()
			<-out.done
		})
	}
}

func TestLobbyRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want error
	}{
		{"too much binary", wire(Server, fB(stars(500)), fB(stars(500))), ErrTooBig},
		{"binary that says it is too much", []byte("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff****"), ErrTooBig},
		{"empty binary for ever", bytes.Repeat(fB("").wire(Server), 1000), ErrTooBig},
		{"text too long", wire(Server, ft(stars(150)), fC(stars(60))), ErrTooBig},
		{"empty text fragments for ever", append(ft("").wire(Server), bytes.Repeat(fc("").wire(Server), 100)...), ErrTooBig},
		{"text that is none", wire(Server, fT("\xff")), ErrUTF8},
		{"text that ends early", wire(Server, fT("\xce")), ErrUTF8},
		{"an unmasked frame", wire(Client, fT("here")), ErrProtocol},
		{"a continuation of nothing", wire(Server, fC("here")), ErrProtocol},
		{"a reserved opcode", wire(Server, op(3, "")), ErrProtocol},
		{"a half", []byte("\x82"), ErrCut},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			out := collect(far)
			go func() { _, _ = far.Write(tt.in); _ = far.Close() }()
			c := New(near, Server, nil, Options{Message: 200})
			l := NewLobby(c, 900)
			_, err := l.Read()
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if cap(l.raw) > 8<<10 {
				t.Errorf("%d bytes for limits of 900 and 200", cap(l.raw))
			}
			if _, _, again := l.Detach(); !errors.Is(again, err) {
				t.Errorf("detach: %v", again)
			}
			_ = c.Close(StatusNormal, "")
			<-out.done
		})
	}
}

func TestLobbyEndsByClose(t *testing.T) {
	near, far := net.Pipe()
	out := collect(far)
	go func() { _, _ = far.Write(wire(Server, fB("x"), code(1001, "bye"))) }()
	c := New(near, Server, nil, Options{})
	l := NewLobby(c, 100)
	var closed *CloseError
	if _, err := l.Read(); !errors.As(err, &closed) || closed.Code != StatusGoingAway {
		t.Errorf("got %v", err)
	}
	if err := c.Close(StatusNormal, ""); err != nil {
		t.Errorf("close: %v", err)
	}
	<-out.done
}

func TestLobbyGivesBackAConnectionWithoutDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		out := collect(far)
		c := New(near, Server, nil, Options{})
		l := NewLobby(c, 100)
		if err := c.WriteMessage(Text, []byte("paired")); err != nil {
			t.Fatal(err)
		}
		_ = l.Interrupt()
		if _, err := l.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if err := l.Resume(); err != nil {
			t.Fatal(err)
		}
		nc, _, err := l.Detach()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Hour)
			_, _ = far.Write([]byte("x"))
		}()
		if _, err := nc.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if err := c.WriteMessage(Text, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("write after Detach: %v", err)
		}
		if _, err := l.Read(); !errors.Is(err, ErrClosed) {
			t.Errorf("read after Detach: %v", err)
		}
		_ = nc.Close()
		<-out.done
	})
}

// Close finds the peer's Close frame behind what the Lobby has read and not used up.
func TestLobbyIsClosedInTheMidstOfAFrame(t *testing.T) {
	in := wire(Server, fT("here"), fb("kept"), fc("half a frame"), code(1000, ""))
	for cut := range in {
		bubble(t, func(t *testing.T) {
			near, far := net.Pipe()
			out := collect(far)
			c := New(near, Server, nil, Options{})
			l := NewLobby(c, 100)
			go func() {
				_, _ = far.Write(in[:cut/2])
				synctest.Wait()
				_, _ = far.Write(in[cut/2 : cut])
				synctest.Wait()
				_ = l.Interrupt()
				time.Sleep(time.Second)
				_, _ = far.Write(in[cut:])
			}()
			for {
				if _, err := l.Read(); err != nil {
					break
				}
			}
			if err := c.Close(StatusGoingAway, "drain"); err != nil {
				t.Errorf("cut at %d: %v", cut, err)
			}
			<-out.done
		})
	}
}

func TestDetachSendsThePongsThatAreDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		l := NewLobby(New(near, Server, nil, Options{}), 100)
		go func() {
			_, _ = far.Write(fP("1").wire(Server))
			synctest.Wait() // its Pong waits to be read
			_, _ = far.Write(fP("2").wire(Server))
			_ = l.Interrupt()
		}()
		if _, err := l.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			p := make([]byte, 100)
			for range 2 {
				n, err := far.Read(p)
				if err != nil {
					t.Error(err)
				}
				_ = frames(t, Server, p[:n])
			}
			_, _ = far.Write([]byte("handed over"))
		}()
		nc, _, err := l.Detach()
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 100)
		if n, err := nc.Read(p); err != nil || string(p[:n]) != "handed over" {
			t.Errorf("read %q, %v", p[:n], err)
		}
		_, _ = nc.Close(), far.Close()
	})
}

// However much of a stream a Lobby has used up, it and a Conn on the rest together read what a dumb
// reader reads: the texts in their order, and the binary messages in theirs.
func TestLobbyAndConnAgreeWithADumbReader(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const limit = 1 << 20
	for range 80 {
		b := append(randomFrames(rnd, Server), code(1000, "").wire(Server)...)
		want := dumb(Server, b, limit, false)
		c := New(&once{b: b, chunk: 1 + rnd.IntN(5000)}, Server, nil, Options{Message: limit})
		l := NewLobby(c, limit)
		texts := slices.DeleteFunc(slices.Clone(want.messages), func(f frame) bool { return f.op != Text })
		var got []frame
		if len(texts) > 0 {
			for range rnd.IntN(len(texts) + 1) {
				p, err := l.Read()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fT(string(p)))
			}
		}
		nc, rest, err := l.Detach()
		if err != nil {
			t.Fatal(err)
		}
		c = New(nc, Server, rest, Options{Message: limit})
		slab := make([]byte, limit)
		for {
			op, n, err := c.ReadMessage(slab)
			if err != nil {
				want.same(t, err)
				break
			}
			got = append(got, frame{op: op, fin: true, p: string(slab[:n])})
		}
		c.CloseNow()
		for _, op := range []OpCode{Text, Binary} {
			other := func(f frame) bool { return f.op != op }
			if !slices.Equal(slices.DeleteFunc(slices.Clone(got), other),
				slices.DeleteFunc(slices.Clone(want.messages), other)) {
				t.Fatalf("%d messages of %d, or others", len(got), len(want.messages))
			}
		}
	}
}
