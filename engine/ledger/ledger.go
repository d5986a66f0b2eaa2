// Package ledger keeps the books: what a hub saw, and what a worker has earned by it.
//
//	backbone --- signed reports ---> Hub --- feed, over HTTP ---> Wallet, at the gateway
//	relay's meter --- bytes -------> Hub
//
// Both are a SQLite file, or a name space of a PostgreSQL database, which several hubs or gateways share.
//
// Two counts come from two parties. Bytes each way are what the hub's meter counted. Picks are what
// the backbone signs, every few seconds a session, in a Report: the picks since the report before,
// whose hash it names. Pay follows picks only (see Reward); bytes are there to compare.
//
// The wallet trusts no hub. It checks by itself that the swarm's root has granted the backbone its
// key, that this key signed the report, and that no report of the session is missing. A report that holds
// is credited at once, and settled or voided by what later reports say of its rows; each step is a
// transfer with two entries, in nKVR:
//
//	credit   backbone's account  -n    worker, pending      +n
//	settle   worker, pending     -n    worker, settled      +n
//	void     worker, pending     -n    backbone's account   +n
//
// One that comes before others of its session is kept until they are there.
// A report beyond what its backbone may owe (Grant) is kept, and credited when the limit allows it.
//
// A worker answers each report with a Statement, which agrees or disputes; it reaches the hub on a way of
// its own, not through the backbone, and the wallet in the hub's feed. It moves no money: it is there to be
// read. Both sides keep what they have signed in an Outbox until a wallet has read it (Mark), and give it to
// the hub again, so that nothing is lost with a hub's file.
//
// Invariants of a wallet, which Verify checks:
//
//  1. The two entries of a transfer add up to zero, and are worth the report's bytes by the rate of its
//     time.
//  2. A balance is the sum of its account's entries.
//  3. A report (backbone, session, sequence) is credited once, and settled or voided once at most, by
//     whatever hub and however often it comes.
//  4. What was settled or voided, a later signed report says.
//  5. How far a hub's feed was read stands in the same transaction as what was read, so a process
//     that is killed anywhere loses and doubles nothing.
package ledger

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// Errors of this package; test with errors.Is.
var (
	// ErrBadReport: the bytes are not a report, or one that cannot be.
	ErrBadReport = errors.New("ledger: not a report")
	// ErrBadStatement: the bytes are not a statement, or one that cannot be.
	ErrBadStatement = errors.New("ledger: not a statement")
	// ErrBadSignature: the backbone that a report names, or the worker of a statement, did not sign it.
	ErrBadSignature = errors.New("ledger: signature does not fit")
	// ErrGap: reports before this one are missing.
	ErrGap = errors.New("ledger: a report is missing")
	// ErrFork: there is another report in this place, or the one before is another than this names.
	ErrFork = errors.New("ledger: reports of a session contradict each other")
	// ErrNotGranted: nothing of the swarm's root says that the key is a backbone's.
	ErrNotGranted = errors.New("ledger: not a backbone of this swarm")
	// ErrOverflow: an amount is too large to be true.
	ErrOverflow = errors.New("ledger: amount is too large")

	// ErrFuture: a report or statement is of a time that is not to come for long.
	ErrFuture = errors.New("ledger: signed in the future")

	// ErrRate: a rate cannot hold from then on.
	ErrRate = errors.New("ledger: rate cannot be set")

	// ErrNoSession: the hub has no session of this id.
	ErrNoSession = errors.New("ledger: no such session")
	// ErrNoReport: the hub does not have the report that a statement is about; it may come.
	ErrNoReport = errors.New("ledger: no such report yet")
	// ErrWrongSession: the hub's session of this id is between others.
	ErrWrongSession = errors.New("ledger: session is between others")
	// ErrMeterBack: a count of bytes is below the one before it.
	ErrMeterBack = errors.New("ledger: meter ran backwards")

	// ErrBadPage: what a hub sent is not a page of its feed.
	ErrBadPage = errors.New("ledger: not a page of a feed")
	// ErrFeedBack: a hub has forgotten what it had sent; it may have been put back from an old copy.
	ErrFeedBack = errors.New("ledger: feed went backwards")

	// ErrDamaged: a database file, or a row of it, cannot be read.
	ErrDamaged = errors.New("ledger: file is damaged")
	// ErrNotLedger: a database file is something else.
	ErrNotLedger = errors.New("ledger: not the right kind of file")
	// ErrNewer: a database file was written by a newer program.
	ErrNewer = errors.New("ledger: file is of a newer version")
	// ErrUnbalanced: the books are wrong.
	ErrUnbalanced = errors.New("ledger: books do not balance")
)

// SessionID names a session. The hub draws it at random; it is text of 32 hexadecimal digits.
type SessionID [16]byte

// String returns the text of the id.
func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// ParseSessionID parses what String returned.
func ParseSessionID(text string) (id SessionID, err error) {
	if len(text) != hex.EncodedLen(len(id)) {
		return SessionID{}, fmt.Errorf("ledger: session id has %d characters, want %d", len(text), hex.EncodedLen(len(id)))
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return SessionID{}, fmt.Errorf("ledger: session id: %w", err)
	}
	return id, nil
}

// MarshalText returns the text of the id.
func (id SessionID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is ParseSessionID.
func (id *SessionID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseSessionID(string(text))
	return err
}
