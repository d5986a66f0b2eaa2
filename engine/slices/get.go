package slices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"kvasir/wire"
	"kvasir/wire/link"
)

// GetOptions of Cache.Get.
type GetOptions struct {
	// Begin is told how many bytes the bundle has, and how much memory its experts take when they are
	// loaded, as soon as that is known and before anything of them is fetched. Get returns its error.
	// It may be nil.
	Begin func(size, memory int64) error
	// Progress is told how many bytes of the bundle are there and right, or on their way to be looked
	// at, of how many; one call at a time. It may be nil.
	Progress func(done, total int64)
	// Damaged is told that something is wrong in a bundle which was complete, and is fetched. It may be nil.
	Damaged func()
	// Weights is where the experts' bytes come from, while the head, which says what they must be, comes
	// from the backbone; nil: they come from the backbone too. After an error another Get without it
	// goes on with the backbone.
	Weights Weights
	// Window is how many requests are under way at once, 1 to wire.MaxFetches; 0: DefaultWindow.
	Window int
	// Verify compares all of a complete bundle with its hashes, which Load does in any case.
	Verify bool
}

// DefaultWindow requests are under way at once, so that a long way does not slow a fetch down.
const DefaultWindow = 3

// Get returns the bundle of a slice, of which it fetches what is not there. What has been fetched stays
// when it returns an error, and when the process ends at any moment: the next Get goes on from there, with
// the experts that were complete. It keeps nothing that is not right: from, or o.Weights, sending anything
// else is ErrLiar, and the error names the expert.
//
// The bundle is closed by the caller. Until then the cache keeps it.
func (c *Cache) Get(ctx context.Context, s wire.Slice, from link.SliceReader, o GetOptions) (*Bundle, error) {
	if s.Hash.IsZero() {
		return nil, ErrNoHash
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e, err := c.enter(ctx, s.Hash)
	if err != nil {
		return nil, err
	}
	b, err := c.get(ctx, e, s, from, o)
	<-e.turn
	if err != nil {
		c.unpin(s.Hash, e)
		return nil, fmt.Errorf("%s: %w", name(s), err)
	}
	b.unpin = func() { c.unpin(s.Hash, e) }
	b.damaged = func() { c.suspect(e) }
	c.save()
	return b, nil
}

// suspect makes the next Get look at all of a file, after a restart too.
func (c *Cache) suspect(e *entry) {
	c.mu.Lock()
	known := !e.checked
	e.checked = false
	c.mu.Unlock()
	if !known {
		c.save()
	}
}

// get is Get within the entry's turn.
func (c *Cache) get(ctx context.Context, e *entry, s wire.Slice, from link.SliceReader, o GetOptions) (*Bundle, error) {
	for range maxTries {
		c.mu.Lock()
		whole, checked, size, mtime := e.whole, e.checked, e.size, e.mtime
		c.mu.Unlock()
		if whole && checked && !o.Verify {
			info, err := os.Stat(c.path(s.Hash))
			if err == nil && info.Size() == size && info.ModTime().UnixNano() == mtime {
				b, err := openBundle(c.path(s.Hash), s)
				if err == nil {
					if err := o.begin(b.head); err != nil {
						return nil, errors.Join(err, b.Close())
					}
					tell(o.Progress, b.head.size(), b.head.size())
					return b, nil
				}
			}
		}
		if !whole {
			o.Damaged = nil
		}
		if whole {
			// What is wrong in it is found, and fetched, as in one that is not complete.
			if err := os.Rename(c.path(s.Hash), c.path(s.Hash)+partSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		c.mu.Lock()
		e.whole, e.checked = false, false
		c.mu.Unlock()
		if err := c.complete(ctx, e, s, from, o); err != nil {
			return nil, err
		}
		o.Verify, o.Begin = false, nil
	}
	return nil, fmt.Errorf("%w: %s changes while it is looked at", ErrDamaged, c.path(s.Hash))
}

// complete makes a part whole.
func (c *Cache) complete(ctx context.Context, e *entry, s wire.Slice, from link.SliceReader, o GetOptions) (err error) {
	part := c.path(s.Hash) + partSuffix
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return err
	}
	defer func() {
		c.mu.Lock()
		e.owed = 0
		c.mu.Unlock()
		if e := f.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = c.finish(e, s)
		}
	}()
	g, err := startFetch(ctx, f, s, from, o)
	if err != nil {
		return err
	}
	h := g.head
	if o.Damaged != nil && g.have.Load() < h.size() {
		o.Damaged()
	}
	if err := c.reserve(e, h.size()+int64(h.count()), g.have.Load()); err != nil {
		return err
	}
	if err := g.prepare(); err != nil {
		return err
	}
	if err := g.run(); err != nil {
		return err
	}
	if err := f.Truncate(h.size()); err != nil {
		return err
	}
	return f.Sync()
}

// startFetch finds out what a file has already. Its own head is believed as soon as an expert is right by
// it: the hash of the slice alone does not say what the tensors are.
func startFetch(ctx context.Context, f *os.File, s wire.Slice, from link.SliceReader, o GetOptions) (*fetch, error) {
	g := &fetch{ctx: ctx, file: f, slice: s, from: from, options: o}
	h, err := readHead(f)
	if err == nil && h.hash() == s.Hash && h.layer == s.Layer && h.count() == s.Hi-s.Lo {
		g.head = h
		if err := g.resume(); err != nil {
			return nil, err
		}
	}
	if g.have.Load() == 0 {
		if g.head, err = fetchHead(ctx, s, from); err != nil {
			return nil, err
		}
		if err := g.resume(); err != nil {
			return nil, err
		}
	}
	return g, o.begin(g.head)
}

// finish gives a complete part its name.
func (c *Cache) finish(e *entry, s wire.Slice) error {
	path := c.path(s.Hash)
	if err := os.Rename(path+partSuffix, path); err != nil {
		return err
	}
	if err := syncDir(c.dir); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.slice.Layer, e.slice.Lo, e.slice.Hi = s.Layer, s.Lo, s.Hi
	e.whole, e.checked, e.size, e.mtime = true, true, info.Size(), info.ModTime().UnixNano()
	return nil
}

func (o *GetOptions) begin(h *head) error {
	if o.Begin == nil {
		return nil
	}
	return o.Begin(h.size(), int64(h.count())*h.shape.Memory())
}

func tell(progress func(done, total int64), done, total int64) {
	if progress != nil {
		progress(done, total)
	}
}

// fetchHead gets the head of a bundle, and compares it with the hash of the slice.
func fetchHead(ctx context.Context, s wire.Slice, from link.SliceReader) (*head, error) {
	if from == nil {
		return nil, errors.New("not on disk, and there is nobody to fetch it from")
	}
	// The tensors of an expert take less than what is added.
	want := s.Hi - s.Lo
	b := make([]byte, min(maxHead, fixedLen+want*hashLen+maxTensors*(tensorLen+maxName)+align))
	have, size := 0, uint64(0)
	for have < len(b) {
		n, total, err := from(ctx, s.Hash, uint64(have), b[have:])
		if err != nil {
			return nil, err
		}
		if n < 0 || n > len(b)-have || size != 0 && total != size || total > maxBundle {
			return nil, fmt.Errorf("%w: %d bytes of %d after %d of %d", ErrLiar, n, total, have, size)
		}
		have, size = have+n, total
		if n == 0 || uint64(have) >= size {
			break // all of a small bundle
		}
	}
	h, err := parseHead(b[:have])
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: its head: %w", ErrLiar, err)
	case h.hash() != s.Hash:
		return nil, fmt.Errorf("%w: its head is of another slice", ErrLiar)
	case h.layer != s.Layer || h.count() != want:
		return nil, fmt.Errorf("%w: its head is of %d experts of layer %d", ErrLiar, h.count(), h.layer)
	case uint64(h.size()) != size:
		return nil, fmt.Errorf("%w: a bundle of %d bytes where its head says %d", ErrLiar, size, h.size())
	}
	return h, nil
}
