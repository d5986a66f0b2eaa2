package link

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// foe is a peer whose bytes the test writes.
type foe struct {
	t    testing.TB
	conn net.Conn
	said chan []byte // all that the session has written after the handshake, when it has ended
}

// against makes a session with a foe at the other side. The session's side is role.
func against(t testing.TB, role wire.Role, w Worker, o Options) (*foe, *mux) {
	t.Helper()
	a, b := net.Pipe()
	return againstOver(t, [2]net.Conn{a, b}, role, w, o)
}

// againstOver is against over the given ends, of which the second is the foe's.
func againstOver(t testing.TB, ends [2]net.Conn, role wire.Role, w Worker, o Options) (*foe, *mux) {
	t.Helper()
	a, b := ends[0], ends[1]
	o.Hello = hello()
	o.Hello.Calls, o.Hello.Window = 4, 100_000
	made := make(chan *mux, 1)
	go func() {
		m, err := connect(context.Background(), a, o, role)
		if err != nil {
			t.Error(err)
		}
		made <- m
	}()
	other := wire.RoleBackbone
	if role == wire.RoleBackbone {
		other = wire.RoleWorker
	}
	if _, err := connect(context.Background(), b, Options{Hello: hello()}, other); err != nil {
		t.Fatal(err)
	}
	m := <-made
	if role == wire.RoleWorker {
		m.computes(w)
	} else {
		m.serve = (&Session{m: m}).fetch
	}
	m.start()
	f := &foe{t: t, conn: b, said: make(chan []byte, 1)}
	go func() {
		p, _ := io.ReadAll(b)
		f.said <- p
	}()
	return f, m
}

// send writes a message in as few chunks as it needs, or only the first of them.
func (f *foe) send(t wire.Type, call uint64, payload []byte, chunks int) {
	h := wire.NewHeader(t, len(payload), call)
	for n := 0; n == 0 || len(payload) > 0 && n < chunks; n++ {
		h.Size = min(len(payload), wire.MaxPayload)
		if _, err := f.conn.Write(append(wire.AppendHeader(nil, h), payload[:h.Size]...)); err != nil {
			return // the session has had enough
		}
		payload = payload[h.Size:]
	}
}

func (f *foe) raw(p []byte) { _, _ = f.conn.Write(p) }

// lastWord returns the text of the Fault at the end of what the session has said.
func lastWord(p []byte) (string, wire.Code) {
	for len(p) >= wire.HeaderLen {
		h, err := wire.ParseHeader(p)
		if err != nil || len(p) < wire.HeaderLen+h.Size {
			break
		}
		body := p[wire.HeaderLen : wire.HeaderLen+h.Size]
		p = p[wire.HeaderLen+h.Size:]
		if len(p) == 0 && h.Type == wire.TypeFault && h.Call == 0 {
			if f, err := wire.ParseFault(body); err == nil {
				return string(f.Text), f.Code
			}
		}
	}
	return "", 0
}

func TestRulesOfTheProtocolAreKept(t *testing.T) {
	dispatch := func(rows int) []byte { return wire.AppendDispatch(nil, 0, small(t, 1, rows)) }
	assign := wire.AppendAssign(nil, wire.Assign{Epoch: 1, Slices: []wire.Slice{{Layer: 1, Lo: 0, Hi: 2}}})
	fetch := wire.AppendFetch(nil, wire.Fetch{Size: 10})
	for _, tt := range []struct {
		name string
		role wire.Role // of the session
		do   func(*foe)
		want string
	}{
		{"garbage", wire.RoleWorker, func(f *foe) { f.raw([]byte("GET /index.html HTTP/1.1\r\n\r\n")) }, "reserved flags"},
		{"a header of ones", wire.RoleBackbone, func(f *foe) { f.raw([]byte(strings.Repeat("\xff", 16))) }, "reserved flags"},
		{"what must be known", wire.RoleWorker, func(f *foe) {
			f.raw(wire.AppendHeader(nil, wire.Header{Type: 200, Flags: wire.Must}))
		}, "update this side"},
		{"a second hello", wire.RoleWorker, func(f *foe) {
			h := hello()
			h.Min, h.Max, h.Role, h.Class = 1, 1, wire.RoleBackbone, wire.Exact
			f.send(wire.TypeHello, 0, wire.AppendHello(nil, &h), 1)
		}, "Hello within a session"},
		{"a bad payload", wire.RoleWorker, func(f *foe) { f.send(wire.TypeFault, 3, []byte{0, 0, 0, 0}, 1) }, "code 0"},

		{"dispatch to a backbone", wire.RoleBackbone, func(f *foe) { f.send(wire.TypeDispatch, 1, dispatch(1), 9) }, "Dispatch from a worker"},
		{"assign to a backbone", wire.RoleBackbone, func(f *foe) { f.send(wire.TypeAssign, 1, assign, 1) }, "Assign from a worker"},
		{"fetch to a worker", wire.RoleWorker, func(f *foe) { f.send(wire.TypeFetch, 1, fetch, 1) }, "Fetch from a backbone"},
		{"partials to a worker", wire.RoleWorker, func(f *foe) { f.send(wire.TypePartials, 1, make([]byte, 100), 1) }, "not under way"},
		{"partials for nothing", wire.RoleBackbone, func(f *foe) { f.send(wire.TypePartials, 1, make([]byte, 100), 1) }, "not under way"},
		{"fault for nothing", wire.RoleBackbone, func(f *foe) {
			f.send(wire.TypeFault, 77, wire.AppendFault(nil, wire.Fault{Code: wire.Internal}), 1)
		}, "Fault for call 77, which is not under way"},
		{"ready for nothing", wire.RoleBackbone, func(f *foe) { f.send(wire.TypeReady, 1, wire.AppendReady(nil, 1), 1) }, "not under way"},

		{"a call id again", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 5, dispatch(1), 9)
			f.send(wire.TypeDispatch, 5, dispatch(1), 9)
		}, "call 5, which was used before"},
		{"a smaller call id", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 5, dispatch(1), 9)
			f.send(wire.TypeDispatch, 4, dispatch(1), 9)
		}, "call 4, which was used before"},
		{"an id of another kind", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 5, dispatch(1), 9)
			f.send(wire.TypeAssign, 5, assign, 1)
		}, "call 5, which was used before"},
		{"call id 0", wire.RoleWorker, func(f *foe) { f.send(wire.TypeDispatch, 0, dispatch(1), 9) }, "call 0, which was used before"},
		{"too many calls", wire.RoleWorker, func(f *foe) {
			for i := range uint64(5) {
				f.send(wire.TypeDispatch, 1+i, dispatch(1), 9)
			}
		}, "more than 4 of Dispatch"},
		{"too many bytes", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 1, dispatch(600), 9)
			f.send(wire.TypeDispatch, 2, dispatch(600), 9)
		}, "and the window is 100000"},
		{"more than the window at once", wire.RoleWorker, func(f *foe) { f.send(wire.TypeDispatch, 1, dispatch(4000), 1) }, "the window is 100000"},
		{"too many assigns", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeAssign, 1, assign, 1)
			f.send(wire.TypeAssign, 2, assign, 1)
		}, "more than 1 of Assign"},
		{"a short chunk in the middle", wire.RoleWorker, func(f *foe) {
			f.raw(append(wire.AppendHeader(nil, wire.Header{Type: wire.TypeDispatch, Flags: wire.Bulk, Size: 100, Length: 50_000, Call: 1}), make([]byte, 100)...))
		}, "chunk of 100 bytes"},
		{"a message that changes its length", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 1, make([]byte, 50_000), 1)
			f.send(wire.TypeDispatch, 1, make([]byte, 49_999), 1)
		}, "of 49999, want"},
		{"a message that does not end", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 1, make([]byte, 20_000), 1)
			f.send(wire.TypeDispatch, 1, make([]byte, 20_000), 1)
		}, "want 4016 of 20000"},
		{"chunks after cancel", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 1, make([]byte, 50_000), 1)
			f.send(wire.TypeCancel, 1, nil, 1)
			f.send(wire.TypeDispatch, 1, make([]byte, 50_000), 1)
		}, "call 1, which was used before"},
		{"credit for what was not sent", wire.RoleWorker, func(f *foe) { f.send(wire.TypeCredit, 0, wire.AppendCredit(nil, 1), 1) }, "1 bulk bytes acknowledged"},
		{"a second GoAway", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeDispatch, 1, dispatch(1), 9) // holds the session
			for range 2 {
				f.send(wire.TypeGoAway, 0, wire.AppendGoAway(nil, wire.GoAway{Reason: wire.Moving}), 1)
			}
		}, "a second GoAway"},
		{"a call after GoAway", wire.RoleWorker, func(f *foe) {
			f.send(wire.TypeGoAway, 0, wire.AppendGoAway(nil, wire.GoAway{Reason: wire.Moving}), 1)
			f.send(wire.TypeDispatch, 1, dispatch(1), 9)
		}, "Dispatch after GoAway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hold := func(ctx context.Context, _ wire.Assign, _ SliceReader) (moe.Experts, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				var log logged
				f, m := against(t, tt.role, Worker{Experts: waits(nil), Assign: hold}, Options{Log: log.logger()})
				tt.do(f)
				<-m.dead
				m.wait()
				err := m.result()
				if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want ErrProtocol with %q", err, tt.want)
				}
				if text, code := lastWord(<-f.said); code != wire.Broken || !strings.Contains(text, tt.want) {
					t.Errorf("the peer is told %s %q, want broken with %q", code, text, tt.want)
				}
				if n := strings.Count(log.String(), "session ends"); n != 1 || !strings.Contains(log.String(), "reason=\"link: session closed: link: protocol error") {
					t.Errorf("logged: %s", log.String())
				}
				_ = f.conn.Close()
			})
		})
	}
}

func TestAnswersThatDoNotFitTheirCall(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*foe)
		want string
	}{
		{"too long", func(f *foe) { f.send(wire.TypePartials, 1, make([]byte, 60_000), 1) }, "want at most"},
		{"of another shape", func(f *foe) {
			var p moe.Partials
			p.Reset(2, 64)
			f.send(wire.TypePartials, 1, wire.AppendPartials(nil, &p), 1)
		}, "2 rows of 64, want 3 of 64"},
		{"of another kind", func(f *foe) { f.send(wire.TypeSliceData, 1, make([]byte, 100), 1) }, "which is a Dispatch"},
		{"twice", func(f *foe) {
			var p moe.Partials
			p.Reset(3, 64)
			f.send(wire.TypePartials, 1, wire.AppendPartials(nil, &p), 1)
			f.send(wire.TypePartials, 1, wire.AppendPartials(nil, &p), 1)
		}, "not under way"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, m := against(t, wire.RoleBackbone, Worker{}, Options{})
				s := &Session{m: m}
				m.mu.Lock()
				m.gates[0].calls, m.gates[0].size = 9, 1<<20
				m.mu.Unlock()
				done := make(chan error, 1)
				go func() { done <- s.Forward(context.Background(), small(t, 1, 3), &moe.Partials{}) }()
				synctest.Wait()
				tt.do(f)
				err := <-done
				<-m.dead
				m.wait()
				if tt.name != "twice" && !errors.Is(err, ErrProtocol) || !strings.Contains(m.result().Error(), tt.want) {
					t.Errorf("the call: %v; the session: %v, want ErrProtocol with %q", err, m.result(), tt.want)
				}
				_ = f.conn.Close()
			})
		})
	}
}

func TestAnAnswerBeforeTheWholeDispatchIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := against(t, wire.RoleBackbone, Worker{}, Options{})
		m.mu.Lock()
		m.gates[0].calls, m.gates[0].size = 9, 1<<20
		m.mu.Unlock()
		s := &Session{m: m}
		done := make(chan error, 1)
		go func() { done <- s.Forward(context.Background(), big(t, 1), &moe.Partials{}) }()
		synctest.Wait() // no Credit comes, so only 128 KiB of it are out
		f.send(wire.TypeFault, 1, wire.AppendFault(nil, wire.Fault{Code: wire.Internal}), 1)
		if err := <-done; !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "before all of it was sent") {
			t.Errorf("%v, want ErrProtocol", err)
		}
		m.wait()
		_ = f.conn.Close()
	})
}

func TestAPongOfAnotherPingIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := against(t, wire.RoleWorker, Worker{Experts: hashes{}}, Options{})
		time.Sleep(time.Second)
		f.send(wire.TypePong, 0, wire.AppendPing(nil, 999), 1)
		synctest.Wait()
		if rtt := m.stats().RTT; rtt != 0 {
			t.Errorf("a round trip of %v", rtt)
		}
		f.send(wire.TypePong, 0, wire.AppendPing(nil, 1), 1)
		f.send(wire.TypePong, 0, wire.AppendPing(nil, 1), 1) // once more means nothing
		synctest.Wait()
		if rtt := m.stats().RTT; rtt != time.Second {
			t.Errorf("a round trip of %v, want 1s", rtt)
		}
		m.close()
		_ = f.conn.Close()
	})
}

func TestWhatIsNotKnownIsSkippedAndAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := against(t, wire.RoleWorker, Worker{Experts: hashes{}}, Options{})
		f.raw(append(wire.AppendHeader(nil, wire.Header{Type: 99, Size: 500, Length: 500}), make([]byte, 500)...))
		for range 5 { // five chunks of a message of a later version
			h := wire.Header{Type: 98, Flags: wire.Bulk, Size: 10_000, Length: 50_000, Call: 3}
			f.raw(append(wire.AppendHeader(nil, h), make([]byte, h.Size)...))
		}
		f.send(wire.TypeDispatch, 1, wire.AppendDispatch(nil, 0, small(t, 1, 2)), 1)
		synctest.Wait()
		if st := m.stats(); st.Done != 1 {
			t.Errorf("the dispatch behind it: %+v", st)
		}
		m.mu.Lock()
		if m.credit.told < 50_000 {
			t.Errorf("%d bytes are acknowledged", m.credit.told)
		}
		m.mu.Unlock()
		m.close()
		_ = f.conn.Close()
	})
}

// FuzzSession: whatever a peer says after the handshake, the session ends or goes on, and leaves nothing.
func FuzzSession(f *testing.F) {
	dispatch := wire.AppendDispatch(nil, 0, small(f, 1, 2))
	whole := append(wire.AppendHeader(nil, wire.NewHeader(wire.TypeDispatch, len(dispatch), 1)), dispatch...)
	f.Add(true, whole)
	f.Add(true, append(append([]byte(nil), whole...), wire.AppendHeader(nil, wire.NewHeader(wire.TypeCancel, 0, 1))...))
	f.Add(false, append(wire.AppendHeader(nil, wire.NewHeader(wire.TypeFetch, 48, 1)), wire.AppendFetch(nil, wire.Fetch{Size: 10})...))
	f.Add(false, append(wire.AppendHeader(nil, wire.NewHeader(wire.TypeGoAway, 8, 0)), wire.AppendGoAway(nil, wire.GoAway{Reason: 1})...))
	f.Fuzz(func(t *testing.T, worker bool, p []byte) {
		synctest.Test(t, func(t *testing.T) {
			role := wire.RoleBackbone
			if worker {
				role = wire.RoleWorker
			}
			foe, m := against(t, role, Worker{Experts: hashes{}}, Options{})
			foe.raw(p)
			synctest.Wait()
			m.mu.Lock()
			if m.heldSize > m.o.Hello.Window || len(m.jobs) > 4+1+wire.MaxFetches {
				t.Errorf("%d jobs of %d bytes are held", len(m.jobs), m.heldSize)
			}
			m.mu.Unlock()
			_ = foe.conn.Close()
			m.wait()
		})
	})
}

func TestRandomMessagesEndInOrder(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			foe, m := against(t, []wire.Role{wire.RoleWorker, wire.RoleBackbone}[rng.IntN(2)], Worker{Experts: hashes{}}, Options{})
			for range 20 {
				typ := wire.Type(rng.IntN(16))
				payload := make([]byte, rng.IntN(200))
				for i := range payload {
					payload[i] = byte(rng.IntN(3))
				}
				if typ == wire.TypeDispatch {
					payload = wire.AppendDispatch(nil, 0, small(t, seed, 1+rng.IntN(300)))
				}
				foe.send(typ, uint64(rng.IntN(5)), payload, 1+rng.IntN(3))
			}
			_ = foe.conn.Close()
			m.wait()
			if err := m.result(); err != nil && !errors.Is(err, ErrClosed) {
				var away *Away
				if !errors.As(err, &away) {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
}
