package wan

import (
	"fmt"
	"time"
)

// Kind is a kind of Fault.
type Kind uint8

// Kinds of Fault.
const (
	FaultStall     Kind = iota // Link.Stall
	FaultBlackHole             // Link.BlackHole, and Link.Heal after For, if that is not zero
	FaultReset                 // Link.Cut(Reset)
	FaultFin                   // Link.Cut(Fin)
)

// Fault is something that happens to a link by the clock.
type Fault struct {
	Kind  Kind
	Way   Way           // of stalls and black holes; zero means Both
	After time.Duration // from NewLink
	Every time.Duration // again and again; zero means once
	For   time.Duration // of stalls and black holes
}

func (f Fault) check() error {
	switch {
	case f.Kind > FaultFin:
		return fmt.Errorf("kind %d, want 0 to %d", f.Kind, FaultFin)
	case f.Way > Both:
		return fmt.Errorf("way %d, want 0 to %d", f.Way, Both)
	case f.After < 0 || f.Every < 0 || f.For < 0:
		return fmt.Errorf("after %v, every %v, for %v: want none below zero", f.After, f.Every, f.For)
	case f.Every > 0 && f.Every < time.Millisecond:
		return fmt.Errorf("every %v, want at least %v", f.Every, time.Millisecond)
	case f.Kind == FaultStall && f.For == 0:
		return fmt.Errorf("stall for no time, want For")
	case f.Every > 0 && f.For >= f.Every:
		return fmt.Errorf("for %v every %v, want it shorter", f.For, f.Every)
	}
	return nil
}

// runFault lets one fault happen at its times, until it is over or the link is closed.
func (l *Link) runFault(f Fault) {
	way := f.Way
	if way == 0 {
		way = Both
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	at := f.After
	for l.waitUntil(timer, at) {
		switch f.Kind {
		case FaultStall:
			l.Stall(way, f.For)
		case FaultBlackHole:
			l.BlackHole(way)
			if f.For > 0 {
				if !l.waitUntil(timer, at+f.For) {
					return
				}
				l.Heal(way)
			}
		case FaultReset:
			l.Cut(Reset)
		case FaultFin:
			l.Cut(Fin)
		}
		if f.Every == 0 {
			return
		}
		at += f.Every
	}
}

// waitUntil waits for the link's time t and returns false if the link is closed first.
func (l *Link) waitUntil(timer *time.Timer, t time.Duration) bool {
	timer.Reset(t - l.now())
	select {
	case <-timer.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}
