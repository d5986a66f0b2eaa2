package grammar

import (
	"strconv"
	"strings"
)

// maxInteger bounds what is generated, and what minimum and maximum may be.
const maxInteger = 999_999_999_999_999_999

// bound is one end of a range of numbers; exclusive when the number itself lies outside.
type bound struct {
	set       bool
	n         int64
	exclusive bool
}

// numberOf compiles numbers and integers. Bounds of integers may be any decimals, those of numbers
// are whole, and then nothing is written as a power of ten.
func (c *schemaCompiler) numberOf(v *value, path string, integer bool) (*expr, error) {
	lo, err := readBound(v, path, integer, "minimum", "exclusiveMinimum", 1)
	if err != nil {
		return nil, err
	}
	hi, err := readBound(v, path, integer, "maximum", "exclusiveMaximum", -1)
	if err != nil {
		return nil, err
	}
	switch {
	case !lo.set && !hi.set && integer:
		return c.integer(), nil
	case !lo.set && !hi.set:
		return c.number(), nil
	}
	if !lo.set {
		lo.n = -maxInteger
	}
	if !hi.set {
		hi.n = maxInteger
	}
	if integer {
		if lo.exclusive {
			lo.n++
		}
		if hi.exclusive {
			hi.n--
		}
		lo.exclusive, hi.exclusive = false, false
	}
	if lo.n > hi.n || lo.n == hi.n && !integer && (lo.exclusive || hi.exclusive) {
		return nil, refuse(path, "no number is within the bounds")
	}
	between := magnitudes
	if integer {
		between = func(lo, hi bound) *expr { return wholeBetween(lo.n, hi.n) }
	}
	var alts []*expr
	if hi.n > 0 || hi.n == 0 && !hi.exclusive {
		from := lo
		if lo.n < 0 {
			from = bound{}
		}
		alts = append(alts, between(from, hi))
	}
	if lo.n < 0 {
		from := bound{n: -hi.n, exclusive: hi.exclusive}
		if hi.n > 0 {
			from = bound{}
		}
		if integer { // zero has no sign
			from.n = max(from.n, 1)
		}
		if to := (bound{n: -lo.n, exclusive: lo.exclusive}); from.n <= to.n {
			alts = append(alts, seq(literal("-"), between(from, to)))
		}
	}
	return alt(alts...), nil
}

// readBound reads the tighter of two keywords. up is 1 for lower bounds and -1 for upper ones.
func readBound(v *value, path string, integer bool, inclusive, exclusive string, up int64) (bound, error) {
	var out bound
	for _, keyword := range []string{inclusive, exclusive} {
		at := v.get(keyword)
		if at == nil {
			continue
		}
		b := bound{set: true, exclusive: keyword == exclusive}
		whole, frac, _ := strings.Cut(at.text, ".")
		n, err := strconv.ParseInt(whole, 10, 64)
		if at.kind != "number" || err != nil || n > maxInteger || n < -maxInteger || strings.ContainsAny(frac, "eE") {
			return out, refuse(path, "%q is supported for decimal numbers of at most %d digits, not %s", keyword, maxDigits, at)
		}
		b.n = n
		if strings.Trim(frac, "0") != "" {
			if !integer {
				return out, refuse(path, "%q of numbers that are not integers is supported for whole numbers, not %s", keyword, at)
			}
			// To the next integer inside: away from zero if the bound is below it and up, and so on.
			b.exclusive = false
			if negative := strings.HasPrefix(whole, "-"); negative != (up > 0) {
				b.n += up
			}
		}
		tighter := (b.n-out.n)*up > 0 || b.n == out.n && b.exclusive
		if !out.set || tighter {
			out = b
		}
	}
	return out, nil
}

// wholeBetween is the numbers from lo to hi without leading zeros, both at least 0.
func wholeBetween(lo, hi int64) *expr {
	var alts []*expr
	for least, most := int64(0), int64(9); least <= min(hi, maxInteger); least, most = most+1, most*10+9 {
		if from, to := max(lo, least), min(hi, most); from <= to {
			alts = append(alts, digitsBetween(strconv.FormatInt(from, 10), strconv.FormatInt(to, 10)))
		}
	}
	return alt(alts...)
}

// digitsBetween is the strings of digits from lo to hi, which are equally long.
func digitsBetween(lo, hi string) *expr {
	n := len(lo)
	switch {
	case n == 0:
		return exprEmpty
	case strings.Trim(lo, "0") == "" && strings.Trim(hi, "9") == "":
		return repeat(digits('0', '9'), int32(n), int32(n))
	case lo[0] == hi[0]:
		return seq(literal(lo[:1]), digitsBetween(lo[1:], hi[1:]))
	}
	zeros, nines := strings.Repeat("0", n-1), strings.Repeat("9", n-1)
	alts := []*expr{seq(literal(lo[:1]), digitsBetween(lo[1:], nines))}
	if lo[0]+1 < hi[0] {
		alts = append(alts, seq(digits(lo[0]+1, hi[0]-1), digitsBetween(zeros, nines)))
	}
	return alt(append(alts, seq(literal(hi[:1]), digitsBetween(zeros, hi[1:])))...)
}

// magnitudes is the decimals from lo to hi, both at least 0.
func magnitudes(lo, hi bound) *expr {
	var alts []*expr
	from := lo.n
	if lo.exclusive {
		if lo.n < hi.n {
			zeros := repeat(literal("0"), 0, maxFrac-1)
			above := seq(literal("."), zeros, digits('1', '9'), repeat(digits('0', '9'), 0, maxFrac-1))
			alts = append(alts, seq(literal(strconv.FormatInt(lo.n, 10)), above))
		}
		from++
	}
	if from < hi.n {
		alts = append(alts, seq(wholeBetween(from, hi.n-1), opt(fraction())))
	}
	if from <= hi.n && !hi.exclusive {
		alts = append(alts, literal(strconv.FormatInt(hi.n, 10)))
	}
	return alt(alts...)
}
