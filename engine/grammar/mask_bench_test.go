package grammar

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// bigVocab is 150,000 tokens that look like those of a model: words with and without a space before,
// digits, pieces of JSON, and bytes.
var bigVocab = sync.OnceValue(func() *Vocab {
	random := rand.New(rand.NewPCG(7, 7))
	const size = 150_000
	tokens := make([]string, 0, size)
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	pieces := []string{`"`, `":`, `": "`, `",`, `", "`, `"}`, `{"`, `}`, `]`, "\n", ",", "."}
	syllables := []string{"an", "be", "co", "di", "er", "fo", "ga", "hi", "in", "ka", "lo", "me", "no", "é", "数", "да", "s", "t"}
	for len(tokens) < size-1 {
		token := ""
		if random.IntN(2) == 0 {
			token = " "
		}
		for range 1 + random.IntN(4) {
			token += syllables[random.IntN(len(syllables))]
		}
		switch random.IntN(30) {
		case 0:
			token += pieces[random.IntN(len(pieces))]
		case 1:
			token = pieces[random.IntN(len(pieces))] + token
		}
		tokens = append(tokens, token+fmt.Sprint(random.IntN(100))[:random.IntN(2)])
	}
	tokens = append(tokens, "")
	v, err := NewVocab(size, func(id int32) []byte { return []byte(tokens[id]) }, []int32{size - 1})
	if err != nil {
		panic(err)
	}
	return v
})

func feed(b *testing.B, m *Matcher, text string) {
	b.Helper()
	for i := range len(text) {
		if err := m.Accept(int32(text[i])); err != nil {
			b.Fatal(err)
		}
	}
}

const benchText = `{"steps":[{"explanation":"some words`

// BenchmarkMask finds masks inside of a string. First: nothing is known of the grammar. Caller: the
// inside of strings is known, the place of this one is not. Kept: all is known, and the mask is copied.
func BenchmarkMask(b *testing.B) {
	v := bigVocab()
	allowed := make([]uint64, len(v.isEnd))
	schema := []byte(walkedSchemas["nested"])
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			g, err := FromSchema(schema)
			if err != nil {
				b.Fatal(err)
			}
			m := &Matcher{g: g, v: v, masks: g.masksFor(v)}
			s := g.start()
			for i := range len(benchText) {
				s = g.step(s, benchText[i])
			}
			b.StartTimer()
			if err := m.to(s); err != nil {
				b.Fatal(err)
			}
		}
	})
	g, err := FromSchema(schema)
	if err != nil {
		b.Fatal(err)
	}
	m, err := v.Matcher(g)
	if err != nil {
		b.Fatal(err)
	}
	feed(b, m, benchText)
	b.Run("caller", func(b *testing.B) {
		for b.Loop() {
			m.masks.compute(m.state)
		}
	})
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			if err := m.Accept('a'); err != nil {
				b.Fatal(err)
			}
			m.Mask(allowed)
		}
	})
}

func BenchmarkFromSchema(b *testing.B) {
	for b.Loop() {
		if _, err := FromSchema([]byte(walkedSchemas["nested"])); err != nil {
			b.Fatal(err)
		}
	}
}
