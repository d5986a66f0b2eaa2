package ledger

import (
	"context"
	"fmt"
	"time"
)

// Price is what a byte of output earns from a time on.
type Price struct {
	Since time.Time
	Rate  NKVR
}

// SetRate has bytes of reports that are signed from a time on earn another rate. What was credited stays
// what it is: a rate cannot hold from before the newest report.
func (w *Wallet) SetRate(ctx context.Context, p Price) error {
	since := p.Since.UnixMilli()
	if p.Rate < 0 || p.Rate > MaxRate || since < 1 || since >= maxMillis {
		return fmt.Errorf("%w: %d nKVR a byte, want 0 to %d", ErrRate, int64(p.Rate), MaxRate)
	}
	return w.file.update(ctx, func(t *tx) error {
		var last int64 // the first time that is free
		err := t.QueryRowContext(ctx, `SELECT max(last) FROM (SELECT max(since) + 1 AS last FROM rates
			UNION ALL SELECT coalesce(max(at), 0) + 1 FROM reports) AS times`).Scan(&last)
		if err != nil {
			return err
		}
		if since < last {
			return fmt.Errorf("%w: there are reports or a rate of a later time; the first time that is free is %s",
				ErrRate, time.UnixMilli(last).UTC().Format(time.RFC3339Nano))
		}
		t.know().rates = nil
		return t.exec(ctx, "INSERT INTO rates (since, nkvr) VALUES ($1, $2)", since, int64(p.Rate))
	})
}

// Rates returns all rates, the newest first.
func (w *Wallet) Rates(ctx context.Context) (all []Price, err error) {
	err = w.file.each(ctx, func(scan func(...any) error) error {
		var since int64
		var p Price
		if err := scan(&since, &p.Rate); err != nil {
			return err
		}
		p.Since = time.UnixMilli(since).UTC()
		all = append(all, p)
		return nil
	}, "SELECT since, nkvr FROM rates ORDER BY since DESC")
	return all, err
}
