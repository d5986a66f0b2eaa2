// Package tokenizer turns text into token ids and back, with the vocabulary that a model file
// brings: byte-level BPE, as GPT-2 made it and Qwen uses it.
//
// Encode works in three steps. Tokens that stand for themselves, such as <|im_start|>, are cut out,
// the longest first. What lies between is split into words by the rules of the vocabulary's
// pre-tokenizer. The bytes of a word become tokens, and adjacent tokens are merged, the pair with
// the lowest rank first, until no merge applies.
//
// What holds, and where it is checked:
//
//  1. Every byte has a token, every merge names three tokens, and what a merged token stands for
//     is what its parts stand for (New). So every valid UTF-8 text has ids, and Decode gives back
//     exactly that text.
//  2. Encode takes O(n log n) steps for n bytes, whatever the text: words of any length are merged
//     with a heap.
//  3. A control token comes out of Encode only where the caller trusts the text.
//  4. Ids equal those of llama.cpp. Where it departs from the regular expression that a model was
//     trained with, Kvasir goes with it: U+017F after an apostrophe is no contraction.
//
// Which code points are letters, marks, digits and spaces is taken from package unicode, so a code
// point younger than Go's tables counts as a symbol.
package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxText is how many bytes Encode takes at once.
const MaxText = 64 << 20

var (
	// ErrVocab is the reason for every vocabulary that New refuses.
	ErrVocab = errors.New("tokenizer: bad vocabulary")
	// ErrUTF8 is returned by Encode for text that is not valid UTF-8.
	ErrUTF8 = errors.New("tokenizer: text is not valid UTF-8")
	// ErrTooLong is returned by Encode for text of more than MaxText bytes.
	ErrTooLong = errors.New("tokenizer: text is too long")
)

// Types of tokens, as in a model file's tokenizer.ggml.token_type.
const (
	typeNormal  = 1
	typeControl = 3 // marks a place in the stream; cut out of text only where the caller trusts it
	typeUser    = 4 // text that always is a token of its own
	typeByte    = 6
)

// Vocab is what a model file says about its tokens.
type Vocab struct {
	Pre    string   // name of the pre-tokenizer
	Tokens []string // by id; bytes of ordinary tokens are written as GPT-2's printable characters
	Types  []int32  // by id, or nil where all tokens are ordinary
	Merges []string // "left right", the most frequent first

	EOS, EOT, BOS, Pad int32 // -1 where there is none
	AddBOS             bool  // a sequence starts with BOS
}

// Tokenizer is a checked vocabulary, ready for use by many goroutines at once: it never changes.
type Tokenizer struct {
	next    wordRule
	longest int              // bytes of the token that stands for most
	whole   map[string]int32 // by the bytes that a token stands for; nil where the rule leaves all to the merges
	tokens  []string         // as in the vocabulary
	bytes   []string         // what a token stands for
	types   []int32
	byteID  [256]int32
	merges  map[pair]merge
	pairs   []pair // by rank
	exact   map[string]int32
	ends    map[int32]bool
	bos     int32
	addBOS  bool

	special specials
}

// Size returns the number of tokens: ids go from 0 to Size()-1.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// Text returns the token as the vocabulary writes it.
func (t *Tokenizer) Text(id int32) string { return t.tokens[t.check(id)] }

// IsEnd reports whether generation stops at id: the vocabulary's EOS and EOT, and control tokens
// that end a text or a turn by their name.
func (t *Tokenizer) IsEnd(id int32) bool { return t.ends[id] }

// IsControl reports whether id marks a place in the stream and is not text for a reader.
func (t *Tokenizer) IsControl(id int32) bool { return t.types[t.check(id)] == typeControl }

// BOS returns the token that every sequence starts with, and whether this vocabulary wants one.
// Encode never adds it.
func (t *Tokenizer) BOS() (id int32, add bool) { return t.bos, t.addBOS }

// Encode returns the ids of text. With special, control tokens in the text become their ids;
// without, they are plain text, which is right for whatever comes from outside. User-defined tokens
// are always cut out.
func (t *Tokenizer) Encode(text string, special bool) ([]int32, error) {
	ids, _, err := t.encode(text, trust{control: special}, len(text))
	return ids, err
}

// EncodeChat returns the ids of a text that a chat template wrote around what people did. Control
// tokens become their ids, but for those that cover one of the bytes that plain names, in ascending
// order: these came from outside and are plain text.
func (t *Tokenizer) EncodeChat(text string, plain []int) ([]int32, error) {
	ids, _, err := t.encode(text, trust{control: true, plain: plain}, len(text))
	return ids, err
}

// EncodeMost is Encode without special for a text that is of no use if it has more than most ids. Where it has,
// more is true, there are no ids, and it has cost little more than most.
func (t *Tokenizer) EncodeMost(text string, most int) (ids []int32, more bool, err error) {
	return t.encode(text, trust{}, most)
}

// EncodeChatMost is EncodeChat likewise.
func (t *Tokenizer) EncodeChatMost(text string, plain []int, most int) (ids []int32, more bool, err error) {
	return t.encode(text, trust{control: true, plain: plain}, most)
}

// Controls returns the bytes of text where a control token begins, in ascending order, and where one
// would begin if the right text followed: what a message must not smuggle into a prompt.
func (t *Tokenizer) Controls(text string) []int {
	var at []int
	for i := range len(text) {
		if t.special.begins(text, i) {
			at = append(at, i)
		}
	}
	return at
}

// encode returns up to most ids, or that there are more. No text has more of them than bytes.
func (t *Tokenizer) encode(text string, trusted trust, most int) (ids []int32, more bool, err error) {
	if len(text) > MaxText {
		return nil, false, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(text), MaxText)
	}
	if !utf8.ValidString(text) {
		at := invalidAt(text)
		return nil, false, fmt.Errorf("%w: byte 0x%02x at offset %d", ErrUTF8, text[at], at)
	}
	if len(text)/t.longest > most {
		return nil, true, nil
	}
	ids = make([]int32, 0, min(len(text)/3, most)+1)
	m := merger{t: t, most: most}
	at := 0
	for _, c := range t.special.cut(text, trusted) {
		ids = m.appendWords(ids, text[at:c.at])
		ids = append(ids, c.id)
		if at = c.at + c.n; m.over {
			break
		}
	}
	if ids = m.appendWords(ids, text[at:]); m.over || len(ids) > most {
		return nil, true, nil
	}
	return ids, false, nil
}

// AppendToken appends the bytes that id stands for; they may end in the middle of a character.
func (t *Tokenizer) AppendToken(dst []byte, id int32) []byte {
	return append(dst, t.bytes[t.check(id)]...)
}

// Decode returns the text of ids, control tokens included. Bytes that are no UTF-8 come out as
// U+FFFD, one for each longest beginning of a character.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	s := Stream{t: t, control: true}
	for _, id := range ids {
		b.WriteString(s.Push(id))
	}
	b.WriteString(s.Flush())
	return b.String()
}

func (t *Tokenizer) check(id int32) int32 {
	if id < 0 || int(id) >= len(t.tokens) {
		panic(fmt.Sprintf("BUG: token %d of a vocabulary of %d", id, len(t.tokens)))
	}
	return id
}

func invalidAt(text string) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	panic("BUG: valid text has no invalid byte")
}

// endNames are the control tokens that end a text or a turn in the families of models known so far.
// Files name only one or two ends, and a model may use the other: Qwen's EOS is <|im_end|>, and
// <|endoftext|> ends a text as well.
var endNames = []string{
	"<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|return|>", "<|call|>",
}

func (t *Tokenizer) findEnds(v *Vocab) {
	t.ends = map[int32]bool{}
	for _, id := range []int32{v.EOS, v.EOT} {
		if id >= 0 {
			t.ends[id] = true
		}
	}
	for id, text := range t.tokens {
		if t.types[id] == typeControl && slices.Contains(endNames, text) {
			t.ends[int32(id)] = true
		}
	}
}
