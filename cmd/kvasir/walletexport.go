package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// sinceFlag is from when on reports count.
type sinceFlag struct {
	Since string `help:"Only what was signed from then on (default: all)." placeholder:"2027-01-31T00:00:00Z"`
}

func (f *sinceFlag) time() (t time.Time, err error) {
	if f.Since == "" {
		return time.Time{}, nil
	}
	if t, err = time.Parse(time.RFC3339, f.Since); err != nil {
		return t, usagef("--since: want a time such as 2027-01-31T00:00:00Z, got %q", f.Since)
	}
	return t, nil
}

type walletHistoryCmd struct {
	Worker publicKey `arg:"" help:"Key of the worker, as kvasir wallet --json prints it." placeholder:"WORKER"`
	N      count     `short:"n" help:"The newest N (default ${default})." placeholder:"N" default:"20"`
	sinceFlag
	booksFlag
	jsonFlag
}

// Help is printed by kvasir wallet history --help.
func (walletHistoryCmd) Help() string {
	return `The reports that backbones have signed for a worker, the newest last, with what became of each: pending, settled, voided, or waiting for the backbone's limit; and how its rows are compared with those that somebody else has computed: class exact, bit for bit, or close, within a tolerance.

Example:

    kvasir wallet history WORKER -n 100`
}

// Run prints them.
func (c *walletHistoryCmd) Run(ctx context.Context, a *app) error {
	since, err := c.time()
	if err != nil {
		return err
	}
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		account, err := w.Account(ctx, c.Worker.key(), since)
		if err != nil {
			return err
		}
		lines := account.Lines[max(0, len(account.Lines)-int(c.N)):]
		if c.JSON {
			return a.stdout.printJSON(struct {
				part
				Reports []ledger.Line `json:"reports"`
			}{partOf(&account), lines})
		}
		a.stdout.printf("%s", partial(&account))
		if len(lines) == 0 {
			a.stdout.printf("Nothing was signed for this worker%s.\n", sinceWhen(&account))
			return nil
		}
		if n := len(account.Lines); n > len(lines) {
			a.stdout.printf("The newest %d of %s; -n %d prints all.\n\n", len(lines), plural(n, "report"), n)
		}
		t := table{
			head:  []string{"time", "backbone", "session", "report", "picks", "amount", "state", "class"},
			right: []bool{false, false, false, true, true, true, false, false},
		}
		for _, l := range lines {
			t.add(l.Time.Format(time.RFC3339), l.Backbone.Short(), l.Session.String()[:8], decimal(uint64(l.Report)),
				decimal(uint64(l.Picks)), l.NKVR.String(), l.State, cmp.Or(l.Class, "unchecked"))
		}
		t.print(a.stdout)
		return nil
	})
}

// part says of which part of an account something is, in JSON; nothing where it is of all.
type part struct {
	Partial bool        `json:"partial,omitempty"`
	Since   time.Time   `json:"since,omitzero"`
	Before  ledger.Sums `json:"before,omitzero"`
}

func partOf(a *ledger.Account) part { return part{a.Partial, a.Since, a.Before} }

// partial is what an account says of that it is partial, a line; "" where it is not.
func partial(a *ledger.Account) string {
	if !a.Partial {
		return ""
	}
	return fmt.Sprintf("Partial: only what was signed%s. Before that: %v pending, %v settled, %v void%s.\n",
		sinceWhen(a), a.Before.Pending, a.Before.Settled, a.Before.Voided, waits(a.Before.Waiting))
}

func sinceWhen(a *ledger.Account) string {
	if !a.Partial {
		return ""
	}
	return " from " + a.Since.Format(time.RFC3339) + " on"
}

type walletExportCmd struct {
	Worker publicKey `arg:"" help:"Key of the worker, as kvasir wallet --json prints it." placeholder:"WORKER"`
	sinceFlag
	booksFlag
	JSON bool `help:"JSON in the place of CSV."`
}

// Help is printed by kvasir wallet export --help.
func (walletExportCmd) Help() string {
	return `Writes what a worker has earned, report by report with the sums, as CSV or JSON to standard output, signed by the key of this home's gateway. kvasir wallet verify checks such a file on any machine. Before it signs, the gateway verifies what it adds up: the signatures and the chains of all sessions of the worker, its transfers and its balances; where one is wrong it writes nothing and names the first that is, and the exit status is 1. With --since the file says that it is partial, and has the sums of what was signed before, as they are now.

Examples:

    kvasir wallet export WORKER > account.csv
    kvasir wallet export WORKER --json --since 2027-01-01T00:00:00Z > account.json`
}

// Run writes it.
func (c *walletExportCmd) Run(ctx context.Context, a *app) error {
	since, err := c.time()
	if err != nil {
		return err
	}
	now, err := a.clock()
	if err != nil {
		return err
	}
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		account, err := w.Proven(ctx, c.Worker.key(), since)
		if err != nil {
			return fmt.Errorf("nothing is signed: %w", err)
		}
		key, err := a.homeFolder().Key(seal.Gateway)
		if err != nil {
			return err
		}
		write := account.CSV
		if c.JSON {
			write = account.JSON
		}
		data, err := write(key, now())
		if err == nil {
			_, err = a.stdout.Write(data)
		}
		return err
	})
}

type walletVerifyCmd struct {
	File    string    `arg:"" help:"What kvasir wallet export has written." placeholder:"FILE"`
	Gateway publicKey `help:"Key of the gateway that is to have signed it." placeholder:"KEY"`
	jsonFlag
}

// Help is printed by kvasir wallet verify --help.
func (walletVerifyCmd) Help() string {
	return `Checks the signature and adds up the reports. It says which gateway has signed; with --gateway another one is an error, and the exit status is 1 then, as for a file that somebody has changed.

Examples:

    kvasir wallet verify account.csv
    kvasir wallet verify account.json --gateway KEY`
}

// maxExport is the most bytes of a file that is verified.
const maxExport = 1 << 29

// Run verifies.
func (c *walletVerifyCmd) Run(a *app) error {
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxExport+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if len(data) > maxExport {
		return fmt.Errorf("%s has more than %d bytes", c.File, maxExport)
	}
	account, err := ledger.VerifyExport(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if want := c.Gateway.key(); !want.IsZero() && want != account.Gateway {
		return fmt.Errorf("%s is signed by gateway %v, and not by %v", c.File, account.Gateway, want)
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Gateway string    `json:"gateway"`
			Worker  string    `json:"worker"`
			At      time.Time `json:"at"`
			Reports int       `json:"reports"`
			part
			amounts
		}{account.Gateway.String(), account.Worker.String(), account.At, len(account.Lines), partOf(&account),
			amounts{int64(account.Pending), int64(account.Settled), int64(account.Voided), int64(account.Waiting)}})
	}
	more := ""
	if account.Waiting > 0 {
		more = fmt.Sprintf(", and %v wait for a backbone's limit", account.Waiting)
	}
	a.stdout.printf("Signed by gateway %v at %s.\n%sWorker %v: %d reports, %v pending, %v settled, %v void%s.\n",
		account.Gateway, account.At.Format(time.RFC3339), partial(&account), account.Worker, len(account.Lines),
		account.Pending, account.Settled, account.Voided, more)
	return nil
}
