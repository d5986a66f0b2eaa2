package engine

import (
	"testing"

	"kvasir/engine/ledger"
)

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
