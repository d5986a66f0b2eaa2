package matmul

import (
	"math/rand/v2"
	"testing"
)

func TestLaneSumsAreThoseOfALoop(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 10_000 {
		var q [16]int8
		for i := range q {
			switch n {
			case 0:
				q[i] = 127
			case 1:
				q[i] = -127
			case 2:
				q[i] = int8(127 - 254*(i%2))
			default:
				q[i] = int8(rng.IntN(255) - 127)
			}
		}
		var want [2]int32
		for i, v := range q {
			want[i/2%2] += int32(v)
		}
		if even, odd := laneSums(&q); even != want[0] || odd != want[1] {
			t.Fatalf("%d: lane sums of %d are %d and %d, want %d", n, q, even, odd, want)
		}
	}
}
