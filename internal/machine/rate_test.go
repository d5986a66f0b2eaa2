package machine

import (
	"fmt"
	"testing"
)

// marked returns memory with a number at the start of each line, and the numbers' exclusive or.
func marked(lines int) (p []byte, all uint64) {
	p = make([]byte, lines*line)
	for i := range lines {
		p[i*line] = byte(i*i%251 + 1)
		all ^= uint64(p[i*line])
	}
	return p, all
}

func TestEveryLineIsLoaded(t *testing.T) {
	for _, lines := range []int{0, 1, 2, 3, 4, 7, 8, 9, 16, 1001} {
		p, all := marked(lines)
		if got := load(p); got != all {
			t.Errorf("of %d lines: %#x, want %#x", lines, got, all)
		}
		if got := loadPortable(p); got != all {
			t.Errorf("of %d lines, in Go: %#x, want %#x", lines, got, all)
		}
	}
}

func TestReaderGoesRoundItsPart(t *testing.T) {
	p, all := marked(step/line*2 + 3)
	r := reader{part: p}
	for round := 1; round <= 3; round++ {
		for range 3 { // two full steps and the rest
			r.next()
		}
		if want := all * uint64(round%2); r.read != round*len(p) || r.sum != want {
			t.Errorf("round %d: read %d bytes, %#x; want %d, %#x", round, r.read, r.sum, round*len(p), want)
		}
	}
}

func TestReadRateOfSmallMemory(t *testing.T) {
	for _, c := range []struct {
		size, threads int
		some          bool
	}{{0, 1, false}, {line - 1, 1, false}, {line, 0, false}, {line, -1, false}, {line, 1, true}, {line, 5, true}, {10 * line, 3, true}} {
		if rate := ReadRateOf(make([]byte, c.size), c.threads, 0); rate > 0 != c.some {
			t.Errorf("%d threads on %d bytes: %g bytes a second", c.threads, c.size, rate)
		}
	}
}

func TestReadRateOfThisMachine(t *testing.T) {
	if size := arenaSize(Read()); size == 0 {
		t.Skip("too little memory is available here")
	}
	if rate := ReadRate(2, 0); rate <= 0 {
		t.Errorf("%g bytes a second", rate)
	}
}

func TestArenaIsLargerThanTheCachesAndSmallerThanMemory(t *testing.T) {
	const MB, GB = 1 << 20, 1 << 30
	for _, c := range []struct {
		last, available uint64
		want            int
	}{
		{0, 0, 256 * MB}, {32 * MB, 16 * GB, 256 * MB}, {96 * MB, 16 * GB, 288 * MB},
		{384 * MB, 64 * GB, 1152 * MB}, {3 * GB, 900 * GB, 0},
		{2 * MB, 400 * MB, 100 * MB}, {64 * MB, 400 * MB, 0}, {0, 2 * MB, 0},
	} {
		f := Facts{Available: c.available, Caches: []Cache{{1, 32 << 10, 1, 64}, {3, c.last / 2, 8, 2}}}
		if got := arenaSize(f); got != c.want {
			t.Errorf("caches of %d, %d available: %d, want %d", c.last, c.available, got, c.want)
		}
	}
}

// BenchmarkReadRate reports what one and two goroutines read, from memory.
func BenchmarkReadRate(b *testing.B) {
	arena, free := newArena(256 << 20)
	defer free()
	fill(arena)
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			rate := 0.0
			for b.Loop() {
				rate = max(rate, ReadRateOf(arena, threads, 3e8))
			}
			b.ReportMetric(rate/1e9, "GB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
