package bench

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"
)

// arrivals notes when a hub lets workers in, which its log says.
type arrivals struct {
	mu sync.Mutex
	at []time.Time
}

// Enabled implements slog.Handler.
func (*arrivals) Enabled(_ context.Context, l slog.Level) bool { return l == slog.LevelInfo }

// Handle implements slog.Handler.
func (a *arrivals) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "worker came" {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at = append(a.at, r.Time)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (a *arrivals) WithAttrs([]slog.Attr) slog.Handler { return a }

// WithGroup implements slog.Handler.
func (a *arrivals) WithGroup(string) slog.Handler { return a }

// since lists when workers came from a moment on, sorted.
func (a *arrivals) since(t time.Time) (list []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.at {
		if !at.Before(t) {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, time.Time.Compare)
	return list
}

// crowd is how many of some times, which are sorted, lie within d at most.
func crowd(at []time.Time, d time.Duration) int {
	most, first := 0, 0
	for i, t := range at {
		for t.Sub(at[first]) >= d {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// labelled runs f, and marks its goroutines and those that they start with whose they are.
func labelled(end string, f func()) {
	pprof.Do(context.Background(), pprof.Labels(endLabel, end), func(context.Context) { f() })
}

const endLabel = "kvasir-bench-end"

var (
	profileCount = regexp.MustCompile(`^(\d+) @`)
	profileEnd   = regexp.MustCompile(`"` + endLabel + `":"(\w+)"`)
)

// labels counts goroutines by whose they are, in a profile as runtime/pprof writes it for people.
func labels(profile io.Reader) (map[string]int, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(profile); err != nil {
		return nil, err
	}
	by, n := map[string]int{}, 0
	for line := range bytes.Lines(b.Bytes()) {
		if m := profileCount.FindSubmatch(line); m != nil {
			var err error
			if n, err = strconv.Atoi(string(m[1])); err != nil {
				return nil, err
			}
		} else if m := profileEnd.FindSubmatch(line); m != nil {
			by[string(m[1])] += n
		}
	}
	return by, nil
}

// heldNow is what this process uses.
type heldNow struct {
	memory   uint64 // heap and stacks in use
	resident int64  // 0: not known on this system
	ends     map[string]int
}

// hold measures it. What nobody uses any more is given back first.
func hold() (heldNow, error) {
	runtime.GC() // pools let go of theirs in two steps
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := heldNow{memory: m.HeapInuse + m.StackInuse, resident: resident()}
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return h, err
	}
	var err error
	h.ends, err = labels(&b)
	return h, err
}
