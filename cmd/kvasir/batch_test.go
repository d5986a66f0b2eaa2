package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestBatchesOfAServer(t *testing.T) {
	t.Parallel()
	in := writeFile(t, "in.jsonl", requests(20))
	var ready serveReady
	p := launch(t, t.TempDir(), &ready, "serve", "--listen", "127.0.0.1:0")
	server := "--server=" + ready.URL // as it is printed
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
	for _, args := range [][]string{{"status", in}, {"watch", filepath.Base(in)}} { // by the file it was made of
		if o = kvasir(t, append([]string{"batch"}, append(args, server)...)...).wantDone(t); !strings.Contains(o.stdout, b.ID) {
			t.Errorf("%s printed %q", args, o.stdout)
		}
	}
	kvasir(t, "batch", "cancel", in, server).wantFailure(t, statusFailed, "has ended")
	kvasir(t, "batch", "fetch", "other.jsonl", server).wantFailure(t, statusFailed, "no batch of a file", "other.jsonl", "kvasir batch status")
	kvasir(t, "batch", "cancel", b.ID, server).wantFailure(t, statusFailed, "has ended")
	kvasir(t, "batch", "status", "batch_x", server).wantFailure(t, statusFailed, "not found")
	bad := writeFile(t, "bad.jsonl", []byte("[]\n"))
	kvasir(t, "batch", "submit", bad, server).wantFailure(t, statusFailed, "line 1: the line is not an object")
	if o = kvasir(t, "batch", "status", server).wantDone(t); !strings.Contains(o.stdout, "failed       0 of 0 lines, 0 failed\n    line 1: the line is not an object") {
		t.Errorf("printed %q", o.stdout)
	}
	kvasir(t, "batch", "fetch", "bad.jsonl", server).wantFailure(t, statusFailed, "line 1: the line is not an object")
	broken := writeFile(t, "broken.jsonl", []byte("{\n"+`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`+"\n"))
	o = kvasir(t, "batch", "submit", broken, strings.TrimSuffix(server, "/v1"))
	o.wantFailure(t, statusFailed, "line 1: the line is not JSON")
	if strings.Contains(o.stderr, "line 2") {
		t.Errorf("a line that is right is refused too: %q", o.stderr)
	}
	kvasir(t, "batch", "submit", writeFile(t, "empty.jsonl", nil), server).wantFailure(t, statusFailed, "no lines")
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
