package machine

import (
	"sync"
	"time"
)

const (
	line = 64      // bytes that memory gives at once, on all processors that matter, or divides it
	page = 4 << 10 // the smallest that systems have
	step = 1 << 20 // bytes that are read between two looks at the clock

	leastArena = 256 << 20
	mostArena  = 4 << 30
)

// ReadRate measures at what rate so many goroutines together read memory, in bytes a second, for at least
// d. The memory is larger than the caches and at most a quarter of what is available; it is given back. 0:
// there is too little memory to tell.
func ReadRate(threads int, d time.Duration) float64 {
	size := arenaSize(Read())
	if size == 0 {
		return 0
	}
	arena, free := newArena(size)
	defer free()
	return readRate(arena, threads, d, fill)
}

// arenaSize is three times what fits into the caches, within bounds.
func arenaSize(f Facts) int {
	var last uint64 // bytes of the largest level
	for _, c := range f.Caches {
		last = max(last, c.Size*uint64(c.Count))
	}
	size := min(max(3*last, leastArena), mostArena)
	if f.Available > 0 {
		size = min(size, f.Available/4)
	}
	if size < 2*last || size < step {
		return 0
	}
	return int(size)
}

// ReadRateOf measures the same on memory that is there already. Fewer goroutines read where there is too
// little for all, and 0 is what none reads.
func ReadRateOf(arena []byte, threads int, d time.Duration) float64 {
	return readRate(arena, threads, d, visit)
}

// Load loads every line of p on this thread, as ReadRate does, and returns the exclusive or of what it has looked
// at.
//
//go:noinline
func Load(p []byte) uint64 { return load(p) }

// readRate lets each goroutine prepare its own part and read it again and again, from front to back.
func readRate(arena []byte, threads int, d time.Duration, prepare func(part []byte)) float64 {
	threads = min(threads, len(arena)/line)
	if threads < 1 {
		return 0
	}
	readers := make([]reader, threads)
	lines := len(arena) / line
	for i := range readers {
		from, to := i*lines/threads, (i+1)*lines/threads
		readers[i].part = arena[from*line : to*line]
	}
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	var begin time.Time
	for i := range readers {
		ready.Add(1)
		done.Go(func() {
			r := &readers[i]
			prepare(r.part)
			ready.Done()
			<-start
			for r.next(); time.Since(begin) < d; {
				r.next()
			}
		})
	}
	ready.Wait()
	begin = time.Now()
	close(start)
	done.Wait()
	took := time.Since(begin).Seconds()
	read := 0
	for i := range readers {
		read += readers[i].read
	}
	return float64(read) / took
}

// reader goes round its part.
type reader struct {
	part []byte
	at   int
	read int
	sum  uint64 // of what was loaded, so that it must be

	_ [line]byte // neighbours write to their own lines
}

// next reads one step, or what is left.
func (r *reader) next() {
	if r.at == len(r.part) {
		r.at = 0
	}
	end := min(r.at+step, len(r.part))
	r.sum ^= load(r.part[r.at:end])
	r.read += end - r.at
	r.at = end
}

// fill writes to every small page: those never written to are all one page, which stays in the cache. Who
// writes first has the page on its own node.
func fill(part []byte) {
	for i := 0; i < len(part); i += page {
		part[i] = 1
	}
}

// visit reads from every small page, so that the system has nothing left to do when time counts.
func visit(part []byte) {
	for i := 0; i+line <= len(part); i += page {
		load(part[i : i+line])
	}
}
