package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// The dumb twins: an interpreter of the regular expressions that the word rules are written from,
// and a merge loop that looks through the whole word for every merge.

// expressions are as tokenizer.json files and llama.cpp write them.
var expressions = map[string]string{
	"gpt-2": `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
	"qwen2": `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` +
		`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"qwen35": `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}` +
		`| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
}

// cl100kExpression is the original, with up to three digits a word.
const cl100kExpression = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+` +
	`|\p{N}\p{N}?\p{N}?| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// matcher calls then with each place where its expression can end, the preferred one first, until
// then is content.
type matcher func(s []rune, at int, then func(at int) bool) bool

// expression is a backtracking interpreter for what the expressions above use.
type expression struct{ src []rune }

func compile(src string) matcher {
	e := &expression{[]rune(src)}
	m := e.alternatives()
	if len(e.src) > 0 {
		panic("unread: " + string(e.src))
	}
	return m
}

func (e *expression) take(prefix string) bool {
	ok := strings.HasPrefix(string(e.src), prefix)
	if ok {
		e.src = e.src[len([]rune(prefix)):]
	}
	return ok
}

func (e *expression) alternatives() matcher {
	all := []matcher{e.sequence()}
	for e.take("|") {
		all = append(all, e.sequence())
	}
	return func(s []rune, at int, then func(int) bool) bool {
		return slices.ContainsFunc(all, func(m matcher) bool { return m(s, at, then) })
	}
}

func (e *expression) sequence() matcher {
	m := func(_ []rune, at int, then func(int) bool) bool { return then(at) }
	for len(e.src) > 0 && e.src[0] != '|' && e.src[0] != ')' {
		left, right := m, e.quantified()
		m = func(s []rune, at int, then func(int) bool) bool {
			return left(s, at, func(at int) bool { return right(s, at, then) })
		}
	}
	return m
}

func (e *expression) quantified() matcher {
	m := e.atom()
	least, most := 1, 1
	switch {
	case e.take("?"):
		least = 0
	case e.take("*"):
		least, most = 0, 1<<30
	case e.take("+"):
		most = 1 << 30
	}
	var repeat func(n int) matcher
	repeat = func(n int) matcher {
		return func(s []rune, at int, then func(int) bool) bool {
			if n < most && m(s, at, func(at int) bool { return repeat(n+1)(s, at, then) }) {
				return true
			}
			return n >= least && then(at)
		}
	}
	return repeat(0)
}

func (e *expression) atom() matcher {
	switch {
	case e.take("(?!"):
		m := e.group()
		return func(s []rune, at int, then func(int) bool) bool {
			return !m(s, at, func(int) bool { return true }) && then(at)
		}
	case e.take("(?:"):
		return e.group()
	case e.take("[^"):
		in := e.class()
		return one(func(r rune) bool { return !in(r) })
	case e.take("["):
		return one(e.class())
	}
	return one(e.character())
}

func (e *expression) group() matcher {
	m := e.alternatives()
	if !e.take(")") {
		panic("group not closed")
	}
	return m
}

func (e *expression) class() func(rune) bool {
	var any []func(rune) bool
	for !e.take("]") {
		any = append(any, e.character())
	}
	return func(r rune) bool { return slices.ContainsFunc(any, func(f func(rune) bool) bool { return f(r) }) }
}

func (e *expression) character() func(rune) bool {
	white := func(r rune) bool { return unicode.Is(unicode.White_Space, r) }
	for src, f := range map[string]func(rune) bool{
		`\r`:    func(r rune) bool { return r == '\r' },
		`\n`:    func(r rune) bool { return r == '\n' },
		`\s`:    white,
		`\S`:    func(r rune) bool { return !white(r) },
		`\p{L}`: func(r rune) bool { return unicode.Is(unicode.L, r) },
		`\p{M}`: func(r rune) bool { return unicode.Is(unicode.M, r) },
		`\p{N}`: func(r rune) bool { return unicode.Is(unicode.N, r) },
	} {
		if e.take(src) {
			return f
		}
	}
	want := e.src[0]
	if strings.ContainsRune(`\()[]{}?*+|`, want) {
		panic(fmt.Sprintf("cannot read %q", string(e.src)))
	}
	e.src = e.src[1:]
	return func(r rune) bool { return r == want }
}

func one(in func(rune) bool) matcher {
	return func(s []rune, at int, then func(int) bool) bool {
		return at < len(s) && in(s[at]) && then(at+1)
	}
}

// words splits text as a regular expression's findall does. What no alternative matches would be
// lost to findall; the twin panics there, because the expressions leave nothing out.
func words(m matcher, text string) []string {
	s := []rune(text)
	var out []string
	for at := 0; at < len(s); {
		end := -1
		m(s, at, func(to int) bool { end = to; return true })
		if end <= at {
			panic(fmt.Sprintf("no word at %q", string(s[at:])))
		}
		out = append(out, string(s[at:end]))
		at = end
	}
	return out
}

// mergeDumb is byte-level BPE as one would explain it, on strings.
func mergeDumb(v *Vocab, word string) []string {
	var parts []string
	for i := range len(word) {
		parts = append(parts, string(printable[word[i]]))
	}
	for {
		best, at := len(v.Merges), -1
		for i := range len(parts) - 1 {
			if rank := slices.Index(v.Merges, parts[i]+" "+parts[i+1]); rank >= 0 && rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			return parts
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
}
