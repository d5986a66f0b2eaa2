package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/tokens"
)

// Limits of a template's text. They bound how deep gonja's parser and evaluator recurse; those of
// known models stay far below.
const (
	maxTagTokens = 2000 // in one {{ }} or {% %}
	maxBrackets  = 64   // open at once
	maxBlocks    = 64   // within one another
	maxMacros    = 64   // calls within one another
)

// prepare rewrites a template into the part of Jinja that gonja reads as Jinja does:
//
//   - spaces before a block at the beginning of a line go (lstrip_blocks; gonja takes the end of a
//     tag for the beginning of a line);
//   - a line break inside of a tag gets spaces around it (gonja takes it for a part of the next word);
//   - backslashes in strings are written so that none ends a string;
//   - x in y|z becomes x in (y|z), as Jinja reads it;
//   - x if y else z becomes ((y) and [x] or [z])[0], which gonja takes inside of brackets too.
func prepare(source string) (string, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	var out strings.Builder
	for start := true; ; start = false {
		open := nextTag(source)
		if open < 0 {
			out.WriteString(source)
			return out.String(), nil
		}
		data, mark := source[:open], source[open:open+2]
		source = source[open+2:]
		if mark != "{{" && !strings.HasPrefix(source, "+") {
			data = stripIndent(data, start)
		}
		out.WriteString(data + mark)
		if mark == "{#" {
			n := strings.Index(source, "#}")
			if n < 0 {
				n = len(source)
			}
			out.WriteString(source[:n])
			source = source[n:]
			continue
		}
		t := tagReader{rest: source, end: "}}"}
		if mark == "{%" {
			t.end = "%}"
		}
		text, err := t.read()
		if err != nil {
			return "", err
		}
		out.WriteString(text)
		source = t.rest
	}
}

// nextTag returns where the next {{, {% or {# is, -1 if nowhere.
func nextTag(s string) int {
	for at := 0; ; {
		n := strings.IndexByte(s[at:], '{')
		if n < 0 || at+n+1 >= len(s) {
			return -1
		}
		at += n
		if strings.IndexByte("{%#", s[at+1]) >= 0 {
			return at
		}
		at++
	}
}

// stripIndent takes the spaces off the end of data that follow a line break, or the start of the
// template.
func stripIndent(data string, start bool) string {
	short := strings.TrimRight(data, " \t")
	if strings.HasSuffix(short, "\n") || start && short == "" {
		return short
	}
	return data
}

// tagReader reads the inside of one tag.
type tagReader struct {
	rest  string // of the template, from the inside of the tag
	end   string // }} or %}
	words []word
	at    int // in words
}

// word is a part of a tag, with the space before it.
type word struct{ space, text string }

// read returns the tag from its inside to its end, rewritten.
func (t *tagReader) read() (string, error) {
	control := ""
	if strings.HasPrefix(t.rest, "-") || strings.HasPrefix(t.rest, "+") {
		control, t.rest = t.rest[:1], t.rest[1:]
	}
	if err := t.split(); err != nil {
		return "", err
	}
	if first := &t.words[0]; len(t.words) > 1 && strings.Contains(first.space, "\n") {
		// Gonja wants the name of a block on the line where the block begins.
		t.words[1].space = first.space + t.words[1].space
		first.space = " "
	}
	return control + t.group(false, t.end == "}}"), nil
}

// split cuts the tag into words. What it cannot read it leaves to gonja to complain about.
func (t *tagReader) split() error {
	var braces []byte
	for {
		space := t.takeSpace()
		s := t.rest
		inBrace := len(braces) > 0 && braces[len(braces)-1] == '{'
		if s == "" || !inBrace && (strings.HasPrefix(s, t.end) || strings.HasPrefix(s[1:], t.end) && (s[0] == '-' || s[0] == '+')) {
			t.words = append(t.words, word{space: space})
			return nil
		}
		w := word{space, s[:wordLength(s)]}
		t.rest = s[len(w.text):]
		switch c := s[0]; c {
		case '\'', '"':
			w.text = cleanString(w.text)
		case '(', '[', '{':
			braces = append(braces, c)
		case ')', ']', '}':
			if len(braces) > 0 {
				braces = braces[:len(braces)-1]
			}
		}
		t.words = append(t.words, w)
		if len(t.words) > maxTagTokens || len(braces) > maxBrackets {
			return fmt.Errorf("%w: the template has an expression of more than %d words or %d open brackets, near %s",
				ErrLimit, maxTagTokens, maxBrackets, oneLine(s[:min(len(s), 40)]))
		}
	}
}

func (t *tagReader) takeSpace() string {
	short := strings.TrimLeft(t.rest, " \t\n")
	space := t.rest[:len(t.rest)-len(short)]
	t.rest = short
	return strings.ReplaceAll(space, "\n", " \n ")
}

// wordLength returns the length of the word that s, which is not empty, begins with.
func wordLength(s string) int {
	switch {
	case s[0] == '\'' || s[0] == '"':
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case s[0]:
				return i + 1
			}
		}
		return len(s)
	case len(s) > 1 && (s[1] == '=' && strings.IndexByte("=!<>", s[0]) >= 0 || s[:2] == "**" || s[:2] == "//"):
		return 2
	}
	n := 0
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			break
		}
		n += size
	}
	if n == 0 {
		_, n = utf8.DecodeRuneInString(s)
	}
	return n
}

// cleanString writes the backslashes of a string literal so that gonja reads it as Python does: one
// that stands for itself as \x5c, one before a line break not at all.
func cleanString(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; {
		case c == '\n':
		case c == '\\':
			b.WriteString(`\x5c`)
		case strings.IndexByte(`abfnrtvxuU'"`, c) >= 0:
			b.WriteString(s[i-1 : i+1])
		default:
			b.WriteString(`\x5c` + s[i:i+1])
		}
	}
	return b.String()
}

// group returns the words up to the bracket that closes it, or all of them, rewritten. Conditions
// are rewritten where values stand: at the top of {{ }}, after the = of a set, and inside of
// brackets.
func (t *tagReader) group(inside, values bool) string {
	var out strings.Builder
	var element []word
	separator := "" // before element; not yet written
	flush := func() {
		if len(element) == 0 {
			return
		}
		out.WriteString(separator)
		separator = ""
		element = encloseOperands(element)
		if values {
			out.WriteString(conditional(element))
		} else {
			out.WriteString(joinWords(element))
		}
		element = nil
	}
	set := !inside && t.words[0].text == "set"
	for ; t.at < len(t.words); t.at++ {
		w := t.words[t.at]
		switch w.text {
		case "(", "[", "{":
			t.at++
			w.text += t.group(true, true)
			element = append(element, w)
		case ")", "]", "}":
			if !inside {
				element = append(element, w)
				break
			}
			flush()
			if w.text == "}" && strings.TrimSpace(separator) == "," {
				separator = "" // {'a': 1,} is a mapping, and gonja takes no comma there
			}
			return out.String() + separator + w.space + w.text
		case ",", ":", "=":
			flush()
			out.WriteString(separator)
			separator = w.space + w.text
			values = values || set && w.text == "="
		default:
			element = append(element, w)
		}
	}
	flush()
	return out.String() + separator
}

// encloseOperands puts what follows the word in between brackets, if it is more than a name.
func encloseOperands(element []word) []word {
	for i := range element {
		if element[i].text != "in" {
			continue
		}
		n := i + 1
		plain := true
		for ; n < len(element) && !slices.Contains(looser, element[n].text); n++ {
			plain = plain && strings.IndexByte("|+-*/%~", element[n].text[0]) < 0
		}
		if !plain {
			inside := word{" ", "(" + joinWords(element[i+1:n]) + ")"}
			return append(append(element[:i+1:i+1], inside), encloseOperands(element[n:])...)
		}
	}
	return element
}

// looser are the words that end an operand of in.
var looser = []string{"and", "or", "not", "if", "else", "is", "in", "==", "!=", "<", "<=", ">", ">=", ""}

// conditional rewrites x if y else z, where z may be another of the kind.
func conditional(element []word) string {
	at := func(list []word, text string) int {
		for i, w := range list {
			if w.text == text {
				return i
			}
		}
		return -1
	}
	i := at(element, "if")
	if i < 1 {
		return joinWords(element)
	}
	yes, rest := joinWords(element[:i]), element[i+1:]
	no := ""
	if j := at(rest, "else"); j >= 0 {
		no, rest = conditional(rest[j+1:]), rest[:j]
	}
	return " ((" + joinWords(rest) + ") and [" + yes + "] or [" + no + "])[0] "
}

func joinWords(words []word) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(w.space + w.text)
	}
	return b.String()
}

// readTokens returns the words of source, and refuses what gonja would recurse too deeply into.
func readTokens(source string) ([]*tokens.Token, error) {
	var words []*tokens.Token
	depth := 0
	stream := tokens.LexAll(source, syntax())
	for !stream.End() {
		t := stream.Next()
		words = append(words, t)
		depth += nesting(t)
		if t.Type == tokens.VariableBegin || t.Type == tokens.BlockBegin {
			depth = 0
		}
		if depth > maxBrackets {
			return nil, fmt.Errorf("%w: line %d of the template has more than %d open brackets", ErrLimit, t.Line, maxBrackets)
		}
	}
	if t := stream.Current(); stream.IsError() {
		return nil, fmt.Errorf("%w: cannot read %s", ErrTemplate, oneLine(t.Val))
	}
	return words, nil
}

// nesting is 1 for an opening bracket, -1 for a closing one.
func nesting(t *tokens.Token) int {
	switch t.Type {
	case tokens.LeftParenthesis, tokens.LeftBracket, tokens.LeftBrace:
		return 1
	case tokens.RightParenthesis, tokens.RightBracket, tokens.RightBrace:
		return -1
	}
	return 0
}

// parseError takes off what gonja puts in front of an error, which is the whole template among
// others.
func parseError(err error) error {
	for outer := err; ; {
		inner := errors.Unwrap(err)
		switch {
		case inner == nil && (errors.Is(err, ErrTemplate) || errors.Is(err, ErrLimit)):
			return outer
		case inner == nil:
			return fmt.Errorf("%w: %s", ErrTemplate, oneLine(err.Error()))
		}
		outer, err = err, inner
	}
}
