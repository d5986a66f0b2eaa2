package schedule

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// parse takes a command apart. A task given as from=NAME parts here: it needs the other's name.
func (s *script) parse(line string) (verb, name string, args map[string]int) {
	words := strings.Fields(line)
	args = map[string]int{"choices": 1, "count": 1}
	for _, w := range words[1:] {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			name = w
			continue
		}
		if from := s.tasks[v]; from != nil {
			s.core.part(from, s.tasks[name], strings.HasSuffix(line, "seq=1"))
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		args[k] = n
	}
	return words[0], name, args
}

func (s *script) do(line string) string {
	s.t.Helper()
	verb, name, args := s.parse(line)
	c, t := &s.core, s.tasks[name]
	if t == nil && name != "" && verb != "submit" {
		s.t.Fatalf("%s: there is no %s", line, name)
	}
	switch verb {
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
		s.submit(name, args)
	case "admit":
		return "admit " + s.names(c.admit(int64(args["room"])))
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

// submit makes a task, and those that will part from it: NAME1, NAME2 and so on.
func (s *script) submit(name string, args map[string]int) {
	for i := range args["choices"] {
		n := name
		if i > 0 {
			n += strconv.Itoa(i)
		}
		s.tasks[n] = &task{class: Class(args["class"]), index: i, have: args["prompt"], left: args["limit"]}
	}
	s.tasks[name].forks = args["choices"] - 1
	s.core.submit(s.tasks[name])
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
	if fresh != c.fresh || fresh > c.waiting+c.sequences || seats > c.sequences {
		t.Fatalf("%d wait for the first time, counted %d, and %d may; %d run of %d", fresh, c.fresh, c.waiting+c.sequences, seats, c.sequences)
	}
}
