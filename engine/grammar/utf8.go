package grammar

import (
	"slices"
	"unicode/utf8"
)

// runeRange is the code points from lo to hi.
type runeRange struct{ lo, hi rune }

// runeSet is a sorted list of ranges that neither touch nor overlap.
type runeSet []runeRange

// newRuneSet sorts and joins ranges.
func newRuneSet(ranges ...runeRange) runeSet {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b runeRange) int { return int(a.lo - b.lo) })
	var set runeSet
	for _, r := range sorted {
		if n := len(set); n > 0 && r.lo <= set[n-1].hi+1 {
			set[n-1].hi = max(set[n-1].hi, r.hi)
			continue
		}
		set = append(set, r)
	}
	return set
}

// not is the code points that s lacks.
func (s runeSet) not() runeSet {
	var out runeSet
	next := rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= utf8.MaxRune {
		out = append(out, runeRange{next, utf8.MaxRune})
	}
	return out
}

// minus is the code points of s that t lacks.
func (s runeSet) minus(t runeSet) runeSet {
	return newRuneSet(append(slices.Clone(s.not()), t...)...).not()
}

func (s runeSet) has(c rune) bool {
	for _, r := range s {
		if c >= r.lo && c <= r.hi {
			return true
		}
	}
	return false
}

// expr matches the UTF-8 form of one code point of the set. Surrogates have none.
func (s runeSet) expr() *expr {
	var alts []*expr
	var ascii byteSet
	for _, r := range s.minus(runeSet{{0xd800, 0xdfff}}) {
		if r.lo < utf8.RuneSelf {
			ascii.addRange(byte(r.lo), byte(min(r.hi, utf8.RuneSelf-1)))
		}
		// One range for each length of the UTF-8 form.
		for _, part := range []runeRange{{0x80, 0x7ff}, {0x800, 0xffff}, {0x10000, utf8.MaxRune}} {
			lo, hi := max(r.lo, part.lo), min(r.hi, part.hi)
			if lo <= hi {
				var a, b [utf8.UTFMax]byte
				n := utf8.EncodeRune(a[:], lo)
				utf8.EncodeRune(b[:], hi)
				alts = append(alts, byteRanges(a[:n], b[:n])...)
			}
		}
	}
	if ascii != (byteSet{}) {
		alts = append(alts, oneOf(ascii))
	}
	return alt(alts...)
}

// byteRanges matches the UTF-8 forms from lo to hi, which are equally long. It splits where the
// bytes after the first are not free: lo to the end of its lead byte, whole lead bytes, and up to hi.
func byteRanges(lo, hi []byte) []*expr {
	if len(lo) == 1 || lo[0] == hi[0] {
		var first byteSet
		first.addRange(lo[0], hi[0])
		if len(lo) == 1 {
			return []*expr{oneOf(first)}
		}
		return []*expr{seq(oneOf(first), alt(byteRanges(lo[1:], hi[1:])...))}
	}
	least, most := []byte{0x80, 0x80, 0x80}[:len(lo)-1], []byte{0xbf, 0xbf, 0xbf}[:len(lo)-1]
	var out []*expr
	from, to := lo[0], hi[0]
	if !slices.Equal(lo[1:], least) {
		out = append(out, seq(literal(string(lo[:1])), alt(byteRanges(lo[1:], most)...)))
		from++
	}
	var last []*expr
	if !slices.Equal(hi[1:], most) {
		last = append(last, seq(literal(string(hi[:1])), alt(byteRanges(least, hi[1:])...)))
		to--
	}
	if from <= to {
		var first byteSet
		first.addRange(from, to)
		out = append(out, seq(oneOf(first), alt(byteRanges(least, most)...)))
	}
	return append(out, last...)
}
