package schedule

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// testBytes is what a sequence of so many tokens takes in these tests: a state of 10 bytes, and
// pages of 4 tokens of 4 bytes.
func testBytes(tokens int) int64 { return 10 + int64(tokens+3)/4*4 }

// TestCoreFollowsScripts runs the interleavings in testdata. A script is a paragraph of why, then
// commands, each followed by a line of four dashes and what it must print:
//
//	limits rows=N flights=N sequences=N waiting=N grow=N
//	submit NAME prompt=N limit=N [choices=N] [class=1]
//	admit room=N            who is to get a sequence, with room bytes left (testBytes)
//	resumed NAME [known=N]
//	refused NAME
//	next [count=N]          the pieces of the next micro-batch; of the N-th, those before computed
//	took NAME [chosen=1]
//	part NAME from=NAME     a choice parts; with seq=1 it has a sequence
//	lacked NAME
//	preempt
//	remove NAME             once more when it has come back
//	again NAME
//
// All but admit, next and preempt answer with who waits and who runs.
func TestCoreFollowsScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), "# ") {
				t.Error("the script does not open with why it is there")
			}
			s := script{t: t, tasks: map[string]*task{}, pieces: map[*task]int{}}
			for _, block := range strings.Split(string(text), "\n\n") {
				command, want, ok := strings.Cut(strings.TrimSpace(block), "\n----\n")
				if !ok {
					if !strings.HasPrefix(strings.TrimSpace(block), "#") {
						t.Fatalf("neither a comment nor a command with its answer:\n%s", block)
					}
					continue
				}
				// Of several commands with one answer, the last gives it.
				got := ""
				for line := range strings.SplitSeq(command, "\n") {
					if !strings.HasPrefix(line, "#") {
						got = s.do(line)
						checkCore(t, &s.core)
					}
				}
				if got != want {
					t.Errorf("%s\n----\n%s\n\nwant\n%s", command, got, want)
				}
			}
		})
	}
}

type script struct {
	t      *testing.T
	core   core
	tasks  map[string]*task
	pieces map[*task]int // under way
}

func (s *script) do(line string) string {
	s.t.Helper()
	words := strings.Fields(line)
	args, name := map[string]int{"choices": 1, "count": 1}, ""
	for i, w := range words[1:] {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			name = w
			continue
		}
		n, err := strconv.Atoi(v)
		if other := s.tasks[v]; err != nil && other != nil {
			name, n, err = words[i], 0, nil
			s.core.part(other, s.tasks[name], strings.HasSuffix(line, "seq=1"))
		}
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		args[k] = n
	}
	c, t := &s.core, s.tasks[name]
	if t == nil && name != "" && words[0] != "submit" {
		s.t.Fatalf("%s: there is no %s", line, name)
	}
	switch words[0] {
	case "limits":
		s.core = core{bytes: testBytes, limits: limits{
			rows: args["rows"], flights: args["flights"], sequences: args["sequences"], waiting: args["waiting"],
			grow: args["grow"],
		}}
		return "ok"
	case "submit":
		if c.full() {
			return "full"
		}
		for i := range args["choices"] {
			n := name
			if i > 0 {
				n += strconv.Itoa(i)
			}
			s.tasks[n] = &task{class: Class(args["class"]), index: i, have: args["prompt"], left: args["limit"]}
		}
		s.tasks[name].forks = args["choices"] - 1
		c.submit(s.tasks[name])
	case "admit":
		return "admit " + s.names(c.admit(int64(args["room"]), nil))
	case "resumed":
		c.resumed(t, args["known"])
	case "refused":
		if c.refused(t) {
			return "hopeless"
		}
	case "next":
		return s.next(args["count"])
	case "took":
		c.took(t, s.pieces[t], args["chosen"])
	case "part":
	case "lacked":
		c.lacked(t)
	case "preempt":
		victims, hopeless := c.preempt(nil)
		if hopeless != nil {
			return "hopeless: " + s.name(hopeless)
		}
		return "preempt " + s.names(victims)
	case "remove":
		if t.dying {
			c.back(t)
		}
		switch free := c.remove(t); {
		case free:
			return "free"
		case t.dying:
			return "when it comes back"
		}
		return "nothing to free"
	case "again":
		c.again(t)
	default:
		s.t.Fatalf("unknown command %q", line)
	}
	return fmt.Sprintf("wait %s, run %s", s.names(slices.Concat(c.queues[0], c.queues[1])), s.names(c.running))
}

// next makes up micro-batches and takes each but the last as computed.
func (s *script) next(count int) string {
	for {
		pieces := s.core.next(nil)
		var text []string
		for _, p := range pieces {
			s.pieces[p.t] = p.n
			text = append(text, fmt.Sprintf("%s %d", s.name(p.t), p.n))
		}
		if count--; count == 0 {
			return strings.Join(append(text, "."), ", ")
		}
		for _, p := range pieces {
			chosen := 0
			if p.t.done+p.n == p.t.have {
				chosen = 1
			}
			s.core.took(p.t, p.n, chosen)
		}
	}
}

func (s *script) name(t *task) string {
	for name, o := range s.tasks {
		if o == t {
			return name
		}
	}
	return "?"
}

func (s *script) names(list []*task) string {
	if len(list) == 0 {
		return "-"
	}
	var names []string
	for _, t := range list {
		names = append(names, s.name(t))
	}
	return strings.Join(names, " ")
}

// checkCore holds a core to its invariants, counting everything anew.
func checkCore(t interface{ Fatalf(string, ...any) }, c *core) {
	seen, fresh := map[*task]bool{}, 0
	ordered := func(what string, list []*task) {
		for i, x := range list {
			if seen[x] {
				t.Fatalf("%s: a task is in two places", what)
			}
			seen[x] = true
			if i > 0 && list[i-1].order >= x.order {
				t.Fatalf("%s: not in the order of arrival", what)
			}
			if x.done < 0 || x.done > x.have {
				t.Fatalf("%s: a task has taken %d of %d tokens", what, x.done, x.have)
			}
		}
	}
	for class, q := range c.queues {
		ordered("queue", q)
		for _, x := range q {
			if x.state != waiting || x.class != Class(class) || x.done != 0 {
				t.Fatalf("in queue %d: %+v", class, *x)
			}
			if x.fresh {
				fresh++
			}
		}
	}
	ordered("running", c.running)
	seats := 0
	for _, x := range c.running {
		seats += 1 + x.forks
		if x.state != resuming && x.state != idle && x.state != busy || x.fresh {
			t.Fatalf("running: %+v", *x)
		}
		if x.dying && !x.inUse() {
			t.Fatalf("running, to be removed, and nobody uses it: %+v", *x)
		}
	}
	if fresh != c.fresh || fresh > c.waiting || seats > c.sequences {
		t.Fatalf("%d wait for the first time, counted %d of %d; %d run of %d", fresh, c.fresh, c.waiting, seats, c.sequences)
	}
}

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
	list := w.core.admit(w.budget-w.used(), nil)
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
		step := func(what int) {
			switch what {
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
				if len(w.flying) < w.core.flights {
					if p := w.core.next(nil); len(p) > 0 {
						w.flying = append(w.flying, p)
					}
				}
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
			w.settle(t)
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			step(rapid.IntRange(0, 5).Draw(t, "step"))
		}
		for rounds := 0; w.live > 0; rounds++ {
			if rounds > 20000 {
				t.Fatalf("%d tasks do not end: %d run, %d and %d wait", w.live, len(w.core.running), len(w.core.queues[0]), len(w.core.queues[1]))
			}
			moved := false
			for len(w.making) > 0 || w.admit() {
				w.resume(t, 0)
				w.settle(t)
				moved = true
			}
			for len(w.flying) < w.core.flights {
				p := w.core.next(nil)
				if len(p) == 0 {
					break
				}
				w.flying = append(w.flying, p)
			}
			if len(w.flying) > 0 {
				w.land(t, rapid.IntRange(0, len(w.flying)-1).Draw(t, "flight"))
				w.settle(t)
				moved = true
			}
			if !moved && w.live > 0 {
				t.Fatalf("nothing moves: %d run, %d and %d wait", len(w.core.running), len(w.core.queues[0]), len(w.core.queues[1]))
			}
		}
		for len(w.flying) > 0 || len(w.making) > 0 { // of tasks that were cancelled
			if len(w.flying) > 0 {
				w.land(t, 0)
			} else {
				w.resume(t, 0)
			}
			w.settle(t)
		}
		if w.used() != 0 || len(w.core.running) != 0 || w.core.fresh != 0 {
			t.Fatalf("%d bytes are left, %d tasks run, %d wait", w.used(), len(w.core.running), w.core.fresh)
		}
	})
}
