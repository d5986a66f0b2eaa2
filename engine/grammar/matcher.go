package grammar

import "fmt"

// Matcher follows one text and says which tokens may come next. It is used by one goroutine at a time.
type Matcher struct {
	g     *Grammar
	v     *Vocab
	masks *masks
	state *State
	mask  *mask // of state
	ended bool  // an end token was accepted
}

// Matcher begins a text. The error is ErrStuck when no token of v can begin one, or ErrLimit.
func (v *Vocab) Matcher(g *Grammar) (*Matcher, error) {
	m := &Matcher{g: g, v: v, masks: g.masksFor(v)}
	if err := m.to(g.start()); err != nil {
		return nil, err
	}
	return m, nil
}

// to makes s the State of the text. It fails, and changes nothing, where nothing could follow.
func (m *Matcher) to(s *State) error {
	next := m.masks.mask(s)
	if next.err != nil {
		return next.err
	}
	m.state, m.mask = s, next
	return nil
}

// Mask sets bit i of allowed when token i may come next, and clears all others. An end token may come
// when the text is complete; after one, nothing may. Otherwise at least one token may come.
func (m *Matcher) Mask(allowed []uint64) {
	if len(allowed) < len(m.v.isEnd) {
		panic(fmt.Sprintf("BUG: a mask of %d words for %d tokens", len(allowed), m.v.size))
	}
	clear(allowed)
	if m.ended {
		return
	}
	m.mask.or(allowed)
	if m.state.accept {
		for _, id := range m.v.ends {
			set(allowed, id)
		}
	}
}

// Accept adds a token to the text. The error is ErrToken when it may not come next, and ErrStuck or
// ErrLimit when nothing could be said of what comes after it; the text then stays as it was.
func (m *Matcher) Accept(id int32) error {
	if id < 0 || int(id) >= m.v.size {
		return fmt.Errorf("%w: no token %d among %d", ErrToken, id, m.v.size)
	}
	switch {
	case m.ended:
		return fmt.Errorf("%w: token %d after the end", ErrToken, id)
	case has(m.v.isEnd, id):
		if !m.state.accept {
			return fmt.Errorf("%w: end token %d before the text is complete", ErrToken, id)
		}
		m.ended = true
		return nil
	}
	token := m.v.token(id)
	if len(token) == 0 {
		return fmt.Errorf("%w: token %d stands for no text", ErrToken, id)
	}
	s := m.g.renew(m.state)
	for _, b := range token {
		s = m.g.step(s, b)
		if s.over {
			return fmt.Errorf("%w: more than %d ways to understand the text", ErrLimit, maxStacks)
		}
		if !s.alive() {
			return fmt.Errorf("%w: %q (token %d)", ErrToken, token, id)
		}
	}
	return m.to(s)
}

// Done reports whether the text is complete and nothing but an end can follow.
func (m *Matcher) Done() bool { return m.ended || (m.state.accept && m.mask.count == 0) }
