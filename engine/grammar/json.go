package grammar

import (
	"slices"
)

// Bounds of what is generated where a schema sets none.
const (
	maxIndent = 64 // spaces after a line break
	maxDigits = 18 // of an integer: it fits in an int64
	maxWhole  = 16 // digits before the point
	maxFrac   = 16 // and after it
)

// pieces are the rules of JSON that all schemas share. Each is made when it is first asked for.
//
// Between the tokens of JSON there may be nothing, one space, or a line break with at most maxIndent
// spaces: after {, [, : and a comma, and before } and ]; after : no line break. So a text has no
// blanks without end, and may still be indented.
type pieces struct {
	rules  map[string]*rule
	order  []*rule
	others map[string]*expr // see otherText
}

func newPieces() *pieces {
	return &pieces{rules: make(map[string]*rule), others: make(map[string]*expr)}
}

func (p *pieces) rule(name string, keep bool, body func() *expr) *expr {
	r := p.rules[name]
	if r == nil {
		r = &rule{name: name, keep: keep}
		p.rules[name] = r
		p.order = append(p.order, r)
		r.body = body()
	}
	return call(r)
}

// twice is e for a place where it is written down more than once: a rule, so that what is nested does
// not double with every level.
func (p *pieces) twice(e *expr) *expr {
	r := &rule{name: "item", body: e}
	p.order = append(p.order, r)
	return call(r)
}

func (p *pieces) blank() *expr {
	return p.rule("blank", true, func() *expr {
		return alt(exprEmpty, literal(" "), seq(literal("\n"), repeat(literal(" "), 0, maxIndent)))
	})
}

func (p *pieces) colon() *expr { return seq(literal(":"), opt(literal(" "))) }
func (p *pieces) comma() *expr { return seq(literal(","), p.blank()) }

// plainRunes stand for themselves in a JSON string.
var plainRunes = runeSet{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}}

func digits(lo, hi byte) *expr {
	var set byteSet
	set.addRange(lo, hi)
	return oneOf(set)
}

func anyOfBytes(list string) *expr {
	var set byteSet
	for i := range len(list) {
		set.add(list[i])
	}
	return oneOf(set)
}

// char is one code point of a JSON string, in any of its forms. Surrogates come in pairs.
func (p *pieces) char() *expr {
	return p.rule("char", false, func() *expr {
		hex := anyOfBytes("0123456789abcdefABCDEF")
		other := anyOfBytes("0123456789abcefABCEF")
		d := anyOfBytes("dD")
		return alt(plainRunes.expr(), seq(literal(`\`), alt(
			anyOfBytes(`"\/bfnrt`),
			seq(literal("u"), alt(
				seq(other, hex, hex, hex),
				seq(d, digits('0', '7'), hex, hex),
				seq(d, anyOfBytes("89abAB"), hex, hex, literal(`\u`), d, anyOfBytes("cdefCDEF"), hex, hex),
			)))))
	})
}

func (p *pieces) text() *expr {
	return p.rule("string", true, func() *expr {
		return seq(literal(`"`), star(p.char()), literal(`"`))
	})
}

func (p *pieces) integer() *expr {
	return p.rule("integer", true, func() *expr {
		return seq(opt(literal("-")), whole(maxDigits))
	})
}

// whole is a number without sign and leading zeros.
func whole(most int32) *expr {
	return alt(literal("0"), seq(digits('1', '9'), repeat(digits('0', '9'), 0, most-1)))
}

func (p *pieces) number() *expr {
	return p.rule("number", true, func() *expr {
		power := seq(anyOfBytes("eE"), opt(anyOfBytes("+-")), repeat(digits('0', '9'), 1, 2))
		return seq(opt(literal("-")), whole(maxWhole), opt(fraction()), opt(power))
	})
}

func fraction() *expr { return seq(literal("."), repeat(digits('0', '9'), 1, maxFrac)) }

func (p *pieces) value() *expr {
	return p.rule("value", true, func() *expr {
		return alt(p.object(), p.array(p.value(), 0, noMax), p.text(), p.number(),
			literal("true"), literal("false"), literal("null"))
	})
}

func (p *pieces) object() *expr {
	return p.rule("object", true, func() *expr {
		return p.members(nil, seq(p.text(), p.colon(), p.value()))
	})
}

// array is from lo to hi of item.
func (p *pieces) array(item *expr, lo, hi int32) *expr {
	return p.tuple(nil, item, lo, hi)
}

// tuple is an array of lo to hi items, that begins with first and goes on with rest, if not nil.
func (p *pieces) tuple(first []*expr, rest *expr, lo, hi int32) *expr {
	if rest == nil {
		hi = min(hi, int32(len(first)))
	}
	if hi == 0 {
		return seq(literal("["), p.blank(), literal("]"))
	}
	if len(first) == 0 {
		rest = p.twice(rest)
		first = []*expr{rest}
	}
	first = first[:min(len(first), int(hi))]
	end := seq(p.blank(), literal("]"))
	after := end
	if n := int32(len(first)); rest != nil && hi > n {
		most := int32(noMax)
		if hi != noMax {
			most = hi - n
		}
		after = seq(repeat(seq(p.comma(), rest), max(0, lo-n), most), end)
	}
	for i, item := range slices.Backward(first) {
		if i == 0 {
			after = seq(item, after)
			break
		}
		after = seq(p.comma(), item, after)
		if int32(i) >= lo {
			after = alt(after, end)
		}
	}
	if lo == 0 {
		after = alt(after, literal("]"))
	}
	return seq(literal("["), p.blank(), after)
}

// pair is a member that an object may or must have.
type pair struct {
	name     string
	value    *expr
	required bool
}

// members is an object of pairs in their order, and then any number of extra, if not nil.
func (p *pieces) members(pairs []pair, extra *expr) *expr {
	closed := literal("}")
	// first is what can follow the opening brace, later what can follow a pair.
	first, later := closed, seq(p.blank(), closed)
	if extra != nil {
		extra = p.twice(extra)
		later = seq(star(seq(p.comma(), extra)), later)
		first = alt(seq(extra, later), closed)
	}
	for _, m := range slices.Backward(pairs) {
		written := seq(literal(quote(m.name)), p.colon(), m.value)
		here, there := seq(written, later), seq(p.comma(), written, later)
		if !m.required {
			here, there = alt(here, first), alt(there, later)
		}
		first, later = here, there
	}
	return seq(literal("{"), p.blank(), first)
}

// otherKey is a JSON string without escapes that is none of names: an escape could spell one.
func (p *pieces) otherKey(names []string) *expr {
	texts := make([][]rune, len(names))
	for i, name := range names {
		texts[i] = []rune(name)
	}
	rest := p.rule("rest of a key", false, func() *expr { return seq(star(plainRunes.expr()), literal(`"`)) })
	return seq(literal(`"`), p.otherText(texts, rest))
}

// otherText is the rest of a string, up to the quote, that is none of texts; rest is any.
func (p *pieces) otherText(texts [][]rune, rest *expr) *expr {
	if len(texts) == 0 {
		return rest
	}
	var alts []*expr
	var begins []rune
	after := make(map[rune][][]rune)
	whole := false
	for _, text := range texts {
		if len(text) == 0 {
			whole = true
			continue
		}
		if _, ok := after[text[0]]; !ok && plainRunes.has(text[0]) {
			begins = append(begins, text[0])
		}
		after[text[0]] = append(after[text[0]], text[1:])
	}
	for _, c := range begins {
		alts = append(alts, seq(literal(string(c)), p.otherText(after[c], rest)))
	}
	if !whole {
		alts = append(alts, literal(`"`))
	}
	other := p.others[string(begins)]
	if other == nil {
		var ranges []runeRange
		for _, c := range begins {
			ranges = append(ranges, runeRange{c, c})
		}
		other = seq(plainRunes.minus(newRuneSet(ranges...)).expr(), rest)
		p.others[string(begins)] = other
	}
	return alt(append(alts, other)...)
}

// texts is one of a list of texts. What they begin with alike is shared.
func texts(list []string) *expr {
	slices.Sort(list)
	return sortedTexts(slices.Compact(list))
}

func sortedTexts(list []string) *expr {
	first, last := list[0], list[len(list)-1]
	common := 0
	for common < len(first) && common < len(last) && first[common] == last[common] {
		common++
	}
	if len(list) == 1 {
		return literal(first)
	}
	var alts []*expr
	for begin := 0; begin < len(list); {
		end := begin + 1
		for len(list[begin]) > common && end < len(list) && list[end][common] == list[begin][common] {
			end++
		}
		group := make([]string, 0, end-begin)
		for _, text := range list[begin:end] {
			group = append(group, text[common:])
		}
		alts = append(alts, sortedTexts(group))
		begin = end
	}
	return seq(literal(first[:common]), alt(alts...))
}

// JSON returns a grammar of any JSON object. What it learns about a vocabulary lives as long as it does.
func JSON() *Grammar {
	p := newPieces()
	g, err := build(append([]*rule{{name: "root", body: p.object()}}, p.order...))
	if err != nil {
		panic("BUG: the grammar of JSON is refused: " + err.Error())
	}
	return g
}
