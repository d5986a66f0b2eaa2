package synth

import (
	"fmt"
	"strings"
)

// specials are the tokens behind the ordinary ones, with their names in the models that have them.
var specials = []string{
	"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|pad|>",
}

// Places in specials.
const (
	endOfText = 0
	imEnd     = 2
	pad       = 7
)

// vocabLeast is the bytes and specials, without which there is no text.
const vocabLeast = 256 + 8

// words are what merges are made for: a word's beginnings become tokens, one letter longer each.
const words = `the of and to in is that for it with as was on be by at this have from or one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my made
over did down only way find use may water long little very after words called just where most know get through back
much before go good new write our used me man too any day same right look think also around another came come work
three word must because does part even place well such here take why things help put years different away again off
went old number great tell men say small every found still between name should home big give air line set own under
read last never us left end along while might next sound below saw something thought both few those always looked
show large often together asked house world going want school important until form food keep children feet land side`

// vocabulary is a byte-level BPE as Qwen's files hold it: bytes, merges, specials, and tokens that nothing
// is encoded to.
type vocabulary struct {
	tokens []string
	types  []int32
	merges []string
}

// Types of tokens, as in tokenizer.ggml.token_type.
const (
	ordinary = 1
	control  = 3
	user     = 4
	unused   = 5
)

// newVocabulary makes one of n tokens.
func newVocabulary(n int) *vocabulary {
	v := &vocabulary{}
	add := func(token string, typ int32) {
		v.tokens = append(v.tokens, token)
		v.types = append(v.types, typ)
	}
	for b := range 256 {
		add(string(printable(byte(b))), ordinary)
	}
	known := map[string]bool{}
	space := string(printable(' '))
	for _, word := range strings.Fields(words) {
		left := space
		for _, letter := range word {
			right := string(letter)
			if known[left+right] {
				left += right
				continue
			}
			if len(v.tokens) == n-len(specials) {
				break
			}
			known[left+right] = true
			v.merges = append(v.merges, left+" "+right)
			left += right
			add(left, ordinary)
		}
	}
	for _, s := range specials {
		typ := int32(control)
		if strings.Contains(s, "think") || strings.Contains(s, "tool") {
			typ = user
		}
		add(s, typ)
	}
	for i := len(v.tokens); i < n; i++ {
		add(fmt.Sprintf("[PAD%d]", i), unused)
	}
	return v
}

// special returns the id of a special by its place.
func (v *vocabulary) special(place int) uint32 { return uint32(256 + len(v.merges) + place) }

// printable is the character that stands for a byte in GPT-2's vocabularies: itself where it can be seen in
// Latin-1, else the next one from U+0100 on.
func printable(b byte) rune {
	hidden := func(b byte) bool { return b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad }
	if !hidden(b) {
		return rune(b)
	}
	r := rune(256)
	for c := range b {
		if hidden(c) {
			r++
		}
	}
	return r
}

// chatML is the chat template of the file.
const chatML = `{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}` +
	`{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}`
