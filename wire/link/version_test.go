package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"kvasir/wire"
)

// nextHello is the payload of a Hello of the version after the present one: a longer fixed part, bits and
// bytes that mean nothing yet, and versions from oldest to the next.
func nextHello(role wire.Role, oldest uint16) []byte {
	h := hello()
	h.Min, h.Max, h.Role, h.Class, h.Arithmetic = oldest, wire.Version+1, role, wire.Exact, 1
	h.Features = 1<<63 | 1<<5
	h.Calls, h.Window = 4, 1<<20
	p := wire.AppendHello(nil, &h)
	fixed := int(binary.LittleEndian.Uint16(p))
	binary.LittleEndian.PutUint16(p, uint16(fixed+40))
	return append(p[:fixed:fixed], append(bytes.Repeat([]byte{0xee}, 40), p[fixed:]...)...)
}

// next is a peer of the next version: it says what nobody knows yet, then its Hello, and returns the other
// side's Hello and verdict.
func next(t *testing.T, conn net.Conn, role wire.Role, oldest uint16) (h wire.Hello, verdict wire.Type, text string) {
	t.Helper()
	say := func(typ wire.Type, p []byte) {
		head := wire.AppendHeader(nil, wire.Header{Type: typ, Size: len(p), Length: len(p)})
		if _, err := conn.Write(append(head, p...)); err != nil {
			t.Error(err)
		}
	}
	hear := func() (wire.Type, []byte) {
		head := make([]byte, wire.HeaderLen)
		if _, err := io.ReadFull(conn, head); err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(head)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, h.Size)
		if _, err := io.ReadFull(conn, p); err != nil {
			t.Fatal(err)
		}
		return h.Type, p
	}
	hearHello := func() {
		typ, p := hear()
		if err := wire.ParseHello(&h, p); typ != wire.TypeHello || err != nil {
			t.Fatalf("%v, %v", typ, err)
		}
	}
	if role == wire.RoleBackbone {
		hearHello()
	}
	say(77, []byte("something of the next version"))
	say(wire.TypeHello, nextHello(role, oldest))
	if role == wire.RoleWorker {
		hearHello()
	} else if oldest <= wire.Version {
		say(wire.TypeReady, wire.AppendReady(nil, 0))
	} else {
		say(wire.TypeFault, wire.AppendFault(nil, wire.Fault{Code: wire.Refused, Text: []byte("too old for me")}))
		return h, wire.TypeFault, ""
	}
	verdict, p := hear()
	if f, err := wire.ParseFault(p); verdict == wire.TypeFault && err == nil {
		text = string(f.Text)
	}
	if role == wire.RoleWorker && verdict == wire.TypeReady {
		say(wire.TypeReady, wire.AppendReady(nil, 0))
	}
	return h, verdict, text
}

func TestTheNextVersionSpeaksThisOne(t *testing.T) {
	for _, role := range []wire.Role{wire.RoleWorker, wire.RoleBackbone} {
		t.Run("it is the "+role.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				made := make(chan *mux, 1)
				go func() {
					m, err := connect(context.Background(), a, Options{Hello: hello()}, wire.RoleWorker+wire.RoleBackbone-role)
					if err != nil {
						t.Error(err)
					}
					made <- m
				}()
				h, verdict, text := next(t, b, role, wire.Version)
				if verdict != wire.TypeReady || h.Max != wire.Version || h.Min != wire.VersionMin {
					t.Errorf("%v %q; it speaks %d to %d", verdict, text, h.Min, h.Max)
				}
				m := <-made
				if m == nil {
					return
				}
				if m.version != wire.Version || m.peer.Max != wire.Version+1 || m.peer.Features != 1<<63|1<<5 ||
					string(m.peer.Agent) != "test" {
					t.Errorf("version %d, peer %+v", m.version, m.peer)
				}
				_, _ = a.Close(), b.Close()
			})
		})
	}
}

// TestAVersionThatIsTooNewIsRefused has a peer that has left this version behind.
func TestAVersionThatIsTooNewIsRefused(t *testing.T) {
	for _, role := range []wire.Role{wire.RoleWorker, wire.RoleBackbone} {
		t.Run("it is the "+role.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				var log logged
				done := make(chan error, 1)
				go func() {
					_, err := connect(context.Background(), a, Options{Hello: hello(), Log: log.logger()}, wire.RoleWorker+wire.RoleBackbone-role)
					done <- err
				}()
				_, verdict, text := next(t, b, role, wire.Version+1)
				want := "update the older side"
				if role == wire.RoleWorker && (verdict != wire.TypeFault || !strings.Contains(text, want)) {
					t.Errorf("%v %q, want a Fault with %q", verdict, text, want)
				}
				if role == wire.RoleBackbone {
					want = "too old for me"
				}
				if err := <-done; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want ErrRefused with %q", err, want)
				}
				if !strings.Contains(log.String(), "session refused") || !strings.Contains(log.String(), want) {
					t.Errorf("logged %s", log.String())
				}
				_ = b.Close()
			})
		})
	}
}

func TestSlicesOfOneModelAreCompared(t *testing.T) {
	slice := func(layer, lo int, hash byte) wire.Slice {
		return wire.Slice{Layer: layer, Lo: lo, Hi: lo + 8, Hash: wire.Hash{hash}}
	}
	for _, tt := range []struct {
		name             string
		worker, backbone []wire.Slice
		want             string
	}{
		{"none", nil, nil, ""},
		{"the same", []wire.Slice{slice(1, 0, 7), slice(1, 8, 8)}, []wire.Slice{slice(1, 8, 8), slice(1, 0, 7)}, ""},
		{"another layer", []wire.Slice{slice(2, 0, 9)}, []wire.Slice{slice(1, 0, 7)}, ""},
		{"not said", []wire.Slice{slice(1, 0, 0)}, []wire.Slice{slice(1, 0, 7)}, ""},
		{"another hash", []wire.Slice{slice(1, 0, 7), slice(1, 8, 9)}, []wire.Slice{slice(1, 0, 7), slice(1, 8, 8)},
			"the worker has 0900000000000000 for experts 8 to 15 of layer 1, the backbone 0800000000000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				bh, wh := hello(), hello()
				bh.Slices, wh.Slices = tt.backbone, tt.worker
				var logs [2]logged
				served := make(chan error, 1)
				go func() {
					served <- Serve(context.Background(), b, Worker{Experts: hashes{}}, Options{Hello: wh, Log: logs[0].logger()})
				}()
				s, err := Open(context.Background(), a, Options{Hello: bh, Log: logs[1].logger()})
				if tt.want == "" {
					if err != nil {
						t.Fatal(err)
					}
					_ = s.Close()
					<-served
					return
				}
				for side, err := range []error{<-served, err} {
					if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(logs[side].String(), tt.want) {
						t.Errorf("side %d: %v; logged %s; want %q", side, err, logs[side].String(), tt.want)
					}
				}
			})
		})
	}
}
