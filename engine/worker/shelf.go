package worker

import (
	"context"
	"errors"
	"fmt"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/slices"
	"kvasir/internal/moe"
	"kvasir/wire"
)

// CacheShelf fetches slices and keeps them on disk.
type CacheShelf struct {
	Cache   *slices.Cache
	Weights slices.Weights // where weights come from, if not from the backbone, which says their hashes
}

// Cached returns the slices that are complete on disk.
func (c CacheShelf) Cached() []wire.Slice { return c.Cache.Held() }

// Take returns slices as an executor, and fetches what is missing.
func (c CacheShelf) Take(ctx context.Context, list []wire.Slice, o Taking) (moe.Experts, error) {
	x, err := c.take(ctx, list, o, false)
	if errors.Is(err, slices.ErrDamaged) {
		o.Room = func(wire.Slice, int64) error { return nil } // it was asked
		x, err = c.take(ctx, list, o, true)
	}
	return x, err
}

func (c CacheShelf) take(ctx context.Context, list []wire.Slice, o Taking, verify bool) (moe.Experts, error) {
	var bundles []*slices.Bundle
	defer func() {
		for _, b := range bundles {
			_ = b.Close() // it was only read
		}
	}()
	for _, s := range list {
		b, err := c.get(ctx, s, o, verify)
		if err != nil {
			return nil, err
		}
		bundles = append(bundles, b)
	}
	return loadBundles(ctx, bundles)
}

// get returns one bundle. Whether there is room for it is asked as soon as its size is known.
func (c CacheShelf) get(ctx context.Context, s wire.Slice, o Taking, verify bool) (*slices.Bundle, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked, last, noRoom := false, int64(0), error(nil)
	ask := func(total int64) {
		if !asked {
			asked = true
			if noRoom = o.Room(s, total); noRoom != nil {
				cancel(noRoom)
			}
		}
	}
	b, err := c.Cache.Get(ctx, s, o.From, slices.GetOptions{
		Weights: c.Weights, Verify: verify,
		Damaged: func() { o.Damaged(fmt.Errorf("%w: of layer %d", slices.ErrDamaged, s.Layer)) },
		Progress: func(done, total int64) {
			ask(total)
			o.Progress(max(0, done-last))
			last = max(last, done)
		},
	})
	if err == nil {
		ask(b.Bytes())
		o.Progress(max(0, b.Bytes()-last))
	}
	if noRoom != nil {
		if err == nil {
			_ = b.Close() // it was only read
		}
		return nil, noRoom
	}
	return b, err
}

// loadBundles makes an executor. An Executor in an interface would not be nil after an error.
func loadBundles(ctx context.Context, bundles []*slices.Bundle) (moe.Experts, error) {
	x, err := slices.LoadContext(ctx, bundles, experts.Options{}, nil)
	if err != nil {
		return nil, err
	}
	return x, nil
}

// FileShelf takes slices out of a model file.
type FileShelf struct{ File *gguf.File }

// Cached returns nothing: the file has all slices alike.
func (FileShelf) Cached() []wire.Slice { return nil }

// Take returns slices of the file as an executor.
func (f FileShelf) Take(ctx context.Context, list []wire.Slice, o Taking) (moe.Experts, error) {
	var bundles []*slices.Bundle
	defer func() {
		for _, b := range bundles {
			_ = b.Close() // it was only read
		}
	}()
	for _, s := range list {
		b, err := slices.FromFile(f.File, s)
		if err != nil {
			return nil, err
		}
		bundles = append(bundles, b)
		if err := o.Room(s, b.Bytes()); err != nil {
			return nil, err
		}
		o.Progress(b.Bytes())
	}
	return loadBundles(ctx, bundles)
}
