package ledger

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// marked has a hub's marks on the entries of a feed that is in pages of a size, and says what was seen before.
func marked(feed memory, size int) feedFunc {
	for i := range feed {
		feed[i].Mark = newMark()
	}
	return func(ctx context.Context, at Mark, _ int) (Page, error) {
		page, err := feed.After(ctx, at, size)
		if at.ID > 0 && at.ID <= int64(len(feed)) {
			page.Seen = feed[at.ID-1].Mark
		}
		return page, err
	}
}

func longFeed(t *testing.T, s *swarm, reports int) memory {
	t.Helper()
	r := s.reporter(1, 0)
	var all [][]byte
	for range reports {
		all = append(all, next(t, r, 1))
	}
	return s.entries(all...)
}

// Pages are read ahead of what is stored, but the hub is told of what is stored alone.
func TestAHubIsToldOfWhatIsStoredAlone(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		const all = runPages + 10 // pages: a run and a piece
		feed := marked(longFeed(t, s, all), 1)
		var told []int64
		asked := 0
		sum := poll(t, w, feedFunc(func(ctx context.Context, at Mark, limit int) (Page, error) {
			asked++
			if at.Hash != (Hash{}) {
				stored, err := w.watermark(ctx, "hub")
				if err != nil || stored != at {
					t.Errorf("the hub is told of %+v, stored is %+v (%v)", at, stored, err)
				}
				told = append(told, at.ID)
			}
			return feed(ctx, at, limit)
		}))
		if want := []int64{runPages, all}; sum.Credited != all || asked != all+1 || !slices.Equal(told, want) {
			t.Errorf("%d credited, asked %d times, the hub was told of %v, want %v", sum.Credited, asked, told, want)
		}
	})
}

// What was read before a page that cannot be read, or before a feed that went back, is credited.
func TestWhatWasReadBeforeAPageThatFailsIsCredited(t *testing.T) {
	both(t, func(t *testing.T) {
		gone := errors.New("the hub is gone")
		for name, c := range map[string]struct {
			change func(*Page) error
			want   error
			at     int64 // the watermark in the end
		}{
			"gone":            {func(*Page) error { return gone }, gone, 9},
			"another's":       {func(p *Page) error { p.Seen = newMark(); return nil }, ErrFeedBack, 0},
			"shorter":         {func(p *Page) error { *p = Page{Last: 8}; return nil }, ErrFeedBack, 0},
			"no page":         {func(p *Page) error { p.Entries[0].ID = 1; return nil }, ErrBadPage, 9},
			"nothing":         {func(p *Page) error { p.Entries = nil; return nil }, ErrBadPage, 9},
			"too much":        {func(p *Page) error { p.Entries = make([]Entry, PageMax+1); return nil }, ErrBadPage, 9},
			"ends suddenly":   {func(p *Page) error { p.Entries, p.Last = nil, 9; return nil }, nil, 18},
			"nobody was left": {func(*Page) error { return context.Canceled }, context.Canceled, 9},
		} {
			t.Run(name, func(t *testing.T) {
				s := newSwarm(t, 1)
				w := openWallet(t, temp(t), s)
				feed := marked(longFeed(t, s, 18), 3)
				once := false
				sum, err := w.Poll(t.Context(), "hub", feedFunc(func(ctx context.Context, at Mark, limit int) (Page, error) {
					page, err := feed(ctx, at, limit)
					if at.ID == 9 && !once {
						once, page.Entries = true, slices.Clone(page.Entries)
						err = errors.Join(err, c.change(&page))
					}
					return page, err
				}))
				wantError(t, err, c.want)
				at, err := w.watermark(t.Context(), "hub")
				must(t, err)
				if at.ID != c.at || sum.Credited < 9 {
					t.Errorf("%d are credited, the watermark is %+v, want %d", sum.Credited, at, c.at)
				}
				poll(t, w, feed)
				wantPending(t, w, s.workers, 18*perPick)
			})
		}
	})
}
