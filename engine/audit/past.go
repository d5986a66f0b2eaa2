package audit

import (
	"time"

	"kvasir/wire/seal"
)

// Drawn is a row that was drawn and is not decided, as it is kept beyond the process.
type Drawn struct {
	ID     int64 `json:"-"` // of its session
	Class  Class
	Row    Row
	Answer Answer
}

// Past is what is known of a session of a process before, whose turns have all ended.
type Past struct {
	Turns   int64   // that there were
	Through int64   // Turn.Through of the last
	Rows    []Drawn // that were drawn and are not decided
	Lost    int     // more of them, which are not there any more: for each another row of the worker is to be right
}

// Pending returns what there would be in Past of the turns that have ended: rows, and how many more have to be
// right. What it returns is not to be changed.
func (w *Worker) Pending() (rows []Drawn, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.waits {
		if s.turn < w.turn {
			rows = append(rows, Drawn{ID: id, Class: s.class, Row: s.row, Answer: s.answer})
		}
	}
	return rows, w.owed
}

// Resume goes on with a session of a process before, in which nobody answers any more: its rows are judged, and
// those that are lost are made up for by rows of the worker's sessions from now on.
func (a *Auditor) Resume(key seal.PublicKey, rec *Record, p Past) *Worker {
	w := a.Worker(key, rec)
	w.place(p.Turns, p.Through, len(p.Rows))
	now := time.Now()
	for _, d := range p.Rows {
		s := &sample{w: w, class: d.Class, since: now, turn: w.first, must: true, row: d.Row, answer: d.Answer}
		s.await(false)
		if !a.add(s, false) {
			w.resolve(s, unknown)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose(p.Lost)
	return w
}

// place has so many turns have ended, of which those up to one are decided, and some rows of the next be open. w.mu
// is held, or nobody knows w.
func (w *Worker) place(turns, through int64, open int) {
	through = min(through, turns)
	w.turn, w.through, w.first = turns+1, through, through+1
	w.open = make([]int, w.turn-through)
	w.open[0] = open
}

// lose notes rows of the first open turn that are lost. w.mu is held.
func (w *Worker) lose(rows int) {
	w.open[0] += rows
	for range rows {
		w.owe(w.first)
	}
}

// Skip has a session of a process before go on after later turns than were known, of which those up to one are
// decided: so many rows of them are lost. None waits for a judge.
func (w *Worker) Skip(turns, through int64, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	open := 0
	for _, rows := range w.open {
		open += rows
	}
	w.place(turns, through, open)
	w.lose(lost)
}

// slot is the place in open of a turn. What Skip has found decided is in the first. w.mu is held.
func (w *Worker) slot(turn int64) *int { return &w.open[max(0, turn-w.first)] }
