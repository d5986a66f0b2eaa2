package tokenizer

import "strings"

// o200kWord is the rule that OpenAI's o200k_base brought, in the form that llama.cpp runs:
//
//	[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|…)?
//	|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|…)?
//	|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// The original asks for upper and lower case of any script, and lets marks into words. Here only
// ASCII has case: any other letter goes on either side.
func o200kWord(text string) int {
	c, n := first(text)
	next, _ := first(text[n:])
	newline := text[0] == '\r' || text[0] == '\n'
	symbol := func(c class) bool { return c == other || c == mark }
	switch {
	case c == letter:
		return casedWord(text)
	case c != digit && !newline && n < len(text) && next == letter:
		return n + casedWord(text[n:])
	case c == digit:
		return digits(text, 3)
	case symbol(c):
		n = run(text, other, mark)
		return n + lineEnds(text[n:])
	case text[0] == ' ' && n < len(text) && symbol(next):
		n += run(text[n:], other, mark)
		return n + lineEnds(text[n:])
	}
	return spaces(text)
}

// casedWord returns the length of the word that text, which begins with a letter, begins with:
// letters but a-z, then letters but A-Z, then an English ending.
func casedWord(text string) int {
	n := 0 // behind the last letter that is not A-Z
	at := 0
	for at < len(text) {
		c, size := first(text[at:])
		if c != letter || text[at] >= 'a' && text[at] <= 'z' {
			break
		}
		if text[at] < 'A' || text[at] > 'Z' {
			n = at + size
		}
		at += size
	}
	upper := at
	for at < len(text) {
		c, size := first(text[at:])
		if c != letter || text[at] >= 'A' && text[at] <= 'Z' {
			break
		}
		at += size
	}
	switch {
	case at > upper: // some a-z, and what follows
		n = at
	case n == 0: // A-Z alone
		n = upper
	}
	return n + contraction(text[n:], true)
}

// lineEnds is [\r\n/]*.
func lineEnds(text string) int {
	return len(text) - len(strings.TrimLeft(text, "\r\n/"))
}
