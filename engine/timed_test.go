package engine

import (
	"testing"
	"time"

	"kvasir/batcher"
)

func TestTimesOfADispatchAreWithinIt(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name      string
		took, rtt time.Duration
		ways      []wayBytes
		want      batcher.Times
	}{
		{"no rates", 20 * ms, 13 * ms, []wayBytes{{1e6, 0}, {1e6, 0}}, batcher.Times{Out: 13 * ms / 2, Work: 7 * ms, Back: 13 * ms / 2}},
		{"rates", 100 * ms, 20 * ms, []wayBytes{{1e6, 1e8}, {2e6, 1e8}}, batcher.Times{Out: 20 * ms, Work: 50 * ms, Back: 30 * ms}},
		{"quicker than the wire", 5 * ms, 20 * ms, []wayBytes{{1e6, 0}, {1e6, 0}}, batcher.Times{Out: 5 * ms / 2, Back: 5 * ms / 2}},
		{"quicker than the rates", 50 * ms, 0, []wayBytes{{1e6, 1e6}, {1e6, 2.5e5}}, batcher.Times{Out: 10 * ms, Back: 40 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := split(c.took, c.rtt, c.ways); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
