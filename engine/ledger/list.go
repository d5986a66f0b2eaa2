package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"kvasir/wire/seal"
)

// oddities are rows that lists have left out, for a column of them cannot be read.
type oddities struct {
	mu   sync.Mutex
	rows []string // what is wrong with each, in one line
}

// oddMax is how many rows are told apart. Where so many are damaged, one more makes no difference.
const oddMax = 1024

// list runs a query of a list, and calls row for each of its rows: row returns of whom it is, as far as it knows.
// A row with a column that cannot be read is left out, named, logged once and counted once.
func (w *Wallet) list(ctx context.Context, of string, row func(scan func(...any) error) (seal.PublicKey, error), query string, args ...any) error {
	return w.file.each(ctx, func(scan func(...any) error) error {
		key, err := row(scan)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if inner := errors.Unwrap(err); strings.HasPrefix(err.Error(), "sql: Scan error") && inner != nil {
			err = inner
		}
		what := of
		if !key.IsZero() { // else the error is about it, and has it
			what += " " + key.String()
		}
		w.leaveOut(fmt.Sprintf("%s: %v", what, oneLine{err}))
		return nil
	}, query, args...)
}

func (w *Wallet) leaveOut(what string) {
	w.odd.mu.Lock()
	defer w.odd.mu.Unlock()
	if len(w.odd.rows) == oddMax || slices.Contains(w.odd.rows, what) {
		return
	}
	w.odd.rows = append(w.odd.rows, what)
	w.refused.add(ErrDamaged)
	w.log.Warn("a row of the wallets is damaged and left out of lists; see kvasir ledger verify", "row", what)
}

// Damaged returns what Balances, Debts and Disputes have left out since the wallets were opened, a line each: of
// what it is, and what is wrong with it.
func (w *Wallet) Damaged() []string {
	w.odd.mu.Lock()
	defer w.odd.mu.Unlock()
	return slices.Clone(w.odd.rows)
}
