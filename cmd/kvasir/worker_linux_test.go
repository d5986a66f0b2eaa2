package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTerminalShowsOneStatusLine looks at a worker as a person would, who ends it once it works.
func TestTerminalShowsOneStatusLine(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	c := call{args: []string{"worker", s.address(), "--home", t.TempDir(), "--nice", "5", "--max-cpu", "1"}, env: []string{"NO_COLOR=1"}}
	line := regexp.MustCompile(`\r\x1b\[K[0-9]+ rows/s · [0-9.]+ units · pending 0.00000 KVR · settled 0`)
	ended := false
	status, seen := c.terminal(t, func(soFar string, in *os.File) {
		if !ended && line.MatchString(soFar) {
			ended = true
			if _, err := in.WriteString("\x03"); err != nil {
				t.Error(err)
			}
		}
	})
	if status != statusDone || !ended || !strings.Contains(seen, "holding") {
		t.Errorf("exit status %d, terminal shows %q", status, seen)
	}
	if last := seen[strings.LastIndex(seen, eraseLine)+len(eraseLine):]; strings.Contains(last, "rows/s") {
		t.Errorf("it leaves %q behind", last)
	}
	for _, p := range []*process{serve, hub} {
		p.stop()
	}
}
