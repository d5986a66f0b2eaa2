package grammar

import (
	"fmt"
	"math"
)

// inlineWeight is how heavy a rule may be that is compiled into its callers. A rule of its own costs
// a push and a pop in each text, and a token that runs past its end is looked at once more for each
// caller; but what is inside of it is found out once for all of them.
const inlineWeight = 100

// unrollWeight is how much a bounded repetition may grow by being written out. What is longer is
// counted on the stack.
const unrollWeight = 256

// analyse finds out what compile needs to know of rules: which are recursive, which are inlined, what
// may be empty. It refuses left recursion, which would push without end.
func analyse(rules []*rule) error {
	for _, r := range rules {
		if err := firstOfRule(r); err != nil {
			return err
		}
	}
	t := tarjan{index: make(map[*rule]int), low: make(map[*rule]int), on: make(map[*rule]bool)}
	for _, r := range rules {
		if t.index[r] == 0 {
			t.visit(r)
		}
	}
	for _, r := range rules {
		weighRule(r)
	}
	return nil
}

func firstOfRule(r *rule) error {
	if r.empty != unknown {
		return nil
	}
	if r.busy {
		return fmt.Errorf("%w: %srule %s begins with itself: put something before it, or repeat with * instead",
			ErrSyntax, r.at.prefix(), r.name)
	}
	r.busy = true
	err := first(r.body)
	r.busy = false
	if err != nil {
		return err
	}
	r.empty = r.body.empty
	return nil
}

// first finds whether e matches the empty text. It looks at all that e can begin with, and so comes
// upon each rule that can begin with itself.
func first(e *expr) error {
	if e.empty != unknown {
		return nil
	}
	switch e.kind {
	case kindBytes:
		e.empty = no
	case kindCall:
		if err := firstOfRule(e.rule); err != nil {
			return err
		}
		e.empty = e.rule.empty
	case kindSeq:
		for _, s := range e.subs {
			if err := first(s); err != nil {
				return err
			}
			if s.empty == no {
				e.empty = no
				return nil
			}
		}
		e.empty = yes
	case kindAlt:
		found := no
		for _, s := range e.subs {
			if err := first(s); err != nil {
				return err
			}
			found = max(found, s.empty)
		}
		e.empty = found
	case kindRepeat:
		if err := first(e.subs[0]); err != nil {
			return err
		}
		e.empty = e.subs[0].empty
		if e.min == 0 {
			e.empty = yes
		}
	}
	return nil
}

// matchesEmpty reports whether the empty text matches e, once all rules have been looked at.
func matchesEmpty(e *expr) bool {
	if err := first(e); err != nil {
		panic("BUG: left recursion found after the rules were analysed: " + err.Error())
	}
	return e.empty == yes
}

// calls visits the rules that e calls; seen keeps it from looking at anything twice.
func calls(e *expr, seen map[*expr]bool, visit func(*rule)) {
	if seen[e] {
		return
	}
	seen[e] = true
	if e.kind == kindCall {
		visit(e.rule)
	}
	for _, s := range e.subs {
		calls(s, seen, visit)
	}
}

// tarjan finds the circles of rules: Tarjan, Depth-first search and linear graph algorithms, 1972.
type tarjan struct {
	index, low map[*rule]int // index counts from 1
	on         map[*rule]bool
	path       []*rule
}

func (t *tarjan) visit(r *rule) {
	t.index[r] = len(t.index) + 1
	t.low[r] = t.index[r]
	t.path, t.on[r] = append(t.path, r), true
	calls(r.body, make(map[*expr]bool), func(to *rule) {
		switch {
		case to == r:
			r.recursive = true
		case t.index[to] == 0:
			t.visit(to)
			t.low[r] = min(t.low[r], t.low[to])
		case t.on[to]:
			t.low[r] = min(t.low[r], t.index[to])
		}
	})
	if t.low[r] != t.index[r] {
		return
	}
	for circle := t.path[len(t.path)-1] != r; ; {
		last := t.path[len(t.path)-1]
		t.path, t.on[last] = t.path[:len(t.path)-1], false
		last.recursive = last.recursive || circle
		if last == r {
			return
		}
	}
}

func weighRule(r *rule) {
	if r.weight != 0 || r.recursive {
		return
	}
	r.weight = weigh(r.body)
	r.inline = !r.keep && r.weight <= inlineWeight
}

// addWeight sums without overflow: what is shared can be big when it is written out.
func addWeight(a, b int) int { return min(a+b, math.MaxInt32) }

func weigh(e *expr) int {
	if e.weight != 0 {
		return e.weight
	}
	w := 1
	switch e.kind {
	case kindCall:
		if weighRule(e.rule); e.rule.inline {
			w = e.rule.weight
		}
	case kindSeq, kindAlt:
		for _, s := range e.subs {
			w = addWeight(w, weigh(s))
		}
	case kindRepeat:
		x := weigh(e.subs[0])
		if w = addWeight(x, 2); e.max == noMax && unrolls(x, e.min) {
			w = addWeight(w, x*int(e.min))
		} else if e.max != noMax && unrolls(x, e.max) {
			w = addWeight(w, x*int(e.max))
		}
	}
	e.weight = w
	return w
}

// unrolls reports whether count times an expression of a weight is written out.
func unrolls(weight int, count int32) bool { return weight*int(count) <= unrollWeight }

// prefix begins a message with a place in the source.
func (p position) prefix() string {
	if p.line == 0 {
		return ""
	}
	return fmt.Sprintf("line %d, column %d: ", p.line, p.column)
}
