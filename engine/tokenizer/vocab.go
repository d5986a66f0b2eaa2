package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a vocabulary. They are far above what models have, and keep the tables that New builds
// within a small multiple of the file.
const (
	maxTokens      = 1 << 22
	maxMerges      = 1 << 23
	maxSpecialText = 1 << 20 // bytes of all control and user-defined tokens together
)

// New checks v and returns its tokenizer, which keeps the slices of v. An error wraps ErrVocab and
// names the first fault.
func New(v Vocab) (*Tokenizer, error) {
	rule, err := findRule(v.Pre)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{next: rule.word, tokens: v.Tokens, types: v.Types, bos: v.BOS, addBOS: v.AddBOS}
	for _, step := range []func(*Vocab) error{t.checkCounts, t.checkIDs, t.addTokens, t.addMerges} {
		if err := step(&v); err != nil {
			return nil, err
		}
	}
	t.findEnds(&v)
	if rule.whole {
		t.addWhole()
	}
	return t, nil
}

func (t *Tokenizer) checkCounts(v *Vocab) error {
	switch {
	case len(v.Tokens) == 0:
		return fmt.Errorf("%w: it has no tokens", ErrVocab)
	case len(v.Tokens) > maxTokens:
		return fmt.Errorf("%w: %d tokens, at most %d", ErrVocab, len(v.Tokens), maxTokens)
	case len(v.Merges) > maxMerges:
		return fmt.Errorf("%w: %d merges, at most %d", ErrVocab, len(v.Merges), maxMerges)
	case len(v.Types) != 0 && len(v.Types) != len(v.Tokens):
		return fmt.Errorf("%w: %d token types for %d tokens", ErrVocab, len(v.Types), len(v.Tokens))
	}
	if len(v.Types) == 0 {
		t.types = make([]int32, len(v.Tokens))
		for i := range t.types {
			t.types[i] = typeNormal
		}
	}
	return nil
}

func (t *Tokenizer) checkIDs(v *Vocab) error {
	for _, x := range []struct {
		name string
		id   int32
	}{{"EOS", v.EOS}, {"EOT", v.EOT}, {"BOS", v.BOS}, {"padding", v.Pad}} {
		if x.id < -1 || int(x.id) >= len(v.Tokens) {
			return fmt.Errorf("%w: the %s token is %d, but ids go from 0 to %d",
				ErrVocab, x.name, x.id, len(v.Tokens)-1)
		}
	}
	if v.AddBOS && v.BOS < 0 {
		return fmt.Errorf("%w: sequences start with BOS, but there is no BOS token", ErrVocab)
	}
	return nil
}

// addTokens fills the tables by text and by byte. An empty token, which some files have as a
// placeholder, is never encoded and stands for nothing.
func (t *Tokenizer) addTokens(v *Vocab) error {
	t.exact = make(map[string]int32, len(v.Tokens))
	t.bytes = make([]string, len(v.Tokens))
	special := 0
	for i, text := range v.Tokens {
		id := int32(i)
		if !utf8.ValidString(text) {
			return fmt.Errorf("%w: token %d, %s, is not valid UTF-8", ErrVocab, id, quote(text))
		}
		if text == "" {
			continue
		}
		if first, twice := t.exact[text]; twice {
			return fmt.Errorf("%w: tokens %d and %d are both %s", ErrVocab, first, id, quote(text))
		}
		t.exact[text] = id
		switch t.types[i] {
		case typeControl, typeUser:
			special += len(text)
			if special > maxSpecialText {
				return fmt.Errorf("%w: its control and user-defined tokens hold more than %d bytes",
					ErrVocab, maxSpecialText)
			}
			t.special.add(text, id, t.types[i] == typeControl)
			t.bytes[i] = text
		case typeNormal, typeByte, 0:
			t.bytes[i] = fromPrintable(text)
		default:
			t.bytes[i] = text
		}
	}
	t.longest = 1
	for _, text := range t.bytes {
		t.longest = max(t.longest, len(text))
	}
	for b := range 256 {
		id, ok := t.exact[string(printable[b])]
		if !ok {
			return fmt.Errorf("%w: byte 0x%02x, written %q, has no token", ErrVocab, b, printable[b])
		}
		if t.bytes[id] != string([]byte{byte(b)}) {
			return fmt.Errorf("%w: token %d, %q, is of type %d, but must stand for byte 0x%02x",
				ErrVocab, id, printable[b], t.types[id], b)
		}
		t.byteID[b] = id
	}
	return nil
}

// addWhole fills the table of words that are taken as they are. Control tokens are none: they would
// come out of text that nobody trusts.
func (t *Tokenizer) addWhole() {
	t.whole = make(map[string]int32, len(t.tokens))
	for id, text := range t.bytes {
		if t.types[id] == typeNormal && text != "" {
			t.whole[text] = int32(id)
		}
	}
}

// addMerges fills the table of merges. A pair that is listed twice has the lower rank.
func (t *Tokenizer) addMerges(v *Vocab) error {
	t.merges = make(map[pair]merge, len(v.Merges))
	t.pairs = make([]pair, len(v.Merges))
	for i, text := range v.Merges {
		left, right, ok := strings.Cut(text, " ")
		if !ok || left == "" || right == "" {
			return fmt.Errorf("%w: merge %d is %s, want two tokens with a space between",
				ErrVocab, i, quote(text))
		}
		var id [3]int32
		for j, part := range []string{left, right, left + right} {
			if id[j], ok = t.exact[part]; !ok {
				return fmt.Errorf("%w: merge %d, %s, needs %s, which is no token",
					ErrVocab, i, quote(text), quote(part))
			}
		}
		if t.bytes[id[2]] != t.bytes[id[0]]+t.bytes[id[1]] {
			return fmt.Errorf("%w: merge %d, %s, makes token %d of type %d, which stands for something else",
				ErrVocab, i, quote(text), id[2], t.types[id[2]])
		}
		p := pair{id[0], id[1]}
		t.pairs[i] = p
		if _, twice := t.merges[p]; !twice {
			t.merges[p] = merge{rank: int32(i), id: id[2]}
		}
	}
	return nil
}

// quote is text for an error message, which stays one line of reasonable length.
func quote(text string) string {
	const most = 40
	if len(text) > most {
		return fmt.Sprintf("%q (and %d bytes more)", text[:most], len(text)-most)
	}
	return fmt.Sprintf("%q", text)
}
