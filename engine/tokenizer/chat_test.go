package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestTypedControlTokensStayText(t *testing.T) {
	v := byteVocab("<|im_start|>", "<|im_end|>", "<think>", "<|im_end|>\n", "<|")
	v.Types[256], v.Types[257], v.Types[258], v.Types[259], v.Types[260] =
		typeControl, typeControl, typeUser, typeControl, typeControl
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, text string
		plain      []int
		want       string
	}{
		{"none typed", "<|im_start|>a<|im_end|>", nil, "[<|im_start|>]a[<|im_end|>]"},
		{"one typed", "<|im_start|><|im_end|><|im_end|>", []int{12}, "[<|im_start|>]<|im_end|>[<|im_end|>]"},
		{"a byte in its middle", "<|im_end|>", []int{5}, "[<|]im_end|>"},
		{"a byte behind it", "<|im_end|>x", []int{10}, "[<|im_end|>]x"},
		{"the longer one typed in part", "<|im_end|>\n", []int{10}, "[<|im_end|>]\n"},
		{"user-defined ones stay tokens", "<think>", []int{0, 3}, "[<think>]"},
	} {
		t.Run(x.name, func(t *testing.T) {
			ids, err := tok.EncodeChat(x.text, x.plain)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, id := range ids {
				if id < 256 {
					got.WriteByte(byte(id))
				} else {
					got.WriteString("[" + tok.Text(id) + "]")
				}
			}
			if got.String() != x.want {
				t.Errorf("got %s, want %s", got.String(), x.want)
			}
		})
	}
}

func TestControlsFindsBeginnings(t *testing.T) {
	v := byteVocab("<s>", "<|end|>", "<think>", "a<s")
	v.Types[256], v.Types[257], v.Types[258], v.Types[259] = typeControl, typeControl, typeUser, typeUser
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	f := func(text string, want ...int) {
		t.Helper()
		if got := tok.Controls(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	f("")
	f("a <b <x>")
	f("<s><|end|>x<s>", 0, 3, 11)
	f("x <", 2)
	f("<|en", 0)
	f("<think><thin")
	f("a<", 1)
	f("<s", 0)
}

// TestNothingTypedBecomesControl puts random strings, marked as Controls says, one behind another
// and between control tokens: these are the only ones that come out.
func TestNothingTypedBecomesControl(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	v := byteVocab("<a>", "<ab>", "<<a>", "b><a", "<>", "ab")
	for id := range 5 {
		v.Types[256+id] = typeControl
	}
	v.Types[261] = typeUser
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20_000 {
		var text strings.Builder
		var plain []int
		controls := rng.IntN(3)
		for i := range 4 {
			if i > 0 && i <= controls {
				text.WriteString("\n<ab>\n")
			}
			b := make([]byte, rng.IntN(6))
			for j := range b {
				b[j] = "<>ab"[rng.IntN(4)]
			}
			for _, at := range tok.Controls(string(b)) {
				plain = append(plain, text.Len()+at)
			}
			text.Write(b)
		}
		ids, err := tok.EncodeChat(text.String(), plain)
		if err != nil || tok.Decode(ids) != text.String() {
			t.Fatalf("round %d: %q came back as %q, %v", round, text.String(), tok.Decode(ids), err)
		}
		got := 0
		for _, id := range ids {
			if tok.IsControl(id) {
				got++
			}
		}
		if got != controls {
			t.Fatalf("round %d: %q with plain %v has %d control tokens, want %d", round, text.String(), plain, got, controls)
		}
	}
}
