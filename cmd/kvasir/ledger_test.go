package main

import (
	"context"
	"database/sql"
	"errors"
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
	warns := func(want, key string) {
		t.Helper()
		r := kvasir(t, "ledger", "grant", key, "2", "--home", home)
		if r.status != 0 || !strings.Contains(r.stderr, want) || (want == "") != (r.stderr == "") || strings.Count(r.stderr, "\n") > 1 {
			t.Errorf("ledger grant %s warns %q, want %q", key, r.stderr, want)
		}
	}
	warns("", backbone.String())
	warns("is the key of a worker", worker.String())
	stranger := seal.NewKey().Public().String()
	warns("no report of "+stranger+" has come yet: the limit holds from its first one on", stranger)
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

// mistyped is the text of a key with another first character.
func mistyped(key seal.PublicKey) string {
	text := key.String()
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
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
		{2, "48", []string{"ledger", "grant", "nobody", "1"}},
		{2, "checksum", []string{"ledger", "grant", mistyped(backbone), "1"}},
		{2, "amount of KVR", []string{"ledger", "grant", backbone.String(), ""}},
		{2, "amount of KVR", []string{"ledger", "grant", "--", backbone.String(), "-1"}},
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

// What has to do with a part of the reports says so, and what came before.
func TestAPartOfAWalletSaysThatItIsOne(t *testing.T) {
	t.Parallel()
	home, worker, _ := ledgerHome(t)
	since := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	const before = "Before that: 0.00895 KVR pending, 0.01789 KVR settled, 0.00000 KVR void."
	args := []string{worker.String(), "--since", since.Format(time.RFC3339), "--home", home}
	history := kvasir(t, append([]string{"wallet", "history"}, args...)...).wantDone(t)
	want := "Partial: only what was signed from " + since.Format(time.RFC3339) + " on. " + before
	if !strings.Contains(history.stdout, want) {
		t.Errorf("history says\n%s\nwant %q in it", history.stdout, want)
	}
	newest := kvasir(t, "wallet", "history", worker.String(), "-n", "2", "--home", home).wantDone(t)
	if !strings.Contains(newest.stdout, "The newest 2 of 3 reports") || strings.Contains(newest.stdout, "Partial") {
		t.Errorf("history says\n%s", newest.stdout)
	}
	for _, format := range []string{"--json=false", "--json"} {
		r := kvasir(t, append([]string{"wallet", "export", format}, args...)...).wantDone(t)
		file := filepath.Join(t.TempDir(), "account")
		if err := os.WriteFile(file, []byte(r.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		v := kvasir(t, "wallet", "verify", file).wantDone(t)
		if !strings.Contains(v.stdout, want) || !strings.Contains(v.stdout, "0 reports, 0.00000 KVR pending") {
			t.Errorf("verify says\n%s\nwant %q in it", v.stdout, want)
		}
		said := kvasir(t, "wallet", "verify", file, "--json").wantDone(t).stdout
		for _, want := range []string{`"partial": true`, `"since": "` + since.Format(time.RFC3339), `"settled_nkvr": 17891328`} {
			if !strings.Contains(said, want) {
				t.Errorf("verify --json says\n%s\nwant %q in it", said, want)
			}
		}
	}
}

// A damaged row is named and left out of lists, and nothing that depends on it is signed.
func TestDamagedWalletsAreShownAndNotSigned(t *testing.T) {
	t.Parallel()
	home, worker, backbone := ledgerHome(t)
	change := func(query string) {
		t.Helper()
		db, err := sql.Open("sqlite", filepath.Join(home, "wallet.db"))
		if err == nil {
			_, err = db.Exec(query)
			err = errors.Join(err, db.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	export := func(args ...string) outcome {
		return kvasir(t, append([]string{"wallet", "export", worker.String(), "--home", home}, args...)...)
	}
	change("UPDATE reports SET picks = picks + 1 WHERE id = 2")
	for _, args := range [][]string{{}, {"--json"}, {"--since", "2100-01-01T00:00:00Z"}} {
		export(args...).wantFailure(t, statusFailed, "nothing is signed: ledger: books do not balance: report 2: 105 picks, signed are 104")
	}
	change("UPDATE reports SET picks = picks - 1 WHERE id = 2")
	export().wantDone(t)
	change("UPDATE reports SET worker = '*' || substr(worker, 2) WHERE id = 2")
	for _, args := range [][]string{{"wallet", "show"}, {"ledger", "top"}, {"wallet", "show", "--json"}, {"ledger", "top", "--json"}} {
		r := kvasir(t, append(args, "--home", home)...).wantDone(t)
		rest := worker.Short()
		if args[0] == "ledger" {
			rest = backbone.Short()
		}
		for _, want := range []string{rest, "worker: ledger: file is damaged: key", "*" + worker.String()[1:]} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%v says\n%s\nwant %q in it", args, r.stdout, want)
			}
		}
	}
	export().wantFailure(t, statusFailed, "nothing is signed")
}
