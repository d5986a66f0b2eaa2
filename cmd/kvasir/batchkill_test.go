package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvasir/internal/pgtest"
)

// longBatches reports whether the tests here are to run as long as they are meant to: make batches.
func longBatches() bool { return os.Getenv("KVASIR_BATCHES_LONG") != "" }

// wantEachOnce checks that a file of answers has each line of requests(n) once, in order.
func wantEachOnce(t *testing.T, text []byte, n int) {
	t.Helper()
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if len(lines) != n {
		t.Fatalf("%d answers, want %d", len(lines), n)
	}
	for i, l := range lines {
		var o struct {
			ID string `json:"custom_id"`
		}
		if err := json.Unmarshal(l, &o); err != nil || o.ID != fmt.Sprint("line ", i) {
			t.Fatalf("%v: answer %d is %.200s", err, i, l)
		}
	}
}

// wantSame compares an output with that of an undisturbed run.
func wantSame(t *testing.T, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	a, b := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(a), len(b)) {
		if !bytes.Equal(a[i], b[i]) {
			t.Fatalf("answer %d differs from that of an undisturbed run:\n%.400s\n%.400s", i, a[i], b[i])
		}
	}
	t.Fatalf("%d answers, and %d in an undisturbed run", len(a), len(b))
}

func fileBytes(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestBatchGoesOnWhereItWasKilled(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	lines, kills := 600, 3
	if longBatches() {
		lines, kills = 49_999, 5 // and one that fails
	}
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, requests(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, cut := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "cut.jsonl")
	start := time.Now()
	o := kvasir(t, "batch", "run", in, "-o", whole, "--home", home).wantDone(t)
	if !strings.Contains(o.stdout, fmt.Sprintf("%d lines answered", lines)) || !strings.Contains(o.stdout, "1 line failed") {
		t.Errorf("printed %q", o.stdout)
	}
	t.Logf("%d lines undisturbed: %v", lines+1, time.Since(start).Round(time.Millisecond))
	for i := range kills {
		inTime(t, func() bool {
			c := call{args: []string{"batch", "run", in, "-o", cut, "--home", home}}
			if killed(t, c.command(t), cut+".part", lines*(i+1)/(2*kills)) {
				return true
			}
			if err := errors.Join(os.Remove(cut), os.Remove(cut+".errors")); err != nil {
				t.Fatal(err)
			}
			return false
		})
	}
	kvasir(t, "batch", "run", in, "-o", cut, "--home", home, "--kv", "q8_0").wantFailure(t, statusFailed, "another --kv", "another model", cut+".part")
	other := writeFile(t, "other.jsonl", requests(2))
	kvasir(t, "batch", "run", other, "-o", cut, "--home", home).wantFailure(t, statusFailed, "another input")
	kvasir(t, "batch", "run", in, "-o", cut, "--home", home).wantDone(t)
	got := fileBytes(t, cut)
	wantEachOnce(t, got, lines)
	wantSame(t, got, fileBytes(t, whole))
	wantSame(t, fileBytes(t, cut+".errors"), fileBytes(t, whole+".errors"))
	t.Logf("%d kills: %d ids once each, outputs equal byte for byte", kills, lines+1)
	if _, err := os.Stat(cut + ".part"); err == nil {
		t.Error("the folder of the run is still there")
	}
}

// inTime does what has to be done to the program before it comes to its end, until it was done in time: the system
// may let the program run to its end before it lets this test look.
func inTime(t *testing.T, do func() bool) {
	t.Helper()
	const most = 20
	for range most {
		if do() {
			return
		}
	}
	t.Fatalf("%d times the program had come to its end", most)
}

// killed runs a batch and kills it when so many lines are answered, or more. It returns false if the batch has come
// to its end before.
func killed(t *testing.T, cmd *exec.Cmd, folder string, lines int) bool {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	over := make(chan struct{})
	go func() {
		defer close(over)
		err = cmd.Wait()
	}()
	n := awaitAnswers(t, folder, lines, over)
	_ = cmd.Process.Kill() // it may have ended
	<-over
	switch status := exitStatus(t, err); {
	case status == statusDone:
		return false
	case n < lines:
		t.Fatalf("it ends with status %d after line %d", status, n)
	}
	t.Logf("killed after line %d", n)
	return true
}

// longest is how long a batch may take.
const longest = 2 * time.Hour

// awaitAnswers returns when so many lines of the newest batch in a folder are answered, or more, or who answers them
// has ended.
func awaitAnswers(t *testing.T, folder string, lines int, over <-chan struct{}) (done int) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(longest); time.Now().Before(end); {
		if done = answered(t, filepath.Join(folder, "batches.db")); done >= lines {
			return done
		}
		select {
		case <-look.C:
		case <-over:
			return done
		}
	}
	t.Fatalf("%d lines were answered, want %d", done, lines)
	return 0
}

// answered reads the database of another process; -1: it is not there yet.
func answered(t *testing.T, path string) (n int) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		return -1
	}
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // it is only read
	if db.QueryRowContext(t.Context(), "SELECT completed + failed FROM batches ORDER BY number DESC LIMIT 1").Scan(&n) != nil {
		return -1 // it is being made
	}
	return n
}

// fleet is servers that share batch jobs.
type fleet struct {
	t     *testing.T
	args  []string
	nodes []*process
	urls  []string
}

func (f *fleet) start(i int) {
	var ready serveReady
	f.nodes[i] = launch(f.t, f.t.TempDir(), &ready, f.args...)
	f.urls[i] = strings.TrimSuffix(ready.URL, "/v1")
}

func newFleet(t *testing.T, n int) *fleet {
	pg, err := pgtest.Start()
	if errors.Is(err, pgtest.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Stop(); err != nil {
			t.Error(err)
		}
	})
	url, err := pg.Database("batches")
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{
		t: t, args: []string{"serve", "--listen", "127.0.0.1:0", "--batches", url, "--files", t.TempDir()},
		nodes: make([]*process, n), urls: make([]string, n),
	}
	for i := range n {
		f.start(i)
	}
	return f
}

// begin begins a batch over a file that was uploaded.
func (f *fleet) begin(file string) string {
	f.t.Helper()
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, file)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.urls[0]+"/v1/batches", strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	var b batchState
	if err := errors.Join(json.NewDecoder(res.Body).Decode(&b), res.Body.Close()); err != nil || b.Status != "in_progress" {
		f.t.Fatalf("%v: %+v", err, b)
	}
	return b.ID
}

// state asks server i how a batch stands.
func (f *fleet) state(i int, id string) batchState {
	f.t.Helper()
	b, err := (&serverFlags{Server: f.urls[i]}).get(context.Background(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// output is the answers of a batch that has ended.
func (f *fleet) output(i int, id string) []byte {
	f.t.Helper()
	for b := f.state(i, id); !b.done(); b = f.state(i, id) {
		time.Sleep(50 * time.Millisecond)
	}
	return []byte(kvasir(f.t, "batch", "fetch", id, "--server", f.urls[i]).wantDone(f.t).stdout)
}

// TestServersThatAreKilledLoseNoLine has three servers work on one batch, and kills one after another.
func TestServersThatAreKilledLoseNoLine(t *testing.T) {
	t.Parallel()
	lines, pause := 1000, 400*time.Millisecond
	if longBatches() {
		lines, pause = 20_000, 10*time.Second
	}
	f := newFleet(t, 3)
	in := writeFile(t, "in.jsonl", requests(lines))
	var first batchState
	kvasir(t, "batch", "submit", in, "--server", f.urls[1], "--json").wantDone(t).object(t, &first)
	start := time.Now()
	want := f.output(2, first.ID)
	wantEachOnce(t, want, lines)
	t.Logf("%d lines undisturbed: %v", lines+1, time.Since(start).Round(time.Millisecond))

	id, kills := "", 0
	inTime(t, func() bool {
		id = f.begin(f.state(0, first.ID).Input)
		for i := 0; ; i = (i + 1) % 3 {
			time.Sleep(pause) // the servers work meanwhile
			if b := f.state(i, id); b.done() {
				return kills > 0
			}
			f.nodes[i].kill()
			f.start(i)
			kills++
		}
	})
	b := f.state(0, id)
	if b.Status != "completed" || b.Counts.Completed != lines || b.Counts.Failed != 1 {
		t.Fatalf("%d kills: %+v", kills, b)
	}
	got := f.output(1, id)
	wantEachOnce(t, got, lines)
	wantSame(t, got, want)
	t.Logf("%d kills: %d ids once each, outputs equal byte for byte", kills, lines)
}
