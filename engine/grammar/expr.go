package grammar

import "math"

// byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) add(b byte)      { s[b>>6] |= 1 << (b & 63) }
func (s *byteSet) has(b byte) bool { return s[b>>6]>>(b&63)&1 != 0 }

func (s *byteSet) addRange(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s.add(byte(b))
	}
}

type exprKind uint8

const (
	kindEmpty exprKind = iota // nothing, and that matches
	kindBytes                 // one byte of a set
	kindSeq
	kindAlt // one of the subs; with none of them, nothing matches
	kindRepeat
	kindCall // what a rule matches
)

const noMax = math.MaxInt32 // of a repetition without an upper bound

// expr is what a rule matches. Expressions are shared: they form a graph without circles, and what
// is computed from one is kept in it.
type expr struct {
	kind     exprKind
	set      byteSet
	subs     []*expr
	min, max int32 // of a repetition of subs[0]
	rule     *rule // that is called
	at       position

	empty  knowledge // whether the empty text matches, see analysis.first
	weight int       // nodes that it compiles to, about; 0 until known
}

type knowledge uint8

const (
	unknown knowledge = iota
	no
	yes
)

// rule is a named expression.
type rule struct {
	name string
	at   position // of its definition, for messages
	body *expr
	keep bool // never compiled into its callers, so that they share what is found out about it

	empty     knowledge
	busy      bool // being looked at by analysis.first
	recursive bool // may be under way while it begins anew
	weight    int  // 0 until known
	inline    bool
	start     int32 // node; -1 until it is compiled
}

// position is a place in the source; line 0 stands for none.
type position struct{ line, column int }

// These are shared by all grammars, so nothing about them is left to be found out.
var (
	exprEmpty   = &expr{kind: kindEmpty, empty: yes, weight: 1}
	exprNothing = &expr{kind: kindAlt, empty: no, weight: 1}
)

func oneOf(set byteSet) *expr {
	if set == (byteSet{}) {
		return exprNothing
	}
	return &expr{kind: kindBytes, set: set}
}

func literal(text string) *expr {
	subs := make([]*expr, len(text))
	for i := range len(text) {
		var set byteSet
		set.add(text[i])
		subs[i] = oneOf(set)
	}
	return seq(subs...)
}

func seq(subs ...*expr) *expr {
	e := &expr{kind: kindSeq}
	for _, s := range subs {
		if s.kind != kindEmpty {
			e.subs = append(e.subs, s)
		}
	}
	switch len(e.subs) {
	case 0:
		return exprEmpty
	case 1:
		return e.subs[0]
	}
	return e
}

func alt(subs ...*expr) *expr {
	switch len(subs) {
	case 0:
		return exprNothing
	case 1:
		return subs[0]
	}
	return &expr{kind: kindAlt, subs: subs}
}

func opt(x *expr) *expr { return alt(x, exprEmpty) }

func star(x *expr) *expr { return repeat(x, 0, noMax) }

// repeat matches x at least lo and at most hi times.
func repeat(x *expr, lo, hi int32) *expr {
	switch {
	case hi == 0 || x.kind == kindEmpty:
		return exprEmpty
	case lo == 1 && hi == 1:
		return x
	case lo == 0 && hi == 1:
		return opt(x)
	}
	return &expr{kind: kindRepeat, subs: []*expr{x}, min: lo, max: hi}
}

func call(r *rule) *expr { return &expr{kind: kindCall, rule: r} }
