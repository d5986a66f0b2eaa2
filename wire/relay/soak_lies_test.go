package relay

import (
	"encoding/binary"
	"net"
	"strings"
	"testing"
)

// record is the head of a TLS record that claims so many bytes.
func record(n int) []byte { return binary.BigEndian.AppendUint16([]byte{0x16, 3, 3}, uint16(n)) }

// lies are what strangers with a good token do once they are paired.
var lies = []attack{
	{name: "garbage", reason: "protocol", do: func(h *hostile) net.Conn { return shout(h.paired(), attackNoise) }},
	{name: "garbage in frames", reason: "handshake", do: func(h *hostile) net.Conn { return shout(h.paired(), frame(attackNoise[:16_000], true)) }},
	{name: "a frame of 2^62 bytes", reason: "size", do: func(h *hostile) net.Conn {
		return shout(say(h.paired(), "\x82\xff\x40\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04"), attackNoise)
	}},
	{name: "a TLS record of 65535 bytes", reason: "handshake", do: func(h *hostile) net.Conn { return shout(h.paired(), frame(record(65535), true)) }},
	{name: "64 MiB of one-byte fragments of a message", reason: "handshake", do: func(h *hostile) net.Conn {
		nc := say(h.paired(), string(crumbs(0x02, 1)))
		pour(nc, manyCrumbs, 7*64<<20)
		return nc
	}},
	{name: "64 MiB of one-byte frames", reason: "handshake", do: func(h *hostile) net.Conn {
		nc := h.paired()
		pour(nc, manyFrames, 7*64<<20)
		return nc
	}},
	{name: "frames after Close", reason: "handshake", do: func(h *hostile) net.Conn {
		nc := say(h.paired(), "\x88\x82\x00\x00\x00\x00\x03\xe8")
		pour(nc, afterEnd, 64<<20)
		return nc
	}},
}

// slowLies take the 10 s of the inner handshake.
var slowLies = []attack{
	{name: "half a TLS record", reason: "handshake", do: func(h *hostile) net.Conn { return shout(h.paired(), frame(record(500), true)) }},
	{name: "silence", reason: "handshake", do: func(h *hostile) net.Conn { return h.paired() }},
}

// TestABackboneShrugsOffWhoIsPairedAndLies is the same for those who are paired, and then do not speak as
// a worker does: in the short form all at once, in the long one each kind by itself, and slow ones too.
func TestABackboneShrugsOffWhoIsPairedAndLies(t *testing.T) {
	rounds := [][]attack{lies}
	if soaking() {
		rounds = nil
		for _, a := range append(slowLies, lies...) {
			rounds = append(rounds, []attack{a})
		}
	}
	for _, round := range rounds {
		t.Run(round[0].name, func(t *testing.T) {
			limits := longer(Limits{Linger: quick.Linger, Pace: -1, Greet: patience}, Limits{Linger: quick.Linger, Pace: -1})
			h := newHostile(t, swarmConfig{direct: true, limits: limits})
			defer h.end()
			h.want(1000)
			many := longer(8, 32)
			h.strike(many, round...)
			h.until(patience, "the backbone has got rid of all", func() bool { return len(h.ends) == many*len(round) })
			want := map[string]uint64{}
			for _, a := range round {
				want[a.reason] += uint64(many)
			}
			counts := h.backbone.Counts()
			for reason, n := range want {
				if got := counts["ended_"+reason]; got != n {
					t.Errorf("%d ended for %q, want %d: %v", got, reason, n, counts)
				}
			}
			for _, e := range h.ends {
				if e.err == nil || strings.ContainsAny(e.err.Error(), "\r\n") {
					t.Errorf("the backbone's reason, counted under %s: %v", e.reason, e.err)
				}
			}
		})
	}
}
