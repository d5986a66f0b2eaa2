package batcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// TestCoreFollowsScripts runs the interleavings in testdata. A script is a paragraph of why, then
// commands, each followed by a line of four dashes and what it must print:
//
//	limits rows=N bytes=N delay=D [adapt=1] queue-rows=N queue-bytes=N
//	offer NAME rows=N [picks=N] [layer=N] [caller=N] [bulk=1]   a row has 12 bytes, and 6 for each pick
//	saves D                                 what two dispatches made one save
//	tick D                                  time passes
//	next                                    the pieces of the batch that is due
//	deadline                                when one will be
//	withdraw NAME
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
			s := script{tickets: map[string]*ticket{}}
			for _, block := range strings.Split(string(text), "\n\n") {
				command, want, ok := strings.Cut(strings.TrimSpace(block), "\n----\n")
				if !ok {
					if strings.Trim(block, "\n") != "" && !strings.HasPrefix(strings.TrimSpace(block), "#") {
						t.Fatalf("neither a comment nor a command with its answer:\n%s", block)
					}
					continue
				}
				lines := slices.DeleteFunc(strings.Split(command, "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
				got := s.do(t, strings.Join(lines, " "))
				if got != want {
					t.Errorf("%s\n----\n%s\n\nwant\n%s", command, got, want)
				}
			}
		})
	}
}

type script struct {
	core    core
	now     time.Time
	tickets map[string]*ticket
}

func (s *script) do(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	args := map[string]int{}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			n, err := strconv.Atoi(v)
			if d, derr := time.ParseDuration(v); err != nil && derr == nil {
				n, err = int(d), nil
			}
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			args[k] = n
		}
	}
	switch words[0] {
	case "limits":
		l, err := Limits{
			Rows: args["rows"], Bytes: args["bytes"], Delay: time.Duration(args["delay"]),
			QueueRows: args["queue-rows"], QueueBytes: args["queue-bytes"], Adapt: args["adapt"] == 1,
		}.withDefaults()
		if err != nil {
			return err.Error()
		}
		s.core = core{Limits: l}
		return "ok"
	case "offer":
		tk := newTicket(args["layer"], args["rows"], max(1, args["picks"]))
		tk.caller = Caller{ID: uint64(args["caller"]), Class: Class(args["bulk"])}
		if err := s.core.offer(s.now, tk); err != nil {
			return err.Error()
		}
		s.tickets[words[1]] = tk
	case "saves":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(err)
		}
		s.core.saves = d
		return "ok"
	case "tick":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(d)
		return "ok"
	case "next":
		return s.pieces(s.core.next(s.now, nil))
	case "deadline":
		switch at, ok := s.core.deadline(); {
		case !ok:
			return "never"
		case !at.After(s.now):
			return "now"
		default:
			return "in " + at.Sub(s.now).String()
		}
	case "withdraw":
		s.core.withdraw(s.tickets[words[1]])
	default:
		t.Fatalf("unknown command %q", line)
	}
	return fmt.Sprintf("%d rows, %d bytes wait", s.core.rows, s.core.bytes)
}

func (s *script) pieces(pieces []piece) string {
	if len(pieces) == 0 {
		return "nothing is due"
	}
	var text []string
	for _, p := range pieces {
		for name, tk := range s.tickets {
			if tk == p.t {
				text = append(text, fmt.Sprintf("%s %d-%d", name, p.lo, p.hi-1))
			}
		}
	}
	return strings.Join(text, ", ")
}

// newTicket returns a ticket of rows with the same number of picks each.
func newTicket(layer, rows, picks int) *ticket {
	t := &ticket{shape: moe.Shape{Layer: layer, Hidden: 8, Format: moe.RowQ8K}, first: []int32{0}}
	for r := range rows {
		t.first = append(t.first, int32((r+1)*picks))
	}
	return t
}

// twin is the core as one would write it who had all the time in the world: a list of single rows.
type twin struct {
	Limits
	rows []twinRow
}

type twinRow struct {
	t     *ticket
	row   int
	bytes int
	at    time.Time
}

func (w *twin) offer(now time.Time, t *ticket) error {
	rows, bytes := len(w.rows), 0
	for _, r := range w.rows {
		bytes += r.bytes
	}
	var more []twinRow
	for r := range len(t.first) - 1 {
		n := 12 + 6*int(t.first[r+1]-t.first[r])
		more, bytes = append(more, twinRow{t, r, n, now}), bytes+n
	}
	if rows > 0 && (rows+len(more) > w.QueueRows || bytes > w.QueueBytes) {
		return ErrFull
	}
	w.rows = append(w.rows, more...)
	return nil
}

func (w *twin) withdraw(t *ticket) {
	w.rows = slices.DeleteFunc(w.rows, func(r twinRow) bool { return r.t == t })
}

// dueAt returns when a layer has a batch.
func (w *twin) dueAt(layer int) (at time.Time, ok bool) {
	rows, bytes := 0, 0
	for _, r := range w.rows {
		if r.t.shape.Layer == layer {
			if rows == 0 {
				at = r.at
			}
			rows, bytes = rows+1, bytes+r.bytes
		}
	}
	if rows < w.Rows && bytes < w.Bytes {
		at = at.Add(w.Delay)
	}
	return at, rows > 0
}

func (w *twin) deadline() (at time.Time, ok bool) {
	for layer := range 3 {
		if d, waits := w.dueAt(layer); waits && (!ok || d.Before(at)) {
			at, ok = d, true
		}
	}
	return at, ok
}

func (w *twin) next(now time.Time) []twinRow {
	for _, head := range w.rows { // in the order of offers
		layer := head.t.shape.Layer
		if at, _ := w.dueAt(layer); now.Before(at) {
			continue
		}
		var batch []twinRow
		bytes := 0
		for _, r := range w.rows {
			if r.t.shape.Layer != layer {
				continue
			}
			if len(batch) == w.Rows || len(batch) > 0 && bytes+r.bytes > w.Bytes {
				break
			}
			batch, bytes = append(batch, r), bytes+r.bytes
		}
		w.rows = slices.DeleteFunc(w.rows, func(r twinRow) bool {
			return slices.ContainsFunc(batch, func(b twinRow) bool { return b.t == r.t && b.row == r.row })
		})
		return batch
	}
	return nil
}

func TestCoreAgreesWithItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			Rows:       rapid.IntRange(1, 6).Draw(t, "rows"),
			Bytes:      rapid.IntRange(1, 150).Draw(t, "bytes"),
			Delay:      time.Duration(rapid.IntRange(0, 3).Draw(t, "delay")),
			QueueRows:  rapid.IntRange(1, 30).Draw(t, "queueRows"),
			QueueBytes: rapid.IntRange(1, 600).Draw(t, "queueBytes"),
		}
		c, w := core{Limits: l}, twin{Limits: l}
		now := time.Unix(0, 0)
		var tickets []*ticket
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				tk := newTicket(rapid.IntRange(0, 2).Draw(t, "layer"), 1, 1)
				tk.first = []int32{0}
				for _, n := range rapid.SliceOfN(rapid.Int32Range(1, 9), 1, 9).Draw(t, "picks") {
					tk.first = append(tk.first, tk.first[len(tk.first)-1]+n)
				}
				err, want := c.offer(now, tk), w.offer(now, tk)
				if (err == nil) != (want == nil) || err != nil && !errors.Is(err, ErrFull) {
					t.Fatalf("offer: %v, want %v", err, want)
				}
				if err == nil {
					tickets = append(tickets, tk)
				}
			case 2:
				now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "tick")))
			case 3:
				compareNext(t, c.next(now, nil), w.next(now))
			case 4:
				if len(tickets) > 0 {
					tk := rapid.SampledFrom(tickets).Draw(t, "ticket")
					c.withdraw(tk)
					w.withdraw(tk)
				}
			}
			compareState(t, &c, &w)
		}
	})
}

func compareNext(t *rapid.T, pieces []piece, want []twinRow) {
	var got []twinRow
	for i, p := range pieces {
		if i > 0 && pieces[i-1].t == p.t {
			t.Fatal("a ticket has two pieces in a batch")
		}
		for r := p.lo; r < p.hi; r++ {
			got = append(got, twinRow{t: p.t, row: r})
		}
	}
	if !slices.EqualFunc(got, want, func(a, b twinRow) bool { return a.t == b.t && a.row == b.row }) {
		t.Fatalf("batch %v, want %v", got, want)
	}
}

func compareState(t *rapid.T, c *core, w *twin) {
	bytes := 0
	for _, r := range w.rows {
		bytes += r.bytes
	}
	if c.rows != len(w.rows) || c.bytes != bytes {
		t.Fatalf("%d rows, %d bytes wait, want %d, %d", c.rows, c.bytes, len(w.rows), bytes)
	}
	at, ok := c.deadline()
	wantAt, wantOK := w.deadline()
	if ok != wantOK || ok && !at.Equal(wantAt) {
		t.Fatalf("deadline %v %v, want %v %v", at, ok, wantAt, wantOK)
	}
	for _, q := range c.queues {
		rows, bytes := 0, 0
		var seq uint64
		for tk := q.head; tk != nil; tk = tk.after {
			if tk.seq <= seq || tk.queue != q || tk.next >= tk.rows() || tk.after == nil && q.tail != tk {
				t.Fatalf("queue of layer %d is not in order", q.shape.Layer)
			}
			seq = tk.seq
			rows, bytes = rows+tk.rows()-tk.next, bytes+tk.bytes(tk.next, tk.rows())
		}
		inFlows := 0
		for _, list := range q.flows {
			for _, f := range list {
				for tk := f.head; tk != nil; tk = tk.later {
					if inFlows++; tk.flow != f || tk.queue != q || tk.planned != tk.next {
						t.Fatalf("a flow of layer %d is not in order", q.shape.Layer)
					}
				}
			}
		}
		for tk := q.head; tk != nil; tk = tk.after {
			inFlows--
		}
		if inFlows != 0 {
			t.Fatalf("%d calls more in flows than in the queue of layer %d", inFlows, q.shape.Layer)
		}
		if rows == 0 || q.rows != rows || q.bytes != bytes {
			t.Fatalf("queue of layer %d counts %d rows, %d bytes, holds %d, %d", q.shape.Layer, q.rows, q.bytes, rows, bytes)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		want   string
	}{
		{"rows", Limits{Rows: -1}, "Rows is -1"},
		{"rows above", Limits{Rows: moe.MaxRows + 1}, "Rows is 4097"},
		{"bytes", Limits{Bytes: -1}, "Bytes is -1"},
		{"delay", Limits{Delay: -1}, "Delay is -1ns"},
		{"queue rows", Limits{QueueRows: -2}, "QueueRows is -2"},
		{"queue bytes", Limits{QueueBytes: -2}, "QueueBytes is -2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewLane(&fake{}, tt.limits, 1); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := NewLane(&fake{}, Limits{}, -1); err == nil {
		t.Error("a window of -1 was accepted")
	}
}
