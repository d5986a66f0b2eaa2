package audit

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// sample is a row that is looked at.
type sample struct {
	w      *Worker
	class  Class
	id     int64 // of w
	turn   int64
	must   bool // it is to be right, or another instead, also where its worker is in probation
	since  time.Time
	row    Row
	answer Answer
	votes  []vote           // of judges that are not believed, and disagree with the answer and each other
	failed []seal.PublicKey // judges that gave no answer
	size   int              // bytes
}

type vote struct {
	judge Judge
	said  Answer
}

// not is who may not judge a row: who has answered it already.
func (s *sample) not() []seal.PublicKey {
	all := append([]seal.PublicKey{s.w.key}, s.failed...)
	for _, v := range s.votes {
		all = append(all, v.judge.Key)
	}
	return all
}

func (s *sample) involves(k seal.PublicKey) bool { return !k.IsZero() && slices.Contains(s.not(), k) }

type verdict uint8

const (
	right verdict = iota
	wrong
	unknown // nobody could say
)

// Counts are of rows.
type Counts struct {
	Rows    int64 // answered
	Checked int64 // recomputed, and found right or wrong
	Wrong   int64
	Skipped int64 // should have been looked at, and were not: no room, or no judge in time; others are instead
}

// Record is how far a worker is known: how many rows were found right in all its sessions. It outlives a session,
// so that what was pending when one ended is decided in the next.
type Record struct {
	good  atomic.Int64 // since its probation began, as far as that asks
	right atomic.Int64 // in all

	mu   sync.Mutex // after Worker.mu
	owed []debt     // maxOwed at most; under mu
}

// debt is a row of a turn that could not be looked at: another one is to be right instead, of the same session or
// of a later one.
type debt struct {
	w    *Worker
	turn int64
}

// owe notes a debt. Where there are too many the turn is never decided.
func (r *Record) owe(d debt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) < maxOwed {
		r.owed = append(r.owed, d)
	}
}

// Owed is how many rows are to be right instead of those that could not be looked at.
func (r *Record) Owed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.owed)
}

// debt returns the oldest one, which is then the caller's.
func (r *Record) debt() (d debt, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) == 0 {
		return debt{}, false
	}
	d = r.owed[0]
	r.owed = r.owed[1:]
	return d, true
}

// NewRecord returns a record of rows found right: since the probation began, and in all.
func NewRecord(good int, right int64) *Record {
	r := &Record{}
	r.good.Store(int64(good))
	r.right.Store(right)
	return r
}

// Good is how many rows were found right since the probation began, as far as that asks.
func (r *Record) Good() int64 { return r.good.Load() }

// Right is how many rows were found right in all.
func (r *Record) Right() int64 { return r.right.Load() }

// Fall begins the probation anew.
func (r *Record) Fall() { r.good.Store(0) }

// found notes a right row, and reports whether it was the last that was wanted.
func (r *Record) found(want int) bool {
	r.right.Add(1)
	for {
		n := r.good.Load()
		if n >= int64(want) {
			return false
		}
		if r.good.CompareAndSwap(n, n+1) {
			return n+1 == int64(want)
		}
	}
}

// Worker is one session of a worker: its answers come in here. It is safe for concurrent use.
type Worker struct {
	a     *Auditor
	id    int64
	key   seal.PublicKey
	rec   *Record
	class Class

	mu      sync.Mutex
	random  *rand.ChaCha8
	left    int               // rows of the present window that are still to come
	at      int               // the row that is looked at is so many rows away
	turn    int64             // the present one, from 1
	open    []int             // rows that wait, and owed ones, of each turn from the first open one on
	owed    int               // rows that could not be looked at: for each another row is
	waits   map[int64]*sample // by their ids
	samples int64             // made so far
	first   int64             // turn of open[0]
	through int64             // turns before and with this one are decided, and were outside probation
	counts  Counts
	taken   Counts // that a Turn has told
}

// Worker begins a session of a worker with the record of those before.
func (a *Auditor) Worker(key seal.PublicKey, rec *Record) *Worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sources++
	seed := a.o.Seed
	binary.LittleEndian.PutUint64(seed[:], binary.LittleEndian.Uint64(seed[:])^uint64(a.sources))
	return &Worker{
		a: a, id: a.sources, key: key, random: rand.NewChaCha8(seed), rec: rec, turn: 1, first: 1, open: []int{0},
		waits: map[int64]*sample{},
	}
}

// Compare has the session's answers compared as a class is. It is called before any comes in; Exact unless told
// otherwise. The judges of one that is Close are believed only if they are exact.
func (w *Worker) Compare(c Class) { w.class = c }

// Class is how the session's answers are compared.
func (w *Worker) Class() Class { return w.class }

// ID tells sessions apart.
func (w *Worker) ID() int64 { return w.id }

// Probation says that every row is looked at, and nothing is decided yet.
func (w *Worker) Probation() bool { return w.rec.good.Load() < int64(w.a.o.Probation) }

// Right is how many rows of the worker were found right, in all its sessions.
func (w *Worker) Right() int64 { return w.rec.Right() }

// Wanted is how many more rows are to be found right before the probation ends; 0: it has.
func (w *Worker) Wanted() int { return max(0, w.a.o.Probation-int(w.rec.Good())) }

// fall begins a probation, if none is under way.
func (w *Worker) fall() {
	if w.rec.good.Swap(0) >= int64(w.a.o.Probation) && w.a.o.Trial != nil {
		w.a.o.Trial(w.key, true)
	}
}

// Answer looks at some rows of an answer, of which nothing is kept. Rows that the worker could not
// compute are not looked at: they earn nothing.
func (w *Worker) Answer(b *moe.Batch, out *moe.Partials) {
	room := 0
	if w.Probation() {
		room = w.a.room()
	}
	rows, all := w.draw(b, out.Status[:b.Rows], room)
	for _, r := range rows {
		w.take(b, out, r, all)
	}
}

// drawn is a row that is to be looked at, for a turn of a session.
type drawn struct {
	row  int
	owed bool // the turn's own row could not be
	debt
}

// draw decides which rows are taken; all says that every row is, as far as there is room, in bytes.
func (w *Worker) draw(b *moe.Batch, status []moe.Status, room int) (rows []drawn, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = w.Probation()
	debts := w.rec.Owed()
	for r, s := range status {
		if s == moe.Wide {
			continue
		}
		w.counts.Rows++
		if all {
			rows = append(rows, drawn{r, false, debt{w, w.turn}})
			continue
		}
		if w.left == 0 {
			w.left = w.a.o.Every
			w.at = int(rand.New(w.random).Uint64N(uint64(w.left)))
		}
		if w.at == 0 {
			rows = append(rows, drawn{r, false, debt{w, w.turn}})
		}
		if debts > 0 && w.random.Uint64()%uint64(w.a.o.Every) < owedRate {
			if d, ok := w.rec.debt(); ok {
				rows = append(rows, drawn{r, true, d})
			}
			debts--
		}
		w.at--
		w.left--
	}
	if all {
		w.left = 0 // a window begins when probation ends
		rows = w.fit(b, rows, room)
	}
	for _, d := range rows {
		if !d.owed { // which is open since its own row was drawn
			*w.slot(d.turn)++
		}
	}
	return rows, all
}

// owedRate is how many rows more of a window are drawn, about, while there are rows that could not be looked at.
// Where all of a window are drawn, one may stand for one of those too.
const owedRate = 4

// maxOwed bounds what is remembered of those of a worker.
const maxOwed = 1 << 16

// fit leaves so many of the rows as a quarter of the room is for, each as likely, and one at least: whoever hopes
// that nobody looks once the queue is full hopes in vain. w.mu is held.
func (w *Worker) fit(b *moe.Batch, rows []drawn, room int) []drawn {
	fits := max(1, room/sizeOf(b)/4)
	if len(rows) <= fits {
		return rows
	}
	w.counts.Skipped += int64(len(rows) - fits)
	rand.New(w.random).Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	return rows[:fits]
}

// sizeOf is the bytes that a row of a batch takes, with its answer, about.
func sizeOf(b *moe.Batch) int {
	return 10*b.Hidden + 6*(len(b.Expert)/max(1, b.Rows)) + sampleBytes
}

func (w *Worker) take(b *moe.Batch, out *moe.Partials, d drawn, all bool) {
	v := b.Row(d.row)
	expert, weight := b.Picks(d.row)
	s := &sample{
		w: d.w, class: w.class, since: time.Now(), turn: d.turn, must: d.owed,
		row: Row{
			Shape:  b.Shape,
			Values: moe.Row{Format: v.Format, Q: slices.Clone(v.Q), Scales: slices.Clone(v.Scales), F: slices.Clone(v.F)},
			Expert: slices.Clone(expert), Weight: slices.Clone(weight),
		},
		answer: Answer{Status: out.Status[d.row], Sum: slices.Clone(out.Row(d.row))},
	}
	s.await(d.owed)
	if !w.a.add(s, all) {
		s.w.resolve(s, unknown)
	}
}

// await has a row wait for its verdict; paid says that it is one for a debt.
func (s *sample) await(paid bool) {
	v := &s.row.Values
	s.size = len(v.Q) + 4*len(v.Scales) + 4*len(v.F) + 6*len(s.row.Expert) + 8*len(s.answer.Sum) + sampleBytes
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples++
	s.id = w.samples
	w.waits[s.id] = s
	if paid {
		w.owed--
	}
}

// sampleBytes is what a sample takes beside its values, about.
const sampleBytes = 400

// suspect has every row looked at: somebody disagrees.
func (w *Worker) suspect() { w.fall() }

// resolve notes what has become of a row.
func (w *Worker) resolve(s *sample, v verdict) {
	w.mu.Lock()
	delete(w.waits, s.id)
	if v == unknown && (s.must || !w.Probation()) {
		w.owe(s.turn) // another row is to be right instead: nothing that was not checked is paid
	} else {
		*w.slot(s.turn)--
	}
	switch v {
	case right:
		w.counts.Checked++
	case wrong:
		w.counts.Checked++
		w.counts.Wrong++
	case unknown:
		w.counts.Skipped++
	}
	w.mu.Unlock()
	switch {
	case v == wrong:
		w.fall()
	case v == right && w.rec.found(w.a.o.Probation) && w.a.o.Trial != nil:
		w.a.o.Trial(w.key, false)
	}
}

// owe notes that a row of a turn could not be looked at. w.mu is held.
func (w *Worker) owe(turn int64) {
	w.owed++
	w.rec.owe(debt{w, turn})
}

// Turn ends a turn, that which a receipt is about.
type Turn struct {
	Counts          // since the turn before
	Through   int64 // every row that was drawn in turns up to this one is decided
	Probation bool  // nothing is paid yet
}

// Turn returns what is new since the last one, and begins another.
func (w *Worker) Turn() Turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := Turn{Counts: Counts{
		Rows: w.counts.Rows - w.taken.Rows, Checked: w.counts.Checked - w.taken.Checked,
		Wrong: w.counts.Wrong - w.taken.Wrong, Skipped: w.counts.Skipped - w.taken.Skipped,
	}}
	w.taken = w.counts
	w.turn++
	w.open = append(w.open, 0)
	t.Probation = w.Probation()
	if !t.Probation {
		n := 0
		for n < len(w.open)-1 && w.open[n] == 0 {
			n++
		}
		w.open = append(w.open[:0], w.open[n:]...)
		w.first += int64(n)
		w.through = w.first - 1
	}
	t.Through = w.through
	return t
}

// Open is how many rows were drawn and wait for a judge.
func (w *Worker) Open() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, rows := range w.open {
		n += rows
	}
	return n - w.owed
}

// Undecided reports whether Turns before this one are not yet told to be decided.
func (w *Worker) Undecided() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first < w.turn
}

// Decided reports whether all rows that were drawn are found right or wrong, or others instead, and the probation is
// over: a Turn would tell that all turns before it are decided.
func (w *Worker) Decided() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, rows := range w.open {
		if rows > 0 {
			return false
		}
	}
	return !w.Probation()
}

// News reports whether a Turn would tell something that the last one did not, beside rows.
func (w *Worker) News() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	more := w.counts.Checked != w.taken.Checked || w.counts.Skipped != w.taken.Skipped
	return more || !w.Probation() && w.first < w.turn && w.open[0] == 0
}

// Counts returns all that was counted so far.
func (w *Worker) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}
