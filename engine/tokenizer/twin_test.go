package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// The dumb twins: an interpreter of the regular expressions that the word rules are written from,
// and a merge loop that looks through the whole word for every merge.

// expressions are as tokenizer.json files and llama.cpp write them; each one splits what those
// before it left.
var expressions = map[string][]string{
	"default": {`[\p{P}$\+<=>^~\|]+`, `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`,
		`\p{N}+`, `[0-9][0-9][0-9]`},
	"gpt-2": {`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`},
	"qwen2": {ending + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + spacing},
	"qwen35": {ending + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` +
		spacing},
	"llama-bpe": {ending + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + spacing},
	"gpt-4o": {`[^\r\n\p{L}\p{N}]?(?:(?=[\p{L}])(?:[^a-z]))*(?:(?=[\p{L}])(?:[^A-Z]))+` + ending + `?` +
		`|[^\r\n\p{L}\p{N}]?(?:(?=[\p{L}])(?:[^a-z]))+(?:(?=[\p{L}])(?:[^A-Z]))*` + ending + `?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + spacing},
}

const (
	ending  = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
	spacing = `|\s*[\r\n]+|\s+(?!\S)|\s+`
)

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
	case e.take("{1,3}"):
		most = 3
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
	case e.take("(?="):
		m := e.group()
		return func(s []rune, at int, then func(int) bool) bool {
			return m(s, at, func(int) bool { return true }) && then(at)
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
		`\p{P}`: func(r rune) bool { return unicode.Is(unicode.P, r) },
		`\+`:    func(r rune) bool { return r == '+' },
		`\|`:    func(r rune) bool { return r == '|' },
		`a-z`:   func(r rune) bool { return r >= 'a' && r <= 'z' },
		`A-Z`:   func(r rune) bool { return r >= 'A' && r <= 'Z' },
		`0-9`:   func(r rune) bool { return r >= '0' && r <= '9' },
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

// stages returns what splits a text by each expression in turn.
func stages(expressions []string) func(text string) []string {
	var all []matcher
	for _, src := range expressions {
		all = append(all, compile(src))
	}
	return func(text string) []string {
		pieces := []string{text}
		if text == "" {
			pieces = nil
		}
		for _, m := range all {
			var next []string
			for _, p := range pieces {
				next = append(next, words(m, p)...)
			}
			pieces = next
		}
		return pieces
	}
}

// words splits text as a regular expression's findall does, and keeps what lies between matches.
func words(m matcher, text string) []string {
	s := []rune(text)
	var out []string
	gap := 0
	for at := 0; at < len(s); {
		end := -1
		if !m(s, at, func(to int) bool { end = to; return true }) {
			at++
			continue
		}
		if end <= at {
			panic(fmt.Sprintf("an empty word at %q", string(s[at:])))
		}
		if gap < at {
			out = append(out, string(s[gap:at]))
		}
		out = append(out, string(s[at:end]))
		at, gap = end, end
	}
	if gap < len(s) {
		out = append(out, string(s[gap:]))
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
