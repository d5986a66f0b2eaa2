package batches

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/engine/serve"
	"kvasir/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// tests ends the server that they have started.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if s, err := postgres(); err == nil {
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// postgres is one server for all tests; none is started unless it is asked for.
var postgres = sync.OnceValues(func() (*pgtest.Server, error) {
	if !asked.Load() {
		return nil, pgtest.ErrAbsent
	}
	return pgtest.Start()
})

var asked atomic.Bool

// kinds runs a test on both databases. The folder of a store names its database.
func kinds(t *testing.T, f func(t *testing.T, kind string)) {
	t.Helper()
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if kind == "postgres" {
				needPostgres(t)
			}
			f(t, kind)
		})
	}
}

func needPostgres(t *testing.T) {
	t.Helper()
	asked.Store(true)
	if _, err := postgres(); errors.Is(err, pgtest.ErrAbsent) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// folder is a new one for a store. On PostgreSQL it has a database of its own.
func folder(t *testing.T, kind string) string {
	t.Helper()
	return filepath.Join(t.TempDir(), kind)
}

// databaseOf is the address of that of a folder; empty: SQLite.
func databaseOf(t *testing.T, dir string) string {
	t.Helper()
	if filepath.Base(dir) != "postgres" {
		return ""
	}
	s, err := postgres()
	if err != nil {
		t.Fatal(err)
	}
	url, err := s.Database(fmt.Sprintf("s%x", sha256.Sum256([]byte(dir)))[:40])
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// echo answers a request with its prompt, and counts.
type echo struct {
	mu    sync.Mutex
	times map[string]int // by prompt
	hold  chan struct{}  // if set, each answer takes one from it, or waits for the end
	began atomic.Int32
	busy  atomic.Int32 // so many answers are 429 before the others
}

func (e *echo) Check(_ string, body []byte) *serve.Problem {
	if bytes.Contains(body, []byte("refused")) {
		return &serve.Problem{Param: "prompt", Message: "prompt: not this"}
	}
	return nil
}

func (e *echo) Answer(ctx context.Context, _ string, body []byte, stamp serve.Stamp) (int, []byte) {
	e.began.Add(1)
	if e.hold != nil {
		select {
		case <-e.hold:
		case <-ctx.Done():
			return 0, nil
		}
	}
	if e.busy.Add(-1) >= 0 {
		return http.StatusTooManyRequests, nil
	}
	var q struct{ Prompt string }
	if json.Unmarshal(body, &q) != nil || strings.HasPrefix(q.Prompt, "bad") {
		return http.StatusBadRequest, []byte(`{"error":{"message":"bad"}}`)
	}
	e.mu.Lock()
	e.times[q.Prompt]++
	e.mu.Unlock()
	return http.StatusOK, fmt.Appendf(nil, `{"id":%q,"text":%q}`, stamp.ID, q.Prompt)
}

func newEcho() *echo { return &echo{times: map[string]int{}} }

// at is when all tests happen.
var at = time.Unix(1_800_000_000, 0)

func openStore(t *testing.T, dir string, e *echo, now func() time.Time) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir, Options{Answerer: e, Now: now, Groups: 2, Database: databaseOf(t, dir), beat: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fixed() time.Time { return at }

// input is a file of n lines.
func input(n int, prompt func(i int) string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"line %d","method":"POST","url":"/v1/completions","body":{"prompt":%q}}`+"\n", i, prompt(i))
	}
	return b.String()
}

func numbered(i int) string { return fmt.Sprint("prompt ", i) }

// create adds a file and begins a batch over it.
func create(t *testing.T, s *Store, text string) *Batch {
	t.Helper()
	f, err := s.AddFile(t.Context(), "in.jsonl", "batch", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Create(t.Context(), Work{Input: f.ID, Endpoint: "/v1/completions", Metadata: map[string]string{"who": "me"}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wait returns the batch when it has ended.
func wait(t *testing.T, s *Store, id string) *Batch {
	t.Helper()
	for {
		b, err := s.Batch(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if b.Done() {
			return b
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("batch is %+v", b)
		}
	}
}

func text(t *testing.T, s *Store, id string) string {
	t.Helper()
	f, err := s.Content(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestEveryLineIsAnsweredOnce(t *testing.T) { kinds(t, testEveryLineIsAnsweredOnce) }

func testEveryLineIsAnsweredOnce(t *testing.T, kind string) {
	e := newEcho()
	e.busy.Store(1) // one is told to come again
	s := openStore(t, folder(t, kind), e, fixed)
	defer closeStore(t, s)
	const lines = 100
	b := wait(t, s, create(t, s, input(lines, func(i int) string {
		if i == 7 {
			return "bad"
		}
		return numbered(i)
	})).ID)
	if b.Status != Completed || b.Total != lines || b.Completed != lines-1 || b.Failed != 1 || b.Metadata["who"] != "me" {
		t.Fatalf("%+v", b)
	}
	out := strings.Split(strings.TrimSuffix(text(t, s, b.Output), "\n"), "\n")
	if len(out) != lines-1 {
		t.Fatalf("%d lines of output, want %d", len(out), lines-1)
	}
	for i, l := range out {
		if i >= 7 {
			i++
		}
		var o outputLine
		if err := json.Unmarshal([]byte(l), &o); err != nil || o.CustomID != fmt.Sprint("line ", i) || o.Response.Status != 200 ||
			!strings.Contains(string(o.Response.Body), fmt.Sprintf(`"text":"prompt %d"`, i)) || o.Error != nil {
			t.Errorf("line %d: %v %s", i, err, l)
		}
		if n := e.times[numbered(i)]; n != 1 {
			t.Errorf("line %d was answered %d times", i, n)
		}
	}
	if bad := text(t, s, b.ErrorFile); !strings.Contains(bad, `"custom_id":"line 7"`) || !strings.Contains(bad, `"status_code":400`) || strings.Count(bad, "\n") != 1 {
		t.Errorf("errors %s", bad)
	}
}

// TestWorkGoesOnWhereItEnded closes the store, time and again, in the middle of a batch.
func TestWorkGoesOnWhereItEnded(t *testing.T) { kinds(t, testWorkGoesOnWhereItEnded) }

func testWorkGoesOnWhereItEnded(t *testing.T, kind string) {
	const lines = 150
	whole := openStore(t, folder(t, kind), newEcho(), fixed)
	want := wait(t, whole, create(t, whole, input(lines, numbered)).ID)
	wanted := text(t, whole, want.Output)
	closeStore(t, whole)

	e, dir := newEcho(), folder(t, kind)
	e.hold = make(chan struct{})
	s := openStore(t, dir, e, fixed)
	id := create(t, s, input(lines, numbered)).ID
	for range 4 {
		for range 30 {
			e.hold <- struct{}{}
		}
		closeStore(t, s)
		s = openStore(t, dir, e, fixed)
	}
	close(e.hold)
	defer closeStore(t, s)
	b := wait(t, s, id)
	if b.Status != Completed || b.Completed != lines {
		t.Fatalf("%+v", b)
	}
	if got := text(t, s, b.Output); got != wanted {
		t.Errorf("the output differs from that of an undisturbed run:\n%.500s\n%.500s", got, wanted)
	}
}

func TestCancelledAndExpiredBatchesKeepWhatIsDone(t *testing.T) {
	kinds(t, testCancelledAndExpiredBatchesKeepWhatIsDone)
}

func testCancelledAndExpiredBatchesKeepWhatIsDone(t *testing.T, kind string) {
	for status, end := range map[string]func(s *Store, id string, now *atomic.Int64) error{
		Cancelled: func(s *Store, id string, _ *atomic.Int64) error {
			_, err := s.Cancel(context.Background(), id)
			return err
		},
		Expired: func(s *Store, _ string, now *atomic.Int64) error {
			now.Store(int64(Window))
			return s.expire(context.Background())
		},
	} {
		t.Run(status, func(t *testing.T) {
			e := newEcho()
			e.hold = make(chan struct{})
			var now atomic.Int64
			s := openStore(t, folder(t, kind), e, func() time.Time { return at.Add(time.Duration(now.Load())) })
			defer closeStore(t, s)
			id := create(t, s, input(100, numbered)).ID
			for range 10 {
				e.hold <- struct{}{}
			}
			for b := (&Batch{}); b.Completed < 10; {
				var err error
				if b, err = s.Batch(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			if err := end(s, id, &now); err != nil {
				t.Fatal(err)
			}
			b := wait(t, s, id)
			if b.Status != status || b.Completed != 10 {
				t.Errorf("%+v", b)
			}
			out, bad := text(t, s, b.Output), text(t, s, b.ErrorFile)
			if strings.Count(out, "\n") != 10 || strings.Count(bad, "\n") != 90 || strings.Count(bad, codes[status]) != 90 {
				t.Errorf("%d lines done, %d not, with\n%.300s", strings.Count(out, "\n"), strings.Count(bad, "\n"), bad)
			}
			if _, err := s.Cancel(t.Context(), id); err == nil {
				t.Error("a batch that has ended was cancelled")
			}
		})
	}
}

func TestWrongFilesCostNothing(t *testing.T) { kinds(t, testWrongFilesCostNothing) }

func testWrongFilesCostNothing(t *testing.T, kind string) {
	e := newEcho()
	s := openStore(t, folder(t, kind), e, fixed)
	defer closeStore(t, s)
	good := `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}` + "\n"
	for _, c := range []struct {
		name, text, code, want string
		line                   int
	}{
		{"empty", "", "empty_file", "no lines", 0},
		{"blank", "\n \r\n", "empty_file", "no lines", 0},
		{"broken last line", good + `{"custom_id":"b","method"`, "invalid_json_line", "JSON", 2},
		{"not JSON", good + "x\n", "invalid_json_line", "at byte 1", 2},
		{"not an object", "[]\n", "invalid_json_line", "object", 1},
		{"not UTF-8", "\xff\n", "invalid_json_line", "UTF-8", 1},
		{"no id", strings.Replace(good, `"a"`, `""`, 1), "invalid_custom_id", "512", 1},
		{"duplicate", good + "\n" + good, "duplicate_custom_id", "line 1", 3},
		{"method", strings.Replace(good, "POST", "GET", 1), "invalid_method", "POST", 1},
		{"url", strings.Replace(good, "/v1/comp", "/v1/chat/comp", 1), "invalid_url", "/v1/completions", 1},
		{"request", strings.Replace(good, `"x"`, `"refused"`, 1), "invalid_request", "not this", 1},
		{"long line", good + strings.Repeat("x", MaxLine+10), "line_too_long", "bytes", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := create(t, s, c.text)
			if b.Status != Failed || len(b.Validation) == 0 || !b.Done() {
				t.Fatalf("%+v", b)
			}
			if v := b.Validation[0]; v.Line != c.line || v.Code != c.code || !strings.Contains(v.Message, c.want) {
				t.Errorf("%+v, want line %d, %s, %q", v, c.line, c.code, c.want)
			}
			if again, err := s.Batch(t.Context(), b.ID); err != nil || len(again.Validation) != len(b.Validation) {
				t.Errorf("%v: %+v", err, again)
			}
		})
	}
	many := input(MaxLines+1, func(int) string { return "x" })
	if b := create(t, s, many); b.Status != Failed || b.Validation[0].Code != "too_many_lines" {
		t.Errorf("%+v", b.Validation)
	}
	if n := e.began.Load(); n != 0 {
		t.Errorf("%d lines were computed", n)
	}
}

func TestFilesStayInTheirFolder(t *testing.T) { kinds(t, testFilesStayInTheirFolder) }

func testFilesStayInTheirFolder(t *testing.T, kind string) {
	dir := folder(t, kind)
	s := openStore(t, dir, newEcho(), fixed)
	defer closeStore(t, s)
	f, err := s.AddFile(t.Context(), "../../etc/passwd", "batch", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "files", "*"))
	if err != nil || len(found) != 1 || found[0] != filepath.Join(dir, "files", f.ID) {
		t.Errorf("%v, %v", found, err)
	}
	for _, id := range []string{"../batches.db", "", ".", f.ID + "/../" + f.ID} {
		if _, err := s.Content(t.Context(), id); err == nil {
			t.Errorf("%q was opened", id)
		}
		if err := s.DeleteFile(t.Context(), id); err == nil {
			t.Errorf("%q was deleted", id)
		}
	}
	if err := s.DeleteFile(t.Context(), f.ID); err != nil {
		t.Error(err)
	}
}
