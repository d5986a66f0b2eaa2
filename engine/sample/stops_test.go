package sample

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStopsEndTheText(t *testing.T) {
	for _, c := range []struct {
		name   string
		list   []string
		pieces string // parted by |
		out    string // what comes of each, and of Flush unless the text stopped
		ended  bool
	}{
		{"none", nil, "a|b||c", "a|b||c|", false},
		{"in one piece", []string{"stop"}, "one stop two|three", "one |", true},
		{"over pieces", []string{"stop"}, "one s|t|o|p|x", "one |||||", true},
		{"nearly", []string{"stop"}, "one sto|ne", "one |stone|", false},
		{"held at the end", []string{"stop"}, "one sto", "one |sto", false},
		{"begins again in itself", []string{"aab"}, "aa|a|b", "|a|", true},
		{"the whole text", []string{"a"}, "a", "", true},
		{"several, the first to be complete", []string{"abcd", "bc"}, "xabcd", "xa", true},
		{"several that end together, the longest", []string{"c", "abc", "bc"}, "xabc", "x", true},
		{"the longest held", []string{"cd!", "bcd?"}, "abcd|.", "a|bcd.|", false},
		{"characters", []string{"é!"}, "caf|é|é|!", "caf||é|", true},
		{"empty pieces keep what is held", []string{"ab"}, "a|||c", "|||ac|", false},
	} {
		s, err := NewStops(c.list)
		if err != nil {
			t.Fatal(err)
		}
		var outs []string
		ended := false
		for piece := range strings.SplitSeq(c.pieces, "|") {
			out, stopped := s.Push(piece)
			if ended && (out != "" || !stopped) {
				t.Errorf("%s: %q, %v after the end", c.name, out, stopped)
			}
			outs, ended = append(outs, out), stopped
		}
		if rest := s.Flush(); !ended {
			outs = append(outs, rest)
		} else if rest != "" {
			t.Errorf("%s: %q is left after the end", c.name, rest)
		}
		if got := strings.Join(outs, "|"); strings.TrimRight(got, "|") != strings.TrimRight(c.out, "|") || ended != c.ended {
			t.Errorf("%s: %q, ended %v; want %q, %v", c.name, got, ended, c.out, c.ended)
		}
		if s.Flush() != "" {
			t.Errorf("%s: flushed twice", c.name)
		}
	}
}

func TestNewStopsRefuses(t *testing.T) {
	for _, c := range []struct {
		list []string
		say  string
	}{
		{[]string{"a", ""}, "string 1 has 0 bytes, want 1 to 1024"},
		{[]string{strings.Repeat("a", 1025)}, "string 0 has 1025 bytes"},
		{strings.Split(strings.Repeat("a", 17), ""), "17 strings, want at most 16"},
		{[]string{"a\x80"}, "string 0 is not valid UTF-8"},
	} {
		if _, err := NewStops(c.list); !errors.Is(err, ErrStop) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%v, want %s", err, c.say)
		}
	}
	if _, err := NewStops([]string{strings.Repeat("a", 1024)}); err != nil {
		t.Error(err)
	}
}

// stopsTwin looks at every beginning of the text.
func stopsTwin(list []string, text string) (out string, stopped bool) {
	for end := 1; end <= len(text); end++ {
		found := 0
		for _, stop := range list {
			if strings.HasSuffix(text[:end], stop) {
				found = max(found, len(stop))
			}
		}
		if found > 0 {
			return text[:end-found], true
		}
	}
	return text, false
}

// checkStops pushes text in pieces and compares with the text as a whole.
func checkStops(t *testing.T, list []string, text string, r *rand.Rand) {
	t.Helper()
	want, ends := stopsTwin(list, text)
	if len(list) == 1 {
		if i := strings.Index(text, list[0]); ends != (i >= 0) || ends && want != text[:i] {
			t.Fatalf("%q in %q: the twin says %q, %v, Index %d", list, text, want, ends, i)
		}
	}
	s, err := NewStops(list)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	stopped := false
	for rest := text; rest != ""; {
		n := r.IntN(len(rest) + 1)
		if r.IntN(2) == 0 {
			n = min(n, r.IntN(4))
		}
		out, now := s.Push(rest[:n])
		got.WriteString(out)
		rest, stopped = rest[n:], now
		if !strings.HasPrefix(want, got.String()) {
			t.Fatalf("%q in %q: shown %q, want %q", list, text, got.String(), want)
		}
		// No more is held than may begin a stop string.
		held := text[got.Len() : len(text)-len(rest)]
		begins := held == ""
		for _, stop := range list {
			begins = begins || strings.HasPrefix(stop, held)
		}
		if !begins && !stopped {
			t.Fatalf("%q in %q: %q is held", list, text, held)
		}
	}
	got.WriteString(s.Flush())
	if got.String() != want || stopped != ends {
		t.Fatalf("%q in %q: %q, %v, want %q, %v", list, text, got.String(), stopped, want, ends)
	}
}

func TestStopsAreTheTwins(t *testing.T) {
	r := newRand(t)
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		return string(b)
	}
	for range 20_000 {
		list := make([]string, r.IntN(4))
		for i := range list {
			list[i] = word(1 + r.IntN(7))
		}
		checkStops(t, list, word(r.IntN(40)), r)
	}
}

func FuzzStops(f *testing.F) {
	f.Add("stop", "sto", "one stop", uint64(1))
	f.Add("aab", "", "aaab", uint64(2))
	f.Add("é", "\n\n", "caf\xc3\xa9\n\n", uint64(3))
	f.Fuzz(func(t *testing.T, a, b, text string, cuts uint64) {
		var list []string
		for _, stop := range []string{a, b} {
			if stop != "" && len(stop) <= MaxStopLength && utf8.ValidString(stop) {
				list = append(list, stop)
			}
		}
		if len(text) > 4096 {
			return
		}
		checkStops(t, list, text, rand.New(rand.NewPCG(cuts, 0)))
	})
}
