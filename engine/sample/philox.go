package sample

import "math/bits"

// Constants of Philox4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): two multipliers, and what is added to the halves of the key after each round.
const (
	philoxM0 = 0xD2511F53
	philoxM1 = 0xCD9E8D57
	philoxW0 = 0x9E3779B9
	philoxW1 = 0xBB67AE85

	philoxRounds = 10
)

// philox is Philox4x32-10.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	for range philoxRounds {
		hi0, lo0 := bits.Mul32(philoxM0, counter[0])
		hi1, lo1 := bits.Mul32(philoxM1, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += philoxW0
		key[1] += philoxW1
	}
	return counter
}

// uniform returns the random number of one choice at one position, a fraction of 2^64. The key is the
// seed and the counter the choice and the position, 64 bits each, low word first. The first word that
// comes out is the low half of the number, the second its high half; the others are not used.
func uniform(seed uint64, choice, pos int) uint64 {
	c, p := uint64(choice), uint64(pos)
	out := philox(
		[4]uint32{uint32(c), uint32(c >> 32), uint32(p), uint32(p >> 32)},
		[2]uint32{uint32(seed), uint32(seed >> 32)})
	return uint64(out[1])<<32 | uint64(out[0])
}
