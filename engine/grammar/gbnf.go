package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse compiles a grammar in GBNF as llama.cpp documents it (its grammars/README.md): rules
// name ::= ..., of which root is what the text has to match; "literals" and [classes] of code points
// with the escapes \n \r \t \\ \" \[ \] \xXX \uXXXX \UXXXXXXXX; . for any code point; groups,
// alternatives, * + ? {m} {m,} {m,n}; comments from # to the end of the line.
//
// Refused, with the place: syntax errors, rules that are not or twice defined, left recursion, a
// root that matches no finite text, tokens written as <...>, and what is beyond the package's limits.
// One way it is more lenient: a rule may go on with | on the next line.
func Parse(gbnf string) (*Grammar, error) {
	if len(gbnf) > MaxSource {
		return nil, fmt.Errorf("%w: a grammar of %d bytes, more than %d", ErrLimit, len(gbnf), MaxSource)
	}
	rules, err := parseRules(gbnf)
	if err != nil {
		return nil, err
	}
	return build(rules)
}

// parseRules reads a grammar. The root comes first.
func parseRules(gbnf string) ([]*rule, error) {
	p := &parser{source: gbnf, rules: make(map[string]*rule), classes: make(map[string]*expr)}
	if i := firstInvalid(gbnf); i >= 0 {
		p.at = i
		return nil, p.fail("the grammar is not valid UTF-8")
	}
	root := p.rule("root", position{})
	for p.space(true); p.at < len(p.source); p.space(true) {
		if err := p.definition(); err != nil {
			return nil, err
		}
	}
	if root.body == nil {
		return nil, p.fail("there is no rule root: it says what the whole text has to match")
	}
	for _, r := range p.order {
		if r.body == nil {
			return nil, fmt.Errorf("%w: %srule %s is used and not defined", ErrSyntax, r.at.prefix(), r.name)
		}
	}
	return p.order, nil
}

func firstInvalid(text string) int {
	for i, c := range text {
		if c == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD") {
			return i
		}
	}
	return -1
}

type parser struct {
	source string
	at     int
	rules  map[string]*rule
	order  []*rule
	depth  int

	classes map[string]*expr // by what they are written as: there can be many

	countedTo    int // position has counted so far
	line, column int // both from 0
}

// position is that of the next byte. It is asked for in ascending order, mostly.
func (p *parser) position() position {
	if p.at < p.countedTo {
		p.countedTo, p.line, p.column = 0, 0, 0
	}
	for _, c := range p.source[p.countedTo:p.at] {
		p.column++
		if c == '\n' {
			p.line, p.column = p.line+1, 0
		}
	}
	p.countedTo = p.at
	return position{p.line + 1, p.column + 1}
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("%w: %s%s", ErrSyntax, p.position().prefix(), fmt.Sprintf(format, args...))
}

func (p *parser) beyond(format string, args ...any) error {
	return fmt.Errorf("%w: %s%s", ErrLimit, p.position().prefix(), fmt.Sprintf(format, args...))
}

// rule gives the rule of a name, which need not be defined yet.
func (p *parser) rule(name string, at position) *rule {
	r := p.rules[name]
	if r == nil {
		r = &rule{name: name, at: at}
		p.rules[name] = r
		p.order = append(p.order, r)
	}
	return r
}

func (p *parser) peek() byte {
	if p.at < len(p.source) {
		return p.source[p.at]
	}
	return 0
}

// space skips blanks and comments, and ends of lines where they mean nothing.
func (p *parser) space(lines bool) {
	for p.at < len(p.source) {
		switch c := p.source[p.at]; {
		case c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')):
			p.at++
		case c == '#':
			n := strings.IndexAny(p.source[p.at:], "\r\n")
			if n < 0 {
				n = len(p.source) - p.at
			}
			p.at += n
		default:
			return
		}
	}
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *parser) name() string {
	begin := p.at
	for isWord(p.peek()) {
		p.at++
	}
	return p.source[begin:p.at]
}

func (p *parser) definition() error {
	place := p.position()
	name := p.name()
	if name == "" {
		return p.fail("a rule begins with its name, not with %s", p.next())
	}
	r := p.rule(name, place)
	if r.body != nil {
		return fmt.Errorf("%w: %srule %s is defined twice", ErrSyntax, place.prefix(), name)
	}
	if len(p.order) > maxRules {
		return p.beyond("more than %d rules", maxRules)
	}
	r.at = place
	p.space(false)
	if !strings.HasPrefix(p.source[p.at:], "::=") {
		return p.fail("after the name %s comes ::=, not %s", name, p.next())
	}
	p.at += len("::=")
	p.space(true)
	body, err := p.alternatives()
	if err != nil {
		return err
	}
	if c := p.peek(); c != '\n' && c != '\r' && p.at < len(p.source) {
		return p.fail("unexpected %s", p.next())
	}
	r.body = body
	return nil
}

// next shows what follows, for messages.
func (p *parser) next() string {
	if p.at >= len(p.source) {
		return "the end"
	}
	c, _ := utf8.DecodeRuneInString(p.source[p.at:])
	return strconv.QuoteRune(c)
}

func (p *parser) alternatives() (*expr, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, p.beyond("groups nested deeper than %d", maxNesting)
	}
	defer func() { p.depth-- }()
	var alts []*expr
	for {
		e, err := p.sequence()
		if err != nil {
			return nil, err
		}
		alts = append(alts, e)
		// Outside of groups a new line begins a new rule, and no rule begins with |.
		before := p.at
		p.space(true)
		if p.peek() != '|' {
			if p.depth == 1 {
				p.at = before
			}
			return alt(alts...), nil
		}
		p.at++
		p.space(true)
	}
}

func (p *parser) sequence() (*expr, error) {
	var items []*expr
	for {
		e, err := p.item()
		if err != nil {
			return nil, err
		}
		if e == nil {
			return seq(items...), nil
		}
		for p.space(p.depth > 1); strings.IndexByte("*+?{", p.peek()) >= 0 && p.peek() != 0; p.space(p.depth > 1) {
			if e, err = p.repeated(e); err != nil {
				return nil, err
			}
		}
		items = append(items, e)
	}
}

// item reads what can be repeated; nil when nothing of the kind follows.
func (p *parser) item() (*expr, error) {
	switch c := p.peek(); {
	case c == '"':
		return p.literal()
	case c == '[':
		return p.class()
	case c == '.':
		p.at++
		return p.shared(".", runeSet{{0, utf8.MaxRune}}), nil
	case c == '(':
		p.at++
		p.space(true)
		e, err := p.alternatives()
		if err != nil {
			return nil, err
		}
		if p.peek() != ')' {
			return nil, p.fail("a group is closed with ), not with %s", p.next())
		}
		p.at++
		return e, nil
	case c == '<' || c == '!':
		return nil, p.fail("tokens as <...> are not supported: write the text they stand for")
	case isWord(c):
		at := p.position()
		name := p.name()
		r := p.rule(name, at)
		if len(p.order) > maxRules {
			return nil, p.beyond("more than %d rules", maxRules)
		}
		e := call(r)
		e.at = at
		return e, nil
	case c == '*' || c == '+' || c == '?' || c == '{':
		return nil, p.fail("%s has nothing before it to repeat", p.next())
	}
	return nil, nil
}

func (p *parser) literal() (*expr, error) {
	p.at++
	var text []byte
	for p.peek() != '"' {
		c, err := p.char("literal")
		if err != nil {
			return nil, err
		}
		if c >= 0xd800 && c <= 0xdfff {
			return nil, p.fail("U+%04X is a surrogate, not a character", c)
		}
		text = utf8.AppendRune(text, c)
	}
	p.at++
	return literal(string(text)), nil
}

// shared is the expression of a set that is written so.
func (p *parser) shared(written string, set runeSet) *expr {
	e := p.classes[written]
	if e == nil {
		e = set.expr()
		p.classes[written] = e
	}
	return e
}

func (p *parser) class() (*expr, error) {
	begin := p.at
	p.at++
	negated := p.peek() == '^'
	if negated {
		p.at++
	}
	var ranges []runeRange
	for p.peek() != ']' {
		lo, err := p.char("class")
		if err != nil {
			return nil, err
		}
		hi := lo
		if strings.HasPrefix(p.source[p.at:], "-") && !strings.HasPrefix(p.source[p.at:], "-]") {
			p.at++
			if hi, err = p.char("class"); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, p.fail("the range from U+%04X to U+%04X is empty", lo, hi)
			}
		}
		ranges = append(ranges, runeRange{lo, hi})
	}
	p.at++
	set := newRuneSet(ranges...)
	if negated {
		set = set.not()
	}
	return p.shared(p.source[begin:p.at], set), nil
}

// char reads one code point of a literal or a class.
func (p *parser) char(of string) (rune, error) {
	if p.at >= len(p.source) {
		return 0, p.fail("the %s does not end", of)
	}
	if p.source[p.at] != '\\' {
		c, n := utf8.DecodeRuneInString(p.source[p.at:])
		p.at += n
		return c, nil
	}
	escape := byte(0)
	if p.at+1 < len(p.source) {
		escape = p.source[p.at+1]
	}
	var digits int
	switch escape {
	case 'n', 'r', 't':
		p.at += 2
		return map[byte]rune{'n': '\n', 'r': '\r', 't': '\t'}[escape], nil
	case '\\', '"', '[', ']':
		p.at += 2
		return rune(escape), nil
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		return 0, p.fail(`unknown escape: there are \n \r \t \\ \" \[ \] \xXX \uXXXX \UXXXXXXXX`)
	}
	end := p.at + 2 + digits
	if end > len(p.source) {
		return 0, p.fail("\\%c needs %d hexadecimal digits", escape, digits)
	}
	c, err := strconv.ParseUint(p.source[p.at+2:end], 16, 32)
	if err != nil {
		return 0, p.fail("\\%c needs %d hexadecimal digits", escape, digits)
	}
	if c > utf8.MaxRune {
		return 0, p.fail("U+%X is beyond the last code point, U+10FFFF", c)
	}
	p.at = end
	return rune(c), nil
}

// repeated reads a sign of repetition for x.
func (p *parser) repeated(x *expr) (*expr, error) {
	place := p.position()
	lo, hi := int32(0), int32(noMax)
	switch p.peek() {
	case '+':
		lo = 1
	case '?':
		hi = 1
	case '{':
		p.at++
		var err error
		if lo, hi, err = p.bounds(); err != nil {
			return nil, err
		}
	}
	p.at++
	e := repeat(x, lo, hi)
	if e.kind == kindRepeat {
		e.at = place
		if x.at.line == 0 && x.kind != kindEmpty && x != exprNothing {
			x.at = place
		}
	}
	return e, nil
}

// bounds reads m}, m,} or m,n}, up to the brace.
func (p *parser) bounds() (lo, hi int32, err error) {
	p.space(false)
	if lo, err = p.number(); err != nil {
		return 0, 0, err
	}
	hi = lo
	p.space(false)
	if p.peek() == ',' {
		p.at++
		p.space(false)
		hi = noMax
		if p.peek() != '}' {
			if hi, err = p.number(); err != nil {
				return 0, 0, err
			}
			p.space(false)
		}
	}
	if p.peek() != '}' {
		return 0, 0, p.fail("a repetition is {m}, {m,} or {m,n}: unexpected %s", p.next())
	}
	if hi < lo {
		return 0, 0, p.fail("a repetition from %d to %d times", lo, hi)
	}
	return lo, hi, nil
}

func (p *parser) number() (int32, error) {
	begin := p.at
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.at++
	}
	if p.at == begin {
		return 0, p.fail("a repetition is {m}, {m,} or {m,n}: unexpected %s", p.next())
	}
	n, err := strconv.Atoi(p.source[begin:p.at])
	if err != nil || n > MaxRepeat {
		return 0, p.beyond("a repetition of more than %d times", MaxRepeat)
	}
	return int32(n), nil
}
