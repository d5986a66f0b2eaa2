package grammar

import (
	"container/list"
	"fmt"
	"math/bits"
	"sync"
)

// sparse is how many tokens a mask may hold to be kept as a list.
const sparse = 512

// mask is the tokens that a State allows.
type mask struct {
	words []uint64 // or, where they are few,
	ids   []int32
	count int // tokens, without the end tokens
	work  int // see maxWork
	err   error

	tooMany bool // a State was left out because it had too many stacks

	// escapes are the leaves where the rule above a bottom frame is complete.
	escapes []int32
}

func (m *mask) size() int { return 256 + 8*len(m.words) + 4*len(m.ids) + 4*len(m.escapes) }

// or adds the mask's tokens to allowed.
func (m *mask) or(allowed []uint64) {
	for i, w := range m.words {
		allowed[i] |= w
	}
	for _, id := range m.ids {
		set(allowed, id)
	}
}

// masks keeps the masks of a grammar and a vocabulary, those used last. Keys are States of one
// generation.
type masks struct {
	g *Grammar
	v *Vocab

	mu    sync.Mutex
	gen   *generation
	of    map[*State]*list.Element
	order list.List // of kept, the one used last in front
	bytes int
}

type kept struct {
	state *State
	mask  *mask
}

func (g *Grammar) masksFor(v *Vocab) *masks {
	g.masksMu.Lock()
	defer g.masksMu.Unlock()
	c := g.masks[v]
	if c == nil {
		c = &masks{g: g, v: v}
		g.masks[v] = c
	}
	return c
}

func (c *masks) load(s *State) *mask {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[s]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(kept).mask
}

func (c *masks) store(s *State, m *mask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if current := c.g.gen.Load(); c.gen != current || c.of == nil {
		c.gen, c.of, c.bytes = current, make(map[*State]*list.Element), 0
		c.order.Init()
	}
	if s.gen != c.gen || c.of[s] != nil {
		return
	}
	c.of[s] = c.order.PushFront(kept{s, m})
	c.bytes += m.size()
	for c.bytes > maxMasks && c.order.Len() > 1 {
		old := c.order.Remove(c.order.Back()).(kept)
		delete(c.of, old.state)
		c.bytes -= old.mask.size()
	}
}

// mask finds the tokens that s allows.
func (c *masks) mask(s *State) *mask {
	s = c.canonical(s)
	if m := c.load(s); m != nil {
		return m
	}
	m := c.compute(s)
	c.store(s, m)
	return m
}

// canonical is a State that allows the same tokens as s and is the same for more texts: a count is
// set back as far as no token is long enough to tell.
func (c *masks) canonical(s *State) *State {
	counted := false
	for _, st := range s.stacks {
		counted = counted || (st.frame != nil && st.frame.counted)
	}
	if !counted {
		return s
	}
	return c.g.restack(s, func(gen *generation, st stack) stack {
		return stack{st.node, c.setBack(gen, st.frame)}
	})
}

func (c *masks) setBack(gen *generation, f *frame) *frame {
	if f == nil {
		return nil
	}
	p, count := c.g.prog, f.count
	if f.node != bottom && p.nodes[f.node].op == opRepeat {
		lo, hi := p.nodes[f.node].min, p.nodes[f.node].max
		reach := int32(c.v.longest) // rounds take a byte at least
		switch {
		case count+reach < lo:
			count = 0
		case count > lo && count+reach < hi:
			count = lo
		}
	}
	return gen.push(p, f.node, count, c.setBack(gen, f.parent))
}

// compute finds a mask. Ways that have the caller in common are looked at together, and without that
// caller first: what they allow by themselves is the same wherever their rule is called from, as
// inside of any JSON string. Only tokens that run past the end of the rule depend on the caller.
func (c *masks) compute(s *State) *mask {
	w := walker{g: c.g, v: c.v, words: make([]uint64, len(c.v.isEnd)), path: make([]*State, c.v.longest+1)}
	for _, group := range groups(c.g.prog, s) {
		if group.caller == nil {
			w.walk(c.relative(group), 0, int32(len(c.v.tree)-1))
			continue
		}
		base := c.base(c.relative(group))
		w.over = w.over || base.err != nil
		w.work += base.work
		w.tooMany = w.tooMany || base.tooMany
		base.or(w.words)
		after := c.g.after(group.caller)
		for _, at := range base.escapes {
			w.walk(after, at+1, c.v.tree[at].end)
		}
	}
	m := w.result()
	if m.err == nil && m.count == 0 && !s.accept {
		m.err = fmt.Errorf("%w: the text can go on, but not by any of the vocabulary's tokens", ErrStuck)
		if w.tooMany {
			m.err = fmt.Errorf("%w: more than %d ways to understand the text", ErrLimit, maxStacks)
		}
	}
	return m
}

// base finds the mask of a State whose stacks stand on a bottom frame.
func (c *masks) base(s *State) *mask {
	if m := c.load(s); m != nil {
		return m
	}
	w := walker{g: c.g, v: c.v, words: make([]uint64, len(c.v.isEnd)), path: make([]*State, c.v.longest+1)}
	w.walk(s, 0, int32(len(c.v.tree)-1))
	m := w.result()
	c.store(s, m)
	return m
}

// group is the stacks of a State that stand on the same caller.
type group struct {
	caller *frame
	stacks []stack
}

// groups splits a State by the topmost frame of each stack that is a call. Frames that count stay
// with what is above.
func groups(p *program, s *State) []group {
	var out []group
	index := make(map[*frame]int)
	for _, st := range s.stacks {
		f := st.frame
		for f != nil && f.node != bottom && p.nodes[f.node].op == opRepeat {
			f = f.parent
		}
		i, ok := index[f]
		if !ok {
			i = len(out)
			index[f] = i
			out = append(out, group{caller: f})
		}
		out[i].stacks = append(out[i].stacks, st)
	}
	return out
}

// relative is the State of a group with its caller left open. Its depth is kept only where it could
// make a difference to a token.
func (c *masks) relative(group group) *State {
	p, depth := c.g.prog, 0
	if group.caller != nil {
		depth = group.caller.nested()
	}
	deep := false
	for _, st := range group.stacks {
		deep = deep || p.nodes[st.node].deep
	}
	// A byte is followed by at most one call of each recursive rule, since none begins with itself.
	if !deep || depth+(c.v.longest+1)*p.recursive+int(p.maxNeed) <= maxDepth {
		depth = 0
	}
	return c.g.restack(&State{stacks: group.stacks}, func(gen *generation, st stack) stack {
		var floor *frame
		if group.caller != nil {
			floor = gen.push(p, bottom, int32(depth), nil)
		}
		return stack{st.node, gen.transplant(p, st.frame, group.caller, floor)}
	})
}

// transplant puts what is above from in f above to.
func (gen *generation) transplant(p *program, f, from, to *frame) *frame {
	if f == from {
		return to
	}
	return gen.push(p, f.node, f.count, gen.transplant(p, f.parent, from, to))
}

// walker walks the tree of tokens.
type walker struct {
	g       *Grammar
	v       *Vocab
	words   []uint64
	path    []*State // by depth: the State after so many bytes of the token
	escapes []int32
	work    int
	over    bool // too much work
	tooMany bool // as in mask
}

// walk tries the leaves from..to, which are all those below one leaf, s being the State there.
func (w *walker) walk(s *State, from, to int32) {
	if from >= to || w.over {
		return
	}
	tree := w.v.tree
	w.path[tree[from].depth-1] = s
	for i := from; i < to; {
		n := &tree[i]
		next := w.g.step(w.path[n.depth-1], n.b)
		if !next.alive() {
			w.tooMany = w.tooMany || next.over
			i = n.end
			continue
		}
		for _, id := range w.v.ids[n.first:tree[i+1].first] {
			set(w.words, id)
		}
		if next.escape {
			w.escapes = append(w.escapes, i)
		}
		if len(next.stacks) == 0 {
			i = n.end
			continue
		}
		if extra := len(next.stacks) - freeStacks; extra > 0 {
			if w.work += extra; w.work > maxWork {
				w.over = true
				return
			}
		}
		w.path[n.depth] = next
		i++
	}
}

func (w *walker) result() *mask {
	m := &mask{words: w.words, escapes: w.escapes, work: w.work, tooMany: w.tooMany}
	if w.over {
		m.err = fmt.Errorf("%w: too many ways to understand what tokens may come next", ErrLimit)
	}
	for _, word := range w.words {
		m.count += bits.OnesCount64(word)
	}
	if m.count > sparse {
		return m
	}
	m.words = nil
	for i, word := range w.words {
		for ; word != 0; word &= word - 1 {
			m.ids = append(m.ids, int32(i*64+bits.TrailingZeros64(word)))
		}
	}
	return m
}
