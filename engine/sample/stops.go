package sample

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Limits of stop strings.
const (
	MaxStops      = 16
	MaxStopLength = 1024 // bytes
)

// ErrStop: a stop string cannot be taken.
var ErrStop = errors.New("sample: bad stop string")

// Stops looks for stop strings in a text that comes in pieces. The text ends before the stop string
// that is complete first; of several that end with the same byte, before the longest. How the text is
// cut does not matter. It is not safe for concurrent use.
type Stops struct {
	list []stop
	// held are the last bytes that came in, as many as may be the beginning of a stop string.
	held []byte
	done bool
}

// stop is one string, in the matcher of Knuth, Morris and Pratt.
type stop struct {
	text string
	back []int // of each beginning: how long its longest own beginning is that it also ends with
	at   int   // how much of text the input ends with
}

// NewStops returns what looks for these strings.
func NewStops(list []string) (*Stops, error) {
	if len(list) > MaxStops {
		return nil, fmt.Errorf("%w: %d strings, want at most %d", ErrStop, len(list), MaxStops)
	}
	s := &Stops{}
	for i, text := range list {
		switch {
		case text == "" || len(text) > MaxStopLength:
			return nil, fmt.Errorf("%w: string %d has %d bytes, want 1 to %d", ErrStop, i, len(text), MaxStopLength)
		case !utf8.ValidString(text):
			return nil, fmt.Errorf("%w: string %d is not valid UTF-8", ErrStop, i)
		}
		s.list = append(s.list, newStop(text))
	}
	return s, nil
}

func newStop(text string) stop {
	s := stop{text: text, back: make([]int, len(text)+1)}
	for i := 1; i < len(text); i++ {
		s.at = s.after(text[i])
		s.back[i+1] = s.at
	}
	s.at = 0
	return s
}

// after returns how much of the text is there after one more byte. The whole text is never left in at.
func (s *stop) after(b byte) int {
	at := s.at
	for at > 0 && s.text[at] != b {
		at = s.back[at]
	}
	if s.text[at] == b {
		at++
	}
	return at
}

// Push takes the next piece of the text, and returns what may be shown now. It reports true once a stop
// string is complete: the text has ended, and later pieces are dropped.
func (s *Stops) Push(piece string) (out string, stopped bool) {
	if s.done {
		return "", true
	}
	hold := 0
	for i := range len(piece) {
		found := 0
		hold = 0
		for j := range s.list {
			t := &s.list[j]
			t.at = t.after(piece[i])
			if hold = max(hold, t.at); t.at == len(t.text) {
				found = max(found, t.at)
			}
		}
		if found > 0 {
			s.done = true
			return s.release(piece[:i+1], found), true
		}
	}
	if piece == "" {
		return "", false
	}
	out = s.release(piece, hold)
	return out, false
}

// release returns what is held with piece after it, without the last bytes, which are held now.
func (s *Stops) release(piece string, last int) string {
	if len(s.held) == 0 && last <= len(piece) {
		s.held = append(s.held, piece[len(piece)-last:]...)
		return piece[:len(piece)-last]
	}
	s.held = append(s.held, piece...)
	out := string(s.held[:len(s.held)-last])
	s.held = s.held[:copy(s.held, s.held[len(out):])]
	return out
}

// Flush returns what was held back, at the end of a text without a stop string.
func (s *Stops) Flush() string {
	if s.done {
		return ""
	}
	out := string(s.held)
	s.held, s.done = s.held[:0], true
	return out
}
