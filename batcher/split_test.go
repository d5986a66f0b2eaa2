package batcher

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// drawBatch draws a batch, the number of executors and where each pick goes.
func drawBatch(t *rapid.T) (b *moe.Batch, n int, to []int32) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "values"), 1))
	rows := rapid.IntRange(1, 24).Draw(t, "rows")
	b = randomBatch(rng, randomShape(rng, 4), rows, rapid.IntRange(1, moe.MaxTopK).Draw(t, "topK"), 32)
	n = rapid.IntRange(0, 6).Draw(t, "executors")
	to = rapid.SliceOfN(rapid.Int32Range(Nobody, int32(n-1)), len(b.Expert), len(b.Expert)).Draw(t, "to")
	return b, n, to
}

func given(b *moe.Batch, to []int32) Choose {
	return func(row int, _ []uint16, dst []int32) { copy(dst, to[b.First[row]:b.First[row+1]]) }
}

func TestSplitPutsEveryPickInOnePart(t *testing.T) { rapid.Check(t, everyPickIsInOnePart) }

func FuzzSplit(f *testing.F) { f.Fuzz(rapid.MakeFuzz(everyPickIsInOnePart)) }

func everyPickIsInOnePart(t *rapid.T) {
	b, n, to := drawBatch(t)
	parts, err := Split(b, n, given(b, to))
	if err != nil {
		t.Fatal(err)
	}
	// Walk the batch, and take each pick off the front of the row of its part.
	at := make([]int, n+1)   // row of the part that is being walked
	used := make([]int, n+1) // picks of it that have been found
	byDest := make([]*Part, n+1)
	for i := range parts {
		p := &parts[i]
		if i > 0 && parts[i-1].To >= p.To {
			t.Fatalf("part for %d comes after part for %d", p.To, parts[i-1].To)
		}
		if err := p.Batch.Validate(moe.MaxExperts); err != nil {
			t.Fatalf("part for %d: %v", p.To, err)
		}
		if !slices.IsSorted(p.Rows) || len(slices.Compact(slices.Clone(p.Rows))) != len(p.Rows) {
			t.Fatalf("part for %d has rows %v, want each once, ascending", p.To, p.Rows)
		}
		byDest[p.To+1] = p
	}
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		for i, d := range to[b.First[r]:b.First[r+1]] {
			p := byDest[d+1]
			if p == nil || at[d+1] >= p.Batch.Rows || int(p.Rows[at[d+1]]) != r {
				t.Fatalf("row %d is not in the part for %d", r, d)
			}
			e, w := p.Batch.Picks(at[d+1])
			k := used[d+1]
			if k >= len(e) || e[k] != expert[i] || w[k] != weight[i] {
				t.Fatalf("row %d, pick %d is not in the part for %d", r, i, d)
			}
			if hashRow(p.Batch, at[d+1]) != hashRow(b, r) {
				t.Fatalf("row %d has other values in the part for %d", r, d)
			}
			if used[d+1]++; used[d+1] == len(e) {
				at[d+1], used[d+1] = at[d+1]+1, 0
			}
		}
	}
	for d, p := range byDest {
		if p != nil && (at[d] != p.Batch.Rows || used[d] != 0) {
			t.Fatalf("part for %d has picks that the batch has not", d-1)
		}
	}
}

func TestCombineOfAnySplitIsTheUnsplitSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, n, to := drawBatch(t)
		parts, err := Split(b, n, given(b, to))
		if err != nil {
			t.Fatal(err)
		}
		var got moe.Partials
		got.Reset(b.Rows, b.Hidden)
		for _, p := range rapid.Permutation(parts).Draw(t, "order") {
			Combine(&got, truth(p.Batch), p.Rows)
		}
		if err := same(&got, truth(b)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSplitRefusesWhatCannotBeWalked(t *testing.T) {
	for name, spoil := range map[string]func(*moe.Batch){
		"shape":           func(b *moe.Batch) { b.Hidden = 0 },
		"rows":            func(b *moe.Batch) { b.Rows = moe.MaxRows + 1 },
		"values short":    func(b *moe.Batch) { b.Q = b.Q[:1] },
		"scales short":    func(b *moe.Batch) { b.Scales = b.Scales[:1] },
		"floats beside":   func(b *moe.Batch) { b.F = make([]float32, 1) },
		"offsets short":   func(b *moe.Batch) { b.First = b.First[:2] },
		"offsets from 1":  func(b *moe.Batch) { b.First[0] = 1 },
		"row empty":       func(b *moe.Batch) { b.First[1] = 0 },
		"offsets wrap":    func(b *moe.Batch) { b.First[1], b.First[2] = -1<<31, 1<<31-1 },
		"row of 65 picks": func(b *moe.Batch) { b.First[3] = b.First[2] + 65 },
		"weights short":   func(b *moe.Batch) { b.Weight = b.Weight[:1] },
		"expert beyond":   func(b *moe.Batch) { b.Expert[2] = moe.MaxExperts },
	} {
		t.Run(name, func(t *testing.T) {
			b := randomBatch(seeded(t, 1), moe.Shape{Hidden: 40, Format: moe.RowQ8}, 3, 8, 32)
			if err := b.ValidateShape(moe.MaxExperts); err != nil {
				t.Fatalf("before: %v", err)
			}
			spoil(b)
			if _, err := Split(b, 1, func(int, []uint16, []int32) {}); !errors.Is(err, moe.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			if err := b.Validate(moe.MaxExperts); err == nil {
				t.Error("Batch.Validate accepts it: check is stricter than the rule")
			}
		})
	}
}

func TestSplitPanicsOnAChoiceOfNobodyKnown(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("executor 2 of 2 was accepted")
		}
	}()
	b := randomBatch(seeded(t, 1), moe.Shape{Hidden: 4}, 1, 1, 1)
	_, _ = Split(b, 2, func(_ int, _ []uint16, to []int32) { to[0] = 2 })
}
