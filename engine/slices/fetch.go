package slices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"kvasir/wire"
	"kvasir/wire/link"
)

// fetch fills the file of a bundle. Behind the bundle's bytes the file has one byte an expert, 1 if the
// expert is there and right: it tells where to look after a kill, and is not believed without a look.
type fetch struct {
	ctx     context.Context
	file    *os.File
	head    *head
	slice   wire.Slice
	from    link.SliceReader
	options GetOptions

	right []bool         // experts that are there, before run
	left  []atomic.Int64 // bytes of each expert that are yet to come
	have  atomic.Int64   // bytes that are there and right when run begins

	buffers sync.Pool // of *[]byte, for an expert each

	mu   sync.Mutex
	done int64 // bytes for Progress; under mu
}

// resume looks at what the file has already.
func (g *fetch) resume() error {
	h := g.head
	g.right = make([]bool, h.count())
	g.buffers = sync.Pool{} // experts may have had another size
	info, err := g.file.Stat()
	if err != nil {
		return err
	}
	marks := make([]byte, h.count())
	switch info.Size() {
	case h.size(): // complete but for its name
		for i := range marks {
			marks[i] = 1
		}
	case h.size() + int64(len(marks)):
		if _, err := g.file.ReadAt(marks, h.size()); err != nil {
			return err
		}
	default:
		return nil
	}
	var failed atomic.Pointer[error]
	each(len(marks), func(i int) {
		if marks[i] != 1 || g.ctx.Err() != nil {
			return
		}
		ok, err := g.look(i)
		if err != nil {
			failed.Store(&err)
		}
		if g.right[i] = ok; ok {
			g.have.Add(h.stride)
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	return g.ctx.Err()
}

// look compares an expert in the file with its hash.
func (g *fetch) look(i int) (bool, error) {
	b, ok := g.buffers.Get().(*[]byte)
	if !ok {
		room := make([]byte, g.head.stride)
		b = &room
	}
	defer g.buffers.Put(b)
	if _, err := g.file.ReadAt(*b, g.head.expert(i)); err != nil {
		return false, err
	}
	return g.head.rightBytes(i, *b), nil
}

// prepare gives the file its head, its size, and its marks.
func (g *fetch) prepare() error {
	h := g.head
	marks := make([]byte, h.count())
	g.left = make([]atomic.Int64, h.count())
	for i, ok := range g.right {
		if ok {
			marks[i] = 1
		} else {
			g.left[i].Store(h.stride)
		}
	}
	if err := g.file.Truncate(h.size() + int64(len(marks))); err != nil {
		return err
	}
	if _, err := g.file.WriteAt(marks, h.size()); err != nil {
		return err
	}
	if _, err := g.file.WriteAt(h.bytes(), 0); err != nil {
		return err
	}
	g.done = h.length + g.have.Load()
	tell(g.options.Progress, g.done, h.size())
	return nil
}

// run fetches what is missing.
func (g *fetch) run() error {
	ctx, stop := context.WithCancelCause(g.ctx)
	defer stop(nil)
	next := g.units()
	var mu sync.Mutex // of next
	take := func() (unit, bool) {
		mu.Lock()
		defer mu.Unlock()
		return next()
	}
	window := g.options.Window
	if window <= 0 {
		window = DefaultWindow
	}
	var wg sync.WaitGroup
	for range min(window, wire.MaxFetches) {
		wg.Go(func() {
			var buf []byte
			for u, ok := take(); ok && ctx.Err() == nil; u, ok = take() {
				if buf == nil {
					buf = make([]byte, g.unitMax())
				}
				if err := g.do(ctx, u, buf[:u.size]); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// unit is one request: bytes that stand together where they come from.
type unit struct {
	size   int
	tensor int   // of Weights; -1: from the backbone
	first  int   // expert of the bundle
	off    int64 // of the backbone's: in the bundle; of Weights: in the first expert's tensor
}

// unitMax bounds the size of a unit.
func (g *fetch) unitMax() int {
	if g.options.Weights != nil {
		return weightsUnit
	}
	return wire.MaxSliceData
}

// weightsUnit is how much is asked of Weights at a time: a request to a web server costs more than one
// within a session.
const weightsUnit = 4 << 20

// units returns what is to be asked for, one after the other.
func (g *fetch) units() func() (unit, bool) {
	if g.options.Weights != nil {
		return g.remoteUnits()
	}
	h, at := g.head, 0
	var off, end int64 // of a run of missing experts
	return func() (unit, bool) {
		if off == end {
			for at < h.count() && g.right[at] {
				at++
			}
			if at == h.count() {
				return unit{}, false
			}
			off = h.expert(at)
			for at < h.count() && !g.right[at] {
				at++
			}
			end = h.expert(at)
		}
		u := unit{size: int(min(wire.MaxSliceData, end-off)), tensor: -1, off: off}
		off += int64(u.size)
		return u, true
	}
}

// do fetches a unit and writes it where it belongs.
func (g *fetch) do(ctx context.Context, u unit, b []byte) error {
	if u.tensor >= 0 {
		return g.doRemote(ctx, u, b)
	}
	if err := g.read(ctx, u.off, b); err != nil {
		return err
	}
	if _, err := g.file.WriteAt(b, u.off); err != nil {
		return err
	}
	g.count(int64(len(b)))
	for off, end := u.off, u.off+int64(len(b)); off < end; {
		i := int((off - g.head.length) / g.head.stride)
		n := min(g.head.expert(i+1), end) - off
		if err := g.arrived(i, n); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// read fills b from the backbone.
func (g *fetch) read(ctx context.Context, off int64, b []byte) error {
	if g.from == nil {
		return errors.New("not complete on disk, and there is nobody to fetch it from")
	}
	for len(b) > 0 {
		n, size, err := g.from(ctx, g.slice.Hash, uint64(off), b)
		if err != nil {
			return err
		}
		if size != uint64(g.head.size()) || n <= 0 || n > len(b) {
			return fmt.Errorf("%w: %d bytes at %d of a bundle of %d; %d of %d were asked for",
				ErrLiar, n, off, size, len(b), g.head.size())
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// count tells how much has come.
func (g *fetch) count(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done += n
	tell(g.options.Progress, g.done, g.head.size())
}

// arrived counts bytes of an expert, compares it with its hash when it is complete, and marks it.
func (g *fetch) arrived(i int, n int64) error {
	if g.left[i].Add(-n) > 0 {
		return nil
	}
	ok, err := g.look(i)
	if err != nil {
		return err
	}
	if !ok {
		who := "the backbone"
		if g.options.Weights != nil {
			who = "the web server"
		}
		return fmt.Errorf("%w by %s: expert %d of layer %d", ErrLiar, who, g.slice.Lo+i, g.slice.Layer)
	}
	_, err = g.file.WriteAt([]byte{1}, g.head.size()+int64(i))
	return err
}
