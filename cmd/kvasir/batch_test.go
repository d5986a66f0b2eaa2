package main

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// requests is a file of n requests, and one that fails.
func requests(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"line %d","method":"POST","url":"/v1/completions","body":{"prompt":"The number %d is","max_tokens":4,"temperature":0.5}}`+"\n", i, i)
	}
	b.WriteString(`{"custom_id":"empty","method":"POST","url":"/v1/completions","body":{"prompt":""}}` + "\n")
	return []byte(b.String())
}

// answerFile reads a file of answers.
func answerFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBatchGoesOnWhereItWasKilled(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	const lines = 300
	in := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(in, requests(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, cut := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "cut.jsonl")
	o := kvasir(t, "batch", "run", in, "-o", whole, "--home", home).wantDone(t)
	if !strings.Contains(o.stdout, fmt.Sprintf("%d lines answered", lines)) || !strings.Contains(o.stdout, "1 lines failed") {
		t.Errorf("printed %q", o.stdout)
	}
	for i := range 3 {
		cmd := call{args: []string{"batch", "run", in, "-o", cut, "--home", home}}.command(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitAnswers(t, cut+".part", 60*(i+1))
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	kvasir(t, "batch", "run", in, "-o", cut, "--home", home, "--kv", "q8_0").wantFailure(t, statusFailed, "another --kv", "another model", cut+".part")
	other := writeFile(t, "other.jsonl", requests(2))
	kvasir(t, "batch", "run", other, "-o", cut, "--home", home).wantFailure(t, statusFailed, "another input")
	kvasir(t, "batch", "run", in, "-o", cut, "--home", home).wantDone(t)
	if got, want := answerFile(t, cut), answerFile(t, whole); got != want || strings.Count(got, "\n") != lines {
		t.Errorf("%d answers differ from those of an undisturbed run:\n%.400s\n%.400s", strings.Count(got, "\n"), got, want)
	}
	if got := answerFile(t, cut+".errors"); !strings.Contains(got, `"custom_id":"empty"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("errors %q", got)
	}
	if _, err := os.Stat(cut + ".part"); err == nil {
		t.Error("the folder of the run is still there")
	}
}

// awaitAnswers returns when so many lines of the newest batch in a folder are answered.
func awaitAnswers(t *testing.T, folder string, lines int) {
	t.Helper()
	done := 0
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if done = answered(t, filepath.Join(folder, "batches.db")); done >= lines {
			return
		}
	}
	t.Fatalf("%d lines were answered, want %d", done, lines)
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

func TestBatchesOfAServer(t *testing.T) {
	t.Parallel()
	in := writeFile(t, "in.jsonl", requests(20))
	var ready serveReady
	p := launch(t, t.TempDir(), &ready, "serve", "--listen", "127.0.0.1:0")
	server := "--server=" + strings.TrimSuffix(ready.URL, "/v1")
	var b batchState
	kvasir(t, "batch", "submit", in, server, "--json").wantDone(t).object(t, &b)
	if b.Counts.Total != 21 {
		t.Errorf("%+v", b)
	}
	kvasir(t, "batch", "watch", b.ID, server, "--json").wantDone(t).object(t, &b)
	if b.Status != "completed" || b.Counts.Completed != 20 || b.Counts.Failed != 1 {
		t.Errorf("%+v", b)
	}
	o := kvasir(t, "batch", "fetch", b.ID, server).wantDone(t)
	if strings.Count(o.stdout, `"status_code":200`) != 20 {
		t.Errorf("fetched %q", o.stdout)
	}
	if o = kvasir(t, "batch", "status", server).wantDone(t); !strings.Contains(o.stdout, b.ID) {
		t.Errorf("printed %q", o.stdout)
	}
	kvasir(t, "batch", "cancel", b.ID, server).wantFailure(t, statusFailed, "has ended")
	kvasir(t, "batch", "status", "batch_x", server).wantFailure(t, statusFailed, "not found")
	p.stop()
}

func TestBatchSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	bad := writeFile(t, "bad.jsonl", []byte("{\"custom_id\":\"a\"\n[]\n{}\n1\n2\n"))
	out := filepath.Join(t.TempDir(), "out.jsonl")
	kvasir(t, "batch", "run", bad, "-o", out).wantFailure(t, statusFailed, "line 1: the line is not JSON", "and 2 more")
	if _, err := os.Stat(out + ".part"); err == nil {
		t.Error("a folder is left of a run that was refused")
	}
	good := writeFile(t, "good.jsonl", requests(1))
	kvasir(t, "batch", "run", good, "-o", good).wantFailure(t, statusFailed, "is the input")
	kvasir(t, "batch", "run", good, "-o", out, "--errors", out).wantFailure(t, statusFailed, "in one file")
	kvasir(t, "batch", "run", good, "-o", t.TempDir()).wantFailure(t, statusFailed, "no regular file")
	if got, err := os.ReadFile(good); err != nil || string(got) != string(requests(1)) {
		t.Errorf("%v: the input is %q now", err, got)
	}
	kvasir(t, "batch", "run", filepath.Join(t.TempDir(), "nothing"), "-o", out).wantFailure(t, statusFailed, "nothing")
	kvasir(t, "batch", "run", bad).wantFailure(t, statusUsage, "--output")
	kvasir(t, "batch", "status", "--server=ftp://x").wantFailure(t, statusUsage, "--server")
	kvasir(t, "batch", "status", "--server=http://127.0.0.1:1").wantFailure(t, statusFailed, "kvasir serve")
}
