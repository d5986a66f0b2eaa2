package ledger

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"kvasir/wire/seal"
)

// Course is how far the reports of a session have come that is not over: what the backbone's next process needs to
// go on with its chain, and to decide what is pending in it.
type Course struct {
	Subject
	Hub       string
	Report    []byte // the newest that was signed; none: the session has begun
	Undecided int    // rows that were drawn and wait for a judge
	Lost      int    // rows that were drawn and will not be judged: others are to be right instead
	At        time.Time

	// Unsure says that what was kept is damaged but for the report: how many rows are undecided is not known.
	Unsure bool
}

// DrawnRow is a row that was drawn and is not decided. What it says is the backbone's alone.
type DrawnRow struct {
	ID     int64 // of the session
	Sealed []byte
}

// Step is a change of a session's course.
type Step struct {
	Course
	Drawn []DrawnRow // new ones
	Gone  []int64    // ids of those that are decided
	Over  bool       // nothing of the session is pending any more, and nothing will be
}

// Bounds of what an outbox keeps. Beyond MaxCourses the sessions are forgotten that have not changed for the longest
// time; beyond MaxDrawn a row is not kept, and counts as lost when the backbone is started anew.
const (
	MaxCourses = 1 << 14
	MaxDrawn   = 1 << 12
)

// code is what tells a course that was kept from one that a disk, or somebody, has changed.
func (c *Course) code(secret *[32]byte) []byte {
	h := hmac.New(sha256.New, secret[:])
	_, _ = fmt.Fprintf(h, "course 1 %s %q %s %x %x %d %x %d %d %d", c.Session, c.Hub, c.Worker, c.Model, c.Profile, c.Hidden,
		sha256.Sum256(c.Report), c.Undecided, c.Lost, c.At.UnixMilli()) // a hash takes all
	return h.Sum(nil)
}

// PutStep keeps how far a session has come, and with it, in one transaction, the item, whose report is the newest of
// the course; nil: there is none. The secret is the backbone's.
func (o *Outbox) PutStep(ctx context.Context, secret [32]byte, i *Item, s *Step) error {
	if i == nil {
		return o.file.update(ctx, func(t *tx) error { return s.enter(ctx, t, &secret) })
	}
	return o.put(ctx, *i, func(t *tx) error { return s.enter(ctx, t, &secret) })
}

// enter enters the step.
func (s *Step) enter(ctx context.Context, t *tx, secret *[32]byte) error {
	session := s.Session.String()
	if s.Over {
		if err := t.exec(ctx, "DELETE FROM drawn WHERE session = $1", session); err != nil {
			return err
		}
		return t.exec(ctx, "DELETE FROM courses WHERE session = $1", session)
	}
	for _, id := range s.Gone {
		if err := t.exec(ctx, "DELETE FROM drawn WHERE session = $1 AND id = $2", session, id); err != nil {
			return err
		}
	}
	if err := s.keepDrawn(ctx, t, session); err != nil {
		return err
	}
	err := t.exec(ctx, `INSERT INTO courses (session, hub, worker, model, profile, hidden, report, undecided, lost, at, code)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		ON CONFLICT (session) DO UPDATE SET report = excluded.report, undecided = excluded.undecided, lost = excluded.lost,
			at = excluded.at, code = excluded.code`,
		session, s.Hub, s.Worker.String(), s.Model.hex(), s.Profile.hex(), int64(s.Hidden), append([]byte{}, s.Report...),
		int64(s.Undecided), int64(s.Lost), s.At.UnixMilli(), s.code(secret))
	if err != nil {
		return err
	}
	var n int
	if err := t.QueryRowContext(ctx, "SELECT count(*) FROM courses").Scan(&n); err != nil || n <= MaxCourses {
		return err
	}
	const oldest = "(SELECT session FROM courses ORDER BY at, session LIMIT $1)"
	if err := t.exec(ctx, "DELETE FROM drawn WHERE session IN "+oldest, n-MaxCourses); err != nil {
		return err
	}
	return t.exec(ctx, "DELETE FROM courses WHERE session IN "+oldest, n-MaxCourses)
}

// keepDrawn keeps the new rows, as far as there is room.
func (s *Step) keepDrawn(ctx context.Context, t *tx, session string) error {
	if len(s.Drawn) == 0 {
		return nil
	}
	var n int
	if err := t.QueryRowContext(ctx, "SELECT count(*) FROM drawn").Scan(&n); err != nil {
		return err
	}
	for _, d := range s.Drawn[:min(len(s.Drawn), max(0, MaxDrawn-n))] {
		err := t.exec(ctx, "INSERT INTO drawn (session, id, sealed) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", session, d.ID, d.Sealed)
		if err != nil {
			return err
		}
	}
	return nil
}

// Courses returns the sessions that are not over, the oldest first. Of one that is not as it was kept the report
// counts where the backbone itself has signed it; without that the session is kept no longer. Both are in refused,
// by name.
func (o *Outbox) Courses(ctx context.Context, secret [32]byte, own seal.PublicKey) (all []Course, refused []error, err error) {
	var drop []any
	err = o.file.each(ctx, func(scan func(...any) error) error {
		var v [11]any // a damaged row may hold anything
		if err := scan(&v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10]); err != nil {
			return err
		}
		c, err := readCourse(v, &secret)
		if err != nil {
			o.refused.add(err)
			refused = append(refused, err)
			if !c.salvage(v, own) {
				drop = append(drop, v[0])
				return nil
			}
		}
		all = append(all, c)
		return nil
	}, `SELECT session, hub, worker, model, profile, hidden, report, undecided, lost, at, code FROM courses
		ORDER BY at, session LIMIT $1`, MaxCourses)
	if err != nil || len(drop) == 0 {
		return all, refused, err
	}
	return all, refused, o.file.update(ctx, func(t *tx) error {
		for _, session := range drop {
			for _, from := range []string{"drawn", "courses"} {
				if err := t.exec(ctx, "DELETE FROM "+from+" WHERE session = $1", session); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// readCourse makes a course of a row.
func readCourse(v [11]any, secret *[32]byte) (c Course, err error) {
	var text [5]string
	for i := range text {
		text[i], _ = v[i].(string)
	}
	code, _ := v[10].([]byte)
	damaged := fmt.Errorf("%w: how far session %.40q has come is not as it was kept", ErrDamaged, text[0])
	c.Hub = text[1]
	c.Report, _ = v[6].([]byte)
	if c.Session, err = ParseSessionID(text[0]); err != nil {
		return c, damaged
	}
	if c.Worker, err = seal.ParsePublicKey(text[2]); err != nil {
		return c, damaged
	}
	var number [4]int64
	whole := true
	for i, at := range []int{5, 7, 8, 9} {
		n, ok := v[at].(int64)
		number[i], whole = n, whole && ok && n >= 0 && (at == 9 || n <= MaxHidden)
	}
	model, merr := parseHash(text[3])
	profile, perr := parseHash(text[4])
	if !whole || merr != nil || perr != nil {
		return c, damaged
	}
	c.Model, c.Profile, c.Hidden = model, profile, int(number[0])
	c.Undecided, c.Lost, c.At = int(number[1]), int(number[2]), time.UnixMilli(number[3]).UTC()
	if !hmac.Equal(code, c.code(secret)) {
		return c, damaged
	}
	return c, nil
}

// salvage makes a course of the report alone, if the backbone has signed it, of the session that the row is of.
func (c *Course) salvage(v [11]any, own seal.PublicKey) bool {
	name, _ := v[0].(string)
	r, err := Verify(c.Report)
	if err != nil || r.Backbone != own || r.Session.String() != name || c.Hub == "" || len(c.Hub) > seal.MaxName {
		return false
	}
	*c = Course{Subject: r.Subject(), Hub: c.Hub, Report: c.Report, At: r.Time, Unsure: true}
	return true
}

// DrawnRows returns the rows of a session that are kept, MaxDrawn at most.
func (o *Outbox) DrawnRows(ctx context.Context, session SessionID) (all []DrawnRow, err error) {
	err = o.file.each(ctx, func(scan func(...any) error) error {
		var d DrawnRow
		var sealed any
		if err := scan(&d.ID, &sealed); err != nil {
			return err
		}
		d.Sealed, _ = sealed.([]byte) // what is none opens to nothing
		all = append(all, d)
		return nil
	}, "SELECT id, sealed FROM drawn WHERE session = $1 AND typeof(id) = 'integer' ORDER BY id LIMIT $2", session.String(), MaxDrawn)
	return all, err
}
