package schedule

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is a core with a memory and flights of a test, and moves one of them at a time.
type world struct {
	core   core
	budget int64
	tasks  map[*task]*life
	making []*task
	flying [][]piece
	live   int
}

// life is what the world knows of a task.
type life struct {
	held     int64 // bytes of its sequence
	finished bool
}

func (w *world) used() (n int64) {
	for _, l := range w.tasks {
		n += l.held
	}
	return n
}

func (w *world) end(t *task) {
	if l := w.tasks[t]; !l.finished {
		l.finished = true
		w.live--
	}
	if w.core.remove(t) {
		w.tasks[t].held = 0
	}
}

// settle does what a scheduler does whenever something has changed.
func (w *world) settle(t *rapid.T) {
	oldest := (*task)(nil)
	if len(w.core.running) > 1 {
		oldest = w.core.running[0]
	}
	victims, hopeless := w.core.preempt(nil)
	for _, v := range victims {
		if v == oldest {
			t.Fatalf("the oldest was preempted")
		}
		w.tasks[v].held = 0
	}
	if hopeless != nil {
		t.Fatalf("hopeless: %+v with %d of %d bytes in use", *hopeless, w.used(), w.budget)
	}
	checkCore(t, &w.core)
}

// admit begins, and resume ends, what a flight does for those that are admitted.
func (w *world) admit() bool {
	list := w.core.admit(w.budget - w.used())
	w.making = append(w.making, list...)
	return len(list) > 0
}

func (w *world) resume(t *rapid.T, known int) {
	x := w.making[0]
	w.making = w.making[1:]
	l := w.tasks[x]
	known = min(known, x.have-1)
	switch {
	case w.used()+testBytes(known) <= w.budget:
		l.held = testBytes(known)
		w.core.resumed(x, known)
		if x.dying {
			w.end(x)
		}
	case x.dying:
		w.core.back(x)
		w.end(x)
	case w.core.refused(x):
		t.Fatalf("nothing runs, and there is no room for a sequence of %d tokens", known)
	}
}

// land ends a micro-batch.
func (w *world) land(t *rapid.T, at int) {
	pieces := w.flying[at]
	w.flying = slices.Delete(w.flying, at, at+1)
	rows := 0
	for _, p := range pieces {
		x, l := p.t, w.tasks[p.t]
		rows += p.n
		need := testBytes(x.done+p.n) - l.held
		switch {
		case x.dying:
			w.core.back(x)
			w.end(x)
		case w.used()+need > w.budget:
			w.core.lacked(x)
		case x.done+p.n < x.have:
			l.held += need
			w.core.took(x, p.n, 0)
		default:
			l.held += need
			forks := x.forks
			w.core.took(x, p.n, 1)
			for i := range forks {
				o := &task{class: x.class, index: i + 1}
				lo := &life{}
				w.tasks[o] = lo
				w.live++
				if ok := w.used()+l.held <= w.budget; ok {
					lo.held = l.held
				}
				w.core.part(x, o, lo.held > 0)
				if o.left == 0 {
					w.end(o)
				}
			}
			if x.left == 0 {
				w.end(x)
			}
		}
	}
	if rows > w.core.rows || rows == 0 {
		t.Fatalf("a micro-batch of %d rows, at most %d", rows, w.core.rows)
	}
}

// TestCoreServesAll lets chance decide what happens next, under little memory, and checks the
// invariants at each step; then it lets everything run to its end, which it must reach.
func TestCoreServesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{tasks: map[*task]*life{}}
		w.core = core{bytes: testBytes, limits: limits{
			rows:      rapid.IntRange(1, 200).Draw(t, "rows"),
			flights:   rapid.IntRange(1, 3).Draw(t, "flights"),
			sequences: rapid.IntRange(3, 12).Draw(t, "sequences"),
			waiting:   20,
			grow:      rapid.IntRange(1, 40).Draw(t, "grow"),
		}}
		w.budget = testBytes(90) + int64(rapid.IntRange(0, 400).Draw(t, "spare"))
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			w.step(t)
			w.settle(t)
		}
		w.drain(t)
		if w.used() != 0 || len(w.core.running) != 0 || w.core.fresh != 0 {
			t.Fatalf("%d bytes are left, %d tasks run, %d wait", w.used(), len(w.core.running), w.core.fresh)
		}
	})
}

// step lets something happen.
func (w *world) step(t *rapid.T) {
	switch rapid.IntRange(0, 5).Draw(t, "step") {
	case 0:
		x := &task{
			class: Class(rapid.IntRange(0, 1).Draw(t, "class")),
			have:  rapid.IntRange(1, 60).Draw(t, "prompt"),
			left:  rapid.IntRange(1, 30).Draw(t, "limit"),
			forks: max(0, rapid.IntRange(-3, 2).Draw(t, "forks")),
		}
		if !w.core.full() {
			w.tasks[x] = &life{}
			w.live++
			w.core.submit(x)
		}
	case 1:
		w.admit()
	case 2:
		if len(w.making) > 0 {
			w.resume(t, rapid.IntRange(0, 8).Draw(t, "known"))
		}
	case 3:
		w.start()
	case 4:
		if len(w.flying) > 0 {
			w.land(t, rapid.IntRange(0, len(w.flying)-1).Draw(t, "flight"))
		}
	case 5:
		if rapid.IntRange(0, 4).Draw(t, "cancel") == 0 && len(w.core.running) > 0 {
			w.end(rapid.SampledFrom(w.core.running).Draw(t, "victim"))
		}
		if q := w.core.queues[0]; len(q) > 0 && rapid.IntRange(0, 4).Draw(t, "cancel waiting") == 0 {
			w.end(q[len(q)/2])
		}
	}
}

// start sends a micro-batch off, if there is one and a flight for it.
func (w *world) start() bool {
	if len(w.flying) == w.core.flights {
		return false
	}
	p := w.core.next(nil)
	if len(p) == 0 {
		return false
	}
	w.flying = append(w.flying, p)
	return true
}

// drain does what flights do until nothing is left.
func (w *world) drain(t *rapid.T) {
	for rounds := 0; w.live > 0 || len(w.flying) > 0 || len(w.making) > 0; rounds++ {
		moved := false
		for len(w.making) > 0 || w.admit() {
			w.resume(t, 0)
			w.settle(t)
			moved = true
		}
		for w.start() {
			moved = true
		}
		if len(w.flying) > 0 {
			w.land(t, rapid.IntRange(0, len(w.flying)-1).Draw(t, "flight"))
			w.settle(t)
			moved = true
		}
		if q := w.core.queues; !moved || rounds > 20000 {
			t.Fatalf("%d tasks do not end (moved: %v): %d run, %d and %d wait",
				w.live, moved, len(w.core.running), len(q[0]), len(q[1]))
		}
	}
}
