package engine

import (
	"testing"

	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// A page far from the gateway shows what its own backbone has signed: 140 nKVR a pick, of 5 values.
func TestThePageShowsPayWithoutAWallet(t *testing.T) {
	var p promised
	report := func(sequence, picks int64, a ledger.Audit) {
		p.add(&ledger.Report{Sequence: sequence, Hidden: 5, Picks: []ledger.LayerPicks{{Layer: 1, Picks: picks}}, Audit: a})
	}
	want := func(picks int64, pending, settled, voided ledger.NKVR) {
		t.Helper()
		w := WorkerStats{Picks: picks}
		w.Settled, w.Voided = p.sums()
		b := earned(&w, 5)
		if b.Pending != 140*pending || b.Settled != 140*settled || b.Voided != 140*voided {
			t.Errorf("after %d picks: %d pending, %d settled, %d void; want %d, %d, %d picks", picks, b.Pending, b.Settled, b.Voided, pending, settled, voided)
		}
	}
	want(3, 3, 0, 0)
	report(1, 2, ledger.Audit{})
	want(3, 3, 0, 0)
	report(2, 1, ledger.Audit{Holds: 1})
	report(2, 1, ledger.Audit{Holds: 1}) // the same, which the disk had refused
	want(7, 5, 2, 0)
	report(3, 4, ledger.Audit{Holds: 1, Checked: 1, Wrong: 1})
	want(7, 0, 2, 5)
	want(8, 1, 2, 5)
}

func TestThePageSaysWhyThereIsNoWorkOrPay(t *testing.T) {
	for _, c := range []struct {
		w    WorkerStats
		want string
	}{
		{WorkerStats{}, "loads its experts"},
		{WorkerStats{Holds: "layer 0"}, "nobody has asked for its experts yet"},
		{WorkerStats{Holds: "layer 0", Dispatches: 1}, ""},
	} {
		if got := idle(&c.w); got != c.want {
			t.Errorf("%+v has no work because %q, want %q", c.w, got, c.want)
		}
	}
	for _, c := range []struct {
		b       ledger.Balance
		checked bool
		wanted  int
		want    string
	}{
		{ledger.Balance{Pending: 1}, true, 0, ""},
		{ledger.Balance{Pending: 1}, false, 0, "nobody checks the work"},
		{ledger.Balance{Pending: 1}, true, 12, "on trial until 12 more rows are found right"},
		{ledger.Balance{Pending: 1, Waiting: 1}, true, 0, "more waits for the limit of this backbone"},
	} {
		if got := unpaid(&WorkerStats{Wanted: c.wanted}, &c.b, c.checked); got != c.want {
			t.Errorf("%+v is not paid because %q, want %q", c.b, got, c.want)
		}
	}
}

// A backbone adds up what it has signed for a worker as the wallet does.
func TestABackboneAndTheWalletSayTheSame(t *testing.T) {
	v := newTown(t)
	key := seal.NewKey()
	v.worker(key, nil)
	v.arrives(key)
	v.until("the probation ends", func() bool {
		v.generate(16, 8)
		w := v.find(key)
		return w != nil && w.Right > 0 && w.Wanted == 0
	})
	v.until("all is settled, and both say so", func() bool {
		w, b := v.find(key), v.balance(key)
		return w != nil && w.Settled > 0 && w.Voided == 0 && w.Settled == b.Settled && earned(w, v.backbone.Engine().model.Hidden).Pending == 0
	})
	v.verify()
}
