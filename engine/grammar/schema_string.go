package grammar

import (
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	hostPart  = `[a-z0-9]{1,15}(?:-[a-z0-9]{1,15})?`
	clock     = `(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)`
	day       = `\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))`
	byteValue = `(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
	mailPart  = `[A-Za-z0-9_+-]{1,20}`
	daySpan   = `T(?:\d{1,4}H(?:\d{1,4}M(?:\d{1,4}S)?)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S)`
	yearSpan  = `(?:\d{1,4}Y(?:\d{1,4}M(?:\d{1,4}D)?)?|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}D)`
)

// formats are the strings that are generated for a format: valid ones, not always all of them.
var formats = map[string]string{
	"date":      "^" + day + "$",
	"time":      "^" + clock + "$",
	"date-time": "^" + day + "T" + clock + "$",
	"duration":  "^P(?:" + yearSpan + "(?:" + daySpan + ")?|" + daySpan + `|\d{1,4}W)$`,
	"uuid":      "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
	"ipv4":      `^(?:` + byteValue + `\.){3}` + byteValue + "$",
	"ipv6":      "^(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$",
	"hostname":  "^" + hostPart + `(?:\.` + hostPart + "){0,6}$",
	"email":     "^" + mailPart + `(?:\.` + mailPart + "){0,2}@(?:" + hostPart + `\.){1,5}[a-z]{2,12}$`,
}

func (c *schemaCompiler) stringOf(v *value, path string) (*expr, error) {
	pattern, format := v.get("pattern"), v.get("format")
	if pattern == nil && format == nil {
		lo, hi, err := limits(v, path, "minLength", "maxLength")
		if err != nil {
			return nil, err
		}
		if lo == 0 && hi == noMax && !c.raw {
			return c.text(), nil
		}
		return seq(c.mark(), repeat(c.anyChar(), lo, hi), c.mark()), nil
	}
	keyword, at := "pattern", pattern
	if pattern == nil {
		keyword, at = "format", format
	}
	for _, other := range []string{"minLength", "maxLength", "format"} {
		if other != keyword && v.get(other) != nil {
			return nil, refuse(path, "keyword %q beside %q is not supported", other, keyword)
		}
	}
	if at.kind != "string" {
		return nil, refuse(path, "%q is a string, not %s", keyword, at.kind)
	}
	source := at.text
	if keyword == "format" {
		known, ok := formats[source]
		if !ok {
			return nil, refuse(path, `"format" %q is not supported`, source)
		}
		name := "format " + source
		if c.raw {
			name = "bare " + name
		}
		return c.rule(name, true, func() *expr {
			e, err := c.regex(known, path)
			if err != nil {
				panic("BUG: format " + source + ": " + err.Error())
			}
			return e
		}), nil
	}
	return c.regex(source, path)
}

// mark is what stands around a string.
func (c *schemaCompiler) mark() *expr {
	if c.raw {
		return exprEmpty
	}
	return literal(`"`)
}

// anyChar is any character of a string.
func (c *schemaCompiler) anyChar() *expr {
	if c.raw {
		return c.rule("bare char", false, func() *expr { return runeSet{{'<', '<'}}.not().expr() })
	}
	return c.char()
}

// oneChar is a certain character of a string.
func (c *schemaCompiler) oneChar(r rune) *expr {
	if c.raw {
		return literal(string(r))
	}
	return literal(escaped(r))
}

// regex compiles a regular expression of ECMA-262 to the JSON strings that it finds something in.
// Supported: characters, classes, \d \w \s and their opposites, groups, alternatives, repetitions, ^
// at the beginning and $ at the end. Each character is written in one way.
func (c *schemaCompiler) regex(source, path string) (*expr, error) {
	translated, bad := translate(source)
	if bad != "" {
		return nil, refuse(path, `"pattern" %q: %s is not supported`, source, bad)
	}
	re, err := syntax.Parse(translated, syntax.PerlX|syntax.OneLine)
	if err != nil {
		return nil, refuse(path, `"pattern" %q: %s`, source, err.Error())
	}
	e, bad := c.searched(re)
	if bad != "" {
		return nil, refuse(path, `"pattern" %q: %s is not supported`, source, bad)
	}
	return seq(c.mark(), e, c.mark()), nil
}

// searched is the texts in which re is found: without an anchor there may be anything around it.
func (c *schemaCompiler) searched(re *syntax.Regexp) (*expr, string) {
	switch re.Op {
	case syntax.OpCapture:
		return c.searched(re.Sub[0])
	case syntax.OpAlternate:
		return each(re.Sub, c.searched, alt)
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	before, after := star(c.anyChar()), star(c.anyChar())
	if len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		parts, before = parts[1:], exprEmpty
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		parts, after = parts[:n-1], exprEmpty
	}
	e, bad := each(parts, c.matched, seq)
	return seq(before, e, after), bad
}

func each(list []*syntax.Regexp, f func(*syntax.Regexp) (*expr, string), join func(...*expr) *expr) (*expr, string) {
	var subs []*expr
	for _, re := range list {
		e, bad := f(re)
		if bad != "" {
			return exprNothing, bad
		}
		subs = append(subs, e)
	}
	return join(subs...), ""
}

// matched is what re matches, or else what in it is not supported.
func (c *schemaCompiler) matched(re *syntax.Regexp) (*expr, string) {
	switch re.Op {
	case syntax.OpNoMatch:
		return exprNothing, ""
	case syntax.OpEmptyMatch:
		return exprEmpty, ""
	case syntax.OpLiteral:
		var subs []*expr
		for _, r := range re.Rune {
			if re.Flags&syntax.FoldCase != 0 { // the parser writes [aA] so
				subs = append(subs, c.inString(folds(r)))
				continue
			}
			subs = append(subs, c.oneChar(r))
		}
		return seq(subs...), ""
	case syntax.OpCharClass:
		var set runeSet
		for i := 0; i+1 < len(re.Rune); i += 2 {
			set = append(set, runeRange{re.Rune[i], re.Rune[i+1]})
		}
		return c.inString(newRuneSet(set...)), ""
	case syntax.OpAnyCharNotNL: // ECMA-262 has more line ends than RE2
		return c.inString(runeSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.not()), ""
	case syntax.OpCapture:
		return c.matched(re.Sub[0])
	case syntax.OpConcat:
		return each(re.Sub, c.matched, seq)
	case syntax.OpAlternate:
		return each(re.Sub, c.matched, alt)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		x, bad := c.matched(re.Sub[0])
		switch {
		case bad != "":
			return nil, bad
		case re.Op == syntax.OpStar:
			return star(x), ""
		case re.Op == syntax.OpPlus:
			return repeat(x, 1, noMax), ""
		case re.Op == syntax.OpQuest:
			return opt(x), ""
		case re.Max < 0:
			return repeat(x, int32(re.Min), noMax), ""
		}
		return repeat(x, int32(re.Min), int32(re.Max)), ""
	case syntax.OpBeginText, syntax.OpEndText:
		return nil, "^ or $ within"
	}
	return nil, strconv.Quote(re.String())
}

// folds is the forms of a letter that differ in case alone.
func folds(r rune) runeSet {
	ranges := []runeRange{{r, r}}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		ranges = append(ranges, runeRange{f, f})
	}
	return newRuneSet(ranges...)
}

// inString is one character of a set in a JSON string.
func (c *schemaCompiler) inString(set runeSet) *expr {
	if c.raw {
		return set.minus(runeSet{{'<', '<'}}).expr()
	}
	var key strings.Builder
	key.WriteString("class")
	for _, r := range set {
		key.WriteString(" " + strconv.Itoa(int(r.lo)) + "-" + strconv.Itoa(int(r.hi)))
	}
	e := c.others[key.String()]
	if e == nil {
		var list []string
		for r := range rune(0x80) {
			if set.has(r) && !plainRunes.has(r) {
				list = append(list, escaped(r))
			}
		}
		e = set.minus(plainRunes.not()).expr()
		if len(list) > 0 {
			e = alt(e, texts(list))
		}
		c.others[key.String()] = e
	}
	return e
}

// Blanks of ECMA-262 beside those of RE2's \s.
const otherBlanks = `\x0b\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`

// translate turns the syntax of ECMA-262 into that of RE2, or says what it will not take: what RE2
// lacks or understands in another way. Blanks are those of both where either would be right.
func translate(source string) (out, unsupported string) {
	var b strings.Builder
	inClass, negated := false, false
	for i := 0; i < len(source); i++ {
		rest := source[i:]
		switch {
		case source[i] == '\\':
			text, n := translateEscape(rest, inClass, negated)
			if n == 0 {
				return "", strconv.Quote(rest[:min(len(rest), 2)])
			}
			b.WriteString(text)
			i += n - 1
			continue
		case inClass && strings.HasPrefix(rest, "[:"):
			return "", `"[:" in a class`
		case inClass && source[i] == ']':
			inClass = false
		case !inClass && source[i] == '[':
			inClass, negated = true, strings.HasPrefix(rest, "[^")
			if strings.HasPrefix(rest, "[]") || strings.HasPrefix(rest, "[^]") {
				return "", "an empty class"
			}
		case !inClass && strings.HasPrefix(rest, "(?") && !strings.HasPrefix(rest, "(?:"):
			return "", "a group that begins with " + strconv.Quote(rest[:min(len(rest), 3)])
		}
		b.WriteByte(source[i])
	}
	return b.String(), ""
}

// translateEscape translates what begins with a backslash and says how long it is, 0 if it is not
// supported.
func translateEscape(rest string, inClass, negated bool) (string, int) {
	if len(rest) < 2 {
		return "", 0
	}
	letter := rest[1]
	alphanumeric := isWord(letter) && letter != '-' && letter != '_'
	switch {
	case letter == 's' && negated && inClass:
		return `\s` + otherBlanks, 2
	case letter == 'S' && !inClass:
		return `[^\s` + otherBlanks + `]`, 2
	case letter == 'u' && len(rest) >= 6:
		n, err := strconv.ParseUint(rest[2:6], 16, 16)
		if err != nil || n >= 0xd800 && n <= 0xdfff {
			return "", 0
		}
		return `\x{` + rest[2:6] + `}`, 6
	case letter == 'x' && len(rest) >= 4:
		if _, err := strconv.ParseUint(rest[2:4], 16, 8); err != nil {
			return "", 0
		}
		return rest[:4], 4
	case slices.Contains([]byte("dDwWstnrfv"), letter), !alphanumeric && letter < 0x80 && letter != '_':
		return rest[:2], 2
	}
	return "", 0
}
