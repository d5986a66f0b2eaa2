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
	// Progress is told how many bytes of the bundle are there and right, or on their way to be looked
	// at, of how many; one call at a time. It may be nil.
	Progress func(done, total int64)
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
					tell(o.Progress, b.head.size(), b.head.size())
					return b, nil
				}
			}
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
		o.Verify = false
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
	h, err := readHead(f)
	if err != nil || h.hash() != s.Hash {
		if h, err = fetchHead(ctx, s, from); err != nil {
			return err
		}
	}
	if h.count() != s.Hi-s.Lo || h.layer != s.Layer {
		panic("BUG: a hash of other experts")
	}
	g := &fetch{ctx: ctx, file: f, head: h, slice: s, from: from, options: o}
	if err := g.resume(); err != nil {
		return err
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
