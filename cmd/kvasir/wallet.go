package main

import (
	"context"

	"kvasir/engine/ledger"
)

// walletCmd groups the commands on what workers have earned; kvasir wallet alone is show, also for --help.
type walletCmd struct {
	Show    walletShowCmd    `cmd:"" default:"withargs" help:"Print what workers have earned (the default)."`
	History walletHistoryCmd `cmd:"" help:"Print the reports that a worker was paid for."`
	Export  walletExportCmd  `cmd:"" help:"Write them as CSV or JSON, signed by this gateway."`
	Verify  walletVerifyCmd  `cmd:"" help:"Check such a file."`
}

type walletShowCmd struct {
	booksFlag
	jsonFlag
}

// Help is printed by kvasir wallet --help.
func (walletShowCmd) Help() string {
	return `What workers have earned, by their keys, as the gateway of this home folder has credited it. A unit is 1,000,000 bytes of expert output and earns 0.007 KVR. Pay is pending until the backbone has checked the work; then it settles, or is void if a row was wrong. kvasir ledger top sorts, kvasir ledger verify adds up. For one worker there are kvasir wallet history, which lists reports; export, which writes them to a file that the gateway signs; and verify, which checks such a file.

Examples:

    kvasir wallet show
    kvasir wallet history WORKER
    kvasir wallet export WORKER > account.csv
    kvasir wallet verify account.csv`
}

// walletRow is a worker in JSON.
type walletRow struct {
	Worker string `json:"worker"`
	Picks  int64  `json:"picks"`
	Units  string `json:"units"` // exact, in decimals
	amounts
	opinions
}

func walletRows(list []ledger.Balance) []walletRow {
	rows := []walletRow{}
	for _, b := range list {
		rows = append(rows, walletRow{b.Worker.String(), b.Picks, ledger.FormatUnits(b.Output), amountsOf(&b), opinions{b.Agreed, b.Disputed}})
	}
	return rows
}

func printWallets(s *screen, list []ledger.Balance) {
	if len(list) == 0 {
		s.printf("No work was credited yet.\n")
		return
	}
	t := table{
		head:  []string{"worker", "picks", "units", "pending", "settled", "void"},
		right: []bool{false, true, true, true, true, true},
	}
	var waiting ledger.NKVR
	for _, b := range list {
		t.add(b.Worker.Short(), decimal(uint64(b.Picks)), ledger.FormatUnits(b.Output), b.Pending.String(), b.Settled.String(), b.Voided.String())
		waiting += b.Waiting
	}
	t.print(s)
	if waiting > 0 {
		s.printf("\n%v more waits: the limit of its backbone is reached (kvasir ledger top).\n", waiting)
	}
}

// leftOut is what lists could not show, in JSON.
type leftOut struct {
	Damaged []string `json:"damaged,omitempty"`
}

func leftOutOf(w *ledger.Wallet) leftOut { return leftOut{w.Damaged()} }

// print says what is not in the lists above.
func (l leftOut) print(s *screen) {
	if len(l.Damaged) == 0 {
		return
	}
	s.printf("\nNot shown, for the file is damaged there: %s. kvasir ledger verify looks at all; put back a copy.\n",
		plural(len(l.Damaged), "row"))
	for _, what := range l.Damaged {
		s.printf("\n%s\n", oneLine(what))
	}
}

// Run prints the balances.
func (c *walletShowCmd) Run(ctx context.Context, a *app) error {
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		list, err := w.Balances(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return a.stdout.printJSON(struct {
				Workers []walletRow `json:"workers"`
				leftOut
			}{walletRows(list), leftOutOf(w)})
		}
		printWallets(a.stdout, list)
		leftOutOf(w).print(a.stdout)
		return nil
	})
}
