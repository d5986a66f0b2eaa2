package batches

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	beatTime = time.Second // between signs of life
	deadTime = 5           // beats without one, after which a node is dead
)

// live keeps this node among the living, and looks after what others have left, until the store is closed.
func (s *Store) live() {
	tick := time.NewTicker(s.o.beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		if err := s.beat(s.ctx); err != nil && s.ctx.Err() == nil {
			s.o.Log.Warn("the database of batches does not answer; it is asked again", "err", err)
		}
	}
}

// beat gives a sign of life, puts back the work of the dead, and lets go of what has ended elsewhere.
//
// A node that only seems dead does no harm: what it computes is recorded unless another has done so.
func (s *Store) beat(ctx context.Context) error {
	for _, f := range []func(context.Context) error{s.sign, s.bury, s.hurry, s.forget, s.tellOthers} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) sign(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO nodes (id, seen) VALUES ($1, "+s.db.seconds+") ON CONFLICT (id) DO UPDATE SET seen = excluded.seen", s.id)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// leave has others do at once what this node has not done.
func (s *Store) leave(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, "DELETE FROM nodes WHERE id = $1", s.id); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return s.putBack(ctx)
}

// bury puts back the jobs of nodes that are dead. Where there is one process, all others are.
func (s *Store) bury(ctx context.Context) error {
	var err error
	if s.db.shared {
		_, err = s.db.ExecContext(ctx, "DELETE FROM nodes WHERE seen < "+s.db.seconds+" - $1", max(2, int64(deadTime*s.o.beat/time.Second)))
	} else {
		_, err = s.db.ExecContext(ctx, "DELETE FROM nodes WHERE id != $1", s.id)
	}
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return s.putBack(ctx)
}

func (s *Store) putBack(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "UPDATE river_job SET state = 'available' WHERE state = 'running' AND "+s.db.tried+" NOT IN (SELECT id FROM nodes)")
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// hurry lets groups that were held up, or given up by a node that has left, have their turn now: their
// place in the order is a time long ago, and River has put them behind all others.
func (s *Store) hurry(ctx context.Context) error {
	turn, err := s.turn(ctx, s.db)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, `UPDATE river_job SET scheduled_at = $1 WHERE state = 'available' AND queue = $2 AND scheduled_at > $3 AND scheduled_at < $4`,
		s.db.time(place0.Add(time.Duration(turn)*time.Millisecond)), s.groupQueue(), s.db.time(turnsEnd), s.db.time(time.Now()))
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	return nil
}

// forget ends what runs here of batches that have ended.
func (s *Store) forget(ctx context.Context) error {
	if !s.db.shared {
		return nil // finish has done so
	}
	s.mu.Lock()
	var ids []string
	for id := range s.running {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		b, err := s.Batch(ctx, id)
		if err != nil {
			return err
		}
		if b.Status != InProgress {
			s.cancel(id)
		}
	}
	return nil
}

// tellOthers logs, once, which batches no node computes, since they are for other models.
func (s *Store) tellOthers(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx, "SELECT id FROM batches WHERE status = $1 AND model != $2 ORDER BY number LIMIT 10", InProgress, s.o.Model)
	if err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return fmt.Errorf("batches: %w", err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("batches: %w", err)
	}
	list := strings.Join(ids, " ")
	if list != s.waiting && list != "" {
		s.o.Log.Warn("batches were begun with another model and wait for a server of it; cancel them, or serve that model", "batches", list)
	}
	s.waiting = list
	return nil
}
