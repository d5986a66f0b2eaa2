package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// ledgerCmd groups the commands on the books of a gateway, and on what a backbone has found.
type ledgerCmd struct {
	Verify    ledgerVerifyCmd    `cmd:"" help:"Add up all the books, and find the first entry that is wrong."`
	Top       ledgerTopCmd       `cmd:"" help:"Print who has earned most, and who owes it."`
	Grant     ledgerGrantCmd     `cmd:"" help:"Set how much a backbone may owe."`
	Rate      ledgerRateCmd      `cmd:"" help:"Print what work earns, or set it from a time on."`
	Convicted ledgerConvictedCmd `cmd:"" help:"List the workers whose answers were found wrong here."`
	Pardon    ledgerPardonCmd    `cmd:"" help:"Let such a worker in again."`
}

// Help is printed by kvasir ledger --help.
func (ledgerCmd) Help() string {
	return `A gateway keeps the books: what backbones have signed is pending for the worker and debited to the backbone; it settles when the backbone says that the rows it recomputed were right, and is void when one was wrong. A backbone keeps who was found wrong, with the evidence.

Examples:

    kvasir ledger verify
    kvasir ledger grant BACKBONE 100`
}

// booksFlag says where the ledger of a hub is, and the wallets of a gateway.
type booksFlag struct {
	Books databaseURL `help:"PostgreSQL database of ledger and wallets, which several hubs and gateways share (default: files in --home)." placeholder:"URL"`
}

// books opens the wallets, and closes them.
func (a *app) books(ctx context.Context, at booksFlag, do func(*ledger.Wallet) error) (err error) {
	w, err := a.homeFolder().Wallet(ctx, string(at.Books))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return do(w)
}

type ledgerVerifyCmd struct {
	booksFlag
	jsonFlag
}

// Help is printed by kvasir ledger verify --help.
func (ledgerVerifyCmd) Help() string {
	return `Checks every signature, the chain of every session, every transfer and every balance, and says which is the first that is wrong; the exit status is 1 then.

Example:

    kvasir ledger verify`
}

// Run verifies.
func (c *ledgerVerifyCmd) Run(ctx context.Context, a *app) error {
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		if err := w.Verify(ctx); err != nil {
			return err
		}
		list, err := w.Balances(ctx)
		if err != nil {
			return err
		}
		var sum ledger.Balance
		for _, b := range list {
			sum.Reports += b.Reports
			sum.Pending += b.Pending
			sum.Settled += b.Settled
			sum.Voided += b.Voided
			sum.Waiting += b.Waiting
			sum.Agreed += b.Agreed
			sum.Disputed += b.Disputed
		}
		if c.JSON {
			return a.stdout.printJSON(struct {
				Workers int   `json:"workers"`
				Reports int64 `json:"reports"`
				amounts
				opinions
			}{len(list), sum.Reports, amountsOf(&sum), opinions{sum.Agreed, sum.Disputed}})
		}
		a.stdout.printf("The books balance: %s, %s, %v pending, %v settled, %v void%s.\n",
			plural(len(list), "worker"), plural(int(sum.Reports), "report"), sum.Pending, sum.Settled, sum.Voided, waits(sum.Waiting))
		a.stdout.printf("Countersigned by their workers: %s. Disputed: %s.\n", plural(int(sum.Agreed), "report"), decimal(uint64(sum.Disputed)))
		if sum.Disputed == 0 {
			return nil
		}
		rows, err := w.Disputes(ctx, maxDisputes)
		if err != nil {
			return err
		}
		a.stdout.printf("\n")
		disputeTable(rows).print(a.stdout)
		return nil
	})
}

// waits is what a sum says of pay that no backbone may owe yet; "" where there is none.
func waits(n ledger.NKVR) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %v waits for a limit", n)
}

// maxDisputes is how many disputes are printed.
const maxDisputes = 20

// opinions of workers on what was signed for them, in JSON.
type opinions struct {
	Agreed   int64 `json:"countersigned"` // reports
	Disputed int64 `json:"disputed"`
}

// disputeRow is a dispute in JSON.
type disputeRow struct {
	Worker   string `json:"worker"`
	Backbone string `json:"backbone"`
	Session  string `json:"session"`
	Report   int64  `json:"report"`
	Why      string `json:"why"`
	Signed   int64  `json:"signed_picks"`   // in the session, up to this report
	Answered int64  `json:"answered_picks"` // as the worker says
}

func disputeRows(list []ledger.Dispute) []disputeRow {
	rows := []disputeRow{}
	for _, d := range list {
		rows = append(rows, disputeRow{
			d.Worker.String(), d.Backbone.String(), d.Session.String(), d.Sequence, d.Opinion.String(), d.Signed, d.Answered,
		})
	}
	return rows
}

func disputeTable(list []ledger.Dispute) *table {
	t := &table{
		head:  []string{"disputed by", "backbone", "session", "report", "signed picks", "answered", "why"},
		right: []bool{false, false, false, true, true, true, false},
	}
	for _, d := range list {
		t.add(d.Worker.Short(), d.Backbone.Short(), d.Session.String()[:8], decimal(uint64(d.Sequence)), decimal(uint64(d.Signed)),
			decimal(uint64(d.Answered)), d.Opinion.String())
	}
	return t
}

// amounts of a worker, in JSON.
type amounts struct {
	Pending int64 `json:"pending_nkvr"`
	Settled int64 `json:"settled_nkvr"`
	Voided  int64 `json:"voided_nkvr"`
	Waiting int64 `json:"waiting_nkvr"` // beyond what the backbone may owe
}

func amountsOf(b *ledger.Balance) amounts {
	return amounts{int64(b.Pending), int64(b.Settled), int64(b.Voided), int64(b.Waiting)}
}

type ledgerTopCmd struct {
	N count `short:"n" help:"How many (default ${default})." placeholder:"N" default:"20"`
	booksFlag
	jsonFlag
}

// Help is printed by kvasir ledger top --help.
func (ledgerTopCmd) Help() string {
	return `The workers that have earned most, all backbones with what they owe and may owe, the reports that workers dispute because the backbone has signed other picks than they have counted, and what hubs have shown that was not credited, with the reason.

Example:

    kvasir ledger top -n 5`
}

// debtRow is a backbone in JSON.
type debtRow struct {
	Backbone string `json:"backbone"`
	Owed     int64  `json:"owed_nkvr"`
	Limit    *int64 `json:"limit_nkvr,omitempty"`
	Waiting  int64  `json:"waiting_nkvr"`
}

// Run prints them.
func (c *ledgerTopCmd) Run(ctx context.Context, a *app) error {
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		list, err := w.Balances(ctx)
		if err != nil {
			return err
		}
		debts, err := w.Debts(ctx)
		if err != nil {
			return err
		}
		slices.SortStableFunc(list, func(a, b ledger.Balance) int {
			return -compare(a.Pending+a.Settled, b.Pending+b.Settled)
		})
		list = list[:min(len(list), int(c.N))]
		disputes, err := w.Disputes(ctx, int(c.N))
		if err != nil {
			return err
		}
		refused, err := w.Refusals(ctx, int(c.N))
		if err != nil {
			return err
		}
		rows := []debtRow{}
		t := table{head: []string{"backbone", "owes", "may owe", "waiting"}, right: []bool{false, true, true, true}}
		for _, d := range debts {
			r := debtRow{Backbone: d.Backbone.String(), Owed: int64(d.Owed), Waiting: int64(d.Waiting)}
			limit := "anything"
			if d.Limit >= 0 {
				r.Limit, limit = new(int64), d.Limit.String()
				*r.Limit = int64(d.Limit)
			}
			rows = append(rows, r)
			t.add(d.Backbone.Short(), d.Owed.String(), limit, d.Waiting.String())
		}
		if c.JSON {
			return a.stdout.printJSON(struct {
				Workers   []walletRow  `json:"workers"`
				Backbones []debtRow    `json:"backbones"`
				Disputes  []disputeRow `json:"disputes"`
				Refused   []refusedRow `json:"refused"`
				leftOut
			}{walletRows(list), rows, disputeRows(disputes), refusedRows(refused), leftOutOf(w)})
		}
		printWallets(a.stdout, list)
		if len(debts) > 0 {
			a.stdout.printf("\n")
			t.print(a.stdout)
		}
		if len(disputes) > 0 {
			a.stdout.printf("\n")
			disputeTable(disputes).print(a.stdout)
		}
		if len(refused) > 0 {
			a.stdout.printf("\nNot credited:\n")
		}
		for _, r := range refused {
			a.stdout.printf("\nentry %d of hub %s: %s\n", r.Entry, r.Hub, oneLine(r.Reason))
		}
		leftOutOf(w).print(a.stdout)
		return nil
	})
}

// refusedRow is what a hub has shown that was not credited, in JSON.
type refusedRow struct {
	Hub    string `json:"hub"`
	Entry  int64  `json:"entry"` // of its feed
	Reason string `json:"reason"`
}

func refusedRows(list []ledger.Refusal) []refusedRow {
	rows := []refusedRow{}
	for _, r := range list {
		rows = append(rows, refusedRow{r.Hub, r.Entry, r.Reason})
	}
	return rows
}

func compare(a, b ledger.NKVR) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// kvr is an amount, such as 0.5.
type kvr ledger.NKVR

// UnmarshalText reads an amount in KVR with up to nine decimals.
func (k *kvr) UnmarshalText(text []byte) error {
	whole, part, _ := strings.Cut(string(text), ".")
	n, err := strconv.ParseUint(whole, 10, 32)
	var nano uint64
	if err == nil {
		nano, err = strconv.ParseUint((part + "000000000")[:9], 10, 32)
	}
	if err != nil || len(part) > 9 {
		return fmt.Errorf("want an amount of KVR such as 12 or 0.5, at most %d, with up to nine decimals; got %q", math.MaxUint32, text)
	}
	*k = kvr(int64(n)*int64(ledger.KVR) + int64(nano))
	return nil
}

type ledgerGrantCmd struct {
	Backbone publicKey `arg:"" help:"Key of the backbone, as kvasir ledger top --json prints it."`
	Limit    kvr       `arg:"" help:"KVR that it may owe."`
	booksFlag
}

// Help is printed by kvasir ledger grant --help.
func (ledgerGrantCmd) Help() string {
	return `Every credit of a worker debits the backbone that has signed for the work. Without a limit it may owe anything. With one, what it signs beyond it is kept and waits, and is credited when the limit is raised. A limit may be set before the first report comes, and holds from that one on: of a key that the books have not seen, or know as a worker's, a line says so.

Example:

    kvasir ledger grant BACKBONE 100`
}

// Run sets the limit.
func (c *ledgerGrantCmd) Run(ctx context.Context, a *app) error {
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		key := c.Backbone.key()
		signs, works, err := w.Seen(ctx, key)
		if err != nil {
			return err
		}
		credited, err := w.Grant(ctx, key, ledger.NKVR(c.Limit))
		if err != nil {
			return err
		}
		a.stdout.printf("%s may owe %v. Of what had waited, %v is credited.\n", key.Short(), ledger.NKVR(c.Limit), credited)
		switch {
		case !signs && works:
			a.stderr.printf("kvasir: %s is the key of a worker, and has signed no report as a backbone: the limit holds from its first one on\n", key)
		case !signs:
			a.stderr.printf("kvasir: no report of %s has come yet: the limit holds from its first one on; if that was meant for another backbone, kvasir ledger top --json prints the keys\n", key)
		}
		return nil
	})
}

type ledgerRateCmd struct {
	Rate  string `arg:"" optional:"" help:"nKVR that a byte of expert output earns. Default: print the rates." placeholder:"NKVR"`
	Since string `help:"From when on (default: now)." placeholder:"2027-01-31T00:00:00Z"`
	booksFlag
	jsonFlag
}

// Help is printed by kvasir ledger rate --help.
func (ledgerRateCmd) Help() string {
	return `A pick earns by the bytes of an expert's output, counted as float32: hidden x 4 bytes, at 7 nKVR a byte at first. A rate holds for what is signed from its time on; what was credited stays what it is.

Examples:

    kvasir ledger rate
    kvasir ledger rate 8 --since 2027-01-31T00:00:00Z`
}

// rateRow is a rate in JSON.
type rateRow struct {
	Since time.Time `json:"since"`
	Rate  int64     `json:"nkvr_per_byte"`
}

// Run prints or sets the rate.
func (c *ledgerRateCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	p := ledger.Price{Since: now().Add(time.Millisecond)}
	if c.Since != "" {
		if p.Since, err = time.Parse(time.RFC3339, c.Since); err != nil {
			return usagef("--since: want a time such as 2027-01-31T00:00:00Z, got %q", c.Since)
		}
	}
	if c.Rate == "" && c.Since != "" {
		return usagef("--since: of which rate?")
	}
	if c.Rate != "" {
		n, err := strconv.ParseInt(c.Rate, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt32 {
			return usagef("want whole nKVR a byte, 0 to %d, got %q", math.MaxInt32, c.Rate)
		}
		p.Rate = ledger.NKVR(n)
	}
	return a.books(ctx, c.booksFlag, func(w *ledger.Wallet) error {
		if c.Rate != "" {
			if err := w.SetRate(ctx, p); err != nil {
				return err
			}
		}
		list, err := w.Rates(ctx)
		if err != nil {
			return err
		}
		rows := []rateRow{}
		t := table{head: []string{"since", "nKVR a byte"}, right: []bool{false, true}}
		for _, p := range list {
			rows = append(rows, rateRow{p.Since, int64(p.Rate)})
			since := "the beginning"
			if p.Since.UnixMilli() > 0 {
				since = p.Since.Format(time.RFC3339)
			}
			t.add(since, decimal(uint64(p.Rate)))
		}
		if c.JSON {
			return a.stdout.printJSON(struct {
				Rates []rateRow `json:"rates"`
			}{rows})
		}
		t.print(a.stdout)
		return nil
	})
}

type ledgerConvictedCmd struct{ jsonFlag }

// Help is printed by kvasir ledger convicted --help.
func (ledgerConvictedCmd) Help() string {
	return `Workers of whose answers the backbone of this home has found a row wrong. They are not let in any more, nor is who comes by the token of such a worker: it may be the same one with another key. The evidence, which is the row and both answers, lies in the home folder for 90 days, encrypted to the backbone's key.

Example:

    kvasir ledger convicted`
}

// convictedRow is a worker in JSON.
type convictedRow struct {
	Worker   string    `json:"worker"`
	At       time.Time `json:"at"`
	Evidence string    `json:"evidence"` // name of the file
}

// Run lists them.
func (c *ledgerConvictedCmd) Run(a *app) error {
	list, err := a.homeFolder().OpenCourt(seal.Key{}, nil).Convicted()
	if err != nil {
		return err
	}
	rows := []convictedRow{}
	t := table{head: []string{"worker", "at", "evidence"}, right: []bool{false, false, false}}
	for _, v := range list {
		evidence := fmt.Sprintf("%x", v.Evidence)
		rows = append(rows, convictedRow{v.Worker.String(), v.At, evidence})
		t.add(v.Worker.String(), v.At.Format(time.RFC3339), evidence[:12])
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Convicted []convictedRow `json:"convicted"`
		}{rows})
	}
	if len(rows) == 0 {
		a.stdout.printf("Nobody was convicted here.\n")
		return nil
	}
	t.print(a.stdout)
	return nil
}

type ledgerPardonCmd struct {
	Worker publicKey `arg:"" help:"Key of the worker, as kvasir ledger convicted prints it."`
}

// Help is printed by kvasir ledger pardon --help.
func (ledgerPardonCmd) Help() string {
	return `Its token is good again too, unless another that was convicted had it. What was void stays void, and the evidence stays until it is 90 days old.

Example:

    kvasir ledger pardon WORKER`
}

// Run pardons.
func (c *ledgerPardonCmd) Run(a *app) error {
	if err := a.homeFolder().OpenCourt(seal.Key{}, nil).Pardon(c.Worker.key()); err != nil {
		return err
	}
	a.stdout.printf("%s is let in again.\n", c.Worker.key().Short())
	return nil
}
