package experts

import (
	"context"
	"fmt"

	"kvasir/internal/moe"
)

// Local computes batches on this machine. It implements moe.Experts.
type Local struct{ store *Store }

// NewLocal returns an executor for all experts of s.
func NewLocal(s *Store) *Local { return &Local{store: s} }

// Forward computes all picks of b.
func (l *Local) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if b.Layer < 0 || b.Layer >= len(l.store.layers) {
		return fmt.Errorf("layer %d: %w", b.Layer, moe.ErrNotHeld)
	}
	return l.store.layers[b.Layer].Forward(ctx, b, out)
}
