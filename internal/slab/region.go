package slab

import (
	"fmt"
	"os"
	"time"
)

// regionSize is what a region of small slabs has; a larger slab has a region to itself.
const regionSize = 1 << 20

// region is one mapping. Its slabs are of one class.
type region struct {
	arena      *Arena
	class      int
	mem        []byte
	pinned     bool
	refused    bool     // by a hook
	unregister []func() // what hooks want to be called, by hook; guarded by Arena.grow

	// Guarded by Arena.mu.
	free  *Slab
	used  int
	epoch int // when it became idle
	links [3]links
}

// A region is in up to three lists at once, each with links of its own.
const (
	inOpen = iota
	inIdle
	inAll
)

type links struct{ prev, next *region }

// list is regions in order.
type list struct{ head, tail *region }

// insert puts r at the front or at the back.
func (l *list) insert(r *region, which int, front bool) {
	switch {
	case l.head == nil:
		r.links[which] = links{}
		l.head, l.tail = r, r
	case front:
		r.links[which] = links{next: l.head}
		l.head.links[which].prev = r
		l.head = r
	default:
		r.links[which] = links{prev: l.tail}
		l.tail.links[which].next = r
		l.tail = r
	}
}

func (l *list) remove(r *region, which int) {
	at := r.links[which]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[which].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[which].prev = at.prev
	}
	r.links[which] = links{}
}

// memory is where regions come from.
type memory interface {
	// mapped returns n zero bytes whose address is a multiple of Align.
	mapped(n int) ([]byte, error)
	unmapped(mem []byte) error
	// lock keeps mem in physical memory, or says why it cannot.
	lock(mem []byte) error
}

// grown makes a region for class k and takes a slab of it.
func (a *Arena) grown(k, n int) (*Slab, error) {
	a.grow.Lock()
	defer a.grow.Unlock()
	if s := a.take(k, n); s != nil { // somebody else was here before
		return s, nil
	}
	count := max(1, regionSize/sizeOf(k))
	page := os.Getpagesize()
	size := (count*sizeOf(k) + page - 1) / page * page
	if err := a.reserve(int64(size)); err != nil {
		return nil, err
	}
	mem, err := a.o.memory.mapped(size)
	if err != nil {
		a.mu.Lock()
		a.stats.Bytes -= int64(size)
		a.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	r := &region{arena: a, class: k, mem: mem}
	locked := a.o.memory.lock(mem)
	r.pinned = locked == nil
	refused := false
	for _, h := range a.hooks {
		undo, err := h.call(mem)
		refused = refused || err != nil
		r.unregister = append(r.unregister, undo)
	}
	a.add(r, count, locked, refused)
	return a.take(k, n), nil
}

// reserve counts size bytes more, after giving back what is idle if it must be.
func (a *Arena) reserve(size int64) error {
	a.giveBack(func(*region) bool { return a.stats.Bytes+size > a.o.Limit })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stats.Bytes+size > a.o.Limit {
		return fmt.Errorf("%w: %d of %d bytes are mapped, and %d in use", ErrFull, a.stats.Bytes, a.o.Limit, a.stats.InUse)
	}
	a.stats.Bytes += size
	return nil
}

// add cuts a region into slabs. grow is held.
func (a *Arena) add(r *region, count int, locked error, refused bool) {
	size := sizeOf(r.class)
	slabs := make([]Slab, count)
	for i := range slabs {
		slabs[i] = Slab{mem: r.mem[i*size : (i+1)*size : (i+1)*size], region: r, next: r.free}
		r.free = &slabs[i]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.classes[r.class]
	c.slabs += count
	c.open.insert(r, inOpen, r.pinned)
	a.regions.insert(r, inAll, false)
	r.epoch = a.epoch
	a.idle.insert(r, inIdle, false)
	a.stats.Regions++
	a.stats.Idle += int64(len(r.mem))
	if r.pinned {
		a.stats.Pinned += int64(len(r.mem))
	} else {
		a.stats.Why = locked.Error()
	}
	if refused {
		a.stats.Refused += int64(len(r.mem))
		r.refused = true
	}
}

// giveBack gives idle regions back to the system, the longest idle first, while more says so. grow is
// held.
func (a *Arena) giveBack(more func(*region) bool) {
	for {
		a.mu.Lock()
		r := a.idle.head
		if r == nil || !more(r) {
			a.mu.Unlock()
			return
		}
		a.remove(r)
		a.mu.Unlock()
		for i := len(r.unregister) - 1; i >= 0; i-- {
			r.unregister[i]()
		}
		if err := a.o.memory.unmapped(r.mem); err != nil {
			panic(fmt.Sprintf("BUG: a region of %d bytes cannot be unmapped: %v", len(r.mem), err))
		}
	}
}

// remove forgets an idle region. mu is held.
func (a *Arena) remove(r *region) {
	c := &a.classes[r.class]
	c.slabs -= max(1, regionSize/sizeOf(r.class))
	c.open.remove(r, inOpen)
	a.idle.remove(r, inIdle)
	a.regions.remove(r, inAll)
	size := int64(len(r.mem))
	a.stats.Regions--
	a.stats.Idle -= size
	a.stats.Bytes -= size
	if r.pinned {
		a.stats.Pinned -= size
	}
	if r.refused {
		a.stats.Refused -= size
	}
}

// Trim gives back the regions of which nothing has been in use since the Trim before this one. It does
// nothing when that was less than 10 s ago. Who has a clock calls it now and then.
func (a *Arena) Trim(now time.Time) {
	a.mu.Lock()
	if now.Sub(a.trimmed) < trimEvery {
		a.mu.Unlock()
		return
	}
	a.trimmed = now
	a.epoch++
	old := a.epoch - 1
	a.mu.Unlock()
	a.grow.Lock()
	defer a.grow.Unlock()
	a.giveBack(func(r *region) bool { return r.epoch < old })
}
