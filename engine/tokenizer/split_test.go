package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// pool has what the rules tell apart, in many scripts, and neighbours that they must not confuse.
var pool = []rune(" \t\n\r\v\f\u0085\u00a0\u1680\u2003\u2028\u3000" + // white space
	"\u001c\u200b\u200d\ufeff\x00\x7f\u00ad" + // looks like it and is not
	"''''sStTrReEvVmMlLdD\u017f\u212a" + // contractions, and letters that fold to them
	"abcXYZßéñЖщ你好世界こんにちはกำमनी한글עברيةǅʰªº" + // letters of all kinds
	"\u0301\u0308\u093f\u094d\u0e31\u20dd\ufe0f\U000e0100" + // marks
	"0189٣४Ⅷ½²①\U0001d7d8" + // numbers of all kinds
	"!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~«»、。€™→🙂🚀👩🏽\ue000\ufffd\ufffe\U0010ffff\u0378") // symbols, and what is unassigned

func randomText(rng *rand.Rand, most int) string {
	var b strings.Builder
	for range rng.IntN(most + 1) {
		switch rng.IntN(12) {
		case 0: // a run of one character
			b.WriteString(strings.Repeat(string(pool[rng.IntN(len(pool))]), 1+rng.IntN(4)))
		case 1: // any character at all
			r := rune(rng.IntN(unicode.MaxRune + 1))
			if utf8.ValidRune(r) {
				b.WriteRune(r)
			}
		default:
			b.WriteRune(pool[rng.IntN(len(pool))])
		}
	}
	return b.String()
}

func split(rule wordRule, text string) []string {
	var out []string
	for text != "" {
		n := rule(text)
		out = append(out, text[:n])
		text = text[n:]
	}
	return out
}

func TestRulesEqualTheirExpressions(t *testing.T) {
	for pre, rule := range rules {
		t.Run(pre, func(t *testing.T) {
			twin := stages(expressions[pre])
			rng := rand.New(rand.NewPCG(7, 8))
			for range 10_000 {
				text := randomText(rng, 14)
				if got, want := split(rule.word, text), twin(text); !slices.Equal(got, want) {
					t.Fatalf("%q:\n got %q\nwant %q", text, got, want)
				}
			}
		})
	}
}

func TestRulesSplit(t *testing.T) {
	f := func(pre, text string, want ...string) {
		t.Helper()
		if got := split(rules[pre].word, text); !slices.Equal(got, want) {
			t.Errorf("%s: %q:\n got %q\nwant %q", pre, text, got, want)
		}
	}
	f("qwen2", "I'll SHE'LL don't", "I", "'ll", " SHE", "'LL", " don", "'t")
	f("qwen2", "'ſ'x''", "'ſ", "'x", "''")
	f("qwen2", "a1234 5", "a", "1", "2", "3", "4", " ", "5")
	f("qwen2", "  a", " ", " a")
	f("qwen2", "a  ", "a", "  ")
	f("qwen2", " \n\n  x", " \n\n", " ", " x")
	f("qwen2", "\t\tx\u3000y", "\t", "\tx", "\u3000y")
	f("qwen2", ") .\n\n b", ")", " .\n\n", " b")
	f("qwen2", "e\u0301a", "e", "\u0301a")
	f("qwen35", "e\u0301a", "e\u0301a")
	f("qwen2", "!\u0301\u0302", "!\u0301\u0302")
	f("qwen35", "!\u0301\u0302", "!\u0301\u0302")
	f("qwen35", "1\u0301", "1", "\u0301")
	f("qwen2", " \u0301", " \u0301")
	f("qwen2", "\n\u0301a", "\n", "\u0301a")
	f("llama-bpe", "a1234567 5", "a", "123", "456", "7", " ", "5")
	f("llama-bpe", "१२३४x", "१२३", "४", "x")
	f("gpt-4o", "HelloWORLDabc ÉCOLEs", "Hello", "WORLDabc", " ÉCOLEs")
	f("gpt-4o", "HELLOéWORLD'll's", "HELLOé", "WORLD'll", "'s")
	f("gpt-4o", "a//\r\n/b 1234", "a", "//\r\n/", "b", " ", "123", "4")
	f("gpt-4o", "e\u0301a", "e", "\u0301a")
	f("default", "It's 12345, a  (b)  c", "It", "'", "s", " ", "123", "45", ",", " a", "  ", "(", "b", ")", " ", " c")
	f("default", " 12٣4567 « x☺☺$", " ", "12٣", "456", "7", " ", "«", " x", "☺☺", "$")
	f("gpt-2", "I'll I'LL 1234 !? \n x", "I", "'ll", " I", "'", "LL", " 1234", " !?", " \n", " x")
}
