package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// defaultWord is the rule that llama.cpp takes for files that name none, or "default". It is four
// expressions; each splits what the ones before it left, and keeps what lies between its matches:
//
//	[\p{P}$+<=>^~|]+
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)
//	\p{N}+
//	[0-9][0-9][0-9]
//
// The first leaves no apostrophe to the second, so that nothing is a contraction; and what stands
// before punctuation ends there as a text does.
func defaultWord(text string) int {
	if n := punctuation(text); n > 0 {
		return n
	}
	at := 0
	if text[0] == ' ' && len(text) > 1 && !isPunctuation(text[1:]) {
		at = 1
	}
	switch c, _ := first(text[at:]); {
	case c == letter:
		return at + run(text[at:], letter)
	case c == digit && at == 1:
		return 1
	case c == digit:
		return threeDigits(text)
	case c == space:
		n := run(text, space)
		if isPunctuation(text[n:]) {
			return n
		}
		return leaveOne(text, n)
	}
	n := at
	for n < len(text) {
		c, size := first(text[n:])
		if c != other && c != mark || isPunctuation(text[n:]) {
			break
		}
		n += size
	}
	return n
}

// isPunctuation reports whether text begins with one of [\p{P}$+<=>^~|].
func isPunctuation(text string) bool {
	r, n := utf8.DecodeRuneInString(text)
	switch r {
	case '$', '+', '<', '=', '>', '^', '~', '|':
		return true
	}
	return n > 0 && unicode.IsPunct(r)
}

// punctuation is [\p{P}$+<=>^~|]*.
func punctuation(text string) int {
	n := 0
	for isPunctuation(text[n:]) {
		_, size := utf8.DecodeRuneInString(text[n:])
		n += size
	}
	return n
}

// threeDigits returns three digits of ASCII, or the digits up to where there are three.
func threeDigits(text string) int {
	ascii := func(at int) bool { return at < len(text) && text[at] >= '0' && text[at] <= '9' }
	n := 0
	for n < len(text) {
		if ascii(n) && ascii(n+1) && ascii(n+2) {
			break
		}
		c, size := first(text[n:])
		if c != digit {
			break
		}
		n += size
	}
	if n == 0 {
		return 3
	}
	return n
}
