package schedule

import (
	"fmt"
	"testing"
)

// BenchmarkCore times what the core costs a micro-batch in which all decode.
func BenchmarkCore(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("sequences=%d", n), func(b *testing.B) {
			c := core{bytes: testBytes, limits: limits{rows: 512, flights: 1, sequences: n, waiting: n, grow: 1}}
			for range n {
				c.submit(&task{have: 1, left: 1 << 40})
			}
			for len(c.running) < n {
				for _, t := range c.admit(1 << 40) {
					c.resumed(t, 0)
				}
			}
			var pieces []piece
			b.ReportAllocs()
			for b.Loop() {
				pieces = c.next(pieces[:0])
				for _, p := range pieces {
					c.took(p.t, p.n, 1)
				}
				_, _ = c.preempt(nil)
			}
		})
	}
}
