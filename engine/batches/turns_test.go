package batches

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/engine/serve"
)

// orderly is an echo that notes, for each prompt, which batch and group it is of.
type orderly struct {
	*echo
	mu    sync.Mutex
	order []string
}

func (o *orderly) Answer(ctx context.Context, path string, body []byte, stamp serve.Stamp) (int, []byte) {
	_, label, _ := strings.Cut(string(body), `"prompt":"`)
	label, _, _ = strings.Cut(label, " ")
	o.mu.Lock()
	if !slices.Contains(o.order, label) {
		o.order = append(o.order, label)
	}
	o.mu.Unlock()
	return o.echo.Answer(ctx, path, body, stamp)
}

// began waits until so many lines have begun.
func (o *orderly) awaitBegun(t *testing.T, n int32) {
	t.Helper()
	for o.began.Load() < n {
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("%d lines have begun, want %d", o.began.Load(), n)
		}
	}
}

// groups are the lines of so many groups, whose prompts begin with batch and group.
func groups(batch string, n int) string {
	return input(n*groupLines, func(i int) string { return fmt.Sprintf("%s%d %d", batch, i/groupLines, i) })
}

// TestBatchesTakeTurns begins batches while others are computed, on a node that computes one group at a time:
// who comes later has every second group from then on, and neither waits until the other has ended.
func TestBatchesTakeTurns(t *testing.T) { kinds(t, testBatchesTakeTurns) }

func testBatchesTakeTurns(t *testing.T, kind string) {
	o := &orderly{echo: holding()}
	dir := folder(t, kind)
	s, err := Open(t.Context(), dir, Options{Answerer: o, Now: fixed, Groups: 1, Database: databaseOf(t, dir), beat: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	a := create(t, s, groups("a", 5))
	for range groupLines {
		o.hold <- struct{}{}
	}
	o.awaitBegun(t, 2*groupLines) // a1 is under way
	b := create(t, s, groups("b", 3))
	for range 2 * groupLines {
		o.hold <- struct{}{}
	}
	o.awaitBegun(t, 4*groupLines) // a1 and b0 are done, a2 is under way
	c := create(t, s, groups("c", 2))
	close(o.hold)
	for _, id := range []string{a.ID, b.ID, c.ID} {
		if got := wait(t, s, id); got.Status != Completed || got.Completed != got.Total {
			t.Errorf("%+v", got)
		}
	}
	if got, want := strings.Join(o.order, " "), "a0 a1 b0 a2 b1 c0 a3 b2 c1 a4"; got != want {
		t.Errorf("the order of groups is\n%s, want\n%s", got, want)
	}
}

// TestGroupThatWasHeldUpHasItsTurn lets the database be away while a group is computed.
func TestGroupThatWasHeldUpHasItsTurn(t *testing.T) { kinds(t, testGroupThatWasHeldUpHasItsTurn) }

func testGroupThatWasHeldUpHasItsTurn(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	held := holding()
	s.o.Answerer = held
	id := create(t, s, groups("a", 3)).ID
	for held.began.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	// As River leaves a group that is to be tried again: behind all that ever were.
	_, err := s.db.ExecContext(t.Context(), "UPDATE river_job SET scheduled_at = $1 WHERE queue = $2 AND state = 'available'",
		s.db.time(time.Now().Add(-time.Second)), s.groupQueue())
	if err != nil {
		t.Fatal(err)
	}
	for late := 1; late > 0; {
		err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM river_job WHERE queue = $1 AND state = 'available' AND scheduled_at > $2",
			s.groupQueue(), s.db.time(turnsEnd)).Scan(&late)
		if err != nil {
			t.Fatal(err)
		}
	}
	close(held.hold)
	wait(t, s, id)
}

// TestNodesOfOtherModelsLeaveABatchAlone opens one store with two models, one after the other.
func TestNodesOfOtherModelsLeaveABatchAlone(t *testing.T) {
	kinds(t, testNodesOfOtherModelsLeaveABatchAlone)
}

func testNodesOfOtherModelsLeaveABatchAlone(t *testing.T, kind string) {
	dir := folder(t, kind)
	open := func(model string, e *echo) *Store {
		s, err := Open(t.Context(), dir, Options{Answerer: e, Model: model, Now: fixed, Groups: 2, Database: databaseOf(t, dir), beat: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := holding()
	s := open("one", first)
	id := begin(t, s, first)
	closeStore(t, s)
	other := newEcho()
	s = open("two", other)
	mine := wait(t, s, create(t, s, input(40, numbered)).ID)
	if b, err := s.Batch(t.Context(), id); err != nil || b.Done() || b.Completed != 10 || b.Model != "one" {
		t.Errorf("%v: %+v", err, b)
	}
	if n := other.began.Load(); n != 40 || mine.Completed != 40 {
		t.Errorf("%d lines were computed with the other model, want its own 40", n)
	}
	closeStore(t, s)
	s = open("one", newEcho())
	defer closeStore(t, s)
	if b := wait(t, s, id); b.Status != Completed || b.Completed != 100 {
		t.Errorf("%+v", b)
	}
}

// TestAnswersOfOneFileAreTheSameBytes begins two batches over a file, at different times.
func TestAnswersOfOneFileAreTheSameBytes(t *testing.T) { kinds(t, testAnswersOfOneFileAreTheSameBytes) }

func testAnswersOfOneFileAreTheSameBytes(t *testing.T, kind string) {
	dir, now := folder(t, kind), at
	s, err := Open(t.Context(), dir, Options{Answerer: stamped{}, Now: func() time.Time { return now }, Database: databaseOf(t, dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	f, err := s.AddFile(t.Context(), "in.jsonl", "batch", strings.NewReader(input(3, numbered)))
	if err != nil {
		t.Fatal(err)
	}
	var got [2]string
	for i := range got {
		b, err := s.Create(t.Context(), Work{Input: f.ID, Endpoint: "/v1/completions"})
		if err != nil {
			t.Fatal(err)
		}
		got[i] = text(t, s, wait(t, s, b.ID).Output)
		now = now.Add(time.Hour)
	}
	if got[0] != got[1] || !strings.Contains(got[0], fmt.Sprintf(`"created":%d`, at.Unix())) {
		t.Errorf("one file, and the answers\n%s%s", got[0], got[1])
	}
}

// stamped answers with the second that it is told.
type stamped struct{}

func (stamped) Check(string, []byte) *serve.Problem { return nil }

func (stamped) Answer(_ context.Context, _ string, _ []byte, stamp serve.Stamp) (int, []byte) {
	return http.StatusOK, fmt.Appendf(nil, `{"created":%d}`, stamp.Created.Unix())
}

// BenchmarkLine is what a line costs besides its computing.
func BenchmarkLine(b *testing.B) {
	s, err := Open(b.Context(), b.TempDir(), Options{Answerer: stamped{}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // it is measured, not tested
	f, err := s.AddFile(b.Context(), "in.jsonl", "batch", strings.NewReader(input(min(b.N, MaxLines), numbered)))
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	w, err := s.Create(b.Context(), Work{Input: f.ID, Endpoint: "/v1/completions"})
	if err != nil {
		b.Fatal(err)
	}
	for !w.Done() {
		time.Sleep(time.Millisecond)
		if w, err = s.Batch(b.Context(), w.ID); err != nil {
			b.Fatal(err)
		}
	}
}
