package ledger

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"kvasir/wire"
	"kvasir/wire/seal"
)

// Report is what a backbone signs for a session, every few seconds: the picks that the worker has
// answered since the report before, and what became of the rows that were checked. Its bytes, numbers
// big-endian:
//
//	 1 byte   version: 2, or 3 of class close
//	16 bytes  session
//	 8 bytes  sequence, from 1
//	32 bytes  Hash of the report before it; zeros in the first
//	32 bytes  key of the worker
//	32 bytes  key of the backbone, which signs
//	 8 bytes  time, Unix milliseconds
//	32 bytes  hash of the model
//	32 bytes  hash of its profile
//	 8 bytes  bytes to the worker since the report before, as the backbone counts them
//	 8 bytes  and from the worker
//	 8 bytes  rows checked since the report before, wrong ones included
//	 8 bytes  rows wrong
//	 8 bytes  rows that were to be checked, and could not be
//	 8 bytes  reports up to this one of the session hold: none of their rows is still to be checked
//	 1 byte   how the worker is checked: 1 by some rows, 2 by every row, for it is in probation, 3 not at all
//	 1 byte   class by which its rows are compared, in version 3 alone: 2 close, within a tolerance. What is of
//	          version 2 is of class exact, bit for bit
//	32 bytes  hash of the evidence of a wrong row; zeros: no row is wrong
//	 4 bytes  hidden: values of a row
//	 2 bytes  number of layers that follow
//	          for each, layers ascending: 2 bytes layer, 8 bytes picks, at least 1
//	64 bytes  signature of the backbone, domain "report 2" or "report 3" as the version is, over the above
//
// A value has one such form only.
type Report struct {
	Session  SessionID
	Sequence int64
	Before   Hash
	Worker   seal.PublicKey
	Backbone seal.PublicKey
	Time     time.Time // whole milliseconds
	Model    Hash
	Profile  Hash
	Traffic
	Audit
	Hidden int
	Picks  []LayerPicks // layers ascending
}

// Traffic is bytes, inside the seal.
type Traffic struct {
	ToWorker   int64
	ToBackbone int64
}

// Audit is what a report says of checking.
type Audit struct {
	Checked   int64 // rows, since the report before
	Wrong     int64 // of those
	Unchecked int64 // rows that were to be checked
	Holds     int64 // reports up to this sequence hold
	Mode      Mode
	Close     bool // rows are compared within a tolerance (class close), and not bit for bit (class exact)
	Evidence  Hash // of a wrong row
}

// Class is the class by which rows are compared, in a word; "" where nobody compares.
func (a *Audit) Class() string {
	switch {
	case a.Mode == Unverified:
		return ""
	case a.Close:
		return wire.Close.String()
	}
	return wire.Exact.String()
}

// Mode is how a worker is checked.
type Mode uint8

// The modes.
const (
	Sampled    Mode = 1 // by some rows
	Probation  Mode = 2 // by every row: it is new, or its word stands against another's
	Unverified Mode = 3 // by none: nobody can
)

// String returns the mode for people.
func (m Mode) String() string {
	switch m {
	case Sampled:
		return "sampled"
	case Probation:
		return "probation"
	case Unverified:
		return "unverified"
	}
	return "unknown mode"
}

// LayerPicks is the picks of one layer.
type LayerPicks struct {
	Layer int
	Picks int64
}

// Hash is SHA-256 over a report's bytes without the signature: a signature can be made anew, the rest
// cannot.
type Hash [sha256.Size]byte

// hex returns the hash as the files have it.
func (h Hash) hex() string { return hex.EncodeToString(h[:]) }

func parseHash(text string) (h Hash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return Hash{}, fmt.Errorf("%w: a hash of %d characters", ErrDamaged, len(text))
	}
	return Hash(b), nil
}

const (
	reportVersion = 2
	reportClose   = 3 // the version that says the class
	reportHead    = 1 + 16 + 8 + 3*32 + 8 + 2*32 + 6*8 + 1 + 32 + 4 + 2
	reportLayer   = 2 + 8

	// MaxLayers and MaxHidden bound what a report can be about.
	MaxLayers = 1024
	MaxHidden = 1 << 20
	// MaxReport is the length of the longest signed report; it fits into one chunk of a link.
	MaxReport = reportHead + 1 + MaxLayers*reportLayer + ed25519.SignatureSize
)

// maxMillis keeps times within what every format of a time can say.
const maxMillis = 1 << 47

// Check returns ErrBadReport or ErrOverflow for a report that cannot be.
func (r *Report) Check() error {
	millis := r.Time.UnixMilli()
	switch {
	case r.Sequence < 1:
		return fmt.Errorf("%w: sequence %d", ErrBadReport, r.Sequence)
	case r.Sequence == 1 && r.Before != Hash{}:
		return fmt.Errorf("%w: the first of a session names one before it", ErrBadReport)
	case r.Worker.IsZero() || r.Backbone.IsZero():
		return fmt.Errorf("%w: no key", ErrBadReport)
	case millis < 1 || millis >= maxMillis:
		return fmt.Errorf("%w: time %d ms", ErrBadReport, millis)
	case r.Hidden < 1 || r.Hidden > MaxHidden:
		return fmt.Errorf("%w: hidden %d", ErrBadReport, r.Hidden)
	case len(r.Picks) > MaxLayers:
		return fmt.Errorf("%w: %d layers, at most %d", ErrBadReport, len(r.Picks), MaxLayers)
	}
	if err := r.Audit.check(r.Sequence); err != nil {
		return err
	}
	if r.ToWorker < 0 || r.ToBackbone < 0 {
		return fmt.Errorf("%w: %d and %d bytes", ErrBadReport, r.ToWorker, r.ToBackbone)
	}
	last := -1
	for _, l := range r.Picks {
		if l.Layer <= last || l.Layer >= MaxLayers || l.Picks < 1 {
			return fmt.Errorf("%w: %d picks of layer %d after layer %d", ErrBadReport, l.Picks, l.Layer, last)
		}
		last = l.Layer
	}
	_, err := r.Total()
	return err
}

func (a *Audit) check(sequence int64) error {
	switch {
	case a.Checked < 0 || a.Wrong < 0 || a.Unchecked < 0 || a.Wrong > a.Checked:
		return fmt.Errorf("%w: %d rows wrong of %d, %d unchecked", ErrBadReport, a.Wrong, a.Checked, a.Unchecked)
	case a.Mode < Sampled || a.Mode > Unverified:
		return fmt.Errorf("%w: mode %d", ErrBadReport, a.Mode)
	case a.Holds < 0 || a.Holds > sequence:
		return fmt.Errorf("%w: %d reports hold, of %d", ErrBadReport, a.Holds, sequence)
	case (a.Wrong > 0) != (a.Evidence != Hash{}):
		return fmt.Errorf("%w: %d rows wrong, and evidence %x", ErrBadReport, a.Wrong, a.Evidence[:4])
	}
	return nil
}

// Subject is what the report, and all others of its session, are about.
func (r *Report) Subject() Subject {
	return Subject{Session: r.Session, Worker: r.Worker, Model: r.Model, Profile: r.Profile, Hidden: r.Hidden}
}

// Total is the work of a report.
type Total struct {
	Picks int64
	Bytes int64 // of expert output
}

// Total adds up the layers.
func (r *Report) Total() (t Total, err error) {
	for _, l := range r.Picks {
		if l.Picks > MaxOutput/BytesPerValue { // then the sum of all layers is an int64
			return Total{}, fmt.Errorf("%w: %d picks of layer %d", ErrOverflow, l.Picks, l.Layer)
		}
		t.Picks += l.Picks
	}
	if t.Bytes, err = OutputBytes(t.Picks, r.Hidden); err != nil {
		return Total{}, err
	}
	if t.Bytes > MaxOutput {
		return Total{}, fmt.Errorf("%w: a report over %d bytes of output", ErrOverflow, t.Bytes)
	}
	return t, nil
}

// domain is that of the signature of a report, whose first byte is its version.
func domain(report []byte) string { return fmt.Sprintf("report %d", report[0]) }

// append appends the bytes that are signed. Check has passed.
func (r *Report) append(dst []byte) []byte {
	version := byte(reportVersion)
	if r.Close {
		version = reportClose
	}
	dst = append(dst, version)
	dst = append(dst, r.Session[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Sequence))
	dst = append(dst, r.Before[:]...)
	dst = append(dst, r.Worker[:]...)
	dst = append(dst, r.Backbone[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Time.UnixMilli()))
	dst = append(dst, r.Model[:]...)
	dst = append(dst, r.Profile[:]...)
	for _, n := range []int64{r.ToWorker, r.ToBackbone, r.Checked, r.Wrong, r.Unchecked, r.Holds} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	}
	dst = append(dst, byte(r.Mode))
	if r.Close {
		dst = append(dst, byte(wire.Close))
	}
	dst = append(dst, r.Evidence[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Hidden))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(r.Picks)))
	for _, l := range r.Picks {
		dst = binary.BigEndian.AppendUint16(dst, uint16(l.Layer))
		dst = binary.BigEndian.AppendUint64(dst, uint64(l.Picks))
	}
	return dst
}

// Append appends the signed report to dst. The backbone in it is the key's owner, whatever stood there.
func (r Report) Append(dst []byte, key seal.Key) ([]byte, error) {
	r.Backbone = key.Public()
	if err := r.Check(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = r.append(dst)
	return append(dst, key.Sign(domain(dst[start:]), dst[start:])...), nil
}

// Parse reads a signed report and checks all of it but the signature.
func Parse(signed []byte) (Report, error) {
	if len(signed) < reportHead+ed25519.SignatureSize || len(signed) > MaxReport {
		return Report{}, fmt.Errorf("%w: %d bytes", ErrBadReport, len(signed))
	}
	if signed[0] != reportVersion && signed[0] != reportClose {
		return Report{}, fmt.Errorf("%w: version %d, this program knows %d and %d", ErrBadReport, signed[0], reportVersion, reportClose)
	}
	var r Report
	head := reportHead
	if r.Close = signed[0] == reportClose; r.Close {
		head++
	}
	src := signed[1:]
	take := func(dst []byte) { src = src[copy(dst, src):] }
	number := func(bytes int) (v uint64) {
		for _, b := range src[:bytes] {
			v = v<<8 | uint64(b)
		}
		src = src[bytes:]
		return v
	}
	take(r.Session[:])
	r.Sequence = int64(number(8))
	take(r.Before[:])
	take(r.Worker[:])
	take(r.Backbone[:])
	r.Time = time.UnixMilli(int64(min(number(8), maxMillis))).UTC()
	take(r.Model[:])
	take(r.Profile[:])
	for _, n := range []*int64{&r.ToWorker, &r.ToBackbone, &r.Checked, &r.Wrong, &r.Unchecked, &r.Holds} {
		*n = int64(number(8))
	}
	r.Mode = Mode(number(1))
	if r.Close {
		if c := number(1); c != uint64(wire.Close) {
			return Report{}, fmt.Errorf("%w: class %d in version %d", ErrBadReport, c, reportClose)
		}
	}
	take(r.Evidence[:])
	r.Hidden = int(number(4))
	layers := int(number(2))
	if len(signed) != head+layers*reportLayer+ed25519.SignatureSize {
		return Report{}, fmt.Errorf("%w: %d bytes for %d layers", ErrBadReport, len(signed), layers)
	}
	r.Picks = make([]LayerPicks, layers)
	for i := range r.Picks {
		r.Picks[i] = LayerPicks{Layer: int(number(2)), Picks: int64(number(8))}
	}
	if err := r.Check(); err != nil {
		return Report{}, err
	}
	return r, nil
}

// Verify is Parse, and checks that the backbone which the report names has signed it. Whether that
// key is a backbone's, a grant says.
func Verify(signed []byte) (Report, error) {
	r, err := Parse(signed)
	if err != nil {
		return Report{}, err
	}
	cut := len(signed) - ed25519.SignatureSize
	if !r.Backbone.Verify(domain(signed), signed[:cut], signed[cut:]) {
		return Report{}, fmt.Errorf("%w: report %d of session %s", ErrBadSignature, r.Sequence, r.Session)
	}
	return r, nil
}

// HashOf returns the hash of a signed report that Parse accepts.
func HashOf(signed []byte) Hash { return sha256.Sum256(signed[:len(signed)-ed25519.SignatureSize]) }

// follows returns nil when r is the report after the last one of its session, which is nil when there
// is none. What is in the place of r already is not looked at.
func (r *Report) follows(sequence int64, last []byte) error {
	if r.Sequence != sequence+1 {
		return fmt.Errorf("%w: report %d of session %s came after %d", ErrGap, r.Sequence, r.Session, sequence)
	}
	if sequence == 0 {
		return nil
	}
	if r.Before != HashOf(last) {
		return fmt.Errorf("%w: report %d of session %s does not name the one before it", ErrFork, r.Sequence, r.Session)
	}
	before, err := Parse(last)
	if err != nil {
		return fmt.Errorf("%w: report %d of session %s: %s", ErrDamaged, sequence, r.Session, err.Error())
	}
	if r.Worker != before.Worker {
		return fmt.Errorf("%w: report %d of session %s is about another worker than the one before it", ErrBadReport, r.Sequence, r.Session)
	}
	if r.Holds < before.Holds {
		return fmt.Errorf("%w: %d reports of session %s hold, after %d", ErrBadReport, r.Holds, r.Session, before.Holds)
	}
	return nil
}
