package tokenizer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// wordRule returns the length in bytes of the first word of text, which is valid UTF-8 and not
// empty. It never looks back. Ahead of the word it may look at one more character, or at spaces
// that follow the last line break of a run; the next word takes those, so splitting a text is
// linear.
type wordRule func(text string) int

// rule is a pre-tokenizer.
type rule struct {
	word  wordRule
	whole bool // a word that is a token is taken as it is, whatever the merges make of it
}

// rules are the pre-tokenizers by their name in model files. Each is given as a regular expression
// with lookahead, which package regexp lacks; the functions below say the same by hand, and the
// tests hold them against an interpreter of the expressions.
var rules = map[string]rule{
	// Several expressions, one after another: see defaultWord.
	"default": {word: defaultWord},
	// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
	"gpt-2": {word: gpt2Word},
	// (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}
	// | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
	"qwen2": {word: cl100k{digits: 1}.word},
	// As qwen2, but combining marks go with letters: …[\p{L}\p{M}]+… and …[^\s\p{L}\p{M}\p{N}]+…
	"qwen35": {word: cl100k{digits: 1, marks: true}.word},
	// As qwen2, with \p{N}{1,3}
	"llama-bpe": {word: cl100k{digits: 3}.word, whole: true},
	// See o200kWord.
	"gpt-4o": {word: o200kWord},
}

// otherNames are names that model files have for the same rules.
var otherNames = map[string]string{
	"llama3": "llama-bpe", "llama-v3": "llama-bpe", "llama4": "gpt-4o", "deepseek-r1-qwen": "qwen2",
}

func findRule(name string) (rule, error) {
	if same, ok := otherNames[name]; ok {
		name = same
	}
	if r, ok := rules[name]; ok {
		return r, nil
	}
	known := slices.Concat(slices.Collect(maps.Keys(rules)), slices.Collect(maps.Keys(otherNames)))
	slices.Sort(known)
	return rule{}, fmt.Errorf("%w: pre-tokenizer %s is not supported (supported: %s)", ErrVocab, quote(name),
		strings.Join(known, ", "))
}

type class uint8

const (
	other class = iota // symbols, punctuation, control characters, whatever is unassigned
	letter
	mark
	digit
	space
)

var asciiClass = func() (c [utf8.RuneSelf]class) {
	for r := range c {
		c[r] = classOf(rune(r))
	}
	return c
}()

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return digit
	case unicode.IsSpace(r): // the property White_Space: U+0085 and U+3000 are in, U+001C and U+200B are not
		return space
	case unicode.IsMark(r):
		return mark
	}
	return other
}

// first returns the class and the length of the first character of text; other and 0 when there is
// none.
func first(text string) (class, int) {
	if text == "" {
		return other, 0
	}
	if b := text[0]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, n := utf8.DecodeRuneInString(text)
	return classOf(r), n
}

// run returns the length of the longest beginning of text whose characters are all of the classes
// in set.
func run(text string, set ...class) int {
	at := 0
	for at < len(text) {
		c, n := first(text[at:])
		if !slices.Contains(set, c) {
			break
		}
		at += n
	}
	return at
}

// cl100k is the rule that OpenAI's cl100k_base brought, in the variants that others made of it.
type cl100k struct {
	digits int  // most digits a word
	marks  bool // combining marks belong to words of letters
}

func (k cl100k) word(text string) int {
	if n := contraction(text, true); n > 0 {
		return n
	}
	letters, symbols := []class{letter}, []class{other, mark}
	if k.marks {
		letters, symbols = []class{letter, mark}, []class{other}
	}
	c, n := first(text)
	next, _ := first(text[n:])
	newline := text[0] == '\r' || text[0] == '\n'
	switch {
	case slices.Contains(letters, c):
		return run(text, letters...)
	case c != digit && !newline && n < len(text) && slices.Contains(letters, next):
		return n + run(text[n:], letters...)
	case c == digit:
		return digits(text, k.digits)
	case slices.Contains(symbols, c):
		n = run(text, symbols...)
		return n + newlines(text[n:])
	case text[0] == ' ' && n < len(text) && slices.Contains(symbols, next):
		n += run(text[n:], symbols...)
		return n + newlines(text[n:])
	}
	return spaces(text)
}

// digits is \p{N}{1,most} for text that begins with a digit.
func digits(text string, most int) int {
	n := 0
	for range most {
		c, size := first(text[n:])
		if c != digit {
			break
		}
		n += size
	}
	return n
}

// spaces is \s*[\r\n]+|\s+(?!\S)|\s+ for text that begins with a space.
func spaces(text string) int {
	n := run(text, space)
	if last := strings.LastIndexAny(text[:n], "\r\n"); last >= 0 {
		return last + 1
	}
	return leaveOne(text, n)
}

func gpt2Word(text string) int {
	if n := contraction(text, false); n > 0 {
		return n
	}
	at := 0
	if text[0] == ' ' && len(text) > 1 {
		at = 1
	}
	switch c, _ := first(text[at:]); c {
	case letter, digit:
		return at + run(text[at:], c)
	case other, mark:
		return at + run(text[at:], other, mark)
	}
	return leaveOne(text, run(text, space))
}

// leaveOne is \s+(?!\S)|\s+ for text that begins with that many bytes of spaces: a run before a
// word leaves its last space to it.
func leaveOne(text string, spaces int) int {
	if spaces == len(text) {
		return spaces
	}
	_, last := utf8.DecodeLastRuneInString(text[:spaces])
	if spaces == last {
		return spaces
	}
	return spaces - last
}

func newlines(text string) int {
	n := 0
	for n < len(text) && (text[n] == '\r' || text[n] == '\n') {
		n++
	}
	return n
}

// contraction returns the length of an English ending, such as 's or 'll, that text begins with; 0
// if none.
func contraction(text string, anyCase bool) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	at := func(i int) byte {
		if i >= len(text) {
			return 0
		}
		if b := text[i]; anyCase && b >= 'A' && b <= 'Z' {
			return b + ('a' - 'A')
		}
		return text[i]
	}
	switch at(1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if at(2) == 'e' {
			return 3
		}
	case 'l':
		if at(2) == 'l' {
			return 3
		}
	}
	return 0
}
