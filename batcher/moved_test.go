package batcher

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// A member that says anew what it holds is asked again for what it did not hold before: it may be the
// only one that does.
func TestDispatcherAsksAgainWhoHasMoreSince(t *testing.T) {
	for _, tt := range []struct {
		name   string
		late   bool // the news comes after the answer
		others *Set // of another member; nil: there is none
		want   time.Duration
	}{
		{"the news comes before the answer", false, nil, 0},
		{"the news comes after the answer", true, nil, time.Second},
		{"a part, before", false, holding(16, 32, 0), 0},
		{"a part, after", true, holding(16, 32, 0), time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := NewDispatcher(Options{Wait: 10 * time.Second})
				before, release := stuck()
				asked := 0
				m := d.Join("moved", &fake{before: func(ctx context.Context, b *moe.Batch) error {
					if asked++; asked > 1 {
						return nil
					}
					_ = before(ctx, b)
					return fmt.Errorf("experts of another epoch: %w", moe.ErrNotHeld)
				}}, holding(0, 32, 0))
				if tt.others != nil {
					m.Update(holding(0, 16, 0))
					d.Join("other", &fake{}, tt.others)
				}
				batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 40, 8, 32)
				began := time.Now()
				call := start(t.Context(), d, batch)
				synctest.Wait()
				if !tt.late {
					m.Update(m.set)
				}
				close(release)
				synctest.Wait()
				if tt.late {
					time.Sleep(time.Second)
					m.Update(holding(0, 32, 0))
				}
				r := <-call
				if took := r.at.Sub(began); r.err != nil || took != tt.want || asked != 2 {
					t.Fatalf("ended after %v, asked %d times, with %v; want %v, 2, nil", took, asked, r.err, tt.want)
				}
				if err := same(r.out, truth(batch)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Picks that were chosen by what a member held before are not sent to it: it would answer that it does
// not hold them, and seem to hold nothing of the layer.
func TestMemberIsNotAskedByAnOlderSet(t *testing.T) {
	d := NewDispatcher(Options{})
	m := d.Join("m", &fake{}, holding(0, 32, 0))
	batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 4, 8, 32)
	s := &spread{d: d, out: &moe.Partials{}}
	s.ctx.tie(t.Context())
	defer s.ctx.leave()
	j := &job{batch: batch, answer: s.out}
	if next := s.choose(j); next != j || j.to != m {
		t.Fatalf("%v was chosen, want m", j.to)
	}
	m.Update(holding(0, 16, 0))
	if s.ask(j) || m.Stats().Dispatches != 0 {
		t.Errorf("the member was sent %d dispatches that were chosen by an older set", m.Stats().Dispatches)
	}
	if j.to != nil || len(j.tried) != 0 {
		t.Errorf("next is %v, and %d members are not asked any more; want it chosen anew among all", j.to, len(j.tried))
	}
}
