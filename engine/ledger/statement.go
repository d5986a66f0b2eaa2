package ledger

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"time"

	"kvasir/wire/seal"
)

// Statement is what a worker says of a report about its work: it agrees, or disputes it and tells what it
// has counted itself. Its bytes, numbers big-endian:
//
//	 1 byte   version, 1
//	16 bytes  session
//	 8 bytes  sequence of the report
//	32 bytes  Hash of the report
//	32 bytes  key of the worker, which signs
//	32 bytes  key of the backbone
//	 8 bytes  time, Unix milliseconds
//	 1 byte   opinion
//	 8 bytes  picks that the worker has answered in the session up to now
//	 2 bytes  number of layers that follow: 0 where it agrees
//	          for each, layers ascending: 2 bytes layer, 8 bytes picks since the statement before, at least 1
//	64 bytes  signature of the worker, domain "statement 1", over the above
//
// A value has one such form only.
type Statement struct {
	Session  SessionID
	Sequence int64
	Report   Hash
	Worker   seal.PublicKey
	Backbone seal.PublicKey
	Time     time.Time // whole milliseconds
	Opinion  Opinion
	Answered int64
	Picks    []LayerPicks // layers ascending
}

// Opinion is what a worker thinks of a report.
type Opinion uint8

// The opinions.
const (
	Agree   Opinion = 1 // it is what the worker has counted, but for what was under way
	TooFew  Opinion = 2 // the worker has answered more
	TooMany Opinion = 3 // the worker has answered less
	Missing Opinion = 4 // the worker has not seen the report before it
	Forked  Opinion = 5 // the worker has seen another report before it
)

// String returns the opinion for people.
func (o Opinion) String() string {
	switch o {
	case Agree:
		return "agrees"
	case TooFew:
		return "too few picks"
	case TooMany:
		return "too many picks"
	case Missing:
		return "a report is missing before it"
	case Forked:
		return "it contradicts the report before it"
	}
	return "unknown opinion"
}

const (
	statementVersion = 1
	statementDomain  = "statement 1"
	statementHead    = 1 + 16 + 8 + 3*32 + 8 + 1 + 8 + 2

	// MaxStatement is the length of the longest signed statement.
	MaxStatement = statementHead + MaxLayers*reportLayer + ed25519.SignatureSize
)

// Check returns ErrBadStatement for a statement that cannot be.
func (s *Statement) Check() error {
	millis := s.Time.UnixMilli()
	switch {
	case s.Sequence < 1:
		return fmt.Errorf("%w: sequence %d", ErrBadStatement, s.Sequence)
	case s.Worker.IsZero() || s.Backbone.IsZero():
		return fmt.Errorf("%w: no key", ErrBadStatement)
	case millis < 1 || millis >= maxMillis:
		return fmt.Errorf("%w: time %d ms", ErrBadStatement, millis)
	case s.Opinion < Agree || s.Opinion > Forked:
		return fmt.Errorf("%w: opinion %d", ErrBadStatement, s.Opinion)
	case s.Answered < 0:
		return fmt.Errorf("%w: %d picks answered", ErrBadStatement, s.Answered)
	case len(s.Picks) > MaxLayers || s.Opinion == Agree && len(s.Picks) > 0:
		return fmt.Errorf("%w: %d layers, at most %d and none where it agrees", ErrBadStatement, len(s.Picks), MaxLayers)
	}
	last := -1
	for _, l := range s.Picks {
		if l.Layer <= last || l.Layer >= MaxLayers || l.Picks < 1 {
			return fmt.Errorf("%w: %d picks of layer %d after layer %d", ErrBadStatement, l.Picks, l.Layer, last)
		}
		last = l.Layer
	}
	return nil
}

// Append appends the signed statement to dst. The worker in it is the key's owner, whatever stood there.
func (s Statement) Append(dst []byte, key seal.Key) ([]byte, error) {
	s.Worker = key.Public()
	if err := s.Check(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(dst, statementVersion)
	dst = append(dst, s.Session[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Sequence))
	dst = append(dst, s.Report[:]...)
	dst = append(dst, s.Worker[:]...)
	dst = append(dst, s.Backbone[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Time.UnixMilli()))
	dst = append(dst, byte(s.Opinion))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Answered))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s.Picks)))
	for _, l := range s.Picks {
		dst = binary.BigEndian.AppendUint16(dst, uint16(l.Layer))
		dst = binary.BigEndian.AppendUint64(dst, uint64(l.Picks))
	}
	return append(dst, key.Sign(statementDomain, dst[start:])...), nil
}

// VerifyStatement reads a signed statement, and checks that the worker which it names has signed it.
func VerifyStatement(signed []byte) (Statement, error) {
	s, err := parseStatement(signed)
	if err != nil {
		return Statement{}, err
	}
	cut := len(signed) - ed25519.SignatureSize
	if !s.Worker.Verify(statementDomain, signed[:cut], signed[cut:]) {
		return Statement{}, fmt.Errorf("%w: statement on report %d of session %s", ErrBadSignature, s.Sequence, s.Session)
	}
	return s, nil
}

func parseStatement(signed []byte) (Statement, error) {
	if len(signed) < statementHead+ed25519.SignatureSize || len(signed) > MaxStatement {
		return Statement{}, fmt.Errorf("%w: %d bytes", ErrBadStatement, len(signed))
	}
	if signed[0] != statementVersion {
		return Statement{}, fmt.Errorf("%w: version %d, this program knows %d", ErrBadStatement, signed[0], statementVersion)
	}
	var s Statement
	src := signed[1:]
	take := func(dst []byte) { src = src[copy(dst, src):] }
	number := func(bytes int) (v uint64) {
		for _, b := range src[:bytes] {
			v = v<<8 | uint64(b)
		}
		src = src[bytes:]
		return v
	}
	take(s.Session[:])
	s.Sequence = int64(number(8))
	take(s.Report[:])
	take(s.Worker[:])
	take(s.Backbone[:])
	s.Time = time.UnixMilli(int64(min(number(8), maxMillis))).UTC()
	s.Opinion = Opinion(number(1))
	s.Answered = int64(number(8))
	layers := int(number(2))
	if len(signed) != statementHead+layers*reportLayer+ed25519.SignatureSize {
		return Statement{}, fmt.Errorf("%w: %d bytes for %d layers", ErrBadStatement, len(signed), layers)
	}
	if layers > 0 {
		s.Picks = make([]LayerPicks, layers)
	}
	for i := range s.Picks {
		s.Picks[i] = LayerPicks{Layer: int(number(2)), Picks: int64(number(8))}
	}
	if err := s.Check(); err != nil {
		return Statement{}, err
	}
	return s, nil
}
