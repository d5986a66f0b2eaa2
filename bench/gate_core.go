package bench

import (
	"runtime"
	"slices"
	"time"
)

// What a core does is measured in slices of a millisecond, by the processor time of one thread. Threads that the
// system runs beside it cost nothing of that. One that a host has put on the other half of the core does: a kernel
// loses a third of its rate and the bare loop, which waits for the multipliers alone, next to nothing. So each slice
// lies between two looks at how quick the core adds: on a Zen 3 four times a cycle, and two or three times where
// somebody else has a part of it.

// lookSlack is by how much a core that is ours alone may seem to add slower than at best.
const lookSlack = 0.05

// lookTurns is how long a look at a core takes: 50 to 100 microseconds.
const lookTurns = 20_000

// look is how quick a core adds, in additions a second of processor time. Exclusive ors are as quick, and no
// compiler makes one of several.
type look struct {
	chain float64 // each waits for the one before: one a cycle
	free  float64 // none waits
}

func lookAtCore() (x look) {
	t := startThread()
	addSink += addChain(lookTurns)
	if took := t.took(); took > 0 {
		x.chain = 8 * lookTurns / took.Seconds()
	}
	t = startThread()
	addSink += addFree(lookTurns)
	if took := t.took(); took > 0 {
		x.free = 24 * lookTurns / took.Seconds()
	}
	return x
}

// addSink keeps what is added from being left out.
var addSink uint64 //nolint:unused // nobody reads it: that is the point

// addChain makes eight a turn, one after the other.
//
//go:noinline
func addChain(turns int) uint64 {
	a := uint64(turns)
	for range turns {
		a += 3
		a ^= 5
		a += 7
		a ^= 9
		a += 11
		a ^= 13
		a += 15
		a ^= 17
	}
	return a
}

// addFree makes 24 a turn, of which six do not wait for each other.
//
//go:noinline
func addFree(turns int) uint64 {
	a := uint64(turns)
	b, c, d, e, f := a, a, a, a, a
	for range turns {
		a += 3
		b ^= 5
		c += 7
		d ^= 9
		e += 11
		f ^= 13
		a ^= 3
		b += 5
		c ^= 7
		d += 9
		e ^= 11
		f += 13
		a += 3
		b ^= 5
		c += 7
		d ^= 9
		e += 11
		f ^= 13
		a ^= 3
		b += 5
		c ^= 7
		d += 9
		e ^= 11
		f += 13
	}
	return a + b + c + d + e + f
}

// threadTimer measures processor time of this thread; wall time where the system does not tell it.
type threadTimer struct {
	wall time.Time
	cpu  time.Duration
}

func startThread() threadTimer { return threadTimer{time.Now(), threadCPU()} }

func (t threadTimer) took() time.Duration {
	if t.cpu == 0 {
		return time.Since(t.wall)
	}
	return threadCPU() - t.cpu
}

// turn is a slice of each kind, one after the other.
type turn struct {
	looks [slicesATurn + 1]look // before each slice, and after the last
	rates [slicesATurn]float64  // a second of processor time
}

// takeTurn runs each slice, which returns what it has done, on one thread.
func takeTurn(list *[slicesATurn]func() (float64, error)) (t turn, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.looks[0] = lookAtCore()
	for i, f := range list {
		timer := startThread()
		n, err := f()
		if err != nil {
			return t, err
		}
		if took := timer.took(); took > 0 {
			t.rates[i] = n / took.Seconds()
		}
		t.looks[i+1] = lookAtCore()
	}
	return t, nil
}

// alone reports whether nobody had a part of the core from the beginning of slice lo to the end of slice hi, by how
// it looks at best.
func (t *turn) alone(lo, hi int, best look) bool {
	for _, x := range t.looks[lo : hi+2] {
		if x.free < float64((1-lookSlack)*best.free) || x.chain < float64((1-lookSlack)*best.chain) {
			return false
		}
	}
	return true
}

// bestLook is how quick the core adds at best. A fiftieth of the looks seem to be quicker at most: the clock of a
// thread is set right now and then, when a host has taken the core away.
func bestLook(turns []turn) look {
	var chain, free []float64
	for i := range turns {
		for _, x := range turns[i].looks {
			chain, free = append(chain, x.chain), append(free, x.free)
		}
	}
	return look{highest(chain), highest(free)}
}

func highest(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)-1-len(list)/50]
}
