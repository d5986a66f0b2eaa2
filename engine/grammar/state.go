package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"
)

// frame is one element of a stack: a rule or a counted repetition that is under way. Frames of a
// generation are equal only if they are the same, so stacks share what is below.
type frame struct {
	node    int32 // opCall: where to go on is its next; opRepeat; or bottom
	count   int32 // rounds of an opRepeat that are complete; for a bottom, depth
	parent  *frame
	depth   int32 // recursive rules under way, this one included
	counted bool  // an opRepeat is here or below
	id      uint32
}

// bottom is the node of a frame that stands for a caller that is left open.
const bottom = -1

type frameKey struct {
	node, count int32
	parent      *frame
}

// stack is one way that the text so far can be understood: the next byte is one of node's.
type stack struct {
	node  int32
	frame *frame
}

// State is all that is to be known of a text: the ways it can be understood, which all can be
// completed. States of a generation are equal only if they are the same.
type State struct {
	gen    *generation
	stacks []stack // sorted
	accept bool    // the text is complete
	escape bool    // the rule above a bottom frame is complete
	over   bool    // there were too many ways; the rest is empty
	next   []atomic.Pointer[State]
}

// alive reports whether the text is the beginning of a complete one.
func (s *State) alive() bool { return len(s.stacks) > 0 || s.accept || s.escape }

// generation is States and frames that know each other. When it has grown too big the next one begins,
// and the garbage collector takes what no Matcher holds: nothing in a generation points to an older one.
type generation struct {
	frames map[frameKey]*frame
	states map[string]*State
	bytes  int // about
}

func newGeneration() *generation {
	return &generation{frames: make(map[frameKey]*frame), states: make(map[string]*State)}
}

func (f *frame) nested() int {
	if f == nil {
		return 0
	}
	return int(f.depth)
}

// push gives the frame of a node above parent. The caller holds Grammar.mu, here and below.
func (gen *generation) push(p *program, node, count int32, parent *frame) *frame {
	key := frameKey{node, count, parent}
	if f, ok := gen.frames[key]; ok {
		return f
	}
	f := &frame{node: node, count: count, parent: parent, id: uint32(len(gen.frames) + 1)}
	if node == bottom {
		f.depth = count
	} else {
		f.depth = int32(parent.nested())
		if n := &p.nodes[node]; n.recursive {
			f.depth++
		} else if n.op == opRepeat {
			f.counted = true
		}
		f.counted = f.counted || (parent != nil && parent.counted)
	}
	gen.frames[key] = f
	gen.bytes += 128
	return f
}

// adopt finds the frame of this generation that equals f.
func (gen *generation) adopt(p *program, f *frame) *frame {
	if f == nil {
		return nil
	}
	return gen.push(p, f.node, f.count, gen.adopt(p, f.parent))
}

// closure collects what can be reached without a byte.
type closure struct {
	p     *program
	gen   *generation
	seen  map[stack]bool
	todo  []stack
	state State
}

func newClosure(p *program, gen *generation) *closure {
	return &closure{p: p, gen: gen, seen: make(map[stack]bool), state: State{gen: gen}}
}

// add notes a configuration, unless it needs more nesting than there may be.
func (c *closure) add(node int32, f *frame) {
	if int64(f.nested())+int64(c.p.nodes[node].need) > maxDepth {
		return
	}
	if at := (stack{node, f}); !c.seen[at] {
		c.seen[at] = true
		c.todo = append(c.todo, at)
	}
}

// finish follows what was added and gives the State.
func (c *closure) finish() *State {
	for len(c.todo) > 0 {
		at := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		c.follow(at)
		if len(c.state.stacks) > maxStacks || len(c.seen) > maxVisits {
			c.state = State{gen: c.gen, over: true}
			break
		}
	}
	return c.gen.intern(c.p, &c.state)
}

func (c *closure) follow(at stack) {
	n, f := &c.p.nodes[at.node], at.frame
	switch n.op {
	case opBytes:
		c.state.stacks = append(c.state.stacks, at)
	case opSplit:
		for _, a := range n.alts {
			c.add(a, f)
		}
	case opCall:
		if !n.tail {
			f = c.gen.push(c.p, at.node, 0, f)
		}
		c.add(n.callee, f)
	case opRepeat:
		c.round(at.node, 0, f)
	case opAgain:
		// The topmost frame is that of the repetition: calls of the body have ended.
		c.round(f.node, f.count+1, f.parent)
	case opReturn:
		switch {
		case f == nil:
			c.state.accept = true
		case f.node == bottom:
			c.state.escape = true
		default:
			c.add(c.p.nodes[f.node].next, f.parent)
		}
	}
}

// round goes on after so many rounds of a repetition.
func (c *closure) round(repeat, count int32, parent *frame) {
	n := &c.p.nodes[repeat]
	if count >= n.min {
		c.add(n.next, parent)
	}
	if count < n.max {
		c.add(n.body, c.gen.push(c.p, repeat, count, parent))
	}
}

// intern gives the State of the generation that equals s.
func (gen *generation) intern(p *program, s *State) *State {
	sortStacks(s.stacks)
	key := make([]byte, 0, 1+8*len(s.stacks))
	flags := byte(0)
	for i, set := range []bool{s.accept, s.escape, s.over} {
		if set {
			flags |= 1 << i
		}
	}
	key = append(key, flags)
	for _, st := range s.stacks {
		key = binary.LittleEndian.AppendUint32(key, uint32(st.node))
		key = binary.LittleEndian.AppendUint32(key, st.frame.number())
	}
	if known, ok := gen.states[string(key)]; ok {
		return known
	}
	made := *s
	made.stacks = slices.Clone(s.stacks)
	if len(made.stacks) > 0 {
		made.next = make([]atomic.Pointer[State], p.classes)
	}
	gen.states[string(key)] = &made
	gen.bytes += 256 + len(key) + 16*len(made.stacks) + 8*len(made.next)
	return &made
}

func sortStacks(stacks []stack) {
	slices.SortFunc(stacks, func(a, b stack) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.frame.number(), b.frame.number()))
	})
}

func (f *frame) number() uint32 {
	if f == nil {
		return 0
	}
	return f.id
}

// current is the generation to put new States into. The caller holds g.mu.
func (g *Grammar) current() *generation {
	gen := g.gen.Load()
	if gen.bytes > maxKept {
		gen = newGeneration()
		g.gen.Store(gen)
	}
	return gen
}

// start is the State of the empty text.
func (g *Grammar) start() *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := newClosure(g.prog, g.current())
	c.add(g.prog.start, nil)
	return c.finish()
}

// step is the State after one more byte.
func (g *Grammar) step(s *State, b byte) *State {
	if len(s.stacks) == 0 {
		return g.nowhere()
	}
	class := g.prog.classOf[b]
	if next := s.next[class].Load(); next != nil {
		return next
	}
	return g.makeStep(s, class)
}

func (g *Grammar) makeStep(s *State, class uint8) *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := newClosure(g.prog, g.current())
	for _, st := range s.stacks {
		n := &g.prog.nodes[st.node]
		if !g.prog.sets[n.set].has(class) {
			continue
		}
		f := st.frame
		if s.gen != c.gen {
			f = c.gen.adopt(g.prog, f)
		}
		c.add(n.next, f)
	}
	next := c.finish()
	s.next[class].Store(next)
	return next
}

// nowhere is the State of texts that are not in the language.
func (g *Grammar) nowhere() *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return newClosure(g.prog, g.current()).finish()
}

// after is the State after the rule that f stands for has ended.
func (g *Grammar) after(f *frame) *State {
	return g.stateOf(func(c *closure) {
		up := c.gen.adopt(g.prog, f.parent)
		c.add(g.prog.nodes[f.node].next, up)
	})
}

// stateOf makes a State of what fill adds.
func (g *Grammar) stateOf(fill func(*closure)) *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := newClosure(g.prog, g.current())
	fill(c)
	return c.finish()
}

// renew finds the State of the current generation that equals s, so that older ones can go.
func (g *Grammar) renew(s *State) *State {
	if s.gen == g.gen.Load() {
		return s
	}
	return g.restack(s, func(gen *generation, st stack) stack {
		return stack{st.node, gen.adopt(g.prog, st.frame)}
	})
}

// restack makes a State of s with other stacks.
func (g *Grammar) restack(s *State, other func(*generation, stack) stack) *State {
	g.mu.Lock()
	defer g.mu.Unlock()
	gen := g.current()
	made := State{accept: s.accept, escape: s.escape, over: s.over, gen: gen}
	for _, st := range s.stacks {
		made.stacks = append(made.stacks, other(gen, st))
	}
	sortStacks(made.stacks)
	made.stacks = slices.Compact(made.stacks)
	return gen.intern(g.prog, &made)
}
