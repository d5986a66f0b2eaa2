package main

import (
	"testing"
	"time"
	"unicode/utf8"
)

func TestBatchLineFitsItsTerminal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		total, done, failed int
		pace                float64
		width               int
		want                string
	}{
		{600, 0, 0, 0, 79, "[░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░] 0 of 600 lines"},
		{600, 300, 2, 57.4, 99, "[███████████████░░░░░░░░░░░░░░░] 300 of 600 lines, 2 failed, 57 a second, 6 s left"},
		{600, 300, 2, 57.4, 60, "[████░░░░] 300 of 600 lines, 2 failed, 57 a second, 6 s left"},
		{600, 300, 2, 57.4, 50, "300 of 600 lines, 2 failed, 57 a second, 6 s left"},
		{600, 300, 2, 57.4, 39, "300 of 600 lines, 2 failed, 6 s left"},
		{600, 300, 2, 57.4, 30, "300 of 600, 2 failed, 6 s left"},
		{600, 300, 2, 57.4, 20, "300 of 600, 6 s left"},
		{600, 300, 2, 57.4, 12, "300 of 600"},
		{600, 300, 2, 57.4, 5, "300 o"},
		{50000, 10, 0, 2, 79, "[░░░░░░░░░░░░░░░░░░░░░░░░░░░░] 10 of 50000 lines, 2.0 a second, 6 h 57 min left"},
		{50000, 1, 0, 1e-9, 79, "[░░░░░░░░░░░░░░░░░░░░░░░░] 1 of 50000 lines, 0.0 a minute, more than a day left"},
		{600, 600, 0, 50, 79, "[██████████████████████████████] 600 of 600 lines, answers are being written"},
		{600, 598, 0, 0.025, 79, "[█████████████████████████████░] 598 of 600 lines, 1.5 a minute, 2 min left"},
	} {
		got := batchLine(c.total, c.done, c.failed, c.pace, c.width)
		if n := utf8.RuneCountInString(got); n > c.width || got != c.want {
			t.Errorf("in %d columns %d: %q, want %q", c.width, n, got, c.want)
		}
	}
}

func TestBatchPaceIsThatOfLate(t *testing.T) {
	t.Parallel()
	at, p := time.Unix(1000, 0), batchPace{}
	see := func(after time.Duration, done int) float64 { return p.see(at.Add(after), done) }
	if v := see(0, 500); v != 0 {
		t.Errorf("%v of nothing but one look", v)
	}
	if v := see(500*time.Millisecond, 510); v != 0 {
		t.Errorf("%v after half a second", v)
	}
	if v := see(time.Second, 505); v != 0 {
		t.Errorf("%v of five lines", v)
	}
	if v := see(2*time.Second, 520); v != 10 {
		t.Errorf("%v, want 10: what was done before does not count", v)
	}
	for s := 3; s <= 100; s++ { // then one a second
		see(time.Duration(s)*time.Second, 520+s-2)
	}
	if v := see(100*time.Second, 618); v != 1 {
		t.Errorf("%v, want 1: what was long ago does not count", v)
	}
}
