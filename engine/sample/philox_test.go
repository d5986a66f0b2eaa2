package sample

import "testing"

// TestPhiloxGivesKnownAnswers has the vectors of Random123 1.14 (tests/kat_vectors).
func TestPhiloxGivesKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("counter %08x, key %08x: %08x, want %08x", c.counter, c.key, got, c.want)
		}
	}
}

// TestUniformTakesItsWords puts the words of known answers where the comment says they stand.
func TestUniformTakesItsWords(t *testing.T) {
	for _, c := range []struct{ seed, choice, pos, want uint64 }{
		{0, 0, 0, 0xe169c58d_6627e8d5},
		{0x299f31d0_a4093822, 0x85a308d3_243f6a88, 0x03707344_13198a2e, 0x94fdcceb_d16cfe09},
	} {
		if got := uniform(c.seed, int(c.choice), int(c.pos)); got != c.want {
			t.Errorf("seed %#x, choice %#x, position %#x: %#x, want %#x", c.seed, c.choice, c.pos, got, c.want)
		}
	}
}

// TestUniformBitsAreBalanced: over choices, positions and seeds each bit is 1 half of the time.
func TestUniformBitsAreBalanced(t *testing.T) {
	const n = 1 << 14
	for name, number := range map[string]func(i int) uint64{
		"seeds":     func(i int) uint64 { return uniform(uint64(i), 0, 0) },
		"choices":   func(i int) uint64 { return uniform(1, i, 0) },
		"positions": func(i int) uint64 { return uniform(1, 0, i) },
	} {
		var ones [64]int
		for i := range n {
			u := number(i)
			for b := range ones {
				ones[b] += int(u >> b & 1)
			}
		}
		for b, got := range ones {
			// 5 standard deviations of a fair coin
			if off := got - n/2; off > 320 || off < -320 {
				t.Errorf("%s: bit %d is 1 in %d of %d", name, b, got, n)
			}
		}
	}
}
