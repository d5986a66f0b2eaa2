package ledger

import (
	"context"
	"fmt"
)

const (
	// aheadPages is how many verified pages wait for the transaction before them to end, and how many one takes at most.
	aheadPages = 8
	// runPages is after how many pages at most the hub is told how far the wallet has come.
	runPages = 64
)

// ahead is a page that was read before the one before it is on the disk.
type ahead struct {
	after Mark
	page  []verified
	last  bool   // the hub had no more
	why   error  // there is no page
	back  string // why, where the feed went backwards
}

// run reads a piece of a feed from the watermark on, and enters it; more says that there may be more of it.
//
//	read, verify:   page 1 | page 2 | page 3 | page 4 | ...
//	transactions:            page 1 | pages 2, 3 | ...
//
// Only the first page is asked for with the hash of the entry before it, which tells the hub that a wallet has all
// up to there. Those that are read ahead follow on what is not stored yet, and the next run tells of them.
func (w *Wallet) run(ctx context.Context, hub string, feed Feed, sum *Polled) (more bool, err error) {
	at, err := w.watermark(ctx, hub)
	if err != nil {
		return false, err
	}
	first := w.ahead(ctx, hub, feed, at, at)
	if len(first.page) == 0 || first.last {
		_, err := w.enter(ctx, hub, sum, first)
		return len(first.page) > 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan ahead, aheadPages)
	go func() {
		defer close(pages)
		for n, p := 1, first; n < runPages && len(p.page) > 0 && !p.last; n++ {
			end := p.page[len(p.page)-1]
			p = w.ahead(ctx, hub, feed, Mark{ID: end.ID}, Mark{end.ID, end.mark()})
			select {
			case pages <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { // the goroutine ends before run does
		cancel()
		for range pages { // what was read ahead is read again
		}
	}()
	for p, open := first, true; open; p, open = <-pages {
		group := []ahead{p}
		for len(group) < aheadPages {
			select {
			case p, open = <-pages:
				if open {
					group = append(group, p)
					continue
				}
			default:
			}
			break
		}
		if more, err = w.enter(ctx, hub, sum, group...); err != nil || !more {
			return err == nil, err
		}
	}
	return true, nil
}

// ahead reads and verifies the page after an entry, of which asked is what the hub is told.
func (w *Wallet) ahead(ctx context.Context, hub string, feed Feed, asked, after Mark) ahead {
	a := ahead{after: after}
	page, err := feed.After(ctx, asked, PageMax)
	switch {
	case err != nil:
		a.why = err
		return a
	case page.Last < after.ID:
		a.back = fmt.Sprintf("has %d entries, %d were read", page.Last, after.ID)
		return a
	}
	if err := page.check(after.ID, PageMax); err != nil {
		a.why = fmt.Errorf("hub %s: %w", hub, err)
		return a
	}
	if len(page.Seen) != 0 && after.Hash != (Hash{}) && Hash(page.Seen) != after.Hash {
		a.back = fmt.Sprintf("has another entry %d than was read", after.ID)
		return a
	}
	a.page = w.verifyAll(page.Entries)
	a.last = len(page.Entries) == 0 || page.Entries[len(page.Entries)-1].ID == page.Last
	return a
}

// enter enters pages that follow on each other in one transaction, up to the first that there is not; on says that
// what comes after them may be entered.
func (w *Wallet) enter(ctx context.Context, hub string, sum *Polled, group ...ahead) (on bool, err error) {
	var all []verified
	for _, p := range group {
		if len(p.page) == 0 {
			break
		}
		all = append(all, p.page...)
	}
	if len(all) > 0 {
		if on, err = w.take(ctx, hub, group[0].after.ID, all, sum); err != nil || !on {
			return false, err
		}
	}
	switch last := &group[len(group)-1]; {
	case last.back != "":
		return false, w.rewind(ctx, hub, last.after.ID, last.back)
	case last.why != nil:
		return false, last.why
	}
	return on, nil
}
