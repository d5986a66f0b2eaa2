package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNewRefusesBadVocabularies(t *testing.T) {
	const supported = `(supported: deepseek-r1-qwen, default, gpt-2, gpt-4o, llama-bpe, llama-v3, llama3, llama4, qwen2, qwen35)`
	const prefix = "tokenizer: bad vocabulary: "
	for _, x := range []struct {
		name  string
		spoil func(v *Vocab)
		want  string
	}{
		{"unknown pre-tokenizer", func(v *Vocab) { v.Pre = "grok-2" },
			`pre-tokenizer "grok-2" is not supported ` + supported},
		{"no pre-tokenizer", func(v *Vocab) { v.Pre = "" },
			`pre-tokenizer "" is not supported ` + supported},
		{"no tokens", func(v *Vocab) { v.Tokens, v.Types = nil, nil }, "it has no tokens"},
		{"too few types", func(v *Vocab) { v.Types = v.Types[:256] }, "256 token types for 259 tokens"},
		{"the same token twice", func(v *Vocab) { v.Tokens[258] = "ab" }, `tokens 256 and 258 are both "ab"`},
		{"token of broken UTF-8", func(v *Vocab) { v.Tokens[257] = "a\xff" }, `token 257, "a\xff", is not valid UTF-8`},
		{"a byte without token", func(v *Vocab) { v.Tokens[' '] = "space" }, `byte 0x20, written 'Ġ', has no token`},
		{"a byte that is a control token", func(v *Vocab) { v.Types[' '] = typeControl },
			`token 32, 'Ġ', is of type 3, but must stand for byte 0x20`},
		{"EOS out of range", func(v *Vocab) { v.EOS = 259 }, "the EOS token is 259, but ids go from 0 to 258"},
		{"EOT out of range", func(v *Vocab) { v.EOT = -2 }, "the EOT token is -2, but ids go from 0 to 258"},
		{"BOS out of range", func(v *Vocab) { v.BOS = 1 << 30 }, "the BOS token is 1073741824, but ids go from 0 to 258"},
		{"padding out of range", func(v *Vocab) { v.Pad = 300 }, "the padding token is 300, but ids go from 0 to 258"},
		{"BOS wanted and absent", func(v *Vocab) { v.AddBOS = true }, "sequences start with BOS, but there is no BOS token"},
		{"merge of one token", func(v *Vocab) { v.Merges[1] = "ab" }, `merge 1 is "ab", want two tokens with a space between`},
		{"merge of nothing", func(v *Vocab) { v.Merges[1] = " b" }, `merge 1 is " b", want two tokens with a space between`},
		{"merge of an unknown left", func(v *Vocab) { v.Merges[1] = "xy c" }, `merge 1, "xy c", needs "xy", which is no token`},
		{"merge of an unknown right", func(v *Vocab) { v.Merges[1] = "a xy" }, `merge 1, "a xy", needs "xy", which is no token`},
		{"merge to an unknown token", func(v *Vocab) { v.Merges[1] = "a c" }, `merge 1, "a c", needs "ac", which is no token`},
		{"merge to a control token", func(v *Vocab) { v.Tokens[257], v.Types[257], v.Merges[1] = "Ġb", typeControl, "Ġ b" },
			`merge 1, "Ġ b", makes token 257 of type 3, which stands for something else`},
		{"a long token in a message", func(v *Vocab) { v.Merges[0] = strings.Repeat("x", 500) },
			`merge 0 is "` + strings.Repeat("x", 40) + `" (and 460 bytes more), want two tokens with a space between`},
		{"too many special bytes", func(v *Vocab) { v.Tokens[258] = strings.Repeat("x", maxSpecialText+1); v.Types[258] = typeUser },
			"its control and user-defined tokens hold more than 1048576 bytes"},
	} {
		t.Run(x.name, func(t *testing.T) {
			v := byteVocab("ab", "abc", "<s>")
			v.Types[258] = typeControl
			v.Merges = []string{"a b", "ab c"}
			if _, err := New(v); err != nil {
				t.Fatalf("the vocabulary before it is spoiled: %v", err)
			}
			x.spoil(&v)
			tok, err := New(v)
			if tok != nil || !errors.Is(err, ErrVocab) || err.Error() != prefix+x.want {
				t.Errorf("got %v\nwant %s%s", err, prefix, x.want)
			}
		})
	}
}

func TestNewTakesWhatFilesHave(t *testing.T) {
	v := byteVocab("ab", "", "", "<unused>", "日", "bc")
	v.Types[259] = 5
	v.Merges = []string{"a b", "b c", "a b"}
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	f := func(id int32, want string) {
		t.Helper()
		if got := string(tok.AppendToken(nil, id)); got != want {
			t.Errorf("token %d stands for %q, want %q", id, got, want)
		}
	}
	f(' ', " ")
	f(0xff, "\xff")
	f(256, "ab")
	f(257, "")
	f(259, "<unused>")
	f(260, "日")
	if got := tok.Decode(encode(t, tok, "ab日<unused>", true)); got != "ab日<unused>" {
		t.Errorf("came back as %q", got)
	}
	if got := encode(t, tok, "abc", true); !slices.Equal(got, []int32{256, 'c'}) {
		t.Errorf("a merge that is listed again later lost its rank: %v", got)
	}
}

// TestWholeWordsAreTaken is what a file of Llama 3 asks for: tokens that no merge makes.
func TestWholeWordsAreTaken(t *testing.T) {
	v := byteVocab("ab", "abc", "Ġabcd", "abx", "PAD")
	v.Types[260], v.Types[259] = typeControl, typeUser
	v.Merges = []string{"a b"}
	for _, x := range []struct {
		pre, text string
		want      []int32
	}{
		{"llama-bpe", "abc abcd", []int32{257, 258}},
		{"llama3", "abc", []int32{257}},
		{"llama-v3", "abcd", []int32{256, 'c', 'd'}},
		{"llama-bpe", "PAD", []int32{'P', 'A', 'D'}}, // a control token stays out of plain text
		{"qwen2", "abc abcd", []int32{256, 'c', ' ', 256, 'c', 'd'}},
	} {
		v.Pre = x.pre
		tok, err := New(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := encode(t, tok, x.text, false); !slices.Equal(got, x.want) {
			t.Errorf("%s: %q is %v, want %v", x.pre, x.text, got, x.want)
		}
	}
}

func TestOtherNamesAreTheSameRule(t *testing.T) {
	for name, same := range otherNames {
		got, err := findRule(name)
		if err != nil || got.whole != rules[same].whole || rules[same].word == nil {
			t.Errorf("%s: %v", name, err)
		}
		const text = "Hello WORLDabc's 12345 (x)\n"
		if a, b := split(got.word, text), split(rules[same].word, text); !slices.Equal(a, b) {
			t.Errorf("%s splits %q, %s %q", name, a, same, b)
		}
	}
}
