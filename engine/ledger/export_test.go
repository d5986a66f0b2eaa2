package ledger

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func TestExportsAreSignedAndAddUp(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a := s.reporter(1, 0)
		last := holds(1)
		last.Close = true
		poll(t, w, s.entries(next(t, a, 1), next(t, s.reporter(2, 1), 100), nextAudited(t, a, 2, last)))
		account, err := w.Account(t.Context(), s.workers[0], time.Time{})
		must(t, err)
		if account.Settled != perPick || account.Pending != 2*perPick || len(account.Lines) != 2 || account.Lines[0].State != "settled" ||
			account.Lines[0].Class != "exact" || account.Lines[1].Class != "close" {
			t.Fatalf("account %+v", account)
		}
		later, err := w.Account(t.Context(), s.workers[0], epoch.Add(time.Second))
		must(t, err)
		if len(later.Lines) != 0 || later.Sums != (Sums{}) || !later.Partial || !later.Since.Equal(epoch.Add(time.Second)) || later.Before != account.Sums {
			t.Fatalf("later than all: %+v", later)
		}
		gateway := seal.NewKey()
		for _, c := range []struct {
			name, says string
			want       Account
			export     func(Account, seal.Key, time.Time) ([]byte, error)
		}{
			{"JSON", `"reports"`, account, Account.JSON},
			{"CSV", "# kvasir wallet 2\n", account, Account.CSV},
			{"JSON of a part", `"partial": true`, later, Account.JSON},
			{"CSV of a part", "# partial true\n# since 2026-03-01T12:00:01Z\n# before_pending_nkvr 172032\n", later, Account.CSV},
		} {
			name, want := c.name, c.want
			data, err := c.export(want, gateway, epoch)
			must(t, err)
			if !bytes.Contains(data, []byte(c.says)) {
				t.Errorf("%s does not say %q:\n%s", name, c.says, data)
			}
			got, err := VerifyExport(data)
			must(t, err)
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

// What is proven is what an account adds up, and no more: what others have does not stop it.
func TestAnAccountIsProvenByWhatItAddsUp(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		poll(t, w, s.entries(next(t, a, 1), next(t, b, 1), nextAudited(t, a, 2, holds(1)), nextAudited(t, b, 2, holds(1))))
		run(t, w, "UPDATE reports SET picks = picks + 1 WHERE worker = $1", s.workers[1].String())
		for _, since := range []time.Time{{}, epoch.Add(time.Second)} {
			want, err := w.Account(t.Context(), s.workers[0], since)
			must(t, err)
			got, err := w.Proven(t.Context(), s.workers[0], since)
			must(t, err)
			if !reflect.DeepEqual(got, want) || got.Settled+got.Before.Settled != perPick {
				t.Errorf("proven %+v\nwant %+v", got, want)
			}
			_, err = w.Proven(t.Context(), s.workers[1], since)
			wantError(t, err, ErrUnbalanced)
			if !strings.Contains(err.Error(), "report 2: 2 picks, signed are 1") {
				t.Errorf("not the first that is wrong: %v", err)
			}
		}
		// A report that was given to somebody else, with the money: neither has an account that adds up.
		run(t, w, "UPDATE transfers SET credited = (SELECT id FROM accounts WHERE kind = 'pending' AND owner = $1) WHERE report = 1 AND kind = 'credit'",
			s.workers[1].String())
		run(t, w, resum)
		_, err := w.Proven(t.Context(), s.workers[0], time.Time{})
		wantError(t, err, ErrUnbalanced)
	})
}

// TestExportsOfTheVersionBeforeAreRead checks what a gateway wrote that knew no class.
func TestExportsOfTheVersionBeforeAreRead(t *testing.T) {
	key := seal.NewKey()
	backbone := seal.PublicKey{1}
	want := Account{Gateway: key.Public(), Worker: seal.PublicKey{2}, At: epoch, Sums: Sums{Pending: 7},
		Lines: []Line{{Time: epoch, Backbone: backbone, Session: SessionID{3}, Report: 1, Picks: 5, NKVR: 7, State: "pending"}}}
	text := fmt.Sprintf("# kvasir wallet 1\n# gateway %s\n# worker %s\n# at 2026-03-01T12:00:00Z\n# pending_nkvr 7\n"+
		"# settled_nkvr 0\n# voided_nkvr 0\n# waiting_nkvr 0\ntime,backbone,session,report,picks,nkvr,state\n"+
		"2026-03-01T12:00:00Z,%s,%s,1,5,7,pending\n", want.Gateway, want.Worker, backbone, SessionID{3})
	sign := func(domain string) []byte {
		return fmt.Appendf(nil, "%s# signature %s\n", text, base64.StdEncoding.EncodeToString(key.Sign(domain, []byte(text))))
	}
	got, err := VerifyExport(sign("wallet csv 1"))
	must(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	_, err = VerifyExport(sign("wallet csv 2"))
	wantError(t, err, ErrBadExport)
}

func FuzzVerifyExport(f *testing.F) {
	key := seal.NewKey()
	a := Account{Worker: key.Public(), Sums: Sums{Pending: 7}, Lines: []Line{{Time: epoch, Backbone: key.Public(), Report: 1, Picks: 1, NKVR: 7, State: "pending"}}}
	p := a
	p.Partial, p.Since, p.Before = true, epoch, Sums{Settled: 3}
	for _, export := range []func(seal.Key, time.Time) ([]byte, error){a.JSON, a.CSV, p.JSON, p.CSV} {
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
