package sample

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkNext chooses from a large vocabulary; the copy of the logits that each round needs is in it.
func BenchmarkNext(b *testing.B) {
	const vocab = 250_000
	for _, c := range []struct {
		name string
		p    Params
	}{
		{"greedy", Defaults()},
		{"logprobs", Params{TopP: 1, Repetition: 1, Logprobs: true, Top: 20}},
		{"plain", Params{Temperature: 1, TopP: 1, Repetition: 1}},
		{"top-k", Params{Temperature: 0.7, TopK: 20, TopP: 0.8, Repetition: 1}},
		{"top-p", Params{Temperature: 0.7, TopP: 0.95, Repetition: 1}},
		{"min-p", Params{Temperature: 1, TopP: 1, MinP: 0.05, Repetition: 1}},
		{"large-top-k", Params{Temperature: 1, TopK: 5000, TopP: 1, Repetition: 1}},
		{"penalties", Params{TopP: 1, Repetition: 1.1, Presence: 0.5}},
	} {
		for shape, name := range []string{"peaked", "flat"} {
			b.Run(fmt.Sprintf("%s/%s", c.name, name), func(b *testing.B) {
				x, y := make([]float32, vocab), make([]float32, vocab)
				fill(x, shape, rand.New(rand.NewPCG(1, 0)))
				s := mustNew(b, c.p, Options{Vocab: vocab, Ops: ops, Prompt: []int32{1, 2, 3}})
				b.ReportAllocs()
				pos := 0
				for b.Loop() {
					copy(y, x)
					if _, err := s.Next(y, pos); err != nil {
						b.Fatal(err)
					}
					pos++
				}
			})
		}
	}
}
