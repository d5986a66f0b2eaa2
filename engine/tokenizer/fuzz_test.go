package tokenizer

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var seeds = []string{
	"", "a", "Hello, world!", "  leading\n\n\n  and   runs \t tabs ", "It's what THEY'LL do'", "12345 ½ Ⅷ ४",
	"मनीष กำ e\u0301 \u0301", "你好世界 こんにちは", "🙂👩🏽‍🚀", "<|im_start|>user\nhi<|im_end|>\n<think>", "\r\n\r\n x", "\u3000\u0085\u00a0x",
	"a\xffb", "\x00\ufffd",
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range seeds {
		f.Add(s, true)
		f.Add(s, false)
	}
	var toks []*Tokenizer
	for pre := range rules {
		toks = append(toks, tokenizer(f, "ref", pre))
	}
	f.Fuzz(func(t *testing.T, text string, special bool) {
		for _, tok := range toks {
			ids, err := tok.Encode(text, special)
			if !utf8.ValidString(text) {
				if !errors.Is(err, ErrUTF8) {
					t.Fatalf("%q: %v", text, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if got := tok.Decode(ids); got != text {
				t.Fatalf("%q came back as %q", text, got)
			}
		}
	})
}

func FuzzRules(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	twins := map[string]func(string) []string{}
	for pre := range rules {
		twins[pre] = stages(expressions[pre])
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || len(text) > 300 {
			return
		}
		for pre, twin := range twins {
			if got, want := split(rules[pre].word, text), twin(text); !slices.Equal(got, want) {
				t.Fatalf("%s: %q:\n got %q\nwant %q", pre, text, got, want)
			}
		}
	})
}

func FuzzStream(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	tok := tokenizer(f, "ref", "qwen35")
	f.Fuzz(func(t *testing.T, data []byte) {
		var ids []int32
		for len(data) >= 2 {
			ids = append(ids, int32(binary.LittleEndian.Uint16(data))%int32(tok.Size()))
			data = data[2:]
		}
		checkStream(t, tok, ids)
	})
}

// FuzzNew makes vocabularies of all bytes and of lines of text: tokens, then merges, and holds
// those that New takes to their promise.
func FuzzNew(f *testing.F) {
	f.Add("ab\nabc", "a b\nab c", "\x03\x01", int32(-1), "abcab")
	f.Add("<s>\n", "a b", "\x03", int32(256), "<s>a")
	f.Add("\u0120a", "\u0120 a", "", int32(1), " a a")
	f.Fuzz(func(t *testing.T, tokens, merges, types string, eos int32, text string) {
		v := byteVocab(strings.Split(tokens, "\n")...)
		v.Merges = strings.Split(merges, "\n")
		for i := range min(len(types), len(v.Types)-256) {
			v.Types[256+i] = int32(types[i])
		}
		v.EOS = eos
		tok, err := New(v)
		if err != nil {
			if !errors.Is(err, ErrVocab) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v", err)
			}
			return
		}
		if !utf8.ValidString(text) {
			return
		}
		ids, err := tok.Encode(text, true)
		if err != nil || tok.Decode(ids) != text {
			t.Fatalf("%q: %v came back as %q, %v", text, ids, tok.Decode(ids), err)
		}
	})
}
