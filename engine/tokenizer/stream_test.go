package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// bytesTokenizer has a token for every byte, and one control token, 256.
func bytesTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	v := byteVocab("<|end|>")
	v.Types[256] = typeControl
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestStreamHoldsHalfCharactersBack(t *testing.T) {
	tok := bytesTokenizer(t)
	for _, x := range []struct {
		name  string
		bytes string
		want  string // pieces by push and the flush, separated by |
	}{
		{"plain", "ab", "a|b|"},
		{"two bytes", "é", "|é|"},
		{"four bytes and more", "🙂!", "|||🙂|!|"},
		{"cut short by a letter", "\xe6\x97a", "||\ufffda|"},
		{"cut short by the end", "a\xf0\x9f\x99", "a||||\ufffd"},
		{"cut short by another", "\xe6\x97\xe6\x97\xa5", "||\ufffd||日|"},
		{"never the start of one", "\x80\xffa", "\ufffd|\ufffd|a|"},
		{"overlong", "\xc0\x80", "\ufffd|\ufffd|"},
		{"surrogate", "\xed\xa0\x80", "|\ufffd\ufffd|\ufffd|"},
		{"beyond Unicode", "\xf4\x90", "|\ufffd\ufffd|"},
		{"a real U+FFFD", "\ufffd", "||\ufffd|"},
		// From the Unicode standard, table 3-11.
		{"of the standard", "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "||\ufffd|\ufffd|||\ufffd||\ufffdA|"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := tok.Stream(false)
			var got strings.Builder
			for i := range len(x.bytes) {
				got.WriteString(s.Push(int32(x.bytes[i])) + "|")
			}
			got.WriteString(s.Flush())
			if got.String() != x.want {
				t.Errorf("% x came out as %q, want %q", x.bytes, got.String(), x.want)
			}
			if again := s.Flush(); again != "" {
				t.Errorf("flushed again: %q", again)
			}
		})
	}
}

func TestStreamHidesControlTokens(t *testing.T) {
	tok := bytesTokenizer(t)
	for _, x := range []struct {
		name    string
		control bool
		want    string
	}{
		{"hidden", false, "a|b||\ufffd|b|"},
		{"shown", true, "a|b||\ufffd<|end|>|b|"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := tok.Stream(x.control)
			var got string
			for _, id := range []int32{'a', 'b', 0xe6, 256, 'b'} {
				got += s.Push(id) + "|"
			}
			if got != x.want {
				t.Errorf("got %q, want %q", got, x.want)
			}
		})
	}
}

// checkStream holds the pieces of a stream against each other and against the text as a whole.
func checkStream(t *testing.T, tok *Tokenizer, ids []int32) {
	t.Helper()
	var all []byte
	var got strings.Builder
	s := tok.Stream(true)
	for _, id := range ids {
		all = tok.AppendToken(all, id)
		piece := s.Push(id)
		if !utf8.ValidString(piece) {
			t.Fatalf("%v: piece %q is not valid UTF-8", ids, piece)
		}
		if len(s.held) >= utf8.UTFMax {
			t.Fatalf("%v: %d bytes are held back", ids, len(s.held))
		}
		got.WriteString(piece)
	}
	got.WriteString(s.Flush())
	if want := dumbDecode(all); got.String() != want {
		t.Fatalf("%v: pieces make %q, want %q", ids, got.String(), want)
	}
	if whole := tok.Decode(ids); whole != got.String() {
		t.Fatalf("%v: decoded %q, streamed %q", ids, whole, got.String())
	}
}

// dumbDecode finds the longest beginning of a character by trying what could follow.
func dumbDecode(b []byte) string {
	begins := func(b []byte) bool {
		for _, tail := range []string{
			"\x80", "\xa0", "\x80\x80", "\xa0\x80", "\x90\x80", "\x80\x80\x80", "\x90\x80\x80",
		} {
			if _, n := utf8.DecodeRuneInString(string(b) + tail); n > 1 && n == len(b)+len(tail) {
				return true
			}
		}
		return false
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for n < len(b) && begins(b[:n+1]) {
				n++
			}
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

func TestStreamPiecesMakeTheText(t *testing.T) {
	tok := tokenizer(t, "ref", "qwen35")
	rng := rand.New(rand.NewPCG(13, 14))
	for range 5000 {
		ids := make([]int32, rng.IntN(20))
		for i := range ids {
			ids[i] = int32(rng.IntN(tok.Size()))
			if rng.IntN(2) == 0 {
				ids[i] = tok.byteID[128+rng.IntN(128)]
			}
		}
		checkStream(t, tok, ids)
	}
}
