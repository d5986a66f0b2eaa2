// Package audit recomputes a share of what workers answer, and says who answers wrong.
//
//	answer of a worker --- which rows, is decided now and here ---> queue of its layer
//	64 rows of a layer ---> judge ---> the same bits? right : wrong, with the evidence
//	                                   or near enough, of class Close
//
// Which row is looked at is drawn after the answer is in, from a source that nobody else knows: of each
// Options.Every rows of a worker one, each as likely. A worker that is new, or whose word stands against
// another's, has every row looked at. So who answers a share p of rows wrong is found after n rows looked
// at with a chance of 1-(1-p)^n.
//
// A judge is the backbone's own model, whose word counts, or another worker. Where two workers disagree,
// nobody is wrong until a third has agreed with one of them.
//
// Memory and time are bounded: what does not fit into the queue is not looked at and counted as Skipped, and
// its turn is not decided before another row was looked at instead; in probation, where no row is to be wrong,
// those that fit are drawn. Between two groups the auditor rests, so that it takes a set share of the time.
package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// ErrJudge: a judge gave something that is no answer to what was asked.
var ErrJudge = errors.New("audit: judge gave no answer")

// Judge recomputes rows.
type Judge struct {
	Key     seal.PublicKey // of the worker that it is; zero: the backbone itself, which is believed
	Experts moe.Experts
}

// believed says that the judge's word needs no second.
func (j Judge) believed() bool { return j.Key.IsZero() }

// Finding is a row that a worker has answered wrong.
type Finding struct {
	Worker  seal.PublicKey
	Session int64 // Worker.ID of the answer; 0 where the worker was asked as a judge
	Class   Class // by which it was judged
	Row     Row
	Answer  Answer   // the worker's
	Right   Answer   // what it should have been
	Judges  []string // who says so
}

// Row is one row of a batch, with its picks.
type Row struct {
	Shape  moe.Shape
	Values moe.Row
	Expert []uint16
	Weight []float32
}

// Answer is the partial of one row.
type Answer struct {
	Status moe.Status
	Sum    []int64
}

func (a Answer) equal(o Answer) bool {
	if a.Status != o.Status || len(a.Sum) != len(o.Sum) {
		return false
	}
	for i, v := range a.Sum {
		if v != o.Sum[i] {
			return false
		}
	}
	return true
}

// Options are for New.
type Options struct {
	// Judge names somebody who can recompute rows of a layer and is none of not. It returns false when
	// there is nobody at present.
	Judge func(layer int, not []seal.PublicKey) (Judge, bool)
	// Found is told of every wrong row, from the goroutine of Run. It may be nil.
	Found func(Finding)
	// Trial is told of every worker whose probation begins anew, or ends, from many goroutines. It may be nil.
	Trial func(worker seal.PublicKey, on bool)

	Every     int           // rows of a worker of which one is looked at; 512
	Probation int           // rows of a new worker that are found right before Every holds; 512
	Group     int           // rows that are recomputed together; 64
	Hold      time.Duration // how long a row waits for its group; 10 s
	Expire    time.Duration // how long a row waits for a judge; 10 min
	Share     float64       // of one processor's time that judging takes; 0.02
	Bytes     int           // of rows that wait, at most; 64 MiB
	Seed      [32]byte      // of what is drawn; zero: from the system
}

// Auditor looks at the answers of any number of workers. It is safe for concurrent use.
type Auditor struct {
	o Options

	mu      sync.Mutex
	queues  map[moe.Shape][]*sample
	bytes   int   // of all samples, those being judged included
	sources int64 // Workers made so far
	wake    chan struct{}
}

// New returns an auditor whose Run judges.
func New(o Options) *Auditor {
	o.Every = cmp.Or(max(0, o.Every), 512)
	o.Probation = cmp.Or(max(0, o.Probation), 512)
	o.Group = min(cmp.Or(max(0, o.Group), 64), maxGroup)
	o.Hold = cmp.Or(max(0, o.Hold), 10*time.Second)
	o.Expire = cmp.Or(max(0, o.Expire), 10*time.Minute)
	o.Bytes = cmp.Or(max(0, o.Bytes), 64<<20)
	if o.Share <= 0 || o.Share > 1 {
		o.Share = 0.02
	}
	if o.Seed == [32]byte{} {
		_, _ = rand.Read(o.Seed[:]) // never returns an error
	}
	return &Auditor{o: o, queues: map[moe.Shape][]*sample{}, wake: make(chan struct{}, 1)}
}

// Run judges until ctx ends.
func (a *Auditor) Run(ctx context.Context) {
	for ctx.Err() == nil {
		group, wait := a.next(time.Now())
		if group == nil {
			a.pause(ctx, wait, true)
			continue
		}
		began := time.Now()
		a.judge(ctx, group)
		took := time.Since(began)
		a.pause(ctx, time.Duration(float64(took)*(1-a.o.Share)/a.o.Share), false)
	}
}

// pause waits, or until there is something new to do where that counts.
func (a *Auditor) pause(ctx context.Context, d time.Duration, listen bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	var wake <-chan struct{}
	if listen {
		wake = a.wake
	}
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// group is rows of one shape that go to one judge.
type group struct {
	shape   moe.Shape
	judge   Judge
	samples []*sample
}

// maxGroup bounds a group.
const maxGroup = 512

// next takes a group that is large enough, or has waited long enough, and for which there is a judge. If
// there is none it says how long to wait at most.
func (a *Auditor) next(now time.Time) (*group, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := a.o.Hold
	for shape, q := range a.queues {
		q = a.expire(q, now)
		a.queues[shape] = q
		if len(q) == 0 {
			delete(a.queues, shape)
			continue
		}
		if age := now.Sub(q[0].since); len(q) < a.o.Group && age < a.o.Hold {
			wait = min(wait, a.o.Hold-age)
			continue
		}
		judge, ok := a.o.Judge(shape.Layer, q[0].not())
		if !ok {
			wait = min(wait, time.Second) // and asked again
			continue
		}
		g := &group{shape: shape, judge: judge}
		rest := q[:0]
		for _, s := range q {
			if len(g.samples) < maxGroup && !s.involves(judge.Key) {
				g.samples = append(g.samples, s)
			} else {
				rest = append(rest, s)
			}
		}
		clear(q[len(rest):])
		a.queues[shape] = rest
		return g, 0
	}
	return nil, wait
}

// expire lets go of rows that nobody could judge. a.mu is held.
func (a *Auditor) expire(q []*sample, now time.Time) []*sample {
	rest := q[:0]
	for _, s := range q {
		if now.Sub(s.since) < a.o.Expire {
			rest = append(rest, s)
			continue
		}
		a.bytes -= s.size
		s.w.resolve(s, unknown)
	}
	clear(q[len(rest):])
	return rest
}

// judge recomputes a group and draws the conclusions.
func (a *Auditor) judge(ctx context.Context, g *group) {
	out, err := recompute(ctx, g)
	if ctx.Err() != nil {
		return
	}
	for i, s := range g.samples {
		if err != nil {
			s.failed = append(s.failed, g.judge.Key)
			if g.judge.believed() || len(s.failed) > maxJudges {
				a.done(s, unknown)
			} else {
				a.again(s)
			}
			continue
		}
		a.weigh(s, g.judge, Answer{Status: out.Status[i], Sum: out.Row(i)})
	}
}

// recompute has a group's judge compute its rows.
func recompute(ctx context.Context, g *group) (*moe.Partials, error) {
	picks := 0
	for _, s := range g.samples {
		picks += len(s.row.Expert)
	}
	b, err := moe.NewBatch(g.shape, len(g.samples), picks)
	if err != nil {
		return nil, err
	}
	b.Reset(g.shape.Layer)
	for _, s := range g.samples {
		r := b.Row(b.Grow(s.row.Expert, s.row.Weight))
		copy(r.Q, s.row.Values.Q)
		copy(r.Scales, s.row.Values.Scales)
		copy(r.F, s.row.Values.F)
	}
	out := &moe.Partials{}
	if err := g.judge.Experts.Forward(ctx, b, out); err != nil {
		return nil, err
	}
	if out.Rows != b.Rows || out.Hidden != b.Hidden {
		return nil, fmt.Errorf("%w: %d rows of %d values for %d of %d", ErrJudge, out.Rows, out.Hidden, b.Rows, b.Hidden)
	}
	return out, nil
}

// weigh compares a judge's answer with those that there are.
func (a *Auditor) weigh(s *sample, j Judge, said Answer) {
	votes := append(slices.Clone(s.votes), vote{judge: j, said: said})
	agree := s.class.agrees(s.answer, said, len(s.row.Expert))
	with := -1
	for i, o := range s.votes {
		if o.said.equal(said) {
			with = i
		}
	}
	switch {
	case agree:
		a.blame(s, said, votes)
		a.done(s, right)
	case j.believed() || with >= 0:
		a.blame(s, said, votes)
		a.found(Finding{Worker: s.w.key, Session: s.w.id, Class: s.class, Row: s.row, Answer: s.answer, Right: said, Judges: names(votes, said)})
		a.done(s, wrong)
	case len(votes) >= maxJudges:
		a.done(s, unknown)
	default:
		votes[len(votes)-1].said.Sum = slices.Clone(said.Sum)
		s.votes = votes
		s.w.suspect()
		a.again(s)
	}
}

// maxJudges is how many may disagree about a row before it is left undecided.
const maxJudges = 4

// blame finds those judges wrong who said something else.
func (a *Auditor) blame(s *sample, truth Answer, votes []vote) {
	for _, v := range votes {
		if !v.said.equal(truth) {
			a.found(Finding{Worker: v.judge.Key, Row: s.row, Answer: v.said, Right: truth, Judges: names(votes, truth)})
		}
	}
}

func names(votes []vote, said Answer) (all []string) {
	for _, v := range votes {
		switch {
		case !v.said.equal(said):
		case v.judge.believed():
			all = append(all, "backbone")
		default:
			all = append(all, v.judge.Key.Short())
		}
	}
	return all
}

func (a *Auditor) found(f Finding) {
	if a.o.Found != nil {
		f.Right.Sum = slices.Clone(f.Right.Sum)
		a.o.Found(f)
	}
}

// again puts a row back into its queue, for another judge.
func (a *Auditor) again(s *sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queues[s.row.Shape] = append([]*sample{s}, a.queues[s.row.Shape]...)
}

// done takes a row out.
func (a *Auditor) done(s *sample, v verdict) {
	a.mu.Lock()
	a.bytes -= s.size
	a.mu.Unlock()
	s.w.resolve(s, v)
}

// add puts a row into its queue; it returns false when there is no room. A row of one in probation, all of
// whose rows come, leaves half of the room to the others.
func (a *Auditor) add(s *sample, all bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	limit := a.o.Bytes
	if all {
		limit /= 2
	}
	if a.bytes+s.size > limit {
		return false
	}
	a.bytes += s.size
	a.queues[s.row.Shape] = append(a.queues[s.row.Shape], s)
	if n := len(a.queues[s.row.Shape]); n == 1 || n == a.o.Group {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// room is the bytes that there are for rows of those in probation.
func (a *Auditor) room() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.o.Bytes/2-a.bytes)
}

// Waiting is how many rows wait for a judge, and how many bytes they take.
func (a *Auditor) Waiting() (rows, bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.queues {
		rows += len(q)
	}
	return rows, a.bytes
}
