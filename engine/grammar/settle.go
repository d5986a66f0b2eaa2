package grammar

// settle computes need and deep of all nodes: the least solution, by looking again at a node when
// one that it depends on has changed.
func (p *program) settle() {
	users := make([][]int32, len(p.nodes))
	for i := range p.nodes {
		p.nodes[i].need = never
		for _, on := range p.leads(&p.nodes[i]) {
			users[on] = append(users[on], int32(i))
		}
	}
	queue := make([]int32, len(p.nodes))
	waits := make([]bool, len(p.nodes))
	for i := range queue {
		queue[i], waits[i] = int32(i), true
	}
	for len(queue) > 0 {
		at := queue[0]
		queue, waits[at] = queue[1:], false
		n := &p.nodes[at]
		need, deep := p.needOf(n), p.deepOf(n)
		if need == n.need && deep == n.deep {
			continue
		}
		n.need, n.deep = need, deep
		for _, u := range users[at] {
			if !waits[u] {
				queue, waits[u] = append(queue, u), true
			}
		}
	}
	for i := range p.nodes {
		if n := p.nodes[i].need; n != never {
			p.maxNeed = max(p.maxNeed, n)
		}
	}
}

// leads is the nodes that need and deep of n depend on.
func (p *program) leads(n *node) []int32 {
	switch n.op {
	case opBytes:
		return []int32{n.next}
	case opAgain:
		return []int32{n.next, p.nodes[n.next].next}
	case opSplit:
		return n.alts
	case opCall:
		return []int32{n.callee, n.next}
	case opRepeat:
		return []int32{n.body, n.next}
	}
	return nil
}

func (p *program) needOf(n *node) int32 {
	switch n.op {
	case opBytes:
		return p.nodes[n.next].need
	case opSplit:
		least := int32(never)
		for _, a := range n.alts {
			least = min(least, p.nodes[a].need)
		}
		return least
	case opCall:
		inner := p.nodes[n.callee].need
		if inner != never && n.recursive && !n.tail {
			inner++
		}
		return max(inner, p.nodes[n.next].need)
	case opRepeat:
		if n.min > 0 {
			return max(p.nodes[n.body].need, p.nodes[n.next].need)
		}
		return p.nodes[n.next].need
	case opAgain:
		// Further rounds need what the first one needed, and that was seen to at opRepeat.
		return p.nodes[p.nodes[n.next].next].need
	}
	return 0
}

func (p *program) deepOf(n *node) bool {
	if n.op == opCall && n.recursive {
		return true
	}
	for _, on := range p.leads(n) {
		if p.nodes[on].deep {
			return true
		}
	}
	return false
}
