package batcher

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// TestMembersOnTrialGetFewRows counts what they get where others hold the experts, and where nobody else does.
func TestMembersOnTrialGetFewRows(t *testing.T) {
	for name, rows := range map[string][]int{
		"one row": {1}, "few rows": {3, 7, 1}, "full batches": {512}, "all sizes": {1, 512, 40, 9, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { trialOf(t, rows) })
		})
	}
}

// trialOf has four callers compute batches of these sizes with one member that is proven and two that are not.
func trialOf(t *testing.T, rows []int) {
	d := NewDispatcher(Options{Hedge: -1, Patience: -1, Local: &fake{}})
	old, alone := mustAll(1, 32), mustAll(1, 32)
	if err := alone.Add(1, 0, 32); err != nil {
		t.Fatal(err)
	}
	// A pick takes 10 us and a dispatch 2 ms, whoever computes it.
	takes := func(_ context.Context, b *moe.Batch) error {
		time.Sleep(2*time.Millisecond + time.Duration(len(b.Expert))*10*time.Microsecond)
		return nil
	}
	proven := d.Join("proven", &fake{before: takes}, old)
	var trial []*Member
	for range 2 {
		m := d.Join("new", &fake{before: takes}, alone)
		m.Trial(true)
		trial = append(trial, m)
	}
	all := func(layer int) int64 { // what those on trial have computed of a layer
		n := int64(0)
		for _, m := range trial {
			for _, l := range m.Stats().Layers {
				if l.Layer == layer {
					n += l.Rows
				}
			}
		}
		return n
	}
	var mu sync.Mutex
	total := int64(0)
	run := func(layer, times int) {
		var calls sync.WaitGroup
		for k := range 4 {
			calls.Go(func() {
				rng := seeded(t, uint64(k))
				for i := range times {
					n := rows[i%len(rows)]
					b := randomBatch(rng, moe.Shape{Layer: layer, Hidden: 4}, n, 4, 32)
					forward(t, d, b)
					mu.Lock()
					total += int64(n)
					mu.Unlock()
				}
			})
		}
		calls.Wait()
	}
	run(0, max(20, 800/rows[0]))
	if got := all(0); got > total/20 || got < total/50 {
		t.Errorf("%d rows of %d went to those on trial, want 5 %%", got, total)
	}
	if d.trials.given > total/20 || d.trials.seen != total {
		t.Errorf("%+v after %d rows", d.trials, total)
	}
	total = 0
	run(1, 5)
	if got := all(1); got < total {
		t.Errorf("%d rows of %d went to those on trial where nobody else is", got, total)
	}
	if n := d.Fallback().Stats().Rows; n != 0 {
		t.Errorf("%d rows went to the fallback", n)
	}
	for _, m := range trial {
		m.Trial(false)
	}
	before := all(0)
	total = 0
	run(0, max(20, 400/rows[0]))
	if got := all(0) - before; got < total/3 {
		t.Errorf("%d rows of %d went to them when the trial was over", got, total)
	}
	if s := proven.Stats(); s.Trial || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}
