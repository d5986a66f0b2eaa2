package main

import (
	"strings"
	"testing"

	"kvasir/engine"
)

func TestWorkersLineSaysWhatIsHeldBack(t *testing.T) {
	s := engine.WorkerStatus{Pending: 5_000_000, Held: 3_000_000}
	const want = "held back 0.00300 KVR: the backbone's limit is reached"
	if got := statusText(s, 0); !strings.Contains(got, want) {
		t.Errorf("%q lacks %q", got, want)
	}
	s.Held = 0
	if got := statusText(s, 0); strings.Contains(got, "held") {
		t.Errorf("%q", got)
	}
}
