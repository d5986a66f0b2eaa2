// Package slab is memory for rows and frames: aligned, outside the Go heap, and locked into physical
// memory as far as the system lets it, so that a device can read and write it without a copy.
//
// An Arena maps regions and cuts each into slabs of one size. Get hands a slab out and Release takes it
// back; between the two it has one owner. Memory that nobody uses for a while is given back to the
// system. An arena has no goroutine and no clock.
//
// A slab is not collected: whoever forgets to release it loses it, and whoever keeps a view of it beyond
// Release sees other people's bytes. Under the race detector regions are memory of the Go heap, which it
// watches, and both mistakes are looked for: released memory is overwritten, and must stay so.
package slab

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"
)

// Align is the alignment of every slab in bytes: a cache line, and the widest vector.
const Align = 64

// MaxSize is the largest slab.
const MaxSize = 1 << 30

// Errors of this package; test with errors.Is.
var (
	// ErrFull: the arena's limit is reached. Use memory of the heap, or send less at once.
	ErrFull = errors.New("slab: arena is full")
	// ErrTooBig: no slab is that large.
	ErrTooBig = errors.New("slab: larger than any slab")
	// ErrNoMemory: the system has no memory left to map.
	ErrNoMemory = errors.New("slab: no memory to be had")
)

// Defaults of Options.
const (
	DefaultLimit = 1 << 30
	DefaultIdle  = 256 << 20
)

// trimEvery is the least time between two looks at what is idle.
const trimEvery = 10 * time.Second

// Options of an arena. Zero values mean the defaults.
type Options struct {
	Limit int64 // bytes mapped at once; Get fails beyond it
	Idle  int64 // bytes in regions that nobody uses, above which the oldest is given back at once

	// Checked has mistakes of owners looked for, which costs as much as to write every byte twice. It is
	// always so under the race detector.
	Checked bool

	memory memory // the system's, unless a test brings its own
}

// Shared is the arena of this process.
var Shared = New(Options{})

// Arena is where slabs come from. It is safe for concurrent use.
type Arena struct {
	o Options

	grow  sync.Mutex // held while regions come and go, and while hooks run; before mu
	hooks []*hook

	mu      sync.Mutex // leaf
	classes [classes]class
	regions list // all of them
	idle    list // regions of which nothing is in use, the longest idle first
	stats   Stats
	epoch   int       // of trims
	trimmed time.Time // when the last was
}

// class is the slabs of one size.
type class struct {
	open  list // regions with a free slab, locked ones first
	slabs int  // of its regions
	used  int  // of them
}

// Slab is a piece of an arena. It has one owner, who alone may call its methods.
type Slab struct {
	mem    []byte // all of it
	n      int    // asked for
	region *region
	held   bool
	next   *Slab // free ones of a region

	spoiled bool // overwritten when it was released
}

// New returns an arena. It maps nothing until the first Get.
func New(o Options) *Arena {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	if o.memory == nil {
		o.memory = system{}
	}
	o.Checked = o.Checked || raceEnabled
	return &Arena{o: o}
}

// Get returns a slab of n bytes of any content. It never waits for others to release theirs: when the
// limit is reached it fails with ErrFull.
func (a *Arena) Get(n int) (*Slab, error) {
	if n < 0 {
		panic(fmt.Sprintf("BUG: slab of %d bytes", n))
	}
	if n > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooBig, n, MaxSize)
	}
	k := classOf(n)
	s := a.take(k, n)
	if s == nil {
		var err error
		if s, err = a.grown(k, n); err != nil {
			return nil, fmt.Errorf("slab of %d bytes: %w", n, err)
		}
	}
	if a.o.Checked {
		s = s.renewed()
	}
	return s, nil
}

// take returns a slab of class k if one is free.
func (a *Arena) take(k, n int) *Slab {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.classes[k]
	r := c.open.head
	if r == nil {
		return nil
	}
	s := r.free
	r.free, s.next = s.next, nil
	if r.free == nil {
		c.open.remove(r, inOpen)
	}
	if r.used == 0 {
		a.idle.remove(r, inIdle)
		a.stats.Idle -= int64(len(r.mem))
	}
	r.used++
	c.used++
	a.stats.InUse += int64(len(s.mem))
	s.n, s.held = n, true
	return s
}

// Bytes returns the slab's memory, valid until Release. Its capacity is what the slab holds: at least the
// bytes asked for.
func (s *Slab) Bytes() []byte {
	if !s.held {
		panic("BUG: slab used after it was released")
	}
	return s.mem[:s.n]
}

// Release gives the slab back. Nothing may use its memory any more.
func (s *Slab) Release() {
	if s == nil {
		return
	}
	if s.region.arena.o.Checked && s.held {
		s.spoil()
	}
	s.region.arena.put(s)
}

func (a *Arena) put(s *Slab) {
	a.mu.Lock()
	if !s.held {
		a.mu.Unlock()
		panic("BUG: slab released twice")
	}
	r := s.region
	c := &a.classes[r.class]
	s.held, s.next = false, r.free
	if r.free == nil {
		c.open.insert(r, inOpen, r.pinned)
	}
	r.free = s
	r.used--
	c.used--
	a.stats.InUse -= int64(len(s.mem))
	if r.used == 0 {
		r.epoch = a.epoch
		a.idle.insert(r, inIdle, false)
		a.stats.Idle += int64(len(r.mem))
	}
	much := a.stats.Idle > a.o.Idle
	a.mu.Unlock()
	// Whoever makes a region just now gives the next one back: nobody waits here.
	if much && a.grow.TryLock() {
		defer a.grow.Unlock()
		a.giveBack(func(*region) bool { return a.stats.Idle > a.o.Idle })
	}
}

// Sizes are 4 KiB, and from there on four between each power of two and the next: less than a fifth of a
// slab is not asked for.
const (
	smallest = 4 << 10
	classes  = 4*18 + 1
)

// classOf returns the class of n bytes.
func classOf(n int) int {
	if n <= smallest {
		return 0
	}
	below := bits.Len(uint(n-1)) - 1 // 2^below < n <= 2^(below+1)
	step := 1 << (below - 2)
	return (below-12)*4 + (n-1<<below+step-1)/step
}

// sizeOf returns the size of the slabs of class k.
func sizeOf(k int) int {
	if k == 0 {
		return smallest
	}
	base := smallest << ((k - 1) / 4)
	return base + ((k-1)%4+1)*base/4
}

// poison is what released memory holds in a checked arena.
const poison = 0xa5

// spoil overwrites a slab that is about to be released.
func (s *Slab) spoil() {
	s.mem[0] = poison
	for n := 1; n < len(s.mem); n *= 2 {
		copy(s.mem[n:], s.mem[:n])
	}
	s.spoiled = true
}

// renewed returns a handle that no former owner has, for the same memory, after a look at whether one
// has written to it.
func (s *Slab) renewed() *Slab {
	if s.spoiled && bytes.Count(s.mem, []byte{poison}) != len(s.mem) {
		panic(fmt.Sprintf("BUG: slab of %d bytes was written to after it was released", len(s.mem)))
	}
	s.held = false
	return &Slab{mem: s.mem, n: s.n, region: s.region, held: true}
}
