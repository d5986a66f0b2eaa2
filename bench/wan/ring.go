package wan

// ring is a queue of bytes that grows as needed; its user bounds it.
type ring struct {
	buf  []byte // its length is zero or a power of two
	head int    // the oldest byte
	size int
}

func (r *ring) write(p []byte) {
	if need := r.size + len(p); need > len(r.buf) {
		n := max(4<<10, len(r.buf))
		for n < need {
			n *= 2
		}
		buf := make([]byte, n)
		r.copyTo(buf[:r.size])
		r.buf, r.head = buf, 0
	}
	tail := (r.head + r.size) & (len(r.buf) - 1)
	k := copy(r.buf[tail:], p)
	copy(r.buf, p[k:])
	r.size += len(p)
}

// read moves the oldest len(p) bytes to p; there are as many.
func (r *ring) read(p []byte) {
	r.copyTo(p)
	r.size -= len(p)
	if r.size == 0 {
		r.head = 0
		return
	}
	r.head = (r.head + len(p)) & (len(r.buf) - 1)
}

func (r *ring) copyTo(p []byte) {
	if len(p) == 0 {
		return
	}
	k := copy(p, r.buf[r.head:])
	copy(p[k:], r.buf)
}
