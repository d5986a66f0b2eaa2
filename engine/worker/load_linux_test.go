package worker

import (
	"errors"
	"testing"
	"time"
)

func TestLoadIsParsed(t *testing.T) {
	const own = "42 (a) name (of sorts) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 9 0 100"
	for _, tt := range []struct {
		name, system, own string
		all, others       time.Duration
		wrong             bool
	}{
		{name: "as it is", system: "cpu  100 1 50 800 9 2 3 35 7 0\ncpu0 1\n", own: own,
			all: 10 * time.Second, others: 1910*time.Millisecond - 420*time.Millisecond},
		{name: "no cpu", system: "intr 1 2 3 4 5 6 7 8 9", own: own, wrong: true},
		{name: "short", system: "cpu 1 2 3", own: own, wrong: true},
		{name: "no numbers", system: "cpu a b c d e f g h", own: own, wrong: true},
		{name: "no name", system: "cpu  100 1 50 800 9 2 3 35", own: "42 a S 1 2 3", wrong: true},
		{name: "nothing behind the name", system: "cpu  100 1 50 800 9 2 3 35", own: "42 (a) S", wrong: true},
		{name: "empty", wrong: true},
	} {
		all, others, err := parseLoad([]byte(tt.system), []byte(tt.own))
		switch {
		case tt.wrong && !errors.Is(err, errProc):
			t.Errorf("%s: %v, want errProc", tt.name, err)
		case !tt.wrong && (err != nil || all != tt.all || others != tt.others):
			t.Errorf("%s: %v of %v, %v; want %v of %v", tt.name, others, all, err, tt.others, tt.all)
		}
	}
}
