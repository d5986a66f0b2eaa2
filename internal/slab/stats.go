package slab

// Stats is what an arena holds.
type Stats struct {
	Bytes   int64  // mapped
	Pinned  int64  // of them locked into physical memory
	Why     string // not more are, if so
	InUse   int64  // in slabs that have an owner
	Idle    int64  // in regions of which nothing is in use
	Refused int64  // in regions that a hook refused
	Regions int
	Classes []Class // those that have slabs, by size
}

// Class is the slabs of one size.
type Class struct {
	Size, Slabs, InUse int
}

// Stats returns what the arena holds now.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	for k := range a.classes {
		if c := &a.classes[k]; c.slabs > 0 {
			s.Classes = append(s.Classes, Class{Size: sizeOf(k), Slabs: c.slabs, InUse: c.used})
		}
	}
	if s.Pinned == s.Bytes {
		s.Why = ""
	}
	return s
}

// Probe tries how many of so many bytes can be locked, in regions as an arena has them, and gives them
// back. If it is not all of them, it says why.
func Probe(bytes int64) (locked int64, why string) {
	return probe(Options{Limit: bytes, Idle: bytes})
}

func probe(o Options) (locked int64, why string) {
	a := New(o)
	defer a.giveBackAll()
	for range o.Limit / regionSize {
		s, err := a.Get(regionSize)
		if err != nil {
			return a.Stats().Pinned, err.Error()
		}
		defer s.Release()
	}
	st := a.Stats()
	return st.Pinned, st.Why
}

func (a *Arena) giveBackAll() {
	a.grow.Lock()
	defer a.grow.Unlock()
	a.giveBack(func(*region) bool { return true })
}
