package tokenizer

import "strings"

// GPT-2 writes the bytes of a token as printable characters: a byte that is printable in Latin-1 is
// itself, the others are U+0100 and up, in order. A space is U+0120.
var (
	printable   [256]rune
	unprintable [256 + 68]int16 // the byte that a character stands for, -1 if none
)

func init() {
	for i := range unprintable {
		unprintable[i] = -1
	}
	other := rune(256)
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = other
			other++
		}
		printable[b] = r
		unprintable[r] = int16(b)
	}
}

// fromPrintable returns the bytes that token stands for. Characters outside the map, which no merge
// can make, stand for themselves.
func fromPrintable(token string) string {
	var b strings.Builder
	b.Grow(len(token))
	for _, r := range token {
		if int(r) < len(unprintable) && unprintable[r] >= 0 {
			b.WriteByte(byte(unprintable[r]))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
