package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomVocab has merges of three letters in random order, many of which overlap.
func randomVocab(rng *rand.Rand) Vocab {
	v := byteVocab()
	parts := []string{"a", "b", "c"}
	for range 30 {
		left, right := parts[rng.IntN(len(parts))], parts[rng.IntN(len(parts))]
		m := left + " " + right
		if slices.Contains(v.Merges, m) {
			continue
		}
		v.Merges = append(v.Merges, m)
		if !slices.Contains(v.Tokens, left+right) {
			v.Tokens = append(v.Tokens, left+right)
			parts = append(parts, left+right)
		}
	}
	v.Types = nil
	return v
}

func TestMergesEqualDumbTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for round := range 200 {
		v := randomVocab(rng)
		tok, err := New(v)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			word := make([]byte, 1+rng.IntN(30))
			for i := range word {
				word[i] = "abc"[rng.IntN(3)]
			}
			var got []string
			for _, id := range encode(t, tok, string(word), false) {
				got = append(got, tok.Text(id))
			}
			if want := mergeDumb(&v, string(word)); !slices.Equal(got, want) {
				t.Fatalf("round %d: merges %q of %s:\n got %q\nwant %q", round, v.Merges, word, got, want)
			}
		}
	}
}

// TestLongWordIsNotQuadratic counts steps, not time. A merge loop that looks for the best pair by
// walking the word would take n*n/2 steps, 550 thousand million here.
func TestLongWordIsNotQuadratic(t *testing.T) {
	doubling := byteVocab()
	doubling.Types = nil
	for x := "a"; len(x) < 256; x += x {
		doubling.Merges = append(doubling.Merges, x+" "+x)
		doubling.Tokens = append(doubling.Tokens, x+x)
	}
	const n = 1 << 20
	abc := make([]byte, n)
	rng := rand.New(rand.NewPCG(11, 12))
	for i := range abc {
		abc[i] = "abc"[rng.IntN(3)]
	}
	for _, x := range []struct {
		name, text string
		vocab      Vocab
	}{
		{"one letter", strings.Repeat("a", n), doubling},
		{"three letters", string(abc), randomVocab(rng)},
		{"one space", strings.Repeat(" ", n), doubling},
	} {
		t.Run(x.name, func(t *testing.T) {
			tok, err := New(x.vocab)
			if err != nil {
				t.Fatal(err)
			}
			m := merger{t: tok, most: n}
			ids := m.appendWords(nil, x.text)
			if tok.Decode(ids) != x.text {
				t.Fatal("the text did not come back")
			}
			// At most: one step a symbol on the way in and out, three look-ups a symbol, and for
			// each of these a way up and a way down the heap, 20 levels deep.
			if most := n * (2 + 3 + 3*2*20); m.steps > most {
				t.Errorf("%d steps for %d bytes, at most %d", m.steps, n, most)
			}
			half := merger{t: tok, most: n}
			half.appendWords(nil, x.text[:n/2])
			if m.steps > half.steps*9/4 {
				t.Errorf("%d steps for %d bytes, %d for half of them", m.steps, n, half.steps)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	tok := tokenizer(b, "tiny", "qwen35")
	text := strings.Repeat("There was once a poor miller who had three sons, his mill, a donkey, and a cat. ", 100)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.Encode(text, true); err != nil {
			b.Fatal(err)
		}
	}
}
