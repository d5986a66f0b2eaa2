package machine

// loadPortable loads one byte of every line, of the len(p)/line whole ones, and returns their exclusive or.
// Memory gives whole lines, and a core that spends fewer instructions on one has more of them under way: all
// words in Go came at 0.83 of this.
func loadPortable(p []byte) uint64 {
	var a, b byte
	for ; len(p) >= 2*line; p = p[2*line:] {
		q := (*[2 * line]byte)(p)
		a ^= q[0]
		b ^= q[line]
	}
	if len(p) >= line {
		a ^= p[0]
	}
	return uint64(a ^ b)
}
