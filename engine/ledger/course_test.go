package ledger

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// course is a session with its newest report.
func (s *swarm) course(n byte, report []byte) Course {
	r := s.reporter(n, 0)
	return Course{
		Subject: Subject{Session: r.next.Session, Worker: r.next.Worker, Model: r.next.Model, Profile: r.next.Profile, Hidden: r.next.Hidden},
		Hub:     "hub", Report: report, At: epoch.Add(time.Duration(n) * time.Second),
	}
}

// TestACourseIsKeptWithItsReport keeps sessions from their beginning to their end, and reads them after each step.
func TestACourseIsKeptWithItsReport(t *testing.T) {
	s := newSwarm(t, 1)
	secret := [32]byte{1}
	path := filepath.Join(t.TempDir(), "outbox.db")
	o := openOutbox(t, path)
	want := func(n int, courses ...Course) {
		t.Helper()
		must(t, o.Close())
		o = openOutbox(t, path)
		all, refused, err := o.Courses(t.Context(), secret, s.backbone.Public())
		must(t, err)
		if len(refused) != 0 || len(all) != len(courses) || len(all) > 0 && !reflect.DeepEqual(all, courses) {
			t.Fatalf("kept %+v; refused %v; want %+v", all, refused, courses)
		}
		waiting, err := o.Waiting(t.Context())
		must(t, err)
		if waiting != n {
			t.Fatalf("%d reports are kept, want %d", waiting, n)
		}
	}
	one := s.course(1, nil)
	must(t, o.PutStep(t.Context(), secret, nil, &Step{Course: one}))
	want(0, one)
	r := s.reporter(1, 0)
	one.Report, one.Undecided, one.Lost = next(t, r, 5), 2, 1
	item := func() *Item { return &Item{Hub: "hub", Grant: s.grant, Report: one.Report} }
	must(t, o.PutStep(t.Context(), secret, item(), &Step{Course: one, Drawn: []DrawnRow{{1, []byte("a")}, {2, []byte("b")}}}))
	want(1, one)
	two := s.course(2, next(t, s.reporter(2, 0), 7))
	must(t, o.PutStep(t.Context(), secret, nil, &Step{Course: two}))
	one.Report, one.Undecided = next(t, r, 6), 2
	step := Step{Course: one, Drawn: []DrawnRow{{3, []byte("c")}}, Gone: []int64{1}}
	must(t, o.PutStep(t.Context(), secret, item(), &step))
	must(t, o.PutStep(t.Context(), secret, item(), &step)) // again
	want(2, one, two)
	rows, err := o.DrawnRows(t.Context(), one.Session)
	must(t, err)
	if !reflect.DeepEqual(rows, []DrawnRow{{2, []byte("b")}, {3, []byte("c")}}) {
		t.Errorf("rows %v", rows)
	}
	must(t, o.PutStep(t.Context(), secret, nil, &Step{Course: one, Over: true}))
	want(2, two)
	if rows, err = o.DrawnRows(t.Context(), one.Session); err != nil || len(rows) != 0 {
		t.Errorf("rows %v of what is over, error %v", rows, err)
	}
}

// TestDamagedCoursesAreRefusedByName changes each column: what the backbone itself has signed counts, and nothing else.
func TestDamagedCoursesAreRefusedByName(t *testing.T) {
	s := newSwarm(t, 1)
	secret := [32]byte{1}
	for _, c := range []struct {
		spoil string
		kept  bool // the report
	}{
		{"UPDATE courses SET lost = 0", true},
		{"UPDATE courses SET undecided = -1", true},
		{"UPDATE courses SET undecided = 'x'", true},
		{"UPDATE courses SET hidden = 1 << 40", true},
		{"UPDATE courses SET model = 'xyz'", true},
		{"UPDATE courses SET at = 0", true},
		{"UPDATE courses SET code = x''", true},
		{fmt.Sprintf("UPDATE courses SET worker = '%s'", seal.NewKey().Public()), true},
		{"UPDATE courses SET worker = 'nobody'", true},
		{"UPDATE courses SET hub = ''", false},
		{"UPDATE courses SET report = x''", false},
		{"UPDATE courses SET report = substr(report, 1, 200)", false},
		{fmt.Sprintf("UPDATE courses SET session = '%s'", SessionID{9}), false},
		{"UPDATE courses SET session = 'nothing'", false},
		{"UPDATE courses SET session = x'0102'", false},
	} {
		o := openOutbox(t, filepath.Join(t.TempDir(), "outbox.db"))
		one := s.course(1, next(t, s.reporter(1, 0), 5))
		one.Undecided, one.Lost = 3, 2
		must(t, o.PutStep(t.Context(), secret, nil, &Step{Course: one, Drawn: []DrawnRow{{1, []byte("a")}}}))
		_, err := o.file.db.ExecContext(t.Context(), c.spoil)
		must(t, err)
		all, refused, err := o.Courses(t.Context(), secret, s.backbone.Public())
		must(t, err)
		if len(refused) != 1 || !errors.Is(refused[0], ErrDamaged) || !strings.Contains(refused[0].Error(), "session ") || strings.Contains(refused[0].Error(), "\n") {
			t.Errorf("%s: refused %v", c.spoil, refused)
		}
		want := one
		want.Undecided, want.Lost, want.At, want.Unsure = 0, 0, epoch, true
		if c.kept != (len(all) == 1) || c.kept && !reflect.DeepEqual(all[0], want) {
			t.Errorf("%s: kept %+v, want %v, %+v", c.spoil, all, c.kept, want)
		}
		again, refused, err := o.Courses(t.Context(), secret, s.backbone.Public())
		if must(t, err); len(again) != len(all) || c.kept != (len(refused) == 1) {
			t.Errorf("%s: the second time %d, refused %v", c.spoil, len(again), refused)
		}
	}
}

// TestCoursesAreBounded keeps more rows than there is room for.
func TestCoursesAreBounded(t *testing.T) {
	s := newSwarm(t, 1)
	o := openOutbox(t, filepath.Join(t.TempDir(), "outbox.db"))
	many := make([]DrawnRow, MaxDrawn+3)
	for i := range many {
		many[i] = DrawnRow{int64(i + 1), []byte{1}}
	}
	must(t, o.PutStep(t.Context(), [32]byte{}, nil, &Step{Course: s.course(1, nil), Drawn: many}))
	must(t, o.PutStep(t.Context(), [32]byte{}, nil, &Step{Course: s.course(2, nil), Drawn: many}))
	for n, want := range map[byte]int{1: MaxDrawn, 2: 0} {
		rows, err := o.DrawnRows(t.Context(), SessionID{n})
		if must(t, err); len(rows) != want {
			t.Errorf("session %d: %d rows, want %d", n, len(rows), want)
		}
	}
}

// TestTheHubTellsItsNewestReportToWhoContradictsIt has a backbone come with an old copy of what it knows.
func TestTheHubTellsItsNewestReportToWhoContradictsIt(t *testing.T) {
	s := newSwarm(t, 1)
	h := openHub(t, filepath.Join(t.TempDir(), "hub.db"))
	r, old := s.reporter(1, 0), s.reporter(1, 0)
	first := next(t, r, 1)
	var newest []byte
	give := func(report []byte) Given {
		t.Helper()
		g, err := h.Receive(t.Context(), Item{Grant: s.grant, Report: report})
		must(t, err)
		return g
	}
	give(first)
	for range 3 {
		newest = next(t, r, 1)
		give(newest)
	}
	must(t, old.Resume(first))
	g := give(next(t, old, 9))
	told, err := hex.DecodeString(g.Newest)
	if must(t, err); g.Refused == "" || !reflect.DeepEqual(told, newest) {
		t.Fatalf("%+v, want the newest report", g)
	}
	must(t, old.Resume(told))
	if g = give(next(t, old, 9)); g.Refused != "" || !g.Fresh || g.Newest != "" {
		t.Errorf("what follows on it: %+v", g)
	}
	wantError(t, s.reporter(2, 0).Resume(first), ErrWrongSession)
	wantError(t, old.Resume(first[:200]), ErrBadReport)
}
