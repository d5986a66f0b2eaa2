package slab

import "fmt"

// hook is told of each region.
type hook struct {
	register func(mem []byte) (unregister func(), err error)
}

// call tells a hook of a region. What it returns may be called also where the hook refused.
func (h *hook) call(mem []byte) (func(), error) {
	undo, err := h.register(mem)
	if err != nil || undo == nil {
		return func() {}, err
	}
	return undo, nil
}

// Register has hook called with the memory of every region, those that are there first, before slabs of
// it are handed out, and what hook returned before the region goes back to the system. A device registers
// memory for its own access so. Calls come one at a time; hook must not use the arena.
//
// If hook refuses a region that is there already, Register undoes the others and returns the error. A
// later region that it refuses is used without, and counted in Stats.Refused.
//
// What Register returns ends the registration: it undoes what is registered, and does so once.
func (a *Arena) Register(register func(mem []byte) (unregister func(), err error)) (remove func(), err error) {
	a.grow.Lock()
	defer a.grow.Unlock()
	h := &hook{register: register}
	at := len(a.hooks)
	var told []*region
	for r := a.firstRegion(); r != nil; r = r.links[inAll].next {
		undo, err := h.call(r.mem)
		if err != nil {
			for i := len(told) - 1; i >= 0; i-- {
				told[i].unregister[at]()
				told[i].unregister = told[i].unregister[:at]
			}
			return nil, fmt.Errorf("register %d bytes of slabs: %w", len(r.mem), err)
		}
		r.unregister = append(r.unregister, undo)
		told = append(told, r)
	}
	a.hooks = append(a.hooks, h)
	return func() { a.unhook(h) }, nil
}

// firstRegion returns the head of the list of all regions, which changes only while grow is held.
func (a *Arena) firstRegion() *region {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.regions.head
}

func (a *Arena) unhook(h *hook) {
	a.grow.Lock()
	defer a.grow.Unlock()
	for at, other := range a.hooks {
		if other != h {
			continue
		}
		a.hooks = append(a.hooks[:at:at], a.hooks[at+1:]...)
		for r := a.firstRegion(); r != nil; r = r.links[inAll].next {
			r.unregister[at]()
			r.unregister = append(r.unregister[:at:at], r.unregister[at+1:]...)
		}
		return
	}
}
