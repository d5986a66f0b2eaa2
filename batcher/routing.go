package batcher

import (
	"sync"

	"kvasir/internal/moe"
)

// routing counts how often each expert is picked. It has memory for what the batches name.
type routing struct {
	mu     sync.Mutex // guards the rest
	layers []picked
}

// picked is the picks of a layer, by expert.
type picked struct {
	counts []int64
	sum    int64
}

// routingHalf is after how many picks of a layer those before count half.
const routingHalf = 1 << 22

// note counts a batch, whose shape is valid.
func (r *routing) note(b *moe.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := b.Layer + 1 - len(r.layers); n > 0 {
		r.layers = append(r.layers, make([]picked, n)...)
	}
	l := &r.layers[b.Layer]
	for left := count(l.counts, b.Expert); len(left) > 0; left = count(l.counts, left) {
		l.counts = append(l.counts, make([]int64, int(left[0])+1-len(l.counts))...)
	}
	if l.sum += int64(len(b.Expert)); l.sum > routingHalf {
		l.sum = 0
		for e := range l.counts {
			l.counts[e] /= 2
			l.sum += l.counts[e]
		}
	}
}

// count counts experts up to one for which there is no memory, and returns the rest.
func count(counts []int64, experts []uint16) (left []uint16) {
	for i, e := range experts {
		if int(e) >= len(counts) {
			return experts[i:]
		}
		counts[e]++
	}
	return nil
}

// Routing returns how often each expert was picked lately, by layer and expert. Rows are as long as the
// highest expert that was picked needs.
func (d *Dispatcher) Routing() [][]int64 {
	d.routing.mu.Lock()
	defer d.routing.mu.Unlock()
	list := make([][]int64, len(d.routing.layers))
	for l := range list {
		list[l] = append([]int64(nil), d.routing.layers[l].counts...)
	}
	return list
}
