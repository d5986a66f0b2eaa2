package ws

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

func TestHeaderHasGoldenBytes(t *testing.T) {
	mask := [4]byte{1, 2, 3, 4}
	for _, tt := range []struct {
		name string
		h    ws.Header
		want string
	}{
		{"empty", ws.Header{Fin: true, OpCode: ws.OpBinary}, "\x82\x00"},
		{"fragment", ws.Header{OpCode: ws.OpText, Length: 5}, "\x01\x05"},
		{"continuation", ws.Header{Fin: true, Length: 125}, "\x80\x7d"},
		{"two bytes of length", ws.Header{Fin: true, OpCode: ws.OpBinary, Length: 126}, "\x82\x7e\x00\x7e"},
		{"most in two bytes", ws.Header{Fin: true, OpCode: ws.OpBinary, Length: 65535}, "\x82\x7e\xff\xff"},
		{"eight bytes of length", ws.Header{Fin: true, OpCode: ws.OpBinary, Length: 65536},
			"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"},
		{"most", ws.Header{Fin: true, OpCode: ws.OpBinary, Length: math.MaxInt64},
			"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"},
		{"masked", ws.Header{Fin: true, OpCode: ws.OpPing, Masked: true, Mask: mask, Length: 2}, "\x89\x82\x01\x02\x03\x04"},
		{"masked chunk", ws.Header{Fin: true, OpCode: ws.OpBinary, Masked: true, Mask: mask, Length: 16022},
			"\x82\xfe\x3e\x96\x01\x02\x03\x04"},
		{"reserved bits", ws.Header{Fin: true, Rsv: 5, OpCode: ws.OpText}, "\xd1\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := make([]byte, ws.HeaderSize(tt.h))
			putHeader(b, tt.h)
			if string(b) != tt.want {
				t.Errorf("put %x, want %x", b, tt.want)
			}
			h, n, err := parseHeader(append(b, "payload"...))
			if h != tt.h || n != len(tt.want) || err != nil {
				t.Errorf("parsed %+v, %d, %v; want %+v", h, n, err, tt.h)
			}
			for i := range tt.want {
				if _, n, err := parseHeader([]byte(tt.want[:i])); n != 0 || err != nil {
					t.Errorf("%d bytes of it: parsed %d, %v", i, n, err)
				}
			}
		})
	}
}

// Our header code against gobwas's, which reads and writes through an interface.
func FuzzHeaderAgreesWithGobwas(f *testing.F) {
	f.Add([]byte("\x82\xfe\x3e\x96\x01\x02\x03\x04"))
	f.Add([]byte("\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x05"))
	f.Add([]byte("\x82\x7e\x00\x05"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := parseHeader(b)
		want, wantErr := ws.ReadHeader(bytes.NewReader(b))
		switch {
		case err != nil && !errors.Is(err, ErrProtocol):
			t.Fatalf("error %v", err)
		case err != nil && wantErr == nil: // gobwas takes long forms of short lengths
			if want.Length > 0xffff {
				t.Fatalf("refused %+v: %v", want, err)
			}
			return
		case err != nil:
			return
		case n == 0:
			if !errors.Is(wantErr, io.EOF) && !errors.Is(wantErr, io.ErrUnexpectedEOF) {
				t.Fatalf("%x: wants more, gobwas says %v", b, wantErr)
			}
			return
		case h != want || wantErr != nil:
			t.Fatalf("%x: %+v, gobwas says %+v, %v", b, h, want, wantErr)
		}
		out := make([]byte, ws.HeaderSize(h))
		putHeader(out, h)
		if !bytes.Equal(out, b[:n]) {
			t.Fatalf("put %x, parsed from %x", out, b[:n])
		}
	})
}

func TestTextPrefixAgreesWithWholeText(t *testing.T) {
	for _, s := range append(append([]string{mixed}, utf8Good...), utf8Bad...) {
		for i := range len(s) + 1 {
			n, ok := textPrefix([]byte(s[:i]))
			// The dumb way: it can be a beginning if some end makes it whole.
			want := false
			for _, end := range []string{"", "\x80", "\x80\x80", "\x80\x80\x80", "\xbf", "\xbf\xbf", "\xbf\xbf\xbf",
				"\xa0\x80", "\x90\x80\x80"} {
				want = want || utf8.ValidString(s[:i]+end)
			}
			if ok != want || ok && (!utf8.ValidString(s[:n]) || i-n > 3) {
				t.Errorf("%q: %d %v, want %v", s[:i], n, ok, want)
			}
		}
	}
}

func TestClosePayloadFits(t *testing.T) {
	for _, tt := range []struct {
		name, reason, want string
	}{
		{"short", "bye", "bye"},
		{"longest", strings.Repeat("*", 123), strings.Repeat("*", 123)},
		{"cut", strings.Repeat("*", 124), strings.Repeat("*", 123)},
		{"cut at a character", strings.Repeat("*", 122) + "ä", strings.Repeat("*", 122)},
		{"not UTF-8", "a\xffb", "a?b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := closePayload(StatusTryLater, tt.reason)
			got, err := parseClose(p)
			if err != nil || got.Code != StatusTryLater || got.Reason != tt.want {
				t.Errorf("got %+v, %v, want %q", got, err, tt.want)
			}
		})
	}
	if p := closePayload(StatusNoStatus, "x"); len(p) != 0 {
		t.Errorf("no status: %q", p)
	}
}

func TestKeysAreNeverZero(t *testing.T) {
	var k keys
	seen := map[[4]byte]bool{}
	for range 1000 {
		key := k.next()
		if key == [4]byte{} {
			t.Fatal("key 0")
		}
		seen[key] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d different keys of 1000", len(seen))
	}
	k.pool, k.left = [256]byte{255: 9}, 8
	if key := k.next(); key != [4]byte{0, 0, 0, 9} {
		t.Errorf("key %v after one that was 0", key)
	}
}
