package batches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// begin returns a batch of 100 lines, ten of which are done.
func begin(t *testing.T, s *Store, e *echo) string {
	t.Helper()
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
	return id
}

func holding() *echo {
	e := newEcho()
	e.hold = make(chan struct{})
	return e
}

func TestCancelledBatchEndsThoughItsServerIsKilled(t *testing.T) {
	kinds(t, testCancelledBatchEndsThoughItsServerIsKilled)
}

func testCancelledBatchEndsThoughItsServerIsKilled(t *testing.T, kind string) {
	e, dir := holding(), folder(t, kind)
	s := openStore(t, dir, e, fixed)
	id := begin(t, s, e)
	s.stop() // no job is begun any more
	if b, err := s.Cancel(context.Background(), id); err != nil || b.Done() || b.Status != Cancelling {
		t.Fatalf("%v: %+v", err, b)
	}
	closeStore(t, s)
	s = openStore(t, dir, e, fixed)
	defer closeStore(t, s)
	if b := wait(t, s, id); b.Status != Cancelled || strings.Count(text(t, s, b.Output), "\n") != 10 {
		t.Errorf("%+v", b)
	}
}

func TestManyEndsOfABatchKeepItsAnswers(t *testing.T) { kinds(t, testManyEndsOfABatchKeepItsAnswers) }

func testManyEndsOfABatchKeepItsAnswers(t *testing.T, kind string) {
	e := holding()
	s := openStore(t, folder(t, kind), e, fixed)
	defer closeStore(t, s)
	for range 5 {
		id := begin(t, s, e)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _, _ = s.Cancel(context.Background(), id) }) // some come too late
		}
		wg.Wait()
		b := wait(t, s, id)
		if out := text(t, s, b.Output); b.Status != Cancelled || strings.Count(out, `"text":"prompt `) != 10 {
			t.Fatalf("%+v:\n%s", b, out)
		}
	}
}

func TestEndedBatchLeavesNoLines(t *testing.T) { kinds(t, testEndedBatchLeavesNoLines) }

func testEndedBatchLeavesNoLines(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	const lines = deleteLines + 3
	b := wait(t, s, create(t, s, input(lines, numbered)).ID)
	out := strings.Split(strings.TrimSuffix(text(t, s, b.Output), "\n"), "\n")
	for i, l := range out {
		if !strings.Contains(l, fmt.Sprintf(`"custom_id":"line %d"`, i)) {
			t.Fatalf("line %d is %s", i, l)
		}
	}
	for left := 1; left > 0; {
		if err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM lines").Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	if len(out) != lines {
		t.Errorf("%d lines, want %d", len(out), lines)
	}
	closeStore(t, s)
}

func TestBatchWhoseFileIsGoneOrChangedEnds(t *testing.T) {
	kinds(t, testBatchWhoseFileIsGoneOrChangedEnds)
}

func testBatchWhoseFileIsGoneOrChangedEnds(t *testing.T, kind string) {
	for name, harm := range map[string]func(path string) error{
		"gone":      os.Remove,
		"cut off":   func(path string) error { return os.Truncate(path, 100) },
		"other ids": func(path string) error { return os.WriteFile(path, []byte(other), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			e, dir := holding(), folder(t, kind)
			s := openStore(t, dir, e, fixed)
			id := begin(t, s, e)
			b, err := s.Batch(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			closeStore(t, s)
			if err := harm(s.path(b.Input)); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, dir, e, fixed)
			defer closeStore(t, s)
			b = wait(t, s, id)
			if b.Status != Failed || len(b.Validation) != 1 || strings.Count(text(t, s, b.Output), "\n") != 10 ||
				strings.Count(text(t, s, b.ErrorFile), codes[Failed]) != 90 {
				t.Errorf("%+v", b)
			}
		})
	}
}

// other is a file like that of begin, with other ids.
var other = strings.ReplaceAll(input(100, numbered), `"line `, `"lane `)

func TestWhatAKilledUploadLeftIsRemoved(t *testing.T) { kinds(t, testWhatAKilledUploadLeftIsRemoved) }

func testWhatAKilledUploadLeftIsRemoved(t *testing.T, kind string) {
	dir := folder(t, kind)
	s := openStore(t, dir, newEcho(), fixed)
	f, err := s.AddFile(t.Context(), "x", "batch", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	for _, name := range []string{"new-1", "file-unknown"} {
		path := filepath.Join(dir, "files", name)
		old := time.Now().Add(-2 * strayTime)
		if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, dir, newEcho(), fixed)
	defer closeStore(t, s)
	if list, err := os.ReadDir(filepath.Join(dir, "files")); err != nil || len(list) != 1 || list[0].Name() != f.ID {
		t.Errorf("%v: %v", err, list)
	}
}

func TestBatchesAreBounded(t *testing.T) { kinds(t, testBatchesAreBounded) }

func testBatchesAreBounded(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	fill := func(from, n int, ended int) {
		t.Helper()
		_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < $1)
			INSERT INTO batches (id, number, input, endpoint, metadata, status, created, expires, ended)
			SELECT 'b' || (n + $2), n + $2, '', '', '{}', $3, 0, 1099511627776, $4 FROM c`, n, from, Finalizing, ended)
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(0, maxEnded+5, 1)
	wait(t, s, create(t, s, input(1, numbered)).ID)
	if _, err := s.Batch(t.Context(), "b5"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the oldest batch: %v, want %v", err, ErrNotFound)
	}
	if _, err := s.Batch(t.Context(), "b6"); err != nil {
		t.Error(err)
	}
	fill(maxEnded+10, maxOpen, 0)
	f, err := s.AddFile(t.Context(), "x", "batch", strings.NewReader(input(1, numbered)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), Work{Input: f.ID, Endpoint: "/v1/completions"}); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want %v", err, ErrFull)
	}
}

func TestFilesTakenAtATimeAreBounded(t *testing.T) { kinds(t, testFilesTakenAtATimeAreBounded) }

func testFilesTakenAtATimeAreBounded(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	h := NewHandler(s)
	for range places {
		h.places <- struct{}{}
	}
	for _, path := range []string{"/v1/files", "/v1/batches"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, http.NoBody))
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestEditorsMayMarkAFileAndEndItsLinesTheirWay(t *testing.T) {
	kinds(t, testEditorsMayMarkAFileAndEndItsLinesTheirWay)
}

func testEditorsMayMarkAFileAndEndItsLinesTheirWay(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	text := "\ufeff" + strings.ReplaceAll(input(3, numbered), "\n", "\r\n") + "\r\n  \r\n"
	if b := wait(t, s, create(t, s, strings.TrimSuffix(text, "\n")).ID); b.Status != Completed || b.Completed != 3 {
		t.Errorf("%+v", b)
	}
}

// TestLostInputIsToldWithoutItsFolder has the input of a batch vanish under it. Its client learns what is wrong,
// and nothing of where the server keeps its files.
func TestLostInputIsToldWithoutItsFolder(t *testing.T) {
	var log bytes.Buffer
	dir := folder(t, "sqlite")
	e := newEcho()
	e.hold = make(chan struct{})
	s, err := Open(t.Context(), dir, Options{Answerer: e, Now: fixed, Groups: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, s, input(5*groupLines, numbered))
	for e.began.Load() == 0 {
		runtime.Gosched() // the first group has its file open
	}
	if err := os.Remove(s.path(b.Input)); err != nil {
		t.Fatal(err)
	}
	close(e.hold)
	b = wait(t, s, b.ID)
	closeStore(t, s)
	if b.Status != Failed || b.Completed != groupLines || len(b.Validation) != 1 || strings.Contains(b.Validation[0].Message, dir) ||
		!strings.Contains(b.Validation[0].Message, "gone or damaged") {
		t.Errorf("%+v", b)
	}
	if strings.Contains(log.String(), "held up") || !strings.Contains(log.String(), dir) {
		t.Errorf("the log has\n%s", &log)
	}
}
