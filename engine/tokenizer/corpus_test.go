package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// The corpus that testdata/qwen3 has the ids of. It comes from a generator of its own, so that it
// stays the same whatever becomes of Go's: changing a line here makes those ids worthless.

const corpusLines = 10_000

// scripts are ranges without a hole, so that no table of Unicode is needed to tell what is assigned.
var scripts = [][][2]rune{
	{{'a', 'z'}, {'a', 'z'}, {'A', 'Z'}, {0xc0, 0xff}, {0x100, 0x17f}}, // Latin
	{{0x3b1, 0x3c9}, {0x391, 0x3a1}, {0x1f00, 0x1f15}},                 // Greek
	{{0x410, 0x44f}, {0x450, 0x45f}},                                   // Cyrillic
	{{0x561, 0x586}},                                                   // Armenian
	{{0x5d0, 0x5ea}, {0x5d0, 0x5ea}, {0x5b0, 0x5bc}},                   // Hebrew, with points
	{{0x621, 0x63a}, {0x641, 0x64a}, {0x64b, 0x652}},                   // Arabic, with vowels
	{{0x904, 0x939}, {0x93e, 0x94d}},                                   // Devanagari
	{{0xe01, 0xe30}, {0xe34, 0xe3a}, {0xe48, 0xe4b}},                   // Thai
	{{0x10d0, 0x10f0}},                                                 // Georgian
	{{0x1200, 0x1247}},                                                 // Ethiopic
	{{0x1780, 0x17b3}, {0x17b6, 0x17d1}},                               // Khmer
	{{0x3041, 0x3093}, {0x30a1, 0x30f6}, {0x4e00, 0x9fa5}},             // Japanese
	{{0x4e00, 0x9fa5}},                                                 // Chinese
	{{0x3400, 0x4db5}, {0x20000, 0x2a6d6}},                             // rare Chinese
	{{0xac00, 0xd7a3}},                                                 // Hangul
	{{0x1100, 0x1112}, {0x1161, 0x1175}, {0x11a8, 0x11c2}},             // Hangul in parts
	{{0xff21, 0xff3a}, {0x1d400, 0x1d454}, {0x2b0, 0x2c1}},             // letters of other forms
	{{'0', '9'}}, //
	{{0x660, 0x669}, {0x966, 0x96f}, {0xff10, 0xff19}, {0x2160, 0x216b}, {0xbc, 0xbe}},             // numbers of other forms
	{{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}},                                               // punctuation
	{{0x2010, 0x2027}, {0x3001, 0x3003}, {0xa1, 0xac}},                                             //
	{{0x2190, 0x21ff}, {0x2500, 0x257f}, {0x20a0, 0x20bf}},                                         // symbols
	{{0x1f600, 0x1f64f}, {0x1f300, 0x1f320}, {0x1f3fb, 0x1f3ff}, {0x1f1e6, 0x1f1ff}},               // emoji, skins, flags
	{{0, 8}, {0xe, 0x1f}, {0x7f, 0x84}, {0x86, 0x9f}, {0x200b, 0x200f}, {0xe000, 0xe010}},          // control and private
	{{0x300, 0x30f}, {0x483, 0x487}, {0x20d0, 0x20dc}, {0xfe00, 0xfe0f}, {0xe0100, 0xe0110}},       // marks
	{{' ', ' '}, {'\t', '\r'}, {0xa0, 0xa0}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x3000, 0x3000}}, // white space
}

// phrases are what random characters would hardly make.
var phrases = strings.Split("Hello, world!§The quick brown fox§I'll don't IT'S we've 'Twas o'clock§"+
	"func main() {\n\tfmt.Println(x)\n}§if (a != b || c[i] >= 0x1F) { return -1; }§SELECT * FROM t WHERE id = 42;§"+
	"<html lang=\"en\">§https://example.org/?q=a%20b#c§Wie heißt du?§¿Dónde está?§Où est-elle née§Привет, мир!§"+
	"Καλημέρα κόσμε§שלום עולם§مرحبا بالعالم§नमस्ते दुनिया§สวัสดีชาวโลก§你好，世界！§こんにちは世界§안녕하세요 세계§"+
	"3.14159265§1,234,567.89§2026-11-30T12:00:00Z§a\u0301e\u0308n\u0303o\u0302§👩\u200d👩\u200d👧\u200d👦§👩🏽\u200d🚀§"+
	"🏳\ufe0f\u200d🌈§🇩🇪🇯🇵§1\ufe0f\u20e3§   leading and  double  §\n\n\n§\r\n\r\n§\t\t§        §  \n  \n§<|im_start|>user\n§"+
	"<|im_end|>\n§<|endoftext|>§<think>\n\n</think>\n\n§<tool_call>§<|im_start<|im_end|>§<|IM_END|>§ﬁ ﬂ \u212b \u2126 \u212a§"+
	"\u00ad\u2060\u061c§x² + y³ ≠ ½§/* … */ // #!§__init__(self, *args)§\\n\\t\\\"", "§")

// splitMix is SplitMix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number generators".
type splitMix uint64

func (s *splitMix) below(n int) int {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) >> 11 % uint64(n))
}

func corpus() []string {
	rng := splitMix(20261130)
	lines := make([]string, corpusLines)
	for i := range lines {
		var b strings.Builder
		for range 1 + rng.below(4) {
			segment(&b, &rng)
		}
		lines[i] = b.String()
	}
	return lines
}

// segment writes a phrase, a word or two of a script, or a mixture.
func segment(b *strings.Builder, rng *splitMix) {
	character := func(script [][2]rune) {
		r := script[rng.below(len(script))]
		if c := r[0] + rune(rng.below(int(r[1]-r[0])+1)); utf8.ValidRune(c) {
			b.WriteRune(c)
		}
	}
	switch rng.below(8) {
	case 0, 1, 2:
		b.WriteString(phrases[rng.below(len(phrases))])
	case 3:
		for range 1 + rng.below(6) {
			character(scripts[rng.below(len(scripts))])
		}
	default:
		script := scripts[rng.below(len(scripts))]
		for range 1 + rng.below(2) {
			if rng.below(3) > 0 {
				b.WriteByte(' ')
			}
			for range 1 + rng.below(5) {
				character(script)
			}
		}
	}
}
