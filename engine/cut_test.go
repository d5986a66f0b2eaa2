package engine

import (
	"strings"
	"testing"
	"unicode/utf8"

	"kvasir/engine/sample"
)

// TestTextsAreTheSameHoweverTheyAreCut has texts come a byte a token up to each of their bytes, also within
// characters and stop strings, and in words from there on: what is shown is the text up to the first stop
// string, whole characters at a time, with nothing leaked and nothing lost.
func TestTextsAreTheSameHoweverTheyAreCut(t *testing.T) {
	e, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	byteToken := map[byte]int32{}
	for id := range int32(e.tokens.Size()) {
		if text := e.tokens.AppendToken(nil, id); len(text) == 1 && !e.tokens.IsControl(id) {
			byteToken[text[0]] = id
		}
	}
	for _, c := range []struct{ text, stops, want string }{
		{"The café 😀 closes, Schluß.", "", "The café 😀 closes, Schluß."},
		{"The café 😀 closes, Schluß.", "é 😀|closes", "The caf"},
		{"The café 😀 closes, Schluß.", "ß.", "The café 😀 closes, Schlu"},
		{"😀😀😁 smiles 😀", "😀😁|smile", "😀"},
		{"ends with a beginning of it: Obser", "Observation:", "ends with a beginning of it: Obser"},
		{"a<tool_call>b</tool_call>", "</tool_call>", "a<tool_call>b"},
		{"half a character: \xf0\x9f\x98", "", "half a character: �"},
		{"aaab aab", "aab", "a"},
	} {
		for at := range len(c.text) + 1 {
			var stops []string
			if c.stops != "" {
				stops = strings.Split(c.stops, "|")
			}
			look, err := sample.NewStops(stops)
			if err != nil {
				t.Fatal(err)
			}
			var ids []int32
			for at < len(c.text) && !utf8.ValidString(c.text[at:]) {
				at++
			}
			for i := range at {
				ids = append(ids, byteToken[c.text[i]])
			}
			rest, err := e.tokens.Encode(c.text[at:], false)
			if err != nil {
				t.Fatal(err)
			}
			stream, got, ended := e.tokens.Stream(false), "", false
			for _, id := range append(ids, rest...) {
				out, found := look.Push(stream.Push(id))
				if got, ended = got+out, found; !utf8.ValidString(out) {
					t.Errorf("%q, cut at %d: a piece is %q", c.text, at, out)
				}
				if ended {
					break
				}
			}
			if !ended {
				out, _ := look.Push(stream.Flush())
				got += out + look.Flush()
			}
			if got != c.want {
				t.Errorf("%q until %q, cut at %d: %q, want %q", c.text, c.stops, at, got, c.want)
			}
		}
	}
}
