package grammar

import (
	"fmt"
	"math"
	"slices"
)

type opcode uint8

const (
	opBytes  opcode = iota // one byte of a set, then next
	opSplit                // any of alts
	opCall                 // push a frame, go to the start of the callee; at its end to next
	opReturn               // the end of a rule
	opRepeat               // push a frame that counts; body while fewer than max, next from min on
	opAgain                // the end of the body of the repetition at next
)

// node is a place in the compiled grammar.
type node struct {
	op        opcode
	recursive bool // the callee of opCall is a recursive rule
	tail      bool // nothing follows opCall in its rule: no frame is pushed
	deep      bool // a recursive rule may be called from here before the rule ends
	set       int32
	next      int32
	callee    int32 // start of the rule
	body      int32
	min, max  int32
	alts      []int32

	// need is how many recursive rules have to be under way at once to get from here to the end of
	// the rule, without the ones that already are; never when there is no way.
	need int32
}

const never = math.MaxInt32

// program is a compiled grammar. It does not change.
type program struct {
	nodes     []node
	sets      []byteSet // of classes, not of bytes
	classOf   [256]uint8
	classes   int
	start     int32
	recursive int   // how many rules are recursive
	maxNeed   int32 // the greatest of the nodes, apart from never
}

type nodeKey struct {
	e    *expr
	next int32
}

type bytesKey struct {
	set  byteSet
	next int32
}

type callKey struct {
	rule *rule
	next int32
}

type compiler struct {
	nodes  []node
	sets   []byteSet
	setOf  map[byteSet]int32
	done   map[nodeKey]int32
	bytes  map[bytesKey]int32 // equal ends of expressions become the same nodes
	calls  map[callKey]int32
	called []*rule // rules with nodes of their own, first rule 0
	over   error
}

func compile(rules []*rule) (*program, error) {
	if err := analyse(rules); err != nil {
		return nil, err
	}
	c := &compiler{
		setOf: make(map[byteSet]int32), done: make(map[nodeKey]int32),
		bytes: make(map[bytesKey]int32), calls: make(map[callKey]int32),
	}
	for _, r := range rules {
		r.start = -1
	}
	c.called = append(c.called, rules[0])
	var callees []*rule // by node
	for i := 0; i < len(c.called) && c.over == nil; i++ {
		r := c.called[i]
		r.start = c.emit(r.body, c.add(node{op: opReturn}))
	}
	if c.over != nil {
		return nil, c.over
	}
	callees = make([]*rule, len(c.nodes))
	for key, at := range c.calls {
		callees[at] = key.rule
	}
	p := &program{nodes: c.nodes, start: rules[0].start}
	for i := range p.nodes {
		if r := callees[i]; r != nil {
			p.nodes[i].callee = r.start
		}
	}
	for _, r := range c.called {
		if r.recursive {
			p.recursive++
		}
	}
	p.classify(c.sets)
	p.settle()
	if p.nodes[p.start].need > maxDepth {
		if p.nodes[p.start].need == never {
			return nil, fmt.Errorf("%w: %srule %s matches no text that ends",
				ErrSyntax, rules[0].at.prefix(), rules[0].name)
		}
		return nil, fmt.Errorf("%w: the shortest text is nested deeper than %d", ErrLimit, maxDepth)
	}
	return p, nil
}

func (c *compiler) add(n node) int32 {
	if len(c.nodes) >= maxNodes {
		if c.over == nil {
			c.over = fmt.Errorf("%w: the grammar has more than %d nodes", ErrLimit, maxNodes)
		}
		return 0
	}
	c.nodes = append(c.nodes, n)
	return int32(len(c.nodes) - 1)
}

// emit compiles e so that next follows, and returns where it begins.
func (c *compiler) emit(e *expr, next int32) int32 {
	if c.over != nil {
		return 0
	}
	key := nodeKey{e, next}
	if at, ok := c.done[key]; ok {
		return at
	}
	at := next
	switch e.kind {
	case kindBytes:
		at = c.emitBytes(e.set, next)
	case kindSeq:
		for _, s := range slices.Backward(e.subs) {
			at = c.emit(s, at)
		}
	case kindAlt:
		at = c.emitAlt(e, next)
	case kindRepeat:
		at = c.emitRepeat(e, next)
	case kindCall:
		at = c.emitCall(e.rule, next)
	}
	c.done[key] = at
	return at
}

func (c *compiler) emitBytes(set byteSet, next int32) int32 {
	key := bytesKey{set, next}
	at, ok := c.bytes[key]
	if !ok {
		s, known := c.setOf[set]
		if !known {
			s = int32(len(c.sets))
			c.sets = append(c.sets, set)
			c.setOf[set] = s
		}
		at = c.add(node{op: opBytes, set: s, next: next})
		c.bytes[key] = at
	}
	return at
}

func (c *compiler) emitAlt(e *expr, next int32) int32 {
	var alts []int32
	seen := make(map[int32]bool)
	for _, s := range e.subs {
		if at := c.emit(s, next); !seen[at] {
			seen[at] = true
			alts = append(alts, at)
		}
	}
	if len(alts) == 1 {
		return alts[0]
	}
	return c.add(node{op: opSplit, alts: alts})
}

func (c *compiler) emitCall(r *rule, next int32) int32 {
	if r.inline {
		return c.emit(r.body, next)
	}
	key := callKey{r, next}
	at, ok := c.calls[key]
	if !ok {
		tail := c.nodes[next].op == opReturn
		at = c.add(node{op: opCall, next: next, recursive: r.recursive, tail: tail})
		c.calls[key] = at
		if r.start == -1 {
			r.start = -2 // on the list
			c.called = append(c.called, r)
		}
	}
	return at
}

func (c *compiler) emitRepeat(e *expr, next int32) int32 {
	x, weight := e.subs[0], weigh(e.subs[0])
	empty := matchesEmpty(x)
	if e.max == noMax {
		loop := c.add(node{op: opSplit})
		body := c.emit(x, loop)
		if c.over != nil {
			return 0
		}
		c.nodes[loop].alts = []int32{body, next}
		if empty {
			return loop
		}
		if !unrolls(weight, e.min) {
			return c.emitCount(x, e.min, e.min, loop)
		}
		at := loop
		for range e.min {
			at = c.emit(x, at)
		}
		return at
	}
	if !unrolls(weight, e.max) {
		return c.emitCount(x, e.min, e.max, next)
	}
	at := next
	for range e.max - e.min {
		at = c.add(node{op: opSplit, alts: []int32{c.emit(x, at), next}})
	}
	for range e.min {
		at = c.emit(x, at)
	}
	return at
}

func (c *compiler) emitCount(x *expr, lo, hi, next int32) int32 {
	if matchesEmpty(x) {
		// Rounds that match nothing would have to be told apart from others.
		c.over = fmt.Errorf("%w: %ssomething that may be empty is repeated up to %d times: make it non-empty",
			ErrLimit, x.at.prefix(), hi)
		return 0
	}
	at := c.add(node{op: opRepeat, min: lo, max: hi, next: next})
	body := c.emit(x, c.add(node{op: opAgain, next: at}))
	if c.over == nil {
		c.nodes[at].body = body
	}
	return at
}

// classify finds the bytes that no set tells apart. Steps are kept a class, not a byte.
func (p *program) classify(sets []byteSet) {
	known := make(map[string]uint8)
	signature := make([]byte, (len(sets)+7)/8)
	for b := range 256 {
		clear(signature)
		for i := range sets {
			if sets[i].has(byte(b)) {
				signature[i/8] |= 1 << (i % 8)
			}
		}
		class, ok := known[string(signature)]
		if !ok {
			class = uint8(len(known))
			known[string(signature)] = class
		}
		p.classOf[b] = class
	}
	p.classes = len(known)
	p.sets = make([]byteSet, len(sets))
	for b := range 256 {
		for i := range sets {
			if sets[i].has(byte(b)) {
				p.sets[i].add(p.classOf[b])
			}
		}
	}
}
