package sample

// history is the tokens that penalties ask for.
//
//  1. seen has each token once that counts for a penalty, and index says where.
//  2. window has the tokens that the repetition penalty looks at, if there is a limit to them; it
//     grows to that limit and then goes round, next being the oldest.
type history struct {
	p      *Params
	seen   []past
	index  map[int32]int
	window []int32
	next   int
}

// past is a token that was there before.
type past struct {
	id        int32
	near      int32   // how often the window has it
	generated int32   // how often it was generated
	raw       float32 // its logit before penalties
}

func newHistory(p *Params) *history { return &history{p: p, index: map[int32]int{}} }

// prompt begins the history.
func (h *history) prompt(ids []int32) {
	if h.p.Repetition == 1 {
		return
	}
	if w := h.p.RepeatWindow; w > 0 && w < len(ids) {
		ids = ids[len(ids)-w:]
	}
	for _, id := range ids {
		h.remember(id)
	}
}

// generated adds a token.
func (h *history) generated(id int32) {
	h.at(id).generated++
	if h.p.Repetition != 1 {
		h.remember(id)
	}
}

// remember moves the window on by one token.
func (h *history) remember(id int32) {
	h.at(id).near++
	switch w := h.p.RepeatWindow; {
	case w == 0:
	case len(h.window) < w:
		h.window = append(h.window, id)
	default:
		h.forget(h.window[h.next])
		h.window[h.next] = id
		h.next = (h.next + 1) % w
	}
}

func (h *history) forget(id int32) {
	i := h.index[id]
	h.seen[i].near--
	if h.seen[i].near > 0 || h.seen[i].generated > 0 {
		return
	}
	last := len(h.seen) - 1
	h.seen[i] = h.seen[last]
	h.index[h.seen[i].id] = i
	delete(h.index, id)
	h.seen = h.seen[:last]
}

// at returns the entry of a token, which is made if there is none.
func (h *history) at(id int32) *past {
	i, found := h.index[id]
	if !found {
		i = len(h.seen)
		h.index[id] = i
		h.seen = append(h.seen, past{id: id})
	}
	return &h.seen[i]
}

// penalise changes the logits of all tokens seen.
func (h *history) penalise(x []float32) {
	for i := range h.seen {
		t := &h.seen[i]
		v := x[t.id]
		t.raw = v
		if t.near > 0 {
			if v > 0 {
				v = within32(v, float32(v/h.p.Repetition))
			} else {
				v = within32(v, float32(v*h.p.Repetition))
			}
		}
		if t.generated > 0 {
			off := float32(h.p.Frequency*float32(t.generated)) + h.p.Presence
			v = within32(v, v-off)
		}
		x[t.id] = v
	}
}
