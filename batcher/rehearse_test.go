package batcher

import (
	"errors"
	"testing"
	"time"

	"kvasir/internal/moe"
)

// rehearsedBatch has rows that all pick experts 0 and 1 of layer 0.
func rehearsedBatch(t *testing.T, rows int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Hidden: 1}, rows, 2*rows)
	if err != nil {
		t.Fatal(err)
	}
	for range rows {
		b.Grow([]uint16{0, 1}, []float32{1, 1})
	}
	return b
}

func mustRehearse(t *testing.T, r *Rehearsal, now time.Time, b *moe.Batch, not ...*Member) []Dispatched {
	t.Helper()
	parts, err := r.Dispatch(now, b, not)
	if err != nil {
		t.Fatal(err)
	}
	picks := 0
	for _, p := range parts {
		picks += len(p.Batch.Expert)
	}
	if picks != len(b.Expert) {
		t.Fatalf("%d picks in parts, want %d", picks, len(b.Expert))
	}
	return parts
}

// A member that fails is passed over until its probation ends, by the clock that is passed in.
func TestRehearsalGoesByTheClockThatItIsGiven(t *testing.T) {
	d := NewDispatcher(Options{})
	defer d.Close()
	set, err := All(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	a, b := d.Join("a", nil, set), d.Join("b", nil, set)
	r, batch, now := NewRehearsal(d), rehearsedBatch(t, 8), time.Unix(1000, 0)
	p := mustRehearse(t, r, now, batch)
	if len(p) != 1 {
		t.Fatalf("8 rows are %d parts, want 1", len(p))
	}
	failing, other := p[0].To, b
	if failing == b {
		other = a
	}
	p[0].End(time.Second, errors.New("gone"))
	now = now.Add(time.Second)
	for range 4 {
		p = mustRehearse(t, r, now, batch)
		if p[0].To != other {
			t.Fatal("a member is asked that has just failed")
		}
		p[0].End(time.Millisecond, nil)
	}
	if p = mustRehearse(t, r, now, batch, []*Member{other}...); p[0].To != nil {
		t.Errorf("the other is not to be asked, and %s is", p[0].To.Name())
	}
	now = now.Add(DefaultProbation)
	if p = mustRehearse(t, r, now, batch, []*Member{other}...); p[0].To != failing {
		t.Error("its probation is over, and it is not asked")
	}
	p[0].End(time.Millisecond, nil)
	if s := failing.Stats(); s.InFlight != 0 {
		t.Errorf("%d picks are under way at the end", s.InFlight)
	}
}

func TestRehearsedQueueMakesOneBatchOfWhatWaits(t *testing.T) {
	q, err := NewQueue(Limits{Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	for i := range 3 {
		if err := q.Offer(now, rehearsedBatch(t, 4), i); err != nil {
			t.Fatal(err)
		}
	}
	rows := map[any]int{}
	for batches, list := 0, q.Next(now, nil); len(list) > 0; list = q.Next(now, nil) {
		sum := 0
		for _, x := range list {
			if x.Picks != 2*x.Rows {
				t.Errorf("%d rows have %d picks", x.Rows, x.Picks)
			}
			rows[x.Call] += x.Rows
			sum += x.Rows
		}
		if batches++; batches == 1 && sum != 10 {
			t.Errorf("the first batch has %d rows, want 10", sum)
		}
	}
	for i := range 3 {
		if rows[i] != 4 {
			t.Errorf("call %d: %d rows came, want 4", i, rows[i])
		}
	}
	if len(q.calls) != 0 {
		t.Errorf("%d calls are remembered when all is sent", len(q.calls))
	}
}
