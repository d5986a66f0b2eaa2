package tokenizer

import "unicode/utf8"

// Stream turns ids, one after another, into text that can be shown at once: a piece never ends in
// the middle of a character. It belongs to one goroutine.
type Stream struct {
	t       *Tokenizer
	control bool
	held    []byte // the beginning of a character, at most three bytes
}

// Stream returns a stream at its start. Control tokens come out as their text with control, and as
// nothing without.
func (t *Tokenizer) Stream(control bool) *Stream {
	return &Stream{t: t, control: control}
}

// Push returns the text that is certain once id is known. Bytes that can no longer become a
// character come out as U+FFFD.
func (s *Stream) Push(id int32) string {
	if s.t.IsControl(id) && !s.control {
		return s.Flush()
	}
	s.held = s.t.AppendToken(s.held, id)
	text, n := s.take()
	s.held = append(s.held[:0], s.held[n:]...)
	return text
}

// Flush returns what is held back as U+FFFD and leaves the stream as at its start.
func (s *Stream) Flush() string {
	if len(s.held) == 0 {
		return ""
	}
	s.held = s.held[:0]
	return string(utf8.RuneError)
}

// take returns the text of what is held, up to a beginning of a character at its end, and the bytes
// that it came from.
func (s *Stream) take() (text string, n int) {
	var out []byte
	b := s.held
	for n < len(b) {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			if !utf8.FullRune(b[n:]) {
				break
			}
			// The longest beginning of a character counts as one fault: it takes bytes as long as
			// one more could still have completed it.
			for n+size < len(b) && !utf8.FullRune(b[n:n+size+1]) {
				size++
			}
		}
		out = utf8.AppendRune(out, r)
		n += size
	}
	return string(out), n
}
