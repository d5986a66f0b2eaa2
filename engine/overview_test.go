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
		want    string
	}{
		{ledger.Balance{Pending: 1}, true, ""},
		{ledger.Balance{Pending: 1}, false, "nobody checks the work"},
		{ledger.Balance{Pending: 1, Waiting: 1}, true, "more waits for the limit of this backbone"},
	} {
		if got := unpaid(&c.b, c.checked); got != c.want {
			t.Errorf("%+v is not paid because %q, want %q", c.b, got, c.want)
		}
	}
}
