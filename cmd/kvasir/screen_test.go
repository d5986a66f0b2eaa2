package main

import (
	"strings"
	"testing"
)

func TestSizeWritesThreeDigits(t *testing.T) {
	f := func(n uint64, want string) {
		t.Helper()
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	f(0, "0 B")
	f(999, "999 B")
	f(1000, "1.00 kB")
	f(9994, "9.99 kB")
	f(9995, "10.0 kB")
	f(99949, "99.9 kB")
	f(99950, "100 kB")
	f(999499, "999 kB")
	f(999500, "1.00 MB")
	f(11800000, "11.8 MB")
	f(25<<30, "26.8 GB")
	f(1<<63, "9223 PB")
}

func TestDecimalGroupsThousands(t *testing.T) {
	f := func(n uint64, want string) {
		t.Helper()
		if got := decimal(n); got != want {
			t.Errorf("decimal(%d) = %q, want %q", n, got, want)
		}
	}
	f(0, "0")
	f(999, "999")
	f(1000, "1 000")
	f(19200000, "19 200 000")
}

func TestNearestFindsTyposAndNothingElse(t *testing.T) {
	names := []string{"tokens", "model", "chat", "json", "log", "verbose"}
	f := func(word, want string) {
		t.Helper()
		if got := nearest(word, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
	f("tokns", "tokens")
	f("tokesn", "tokens")
	f("token", "tokens")
	f("modell", "model")
	f("tok", "tokens")
	f("caht", "chat")
	f("lgo", "log")
	f("frobnicate", "")
	f("zzz", "")
	f("", "")
	f(strings.Repeat("x", 1000), "")
}

func TestDistanceCountsEdits(t *testing.T) {
	f := func(a, b string, want int) {
		t.Helper()
		if got := distance(a, b); got != want {
			t.Errorf("distance(%q, %q) = %d, want %d", a, b, got, want)
		}
	}
	f("", "", 0)
	f("a", "", 1)
	f("ab", "ba", 1)
	f("abc", "acb", 1)
	f("kitten", "sitting", 3)
	f("é", "e", 1)
}

func TestCleanShowsControlCharacters(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := clean(text); got != want {
			t.Errorf("clean(%q) = %q, want %q", text, got, want)
		}
	}
	f("a\tb\nc", "a\tb\nc")
	f("é 世 \U0001f600", "é 世 \U0001f600")
	f("\x1b[31mred", `\x1b[31mred`)
	f("a\rb\x00\x7f", `a\rb\x00\x7f`)
	f("\u009b31m", `\u009b31m`)
	f("a\xffb", "a\ufffdb")
}

func TestOneLineIsOneLine(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := oneLine(text); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", text, got, want)
		}
	}
	f("plain", "plain")
	f("two\nlines\n", "two; lines")
	f("a\r\nb\x1b", `a; b\x1b`)
}

func TestWrapKeepsWordsAndLosesNothing(t *testing.T) {
	f := func(text string, width int, want ...string) {
		t.Helper()
		got := wrap(text, width)
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("wrap(%q, %d) = %q, want %q", text, width, got, want)
		}
	}
	f("", 5, "")
	f("short", 5, "short")
	f("two words", 5, "two", "words")
	f("two words", 3, "two", "wor", "ds")
	f("/usr/local/share", 12, "/usr/local/", "share")
	f("abcdefgh", 4, "abcd", "efgh")
	f("éééé éé", 4, "éééé", "éé")
}

func TestTableFitsAndAligns(t *testing.T) {
	var b strings.Builder
	s := &screen{w: &b}
	tab := table{head: []string{"name", "bytes", "note"}, right: []bool{false, true, false}}
	tab.add("a", "1", strings.Repeat("word ", 40))
	tab.add(strings.Repeat("/folder", 20), "12345", "")
	tab.print(s)
	wantNarrow(t, b.String())
	first, rest, _ := strings.Cut(b.String(), "\n")
	second, _, _ := strings.Cut(rest, "\n")
	if strings.Index(first, "bytes")+len("bytes") != strings.Index(second, " 1 ")+len(" 1") {
		t.Errorf("numbers do not end where their head ends:\n%s", b.String())
	}
	if got := strings.Count(b.String(), "word"); got != 40 {
		t.Errorf("%d words of 40 are left", got)
	}
}

func TestStylesOnlyWhereWanted(t *testing.T) {
	if got := (&screen{}).styled(bold, "x"); got != "x" {
		t.Errorf("styled without colour: %q", got)
	}
	if got := (&screen{colour: true}).styled(bold, "x"); got != "\x1b[1mx\x1b[0m" {
		t.Errorf("styled with colour: %q", got)
	}
}

func TestStreamerObeysNothingThatAModelSays(t *testing.T) {
	f := func(terminal bool, want string) {
		t.Helper()
		var b strings.Builder
		p := &streamer{screen: &screen{w: &b, terminal: terminal}, echo: "Say"}
		for _, piece := range []string{" \x1b[2J", "é"} {
			if err := p.piece(piece); err != nil {
				t.Fatal(err)
			}
		}
		p.end(true)
		if b.String() != want {
			t.Errorf("terminal %v: %q, want %q", terminal, b.String(), want)
		}
	}
	f(true, "Say \\x1b[2Jé\n")
	f(false, "Say \x1b[2Jé\n") // a file gets the bytes as they are
}

func TestStreamerClosesTheLastLineOnce(t *testing.T) {
	f := func(done bool, want string, pieces ...string) {
		t.Helper()
		var b strings.Builder
		p := &streamer{screen: &screen{w: &b}, echo: ">"}
		for _, piece := range pieces {
			if err := p.piece(piece); err != nil {
				t.Fatal(err)
			}
		}
		p.end(done)
		if b.String() != want {
			t.Errorf("%q, done %v: %q, want %q", pieces, done, b.String(), want)
		}
	}
	f(true, ">\n")
	f(false, "")
	f(true, ">a\n", "a")
	f(true, ">a\n", "a\n")
	f(false, ">a\n", "a")
}
