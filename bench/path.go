package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvasir/bench/wan"
)

// Path is what lies between a worker and the gateway, beside the round trip. The zero Path is a wire without
// limits.
type Path struct {
	Jitter   time.Duration
	Up, Down Rate // from the worker, and to it; each worker has a line of its own
	Stall    Stall
}

// profile returns the emulator's words for a path with a round trip. At 0 ms there is nothing to jitter.
func (p Path) profile(rtt time.Duration) wan.Profile {
	w := wan.Profile{RTT: rtt, Jitter: min(p.Jitter, rtt), Up: int64(p.Up), Down: int64(p.Down), Seed: 1}
	if p.Stall.For > 0 {
		w.Faults = []wan.Fault{{Kind: wan.FaultStall, After: p.Stall.Every, Every: p.Stall.Every, For: p.Stall.For}}
	}
	return w
}

// check returns an error, wrapping ErrSettings, that names the flag to change.
func (p Path) check(rtts []time.Duration) error {
	switch {
	case p.Stall.For < 0 || p.Stall.For > 0 && (p.Stall.Every < time.Millisecond || p.Stall.For >= p.Stall.Every):
		return fmt.Errorf("%w: --stall %v, want it shorter than the time from one to the next", ErrSettings, p.Stall)
	case p.Jitter < 0:
		return fmt.Errorf("%w: --jitter %v, want 0 or more", ErrSettings, p.Jitter)
	case p.Up != 0 && p.Up < rateLeast:
		return fmt.Errorf("%w: --up %v, want %v or more, or none", ErrSettings, p.Up, Rate(rateLeast))
	case p.Down != 0 && p.Down < rateLeast:
		return fmt.Errorf("%w: --down %v, want %v or more, or none", ErrSettings, p.Down, Rate(rateLeast))
	case p.Jitter > 0 && !slices.ContainsFunc(rtts, func(d time.Duration) bool { return d > 0 }):
		return fmt.Errorf("%w: --jitter %v without a round trip; give --rtt too", ErrSettings, p.Jitter)
	}
	for _, rtt := range rtts {
		if p.Jitter > rtt {
			return fmt.Errorf("%w: --jitter %v of a round trip of %v; lower --jitter or raise --rtt", ErrSettings, p.Jitter, rtt)
		}
		if err := p.profile(rtt).Check(); err != nil {
			return fmt.Errorf("%w: --up %v, --down %v, --rtt %v: %w", ErrSettings, p.Up, p.Down, rtt, err)
		}
	}
	return nil
}

// rateLeast keeps a dispatch of 512 rows below a minute.
const rateLeast = 1_000_000

// Rate is bits a second; 0 is no limit.
type Rate int64

// units of rates, the largest first.
var units = []struct {
	name string
	bits float64
}{{"G", 1e9}, {"M", 1e6}, {"k", 1e3}}

// String writes a rate as ParseRate reads it: 100M.
func (r Rate) String() string {
	for _, u := range units {
		if float64(r) >= u.bits {
			return strconv.FormatFloat(float64(r)/u.bits, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(int64(r), 10)
}

// ParseRate reads bits a second: 100M, 1G, 1.5M, 250000; 0 is no limit.
func ParseRate(text string) (Rate, error) {
	number, factor := text, 1.0
	for _, u := range units {
		if n := len(text) - 1; n > 0 && strings.EqualFold(text[n:], u.name) {
			number, factor = text[:n], u.bits
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v >= 0 && v*factor < 1e12) {
		return 0, fmt.Errorf("want bits a second such as 100M or 1G, got %q", text)
	}
	return Rate(v * factor), nil
}

// Stall is a path that stands still for a while, again and again; the zero Stall is none.
type Stall struct {
	For, Every time.Duration
}

// String writes a stall as ParseStall reads it: 1s/30s.
func (s Stall) String() string { return fmt.Sprintf("%v/%v", s.For, s.Every) }

// ParseStall reads how long a path stands, and from the beginning of one such time to that of the next: 1s/30s.
func ParseStall(text string) (Stall, error) {
	long, every, ok := strings.Cut(text, "/")
	a, err1 := time.ParseDuration(long)
	b, err2 := time.ParseDuration(every)
	if !ok || err1 != nil || err2 != nil {
		return Stall{}, fmt.Errorf("want a time and from one to the next, such as 1s/30s, got %q", text)
	}
	return Stall{a, b}, nil
}
