package batches

import (
	"context"
	"fmt"
)

// Standing is how the batches stand that have not ended.
type Standing struct {
	Open                int // batches
	Total, Done, Failed int // their lines
}

// Standing counts the batches that have not ended, and their lines.
func (s *Store) Standing(ctx context.Context) (n Standing, err error) {
	row := s.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(total), 0), coalesce(sum(completed), 0),
		coalesce(sum(failed), 0) FROM batches WHERE ended = 0`)
	if err := row.Scan(&n.Open, &n.Total, &n.Done, &n.Failed); err != nil {
		return n, fmt.Errorf("batches: %w", err)
	}
	return n, nil
}
