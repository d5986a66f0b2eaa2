package tokenizer

type pair struct{ left, right int32 }

type merge struct {
	rank int32 // the lowest is done first
	id   int32 // what the pair becomes
}

// merger splits text into words and merges their bytes. Its slices are reused from word to word.
type merger struct {
	t       *Tokenizer
	most    int  // ids; a text with more is given up
	over    bool // it was
	symbols []symbol
	heap    []candidate
	steps   int // symbols visited, pairs looked up and moves in the heap; the tests hold it against n log n
}

// symbol is a token of the word under way. Symbols form a doubly linked list by index; -1 ends it.
type symbol struct {
	id         int32 // -1 once it went into its left neighbour
	prev, next int32
}

// candidate is a merge that was possible when it was found: rank<<32 | index of the left symbol. So
// the smallest is the one to do next: the lowest rank, and the leftmost of those.
type candidate uint64

func (m *merger) appendWords(ids []int32, text string) []int32 {
	for text != "" && !m.over {
		n := m.t.next(text)
		if len(ids)+n/m.t.longest > m.most {
			m.over = true
			break
		}
		if id, ok := m.t.whole[text[:n]]; ok {
			ids = append(ids, id)
		} else {
			ids = m.appendWord(ids, text[:n])
		}
		text = text[n:]
	}
	return ids
}

// appendWord merges one word. A candidate is not removed when one of its symbols changes, only
// passed over when its turn comes: a symbol only ever grows, so a stale one no longer names the
// pair at its place.
func (m *merger) appendWord(ids []int32, word string) []int32 {
	m.symbols, m.heap = m.symbols[:0], m.heap[:0]
	for i := range len(word) {
		m.symbols = append(m.symbols, symbol{m.t.byteID[word[i]], int32(i) - 1, int32(i) + 1})
	}
	m.symbols[len(word)-1].next = -1
	m.steps += len(word)
	for i := range len(word) - 1 {
		m.consider(int32(i))
	}
	for len(m.heap) > 0 {
		c := m.pop()
		rank, at := c>>32, int32(c&0xffffffff)
		left := &m.symbols[at]
		if left.next < 0 || m.t.pairs[rank] != (pair{left.id, m.symbols[left.next].id}) {
			continue
		}
		right := &m.symbols[left.next]
		left.id, right.id = m.t.merges[m.t.pairs[rank]].id, -1
		left.next = right.next
		if left.next >= 0 {
			m.symbols[left.next].prev = at
			m.consider(at)
		}
		if left.prev >= 0 {
			m.consider(left.prev)
		}
	}
	for i := int32(0); i >= 0; i = m.symbols[i].next {
		ids = append(ids, m.symbols[i].id)
		m.steps++
	}
	return ids
}

// consider pushes the merge of the symbol at index left and its right neighbour, if there is one.
func (m *merger) consider(left int32) {
	m.steps++
	s := m.symbols[left]
	x, ok := m.t.merges[pair{s.id, m.symbols[s.next].id}]
	if !ok {
		return
	}
	// By hand, because container/heap would allocate for every candidate.
	c := candidate(x.rank)<<32 | candidate(left)
	m.heap = append(m.heap, c)
	h, i := m.heap, len(m.heap)-1
	for i > 0 && c < h[(i-1)/2] {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
		m.steps++
	}
	h[i] = c
}

func (m *merger) pop() candidate {
	h := m.heap
	top, c := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	m.heap = h
	i := 0
	for child := 1; child < len(h); child = 2*i + 1 {
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if c <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
		m.steps++
	}
	if len(h) > 0 {
		h[i] = c
	}
	return top
}
