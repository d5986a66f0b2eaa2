package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// Backoff is how long to wait before another try: full jitter, that is anything from nothing to a limit
// that doubles with each failure. It is forgotten only after a connection has survived for Grace, so a
// far side that accepts and dies at once is not stormed. The zero value means the defaults.
type Backoff struct {
	Min, Max time.Duration // of the limit; 1 s and 60 s
	Grace    time.Duration // 30 s
	Rand     func() float64
	Now      func() time.Time
	Sleep    func(ctx context.Context, d time.Duration) // returns early when ctx ends

	tries int
}

func (b *Backoff) defaults() {
	if b.Min <= 0 {
		b.Min = time.Second
	}
	if b.Max <= 0 {
		b.Max = time.Minute
	}
	if b.Grace <= 0 {
		b.Grace = 30 * time.Second
	}
	if b.Rand == nil {
		b.Rand = rand.Float64
	}
	if b.Now == nil {
		b.Now = time.Now
	}
	if b.Sleep == nil {
		b.Sleep = sleep
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// next returns how long to wait after a try that lasted for lived.
func (b *Backoff) next(lived time.Duration) time.Duration {
	if lived >= b.Grace {
		b.tries = 0
	}
	limit := b.Max
	if b.tries < 30 && b.Min<<b.tries < b.Max {
		limit = b.Min << b.tries
	}
	b.tries++
	return time.Duration(b.Rand() * float64(limit))
}

// Keep calls try again and again, with the waits of b between, until ctx ends or an error is Final, and
// returns that error. try dials, and returns when the connection has ended. say is told of a failure and
// the wait, once for each kind of failure in a row, and may be nil.
func Keep(ctx context.Context, b Backoff, try func(context.Context) error, say func(error, time.Duration)) error {
	b.defaults()
	said := ""
	for {
		began := b.Now()
		err := try(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case Final(err):
			return err
		}
		lived := b.Now().Sub(began)
		wait := b.next(lived)
		if d := retryAfter(err); d > 0 {
			wait = d // a slot of its own: there, neither sooner nor later, is a place
		}
		if lived >= b.Grace {
			said = ""
		}
		if kind := kindOf(err); say != nil && kind != said {
			said = kind
			say(err, wait)
		}
		b.Sleep(ctx, wait)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// kindOf is err's text without numbers, which are ports and times.
func kindOf(err error) string {
	if err == nil {
		return "ended"
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

// retryAfter is what the far side has asked for, 5 minutes at most.
func retryAfter(err error) time.Duration {
	var s *ws.StatusError
	if !errors.As(err, &s) {
		return 0
	}
	n, perr := strconv.ParseUint(s.Header.Get("Retry-After"), 10, 16)
	if perr != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, 5*time.Minute)
}

// Final reports whether another try cannot help: the far side has refused this machine's token or key,
// or is not of this swarm.
func Final(err error) bool {
	for _, e := range []error{seal.ErrBadProof, seal.ErrBadToken, seal.ErrBadGrant, seal.ErrBadKey, seal.ErrNotRoot,
		seal.ErrTokenExpired, seal.ErrTokenUsed, seal.ErrTokenRevoked, seal.ErrGrantExpired, seal.ErrWrongHub,
		seal.ErrWrongRole, seal.ErrWrongKey, ErrUntrusted, ErrReplaced} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
