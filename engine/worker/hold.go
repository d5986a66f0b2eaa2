package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"

	slicing "kvasir/engine/slices"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
)

// Shelf is where a worker takes slices from: a model file, or a cache that is filled by fetching.
type Shelf interface {
	// Cached returns slices that need not be fetched.
	Cached() []wire.Slice
	// Take returns slices of one layer, checked against their hashes, as an executor with the exponent
	// that they name. What is missing comes from the reader. room is told how many bytes each slice has
	// before they are fetched, and refuses them by an error; progress is told how many have come.
	Take(ctx context.Context, list []wire.Slice, o Taking) (moe.Experts, error)
}

// Taking is how a Shelf takes slices.
type Taking struct {
	From     link.SliceReader
	Room     func(s wire.Slice, bytes int64) error
	Progress func(bytes int64) // more have come
	Damaged  func(err error)   // what was on disk is damaged, and is fetched again
}

// holder is the slices that a worker holds, and the executor for them. Layers that an Assign leaves as they are stay loaded, and so
// does everything from one session to the next.
type holder struct {
	shelf  Shelf
	memory int64
	status *status
	log    *slog.Logger

	mu    sync.Mutex // held by one assign at a time, and before look
	model wire.Hash

	look   sync.RWMutex
	layers map[int]heldLayer // replaced, never changed; under look
}

// lessError tells a backbone that this Assign will never do and another may: it travels as
// moe.ErrInvalid, whose own text is about batches.
type lessError struct{ error }

// Unwrap returns what it says.
func (e lessError) Unwrap() error { return e.error }

// Is reports what it travels as.
func (lessError) Is(target error) bool { return target == moe.ErrInvalid }

// heldLayer is the slices of one layer. It does not change.
type heldLayer struct {
	slices []wire.Slice
	x      moe.Experts
	bytes  int64
}

// meet begins a session with a backbone. What belongs to another model is forgotten, so that there is
// room.
func (h *holder) meet(backbone *wire.Hello) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.model != backbone.Model {
		h.model = backbone.Model
		h.set(nil)
	}
}

// assign loads slices, which are all that is held from then on, and returns an executor for them. After
// an error the former ones are held.
func (h *holder) assign(ctx context.Context, b *wire.Hello, list []wire.Slice, from link.SliceReader) (moe.Experts, error) {
	byLayer, err := sortSlices(b, list)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	next, used := map[int]heldLayer{}, int64(0)
	for layer, want := range byLayer {
		if old, ok := h.held()[layer]; ok && slices.Equal(old.slices, want) {
			next[layer] = old
			used += old.bytes
		}
	}
	load := h.status.loading(len(byLayer) - len(next))
	defer load.end()
	for _, layer := range slices.Sorted(maps.Keys(byLayer)) {
		if _, ok := next[layer]; ok {
			continue
		}
		held := heldLayer{slices: byLayer[layer]}
		held.x, err = h.shelf.Take(ctx, held.slices, Taking{
			From: from, Progress: load.add,
			Damaged: func(err error) { h.log.Warn("what is wrong on disk is fetched again", "error", err) },
			Room: func(s wire.Slice, bytes int64) error {
				held.bytes += bytes
				load.expect(bytes)
				return h.room(s, held.bytes+used, next)
			},
		})
		if err != nil {
			if errors.Is(err, slicing.ErrRoom) {
				err = lessError{err}
			}
			return nil, fmt.Errorf("layer %d: %w", layer, err)
		}
		next[layer] = held
		used += held.bytes
	}
	h.set(next)
	return h, nil
}

// room says whether so many bytes of what is assigned may be held, of which next is what is there
// already. Where they do not fit beside what is to go, that goes now: the backbone has seen to it that
// nothing needs it any more, because it knows the memory too.
func (h *holder) room(s wire.Slice, bytes int64, next map[int]heldLayer) error {
	if bytes > h.memory {
		return lessError{fmt.Errorf("%w: %d MiB are needed with experts %d to %d of layer %d, and there are %d MiB; give more --memory",
			ErrMemory, bytes>>20+1, s.Lo, s.Hi-1, s.Layer, h.memory>>20)}
	}
	all, stay := bytes, map[int]heldLayer{}
	for layer, held := range h.held() {
		if _, ok := next[layer]; ok {
			stay[layer] = held
		} else {
			all += held.bytes
		}
	}
	if all > h.memory {
		h.set(stay)
		runtime.GC() // and back to the system, before more is taken
	}
	return nil
}

func (h *holder) held() map[int]heldLayer {
	h.look.RLock()
	defer h.look.RUnlock()
	return h.layers
}

func (h *holder) set(next map[int]heldLayer) {
	h.look.Lock()
	defer h.look.Unlock()
	h.layers = next
}

// Forward implements moe.Experts over what is held at the moment.
func (h *holder) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	held, ok := h.held()[b.Layer]
	if !ok {
		return fmt.Errorf("layer %d: %w", b.Layer, moe.ErrNotHeld)
	}
	return held.x.Forward(ctx, b, out)
}

// sortSlices checks what a backbone assigns against what it says of its model, and returns it by layer,
// in order.
func sortSlices(b *wire.Hello, list []wire.Slice) (map[int][]wire.Slice, error) {
	byLayer := map[int][]wire.Slice{}
	for _, s := range list {
		switch {
		case s.Layer >= b.Layers || s.Hi > b.Experts:
			return nil, lessError{fmt.Errorf("%w: experts %d to %d of layer %d, of %d layers with %d experts",
				ErrAssign, s.Lo, s.Hi-1, s.Layer, b.Layers, b.Experts)}
		case s.Exponent == 0 || s.Hash.IsZero():
			return nil, lessError{fmt.Errorf("%w: a slice of layer %d without hash or exponent", ErrAssign, s.Layer)}
		}
		byLayer[s.Layer] = append(byLayer[s.Layer], s)
	}
	for layer, of := range byLayer {
		slices.SortFunc(of, func(a, b wire.Slice) int { return a.Lo - b.Lo })
		for i := 1; i < len(of); i++ {
			if of[i].Lo < of[i-1].Hi || of[i].Exponent != of[i-1].Exponent {
				return nil, lessError{fmt.Errorf("%w: two slices of layer %d with an expert of both, or two exponents",
					ErrAssign, layer)}
			}
		}
	}
	return byLayer, nil
}

// String says what is held, as a person would.
func (h *holder) String() string {
	held := h.held()
	if len(held) == 0 {
		return "nothing"
	}
	var bytes int64
	parts := 0
	for _, l := range held {
		bytes += l.bytes
		parts += len(l.slices)
	}
	return fmt.Sprintf("%d slices of %d layers, %.1f MiB", parts, len(held), float64(bytes)/(1<<20))
}
