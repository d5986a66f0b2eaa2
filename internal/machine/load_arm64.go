//go:build !purego

package machine

// load loads every line and returns the exclusive or of what it has looked at, the first bytes included.
func load(p []byte) uint64 {
	n := len(p) / block
	sum := loadPortable(p[n*block:])
	if n > 0 {
		sum ^= loadNEON(&p[0], n)
	}
	return sum
}

// block is what an assembly loop loads at a time.
const block = 2 * line

// loadNEON loads n > 0 blocks and returns the exclusive or of their words.
//
//go:noescape
func loadNEON(p *byte, n int) uint64
