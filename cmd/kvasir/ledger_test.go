package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// ledgerHome is a home with wallets of one worker, whose backbone has signed three reports.
func ledgerHome(t *testing.T) (home string, worker, backbone seal.PublicKey) {
	t.Helper()
	home = t.TempDir()
	root, err := engine.Home(home).NewRoot()
	if err != nil {
		t.Fatal(err)
	}
	key, own := seal.NewKey(), seal.NewKey()
	now := time.Now()
	grant, err := seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: key.Public(), Issued: now.Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	w, err := ledger.OpenWallet(ctx, filepath.Join(home, "wallet.db"), root.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	r := ledger.NewReporter(key, ledger.Subject{Session: ledger.SessionID{1}, Worker: own.Public(), Hidden: 3072})
	var feed feedOf
	for i := range int64(3) {
		if err := r.Count(0, 104); err != nil {
			t.Fatal(err)
		}
		signed, err := r.Report(now, false, func(int64) (ledger.Traffic, ledger.Audit) {
			return ledger.Traffic{}, ledger.Audit{Mode: ledger.Sampled, Holds: i}
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Done(i + 1)
		feed = append(feed, ledger.Entry{ID: i + 1, Grant: grant.String(), Report: signed})
	}
	feed = append(feed, ledger.Entry{ID: 4, Grant: grant.String(), Report: []byte("forged")})
	if _, err := w.Poll(ctx, "hub", feed); err != nil {
		t.Fatal(err)
	}
	return home, own.Public(), key.Public()
}

type feedOf []ledger.Entry

func (f feedOf) After(_ context.Context, at ledger.Mark, _ int) (ledger.Page, error) {
	return ledger.Page{Entries: f[at.ID:], Last: int64(len(f))}, nil
}

func TestLedgerCommandsTellTheBooks(t *testing.T) {
	t.Parallel()
	home, worker, backbone := ledgerHome(t)
	says := func(want string, args ...string) {
		t.Helper()
		r := kvasir(t, append(args, "--home", home)...).wantDone(t)
		if !strings.Contains(r.stdout, want) {
			t.Errorf("kvasir %v says\n%s\nwant %q in it", args, r.stdout, want)
		}
	}
	says("The books balance: 1 worker, 3 reports, 0.00895 KVR pending, 0.01789 KVR settled, 0.00000 KVR void.", "ledger", "verify")
	says(`"settled_nkvr": 17891328`, "ledger", "verify", "--json")
	says("anything", "ledger", "top")
	says("entry 4 of hub hub: ledger: not a report: 6 bytes", "ledger", "top")
	says(`"refused": [`, "ledger", "top", "--json")
	says(`"owed_nkvr": 26836992`, "ledger", "top", "--json", "-n", "1")
	says("may owe 0.50000 KVR", "ledger", "grant", backbone.String(), "0.5")
	says("0.50000 KVR", "ledger", "top")
	says("the beginning", "ledger", "rate")
	says("2100-01-31T00:00:00Z            8", "ledger", "rate", "8", "--since", "2100-01-31T00:00:00Z")
	says("0.01789 KVR", "wallet")
	says("Nobody was convicted here.", "ledger", "convicted")
	if _, err := engine.Home(home).OpenCourt(seal.NewKey(), nil).Convict(audit.Finding{Worker: worker}, seal.TokenID{1}); err != nil {
		t.Fatal(err)
	}
	says(worker.String(), "ledger", "convicted")
	says("is let in again", "ledger", "pardon", worker.String())
	says(`"convicted": []`, "ledger", "convicted", "--json")
}

func TestLedgerCommandsRefuse(t *testing.T) {
	t.Parallel()
	home, worker, backbone := ledgerHome(t)
	for _, tt := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "amount of KVR", []string{"ledger", "grant", backbone.String(), "much"}},
		{2, "amount of KVR", []string{"ledger", "grant", backbone.String(), "0.0000000001"}},
		{2, "", []string{"ledger", "grant", "nobody", "1"}},
		{2, "at most 4294967295", []string{"ledger", "grant", backbone.String(), "99999999999999999999"}},
		{2, "whole nKVR", []string{"ledger", "rate", "7.5"}},
		{2, "0 to 2147483647", []string{"ledger", "rate", "99999999999"}},
		{2, "--since", []string{"ledger", "rate", "8", "--since", "tomorrow"}},
		{1, "rate cannot be set", []string{"ledger", "rate", "8", "--since", "2001-01-31T00:00:00Z"}},
		{1, "not among those", []string{"ledger", "pardon", worker.String()}},
	} {
		r := kvasir(t, append(tt.args, "--home", home)...)
		if r.status != tt.status || !strings.Contains(r.stderr, tt.want) || r.stdout != "" {
			t.Errorf("kvasir %v: status %d, %q on standard error; want %d and %q", tt.args, r.status, r.stderr, tt.status, tt.want)
		}
	}
	r := kvasir(t, "ledger", "verify", "--home", t.TempDir())
	if r.status != 1 || !strings.Contains(r.stderr, "no wallet is here") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

func TestWalletsAreShownExportedAndVerified(t *testing.T) {
	t.Parallel()
	home, worker, _ := ledgerHome(t)
	for _, args := range [][]string{{"wallet"}, {"wallet", "show"}} {
		r := kvasir(t, append(args, "--home", home)...).wantDone(t)
		if !strings.Contains(r.stdout, worker.Short()) {
			t.Errorf("%v says\n%s", args, r.stdout)
		}
	}
	var history struct{ Reports []ledger.Line }
	kvasir(t, "wallet", "history", worker.String(), "-n", "2", "--json", "--home", home).wantDone(t).object(t, &history)
	if len(history.Reports) != 2 || history.Reports[1].Report != 3 || history.Reports[1].State != "pending" || history.Reports[1].Class != "exact" {
		t.Errorf("history %+v", history)
	}
	for _, format := range []string{"--json=false", "--json"} {
		r := kvasir(t, "wallet", "export", worker.String(), format, "--home", home).wantDone(t)
		file := filepath.Join(t.TempDir(), "account")
		write := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(r.stdout)
		v := kvasir(t, "wallet", "verify", file).wantDone(t)
		if want := "3 reports, 0.00895 KVR pending, 0.01789 KVR settled, 0.00000 KVR void."; !strings.Contains(v.stdout, want) {
			t.Errorf("verify says\n%s\nwant %q in it", v.stdout, want)
		}
		kvasir(t, "wallet", "verify", file, "--gateway", worker.String()).wantFailure(t, statusFailed, "and not by")
		write(strings.Replace(r.stdout, "8945664", "9945664", 1))
		kvasir(t, "wallet", "verify", file).wantFailure(t, statusFailed, "the signature does not fit")
	}
	kvasir(t, "wallet", "export", worker.String(), "--since", "yesterday", "--home", home).wantFailure(t, statusUsage, "--since")
}
