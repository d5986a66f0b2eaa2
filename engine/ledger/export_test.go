package ledger

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func TestExportsAreSignedAndAddUp(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a := s.reporter(1, 0)
		poll(t, w, s.entries(next(t, a, 1), next(t, s.reporter(2, 1), 100), nextAudited(t, a, 2, holds(1))))
		account, err := w.Account(t.Context(), s.workers[0], time.Time{})
		must(t, err)
		if account.Settled != perPick || account.Pending != 2*perPick || len(account.Lines) != 2 || account.Lines[0].State != "settled" {
			t.Fatalf("account %+v", account)
		}
		later, err := w.Account(t.Context(), s.workers[0], epoch.Add(time.Second))
		must(t, err)
		if len(later.Lines) != 0 || later.Settled != 0 {
			t.Fatalf("later than all: %+v", later)
		}
		gateway := seal.NewKey()
		for name, export := range map[string]func(seal.Key, time.Time) ([]byte, error){"JSON": account.JSON, "CSV": account.CSV} {
			data, err := export(gateway, epoch)
			must(t, err)
			got, err := VerifyExport(data)
			must(t, err)
			want := account
			want.Gateway, want.At = gateway.Public(), epoch
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v\nwant %+v", name, got, want)
			}
			for i := range data {
				bad := bytes.Clone(data)
				bad[i] ^= 1
				if got, err := VerifyExport(bad); err == nil && !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: byte %d may be another: %+v", name, i, got)
				}
			}
			_, err = VerifyExport(data[:len(data)/2])
			wantError(t, err, ErrBadExport)
		}
		account.Settled++ // a gateway that lies in its sums
		data, err := account.JSON(gateway, epoch)
		must(t, err)
		_, err = VerifyExport(data)
		wantError(t, err, ErrBadExport)
	})
}

func FuzzVerifyExport(f *testing.F) {
	key := seal.NewKey()
	a := Account{Worker: key.Public(), Pending: 7, Lines: []Line{{Time: epoch, Backbone: key.Public(), Report: 1, Picks: 1, NKVR: 7, State: "pending"}}}
	for _, export := range []func(seal.Key, time.Time) ([]byte, error){a.JSON, a.CSV} {
		data, err := export(key, epoch)
		must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := VerifyExport(data); err == nil && a.Gateway.IsZero() {
			t.Fatal("signed by nobody")
		}
	})
}
