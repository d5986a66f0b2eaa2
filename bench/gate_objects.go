package bench

import (
	"runtime"
	"strings"
)

// objectSite is where objects of one size are allocated: the function whose line does so.
type objectSite struct {
	function string
	size     int64
}

// tlsRead is the function of package crypto/tls that allocates at each read of its socket. How many reads bytes take
// is the kernel's and the machine's affair.
const tlsRead = "crypto/tls.(*Conn).readFromUntil"

// leastShare is the part of the calls that has to make an object for it to count.
const leastShare = 0.4

// newObjects returns what each of so many calls allocates that f makes, by any goroutine: of each place in the code as
// many objects as calls made on average, to a whole number. What fewer than two calls in five make is none, as it is of
// timers that are late. Objects below 16 bytes that hold no pointer share blocks of 16, which count: one of 8 bytes a
// call is half a block, and so one; smaller ones may not show.
func newObjects(calls int, f func() error) (a allocated, err error) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	before := objectSites()
	err = undisturbed(f)
	for site, n := range objectSites() {
		each := uint64(float64(n-before[site])/float64(calls) + 1 - leastShare)
		a.objects += each
		a.bytes += each * uint64(site.size)
	}
	return a, err
}

// objectSites returns how many objects were allocated since the start, where the profiler saw it.
func objectSites() map[objectSite]int64 {
	runtime.GC() // a profile is of the end of a collection, and
	runtime.GC() // tells what was allocated before the one before
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, true); !ok; {
		records = make([]runtime.MemProfileRecord, n+100)
		n, ok = runtime.MemProfile(records, true)
		records = records[:min(n, len(records))]
	}
	sites := map[objectSite]int64{}
	for i := range records {
		r := &records[i]
		if r.AllocObjects == 0 {
			continue
		}
		if f, counts := allocator(r.Stack()); counts {
			sites[objectSite{f, r.AllocBytes / r.AllocObjects}] += r.AllocObjects
		}
	}
	return sites
}

// allocator returns the function that asked the runtime for memory, and whether that counts.
func allocator(stack []uintptr) (function string, counts bool) {
	frames := runtime.CallersFrames(stack)
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if function == "" && !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "internal/runtime/") {
			function = f.Function
		}
		if f.Function == tlsRead || strings.HasSuffix(f.Function, "bench.objectSites") { // which counts
			return function, false
		}
	}
	return function, true
}
