package ledger

import (
	"slices"
	"testing"
)

// schema4 makes a database of the present schema one of the schema in which a transfer had two rows of entries.
const schema4 = `DROP VIEW entries;
	ALTER TABLE transfers RENAME TO moved;
	CREATE TABLE transfers (id BIGINT PRIMARY KEY, report BIGINT NOT NULL REFERENCES reports (id), kind TEXT NOT NULL, UNIQUE (report, kind));
	CREATE TABLE entries (id BIGINT PRIMARY KEY, transfer BIGINT NOT NULL REFERENCES transfers (id),
		account BIGINT NOT NULL REFERENCES accounts (id), nkvr BIGINT NOT NULL, UNIQUE (transfer, account));
	INSERT INTO transfers SELECT row_number() OVER (ORDER BY report, kind), report, kind FROM moved;
	INSERT INTO entries SELECT 2 * t.id, t.id, m.debited, -m.nkvr FROM transfers t JOIN moved m ON m.report = t.report AND m.kind = t.kind;
	INSERT INTO entries SELECT 2 * t.id + 1, t.id, m.credited, m.nkvr FROM transfers t JOIN moved m ON m.report = t.report AND m.kind = t.kind;
	DROP TABLE moved;
	DROP INDEX reports_of_worker;
	CREATE INDEX reports_worker ON reports (worker, verdict);
	CREATE INDEX reports_pending ON reports (backbone, session, sequence) WHERE verdict = 'pending';
	DELETE FROM goose_db_version WHERE version_id = 5;`

// Books that an older program has written say the same to this one, and go on.
func TestBooksOfAnOlderSchemaSayTheSame(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		path := temp(t)
		if isURL(path) {
			spaces.keep(path)
		}
		w := openWallet(t, path, s)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		feed := s.entries(next(t, a, 1), next(t, b, 10), nextAudited(t, a, 0, holds(1)), nextAudited(t, b, 20, wrongRow(0)), nextAudited(t, a, 4, holds(1)))
		poll(t, w, feed[:4])
		want := dump(t, w)
		run(t, w, schema4)
		must(t, w.Close())
		w = openWallet(t, path, s)
		must(t, w.Verify(t.Context()))
		if got := dump(t, w); !slices.Equal(got, want) {
			t.Fatalf("other rows:\n%s", firstOther(got, want))
		}
		poll(t, w, feed)
		wantPending(t, w, s.workers, 4*perPick, 0)
	})
}

// What was wrong in books of an older schema is found in them when they are of the present one.
func TestWhatIsWrongInOlderBooksIsFound(t *testing.T) {
	both(t, func(t *testing.T) {
		for name, damage := range map[string]string{
			"one entry":          "UPDATE entries SET nkvr = nkvr + 1 WHERE id = 3",
			"the other entry":    "UPDATE entries SET nkvr = nkvr - 1 WHERE id = 2",
			"entry gone":         "DELETE FROM entries WHERE id = 3",
			"two of one account": "UPDATE entries SET account = 4 WHERE id = 2",
			"entry of nothing":   "UPDATE entries SET nkvr = -nkvr WHERE transfer = 1",
		} {
			t.Run(name, func(t *testing.T) {
				s := newSwarm(t, 2)
				path := temp(t)
				if isURL(path) {
					spaces.keep(path)
				}
				w := openWallet(t, path, s)
				poll(t, w, s.entries(next(t, s.reporter(1, 0), 1), next(t, s.reporter(2, 1), 10)))
				run(t, w, schema4)
				run(t, w, "INSERT INTO accounts (id, kind, owner, balance) VALUES (4, 'settled', 'nobody', 0)")
				run(t, w, damage)
				must(t, w.Close())
				wantError(t, openWallet(t, path, s).Verify(t.Context()), ErrUnbalanced)
			})
		}
	})
}
