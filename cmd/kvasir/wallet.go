package main

import (
	"context"
	"errors"

	"kvasir/engine/ledger"
)

type walletCmd struct{ jsonFlag }

// Help is printed by kvasir wallet --help.
func (walletCmd) Help() string {
	return `What workers have earned, by their keys, as the gateway of this home folder has credited it. A unit is 1,000,000 bytes of expert output and earns 0.007 KVR. Pay is pending until the work is checked, and nothing checks it yet.

Example:

    kvasir wallet`
}

// walletRow is a worker in JSON.
type walletRow struct {
	Worker  string `json:"worker"`
	Picks   int64  `json:"picks"`
	Units   string `json:"units"` // exact, in decimals
	Pending int64  `json:"pending_nkvr"`
	Settled int64  `json:"settled_nkvr"`
}

// Run prints the balances.
func (c *walletCmd) Run(ctx context.Context, a *app) (err error) {
	w, err := a.homeFolder().Wallet(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	list, err := w.Balances(ctx)
	if err != nil {
		return err
	}
	rows := []walletRow{}
	t := table{head: []string{"worker", "picks", "units", "pending", "settled"}, right: []bool{false, true, true, true, true}}
	for _, b := range list {
		rows = append(rows, walletRow{b.Worker.String(), b.Picks, ledger.FormatUnits(b.Output), int64(b.Pending), int64(b.Settled)})
		t.add(b.Worker.Short(), decimal(uint64(b.Picks)), ledger.FormatUnits(b.Output), b.Pending.String(), b.Settled.String())
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Workers []walletRow `json:"workers"`
		}{rows})
	}
	if len(rows) == 0 {
		a.stdout.printf("No work was credited yet.\n")
		return nil
	}
	t.print(a.stdout)
	return nil
}
