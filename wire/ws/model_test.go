package ws

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// A reading is what a reader makes of the bytes of a peer.
type reading struct {
	messages []frame // whole ones
	stream   []byte  // payload of binary frames, as far as it came
	err      error   // a sentinel, or a *CloseError
	unsure   bool    // the end lies within a header, which may have been wrong already
}

// dumb reads b as a Conn of the given role should: a frame at a time, with gobwas's own parser and
// its list of rules, and with no thought of buffers. A stream takes no text.
func dumb(role Role, b []byte, limit int, stream bool) (got reading) {
	r := bytes.NewReader(b)
	state := map[Role]ws.State{Server: ws.StateServerSide, Client: ws.StateClientSide}[role]
	var op OpCode
	var message []byte
	more, count := false, 0
	for {
		at := len(b) - r.Len()
		h, err := ws.ReadHeader(r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			got.err, got.unsure = ErrCut, true
			return got
		}
		s := state
		if more {
			s = s.Set(ws.StateFragmented)
		}
		long := err == nil && len(b)-r.Len()-at != ws.HeaderSize(h)
		if err != nil || long || ws.CheckHeader(h, s) != nil {
			got.err = ErrProtocol
			return got
		}
		control := h.OpCode.IsControl()
		if count >= spareFrames+limit/meanFragment || !control && h.Length > int64(limit-len(message)) {
			got.err = ErrTooBig
			return got
		}
		if !control && h.OpCode != ws.OpContinuation {
			if op = h.OpCode; op == Text && stream {
				got.err = ErrUnsupported
				return got
			}
		}
		p := make([]byte, h.Length)
		n, err := io.ReadFull(r, p)
		p = p[:n]
		if h.Masked {
			ws.Cipher(p, h.Mask, 0)
		}
		if control {
			if err != nil {
				got.err = ErrCut
				return got
			}
			if h.OpCode == ws.OpClose {
				got.err = dumbClose(p)
				return got
			}
			if more {
				count++
			}
			continue
		}
		message = append(message, p...)
		count++
		if op == Binary {
			got.stream = append(got.stream, p...)
		}
		more = !h.Fin
		if op == Text && !beginsText(message, err == nil && !more) {
			got.err = ErrUTF8
			return got
		}
		if err != nil {
			got.err = ErrCut
			return got
		}
		if !more {
			got.messages = append(got.messages, frame{op: op, fin: true, p: string(message)})
			message, count = message[:0], 0
		}
	}
}

func dumbClose(p []byte) error {
	code, reason := ws.ParseCloseFrameData(p)
	switch {
	case len(p) == 0:
		return &CloseError{Code: StatusNoStatus}
	case len(p) == 1 || !sendable(code):
		return ErrProtocol
	case !utf8.ValidString(reason):
		return ErrUTF8
	}
	return &CloseError{code, reason}
}

// beginsText reports whether p is text, or, unless it is whole, whether more can make it so.
func beginsText(p []byte, whole bool) bool {
	ends := []string{""}
	if !whole {
		ends = append(ends, "\x80", "\x80\x80", "\x80\x80\x80", "\xbf", "\xbf\xbf", "\xbf\xbf\xbf", "\xa0\x80", "\x90\x80\x80")
	}
	for _, end := range ends {
		if utf8.ValidString(string(p) + end) {
			return true
		}
	}
	return false
}

// same checks that a Conn that ended with err agrees with want about the end.
func (want *reading) same(t *testing.T, err error) {
	t.Helper()
	var theirs, ours *CloseError
	switch {
	case errors.As(want.err, &theirs):
		if !errors.As(err, &ours) || *ours != *theirs {
			t.Errorf("ended with %v, want %v", err, want.err)
		}
	case want.unsure && errors.Is(err, ErrProtocol):
	case !errors.Is(err, want.err):
		t.Errorf("ended with %v, want %v", err, want.err)
	}
}

// agree reads b by messages into a slab of limit+slack bytes, and as a stream, in reads of chunk
// bytes, and compares with the dumb reader.
func agree(t *testing.T, role Role, b []byte, limit, chunk, slack int) {
	t.Helper()
	o := Options{Message: limit, Close: time.Millisecond}
	want := dumb(role, b, limit, false)
	c := New(&once{b: b, chunk: chunk}, role, nil, o)
	slab := make([]byte, limit+slack)
	for i := 0; ; i++ {
		op, n, err := c.ReadMessage(slab)
		if err != nil {
			want.same(t, err)
			if i != len(want.messages) {
				t.Errorf("%d messages, want %d", i, len(want.messages))
			}
			break
		}
		if i >= len(want.messages) || want.messages[i].op != op || want.messages[i].p != string(slab[:n]) {
			t.Fatalf("message %d: kind %v, %d bytes; %d wanted", i, op, n, len(want.messages))
		}
	}
	c.CloseNow()

	want = dumb(role, b, limit, true)
	c = New(&once{b: b, chunk: chunk}, role, nil, o)
	s := NetConn(c)
	var got []byte
	for p := make([]byte, 1+slack); ; {
		n, err := s.Read(p)
		got = append(got, p[:n]...)
		if err != nil {
			want.same(t, c.rerr)
			break
		}
	}
	if !bytes.Equal(got, want.stream) {
		t.Errorf("stream of %d bytes, want %d", len(got), len(want.stream))
	}
	c.CloseNow()
}

// However the bytes come, and however large the slabs are, a Conn reads what a dumb reader reads.
func TestConnAgreesWithADumbReader(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		role := Role(rnd.IntN(2))
		b := randomFrames(rnd, role)
		switch rnd.IntN(4) {
		case 0: // cut
			b = b[:rnd.IntN(len(b)+1)]
		case 1: // a bit is wrong, mostly in a payload
			if len(b) > 0 {
				b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			}
		}
		chunk := []int{1 + rnd.IntN(30), 4000 + rnd.IntN(200), 1 << 20}[rnd.IntN(3)]
		slack := []int{0, rnd.IntN(20), Readahead - 1 + rnd.IntN(3), 40_000}[rnd.IntN(4)]
		agree(t, role, b, DefaultMessage, chunk, slack)
		if t.Failed() {
			t.Fatalf("role %v, reads of %d bytes, slack of %d", role, chunk, slack)
		}
	}
}

func randomFrames(rnd *rand.Rand, role Role) (b []byte) {
	control := func() {
		for rnd.IntN(3) == 0 {
			b = append(b, op(byte(9+rnd.IntN(2)), stars(rnd.IntN(126))).wire(role)...)
		}
	}
	for range rnd.IntN(20) {
		control()
		f := op(byte(1+rnd.IntN(2)), "")
		if rnd.IntN(3) > 0 {
			f.op = Binary
		}
		left := []int{0, rnd.IntN(300), 3900 + rnd.IntN(400), rnd.IntN(DefaultMessage + 1), DefaultMessage}[rnd.IntN(5)]
		for f.fin = false; !f.fin; f.op = ws.OpContinuation {
			n := left
			if rnd.IntN(3) == 0 {
				n = rnd.IntN(left + 1)
			}
			f.p, f.fin = stars(n), n == left && rnd.IntN(4) > 0
			left -= n
			b = append(b, f.wire(role)...)
			control()
		}
	}
	if rnd.IntN(2) == 0 {
		b = append(b, code(1000, "bye").wire(role)...)
	}
	return b
}

// The same for bytes that a fuzzer finds.
func FuzzConnAgreesWithADumbReader(f *testing.F) {
	for _, r := range rules() {
		if b := wire(Server, r.in...); len(b) < 1000 {
			f.Add(b, true, uint16(3), uint16(0))
			f.Add(wire(Client, r.in...), false, uint16(1<<15), uint16(Readahead))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, server bool, chunk, slack uint16) {
		role := Client
		if server {
			role = Server
		}
		agree(t, role, b, 6000, 1+int(chunk), int(slack)%(2*Readahead))
	})
}
