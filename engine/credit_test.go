package engine

import (
	"testing"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire"
	"kvasir/wire/seal"
)

// TestReceiptsAreBelievedOnce hands a worker what backbones sign: of its own session, again, of another
// worker, session and backbone, and with a wrong byte.
func TestReceiptsAreBelievedOnce(t *testing.T) {
	backbone, other, own := seal.NewKey(), seal.NewKey(), seal.NewKey()
	const session, elsewhere = "000102030405060708090a0b0c0d0e0f", "ff0102030405060708090a0b0c0d0e0f"
	sign := func(by seal.Key, session string, worker seal.PublicKey) *ledger.Reporter {
		id, err := ledger.ParseSessionID(session)
		if err != nil {
			t.Fatal(err)
		}
		return ledger.NewReporter(by, ledger.Subject{Session: id, Worker: worker, Hidden: 3072})
	}
	next := func(r *ledger.Reporter, picks int64) wire.Receipt {
		if err := r.Count(3, picks); err != nil {
			t.Fatal(err)
		}
		signed, err := r.Report(time.Unix(1, 0), false, func(int64) (ledger.Traffic, ledger.Audit) {
			return ledger.Traffic{}, ledger.Audit{Mode: ledger.Unverified}
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := ledger.Parse(signed)
		if err != nil {
			t.Fatal(err)
		}
		r.Done(p.Sequence)
		return wire.Receipt{Sequence: uint64(p.Sequence), Signed: signed}
	}
	c := credit{own: own.Public()}
	mine := sign(backbone, session, own.Public())
	first, second := next(mine, 104), next(mine, 104)
	spoilt := next(mine, 1000)
	spoilt.Signed[60] ^= 1
	for i, tt := range []struct {
		r        wire.Receipt
		by       seal.Key
		session  string
		pending  ledger.NKVR
		comments string
	}{
		{first, backbone, session, 8_945_664, "13 tokens of top-8"},
		{first, backbone, session, 8_945_664, "again"},
		{second, backbone, session, 2 * 8_945_664, "the next"},
		{first, backbone, session, 2 * 8_945_664, "one from before"},
		{spoilt, backbone, session, 2 * 8_945_664, "another byte than was signed"},
		{next(sign(backbone, session, other.Public()), 9), backbone, session, 2 * 8_945_664, "of another worker"},
		{next(sign(backbone, elsewhere, own.Public()), 9), backbone, session, 2 * 8_945_664, "of another session"},
		{next(sign(other, session, own.Public()), 9), backbone, session, 2 * 8_945_664, "by another backbone"},
		{wire.Receipt{Signed: []byte("nonsense")}, backbone, session, 2 * 8_945_664, "no report"},
		{next(sign(backbone, elsewhere, own.Public()), 104), backbone, elsewhere, 3 * 8_945_664, "the next session"},
	} {
		c.take(tt.by.Public(), tt.session, tt.r)
		if c.pending != tt.pending || int64(c.pending) != ledger.Rate*c.output {
			t.Errorf("receipt %d, %s: pending %d for %d bytes, want %d", i, tt.comments, c.pending, c.output, tt.pending)
		}
	}
}

// TestOnlyTheSessionThatGoesOnHasUnsignedWork ends a session with work for which no receipt has come.
func TestOnlyTheSessionThatGoesOnHasUnsignedWork(t *testing.T) {
	var c credit
	want := func(session string, output, want int64) {
		t.Helper()
		if got := c.unsaid(session, output); got != want {
			t.Errorf("session %s with %d bytes in all: %d without a receipt, want %d", session, output, got, want)
		}
	}
	c.begin("one", 0)
	want("one", 500, 500)
	c.output = 300 // signed
	want("one", 500, 200)
	want("two", 500, 0) // it begins
	c.begin("two", 500)
	want("two", 500, 0)
	want("two", 800, 300)
	c.output = 550
	want("two", 800, 50)
	c.output = 600
	want("two", 800, 0)
}
