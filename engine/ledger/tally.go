package ledger

import (
	"errors"
	"maps"
	"sync"
)

// reasons are the names under which refusals are counted.
var reasons = []struct {
	err  error
	name string
}{
	{ErrDamaged, "damaged"}, // the first, for it is what stands in the way
	{ErrBadReport, "report"}, {ErrBadStatement, "statement"}, {ErrBadSignature, "signature"}, {ErrGap, "gap"}, {ErrFork, "fork"},
	{ErrNotGranted, "grant"}, {ErrOverflow, "overflow"}, {ErrFuture, "future"}, {ErrWrongSession, "other_session"},
	{ErrNoSession, "no_session"}, {ErrNoReport, "no_report"},
}

// reason is the error of reasons under which err is counted, or err.
func reason(err error) error {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.err
		}
	}
	return err
}

// tally counts refusals by their reason. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	by map[string]uint64
}

func (t *tally) add(err error) {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.by == nil {
				t.by = map[string]uint64{}
			}
			t.by["refused_ledger_"+r.name]++
			return
		}
	}
}

// counts returns the counts, and those of the file.
func (t *tally) counts(f *file) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(t.by)
	if all == nil {
		all = map[string]uint64{}
	}
	all["ledger_unwritten"] = f.w.failed.Load()
	all["ledger_commits"] = f.w.groups.Load()
	return all
}
