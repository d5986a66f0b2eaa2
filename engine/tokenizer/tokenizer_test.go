package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type vocabFile struct {
	Tokens             []string
	Types              []int32
	Merges             []string
	EOS, EOT, BOS, Pad int32
}

func load(t testing.TB, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// vocabulary reads one of testdata: "ref" has 512 tokens and specials of both kinds, "tiny" is
// kvasir-tiny's.
func vocabulary(t testing.TB, name, pre string) Vocab {
	t.Helper()
	var f vocabFile
	load(t, name+"-vocab.json", &f)
	return Vocab{
		Pre: pre, Tokens: f.Tokens, Types: f.Types, Merges: f.Merges,
		EOS: f.EOS, EOT: f.EOT, BOS: f.BOS, Pad: f.Pad,
	}
}

func tokenizer(t testing.TB, name, pre string) *Tokenizer {
	t.Helper()
	tok, err := New(vocabulary(t, name, pre))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t testing.TB, tok *Tokenizer, text string, special bool) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, special)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return ids
}

func TestEncodeEqualsReference(t *testing.T) {
	type sample struct {
		Text string
		IDs  []int32
	}
	var ref map[string][]sample
	load(t, "ref-ids.json", &ref)
	var tiny map[string]sample
	load(t, "tiny-ids.json", &tiny)
	check := func(t *testing.T, tok *Tokenizer, s sample) {
		t.Helper()
		if got := encode(t, tok, s.Text, true); !slices.Equal(got, s.IDs) {
			t.Errorf("%q:\n got %v\nwant %v", s.Text, got, s.IDs)
		}
		if got := tok.Decode(s.IDs); got != s.Text {
			t.Errorf("decoded %q, want %q", got, s.Text)
		}
	}
	for arch, pre := range map[string]string{"qwen3moe": "qwen2", "qwen35moe": "qwen35"} {
		t.Run(arch, func(t *testing.T) {
			if len(ref[arch]) != 14 {
				t.Fatalf("%d texts, want 14", len(ref[arch]))
			}
			tok := tokenizer(t, "ref", pre)
			for _, s := range ref[arch] {
				check(t, tok, s)
			}
		})
	}
	t.Run("kvasir-tiny", func(t *testing.T) {
		if len(tiny) != 5 {
			t.Fatalf("%d texts, want 5", len(tiny))
		}
		tok := tokenizer(t, "tiny", "qwen35")
		for _, s := range tiny {
			check(t, tok, s)
		}
	})
}

func TestEncodeEqualsDumbTwin(t *testing.T) {
	for name, pre := range map[string]string{"ref": "qwen2", "tiny": "qwen35"} {
		t.Run(name, func(t *testing.T) {
			v := vocabulary(t, name, pre)
			tok := tokenizer(t, name, pre)
			twin := stages(expressions[pre])
			rng := rand.New(rand.NewPCG(1, 2))
			for range 300 {
				text := randomText(rng, 12)
				var want []int32
				for _, word := range twin(text) {
					for _, part := range mergeDumb(&v, word) {
						want = append(want, int32(slices.Index(v.Tokens, part)))
					}
				}
				if got := encode(t, tok, text, false); tok.special.cut(text, trust{}) == nil && !slices.Equal(got, want) {
					t.Fatalf("%q:\n got %v\nwant %v", text, got, want)
				}
			}
		})
	}
}

// TestEncodeMostGivesUpInTime has limits around the number of ids of each text, and a text of which only a
// beginning may be looked at.
func TestEncodeMostGivesUpInTime(t *testing.T) {
	for _, name := range []string{"ref", "tiny"} {
		tok := tokenizer(t, name, "qwen35")
		for _, text := range append(corpus(), "", "a", "<|im_end|><|im_end|>", strings.Repeat(" ", 500)) {
			plain, err := tok.Encode(text, false)
			if err != nil {
				continue
			}
			chat, err := tok.EncodeChat(text, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				want []int32
				f    func(most int) ([]int32, bool, error)
			}{
				{plain, func(most int) ([]int32, bool, error) { return tok.EncodeMost(text, most) }},
				{chat, func(most int) ([]int32, bool, error) { return tok.EncodeChatMost(text, nil, most) }},
			} {
				for _, most := range []int{0, 1, len(c.want) / 2, len(c.want) - 1, len(c.want), len(c.want) + 1, 1 << 20} {
					if most < 0 {
						continue
					}
					ids, more, err := c.f(most)
					if err != nil || more != (len(c.want) > most) || !more && !slices.Equal(ids, c.want) {
						t.Fatalf("%q, at most %d: %v, more %v, %v; want %v", text, most, ids, more, err, c.want)
					}
				}
			}
		}
		for _, text := range []string{strings.Repeat("Xq", 1<<20), strings.Repeat("Xq ", 1<<20)} {
			m := merger{t: tok, most: 100}
			m.appendWords(nil, text)
			if !m.over || m.steps > 1<<16 {
				t.Errorf("%.4s…: given up %v after %d steps", text, m.over, m.steps)
			}
		}
	}
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for _, name := range []string{"ref", "tiny"} {
		for pre := range rules {
			t.Run(name+" "+pre, func(t *testing.T) {
				tok := tokenizer(t, name, pre)
				rng := rand.New(rand.NewPCG(3, 4))
				for i := range 2000 {
					text := randomText(rng, 20)
					if got := tok.Decode(encode(t, tok, text, i%2 == 0)); got != text {
						t.Fatalf("%q came back as %q", text, got)
					}
				}
			})
		}
	}
}

func TestSpecialTokensAreCutOut(t *testing.T) {
	tok := tokenizer(t, "ref", "qwen2")
	const (
		endText, imStart, imEnd, think, endThink = 504, 505, 506, 507, 508
	)
	for _, x := range []struct {
		name    string
		text    string
		special bool
		want    []int32 // the special ids among the result
	}{
		{"control where trusted", "<|im_start|>a<|im_end|>", true, []int32{imStart, imEnd}},
		{"control where not", "<|im_start|>a<|im_end|>", false, nil},
		{"user-defined where trusted", "<think>a</think>", true, []int32{think, endThink}},
		{"user-defined where not", "<think>a</think>", false, []int32{think, endThink}},
		{"back to back", "<|im_end|><|im_end|><think>", true, []int32{imEnd, imEnd, think}},
		{"half of one", "<|im_star", true, nil},
		{"inside of a word", "x<|endoftext|>y", true, []int32{endText}},
	} {
		t.Run(x.name, func(t *testing.T) {
			ids := encode(t, tok, x.text, x.special)
			var got []int32
			for _, id := range ids {
				if id >= endText {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("%q has special tokens %v, want %v", x.text, got, x.want)
			}
			if back := tok.Decode(ids); back != x.text {
				t.Errorf("%q came back as %q", x.text, back)
			}
		})
	}
}

// byteVocab has a token for every byte, in order, then the given ones.
func byteVocab(more ...string) Vocab {
	v := Vocab{Pre: "qwen2", EOS: -1, EOT: -1, BOS: -1, Pad: -1}
	for _, r := range printable {
		v.Tokens = append(v.Tokens, string(r))
	}
	v.Tokens = append(v.Tokens, more...)
	v.Types = slices.Repeat([]int32{typeNormal}, len(v.Tokens))
	return v
}

func TestOverlappingSpecialTokens(t *testing.T) {
	for _, x := range []struct {
		name    string
		special []string
		text    string
		want    string // parts, special ones in brackets
	}{
		{"longer first", []string{"ab", "abc"}, "abcab", "[abc][ab]"},
		{"longer before further left", []string{"ab", "bcd"}, "abcd", "a[bcd]"},
		{"a shorter one fits beside", []string{"abcd", "ab", "cdefg"}, "abcdefg", "[ab][cdefg]"},
		{"nothing fits beside", []string{"abcd", "cdefg"}, "abcdefg", "ab[cdefg]"},
		{"first of a run", []string{"aa"}, "aaaaa", "[aa][aa]a"},
		{"lower id among equals", []string{"bc", "ab"}, "abc", "a[bc]"},
		{"inside a longer one", []string{"abcde", "cd"}, "abcdecd", "[abcde][cd]"},
	} {
		t.Run(x.name, func(t *testing.T) {
			v := byteVocab(x.special...)
			for i := range x.special {
				v.Types[256+i] = typeUser
			}
			tok, err := New(v)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, id := range encode(t, tok, x.text, false) {
				if id >= 256 {
					fmt.Fprintf(&got, "[%s]", tok.Text(id))
				} else {
					got.WriteString(tok.Text(id))
				}
			}
			if got.String() != x.want {
				t.Errorf("%q is cut as %s, want %s", x.text, got.String(), x.want)
			}
		})
	}
}

// TestSpecialTokensEqualDumbTwin cuts as llama.cpp does: each token in turn, the longest first,
// from every piece of text that is left.
func TestSpecialTokensEqualDumbTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	letters := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'a' + byte(rng.IntN(2))
		}
		return string(b)
	}
	for round := range 3000 {
		var s specials
		var all []string
		for range 1 + rng.IntN(5) {
			if x := letters(1 + rng.IntN(5)); !slices.Contains(all, x) {
				s.add(x, int32(len(all)), false)
				all = append(all, x)
			}
		}
		text := letters(rng.IntN(24))
		order := slices.Clone(all)
		slices.SortStableFunc(order, func(a, b string) int { return len(b) - len(a) })
		var want []cut
		rest := []byte(text)
		for _, x := range order {
			for {
				at := strings.Index(string(rest), x)
				if at < 0 {
					break
				}
				copy(rest[at:], strings.Repeat(".", len(x)))
				want = append(want, cut{at, len(x), int32(slices.Index(all, x))})
			}
		}
		slices.SortFunc(want, func(a, b cut) int { return a.at - b.at })
		if got := s.cut(text, trust{}); !slices.Equal(got, want) {
			t.Fatalf("round %d: %q of %q:\n got %v\nwant %v", round, all, text, got, want)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	tok := tokenizer(t, "tiny", "qwen35")
	for _, x := range []struct {
		name, text string
		want       error
		message    string
	}{
		{"a broken byte", "ab\xffc", ErrUTF8, "tokenizer: text is not valid UTF-8: byte 0xff at offset 2"},
		{"half a character at the end", "日\xe6\x97", ErrUTF8, "tokenizer: text is not valid UTF-8: byte 0xe6 at offset 3"},
		{"a surrogate", "\xed\xa0\x80", ErrUTF8, "tokenizer: text is not valid UTF-8: byte 0xed at offset 0"},
		{"too much", strings.Repeat("a", MaxText+1), ErrTooLong, "tokenizer: text is too long: 67108865 bytes, at most 67108864"},
	} {
		t.Run(x.name, func(t *testing.T) {
			ids, err := tok.Encode(x.text, true)
			if !errors.Is(err, x.want) || err.Error() != x.message || ids != nil {
				t.Errorf("got %v, %v; want %s", ids, err, x.message)
			}
		})
	}
	if ids := encode(t, tok, "", true); len(ids) != 0 {
		t.Errorf("no text has ids %v", ids)
	}
	if ids := encode(t, tok, "\ufffd\x00", true); tok.Decode(ids) != "\ufffd\x00" {
		t.Errorf("U+FFFD and NUL are text like any other, got %v", ids)
	}
}

func TestEndsAndControls(t *testing.T) {
	tok := tokenizer(t, "ref", "qwen35")
	ends := map[string]bool{"<|endoftext|>": true, "<|im_end|>": true}
	controls := map[string]bool{"<|endoftext|>": true, "<|im_start|>": true, "<|im_end|>": true, "<|fim_pad|>": true}
	for id := range int32(tok.Size()) {
		if text := tok.Text(id); tok.IsEnd(id) != ends[text] || tok.IsControl(id) != controls[text] {
			t.Errorf("token %d, %q: end %v, control %v", id, text, tok.IsEnd(id), tok.IsControl(id))
		}
	}
	v := byteVocab("</end>", "<|endoftext|>")
	v.EOT, v.BOS, v.AddBOS = 256, 5, true
	plain, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	if !plain.IsEnd(256) || plain.IsEnd(257) || plain.IsEnd(-1) || plain.IsEnd(1<<30) {
		t.Error("ends are what the vocabulary names, and control tokens only")
	}
	if id, add := plain.BOS(); id != 5 || !add {
		t.Errorf("BOS is %d, %v; want 5, true", id, add)
	}
}

func TestUnknownIDPanics(t *testing.T) {
	tok := tokenizer(t, "ref", "qwen35")
	for _, id := range []int32{-1, 512} {
		func() {
			defer func() {
				if r := fmt.Sprint(recover()); r != fmt.Sprintf("BUG: token %d of a vocabulary of 512", id) {
					t.Errorf("id %d: %s", id, r)
				}
			}()
			tok.AppendToken(nil, id)
		}()
	}
}
