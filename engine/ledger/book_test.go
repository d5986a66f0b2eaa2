package ledger

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvasir/wire/seal"
)

// A page of a feed, of which a transaction knows by itself what it has gathered, leaves what single entries leave,
// each read from the database: every row of every table. There are reports that settle and void, early, forked and
// forged ones, statements, and a backbone that reaches its limit.
func TestAPageIsAsOneAfterAnother(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		key := seal.NewKey()
		s.workers[1] = key.Public()
		empty := temp(t)
		must(t, openWallet(t, empty, s).Close())
		run, runs := 0, 25
		if isURL(empty) {
			runs = 5
		}
		rapid.Check(t, func(rt *rapid.T) {
			if run++; run > runs && os.Getenv("KVASIR_SOAK") == "" {
				return // each entry waits for the disk
			}
			feed := mixedFeed(t, rt, s, key)
			limit := NKVR(rapid.SampledFrom([]int64{-1, 0, 5, 20}).Draw(rt, "limit")) * perPick
			var left [2][]string
			for i, most := range []int{1, PageMax} {
				place := copyOf(t, empty, walletFile)
				w := openWallet(t, place, s)
				if limit >= 0 {
					_, err := w.Grant(t.Context(), s.backbone.Public(), limit)
					must(t, err)
				}
				for n := 0; n < len(feed); n += most {
					most = min(most, max(1, len(feed)/2)) // two pages: the second begins with what the first has left
					moved, err := w.take(t.Context(), "hub", int64(n), w.verifyAll(feed[n:min(n+most, len(feed))]), &Polled{})
					must(t, err)
					if !moved {
						t.Fatal("the watermark is elsewhere")
					}
				}
				if limit >= 0 {
					_, err := w.Grant(t.Context(), s.backbone.Public(), 2*limit)
					must(t, err)
				}
				must(t, w.Verify(t.Context()))
				left[i] = dump(t, w)
				must(t, w.Close())
				if isURL(place) {
					spaces.give(t, place)
				}
			}
			if !slices.Equal(left[0], left[1]) {
				rt.Fatalf("pages leave other rows than single entries:\n%s", firstOther(left[0], left[1]))
			}
		})
	})
}

// mixedFeed is a feed of two sessions.
func mixedFeed(t *testing.T, rt *rapid.T, s *swarm, key seal.Key) (feed memory) {
	t.Helper()
	var reports [2][][]byte
	for n := range reports {
		r, holds := s.reporter(byte(n), n), int64(0)
		for i := range int64(rapid.IntRange(1, 8).Draw(rt, "reports")) {
			a := Audit{Mode: Sampled, Holds: rapid.Int64Range(holds, i+1).Draw(rt, "holds")}
			if rapid.IntRange(0, 9).Draw(rt, "wrong") == 0 {
				a.Checked, a.Wrong, a.Evidence = 1, 1, Hash{1}
			}
			holds = a.Holds
			reports[n] = append(reports[n], nextAudited(t, r, rapid.Int64Range(0, 4).Draw(rt, "picks"), a))
		}
	}
	fork := next(t, s.reporter(0, 0), 7)
	var next [2]int
	for range rapid.IntRange(1, 40).Draw(rt, "entries") {
		n := rapid.IntRange(0, 1).Draw(rt, "session")
		at := &next[n]
		e := Entry{ID: int64(len(feed) + 1), Grant: s.grant.String()}
		switch rapid.IntRange(0, 12).Draw(rt, "kind") {
		case 0, 10, 11, 12:
			e.Report = rapid.SampledFrom(reports[n]).Draw(rt, "any")
		case 1:
			e.Report = fork
		case 2:
			e.Report = slices.Clone(reports[n][0])
			e.Report[60] ^= 1
		case 3, 4:
			o := rapid.SampledFrom([]Opinion{Agree, Agree, TooFew}).Draw(rt, "opinion")
			e.Statement, e.Grant = stateOf(t, key, rapid.SampledFrom(reports[1]).Draw(rt, "of"), o), ""
		default:
			e.Report = reports[n][min(*at, len(reports[n])-1)]
			*at++
		}
		feed = append(feed, e)
	}
	return feed
}

// dump is every row of every table.
func dump(t *testing.T, w *Wallet) (all []string) {
	t.Helper()
	for _, table := range []string{"feeds", "limits", "accounts", "reports", "transfers", "refusals", "statements", "early"} {
		all = append(all, dumpOf(t, w, table)...)
	}
	return all
}

func dumpOf(t *testing.T, w *Wallet, table string) (all []string) {
	t.Helper()
	rows, err := w.file.db.QueryContext(t.Context(), "SELECT * FROM "+table)
	must(t, err)
	defer func() { must(t, rows.Close()) }()
	columns, err := rows.Columns()
	must(t, err)
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		must(t, rows.Scan(values...))
		text := table
		for i, v := range values {
			text += fmt.Sprintf(" %s=%v", columns[i], *v.(*any))
		}
		all = append(all, text)
	}
	must(t, rows.Err())
	slices.Sort(all)
	return all
}

func firstOther(a, b []string) string {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return fmt.Sprintf("%.400q\n%.400q", a[min(i, len(a)):min(i+1, len(a))], b[min(i, len(b)):min(i+1, len(b))])
		}
	}
	return ""
}

// A limit and a rate that are set in the transaction in which they were read hold from then on.
func TestWhatATransactionKnowsIsNotOld(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		r := s.reporter(1, 0)
		feed := s.entries(next(t, r, 1), next(t, r, 1))
		must(t, w.file.update(t.Context(), func(x *tx) error {
			ctx := t.Context()
			first := &entering{w: w, hub: "hub", after: 0, page: w.verifyAll(feed[:1])}
			if err := first.enter(ctx, x); err != nil {
				return err
			}
			if _, err := grant(ctx, x, s.backbone.Public(), perPick); err != nil {
				return err
			}
			second := &entering{w: w, hub: "hub", after: 1, page: w.verifyAll(feed[1:])}
			return second.enter(ctx, x)
		}))
		b, err := w.Balance(t.Context(), s.workers[0])
		must(t, err)
		if b.Pending != perPick || b.Waiting != perPick {
			t.Fatalf("%d nKVR are pending and %d wait, want %d each", b.Pending, b.Waiting, perPick)
		}
		must(t, w.Verify(t.Context()))
	})
}
