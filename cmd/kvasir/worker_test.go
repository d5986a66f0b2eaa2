package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/ledger"
	"kvasir/engine/tiny"
	"kvasir/engine/worker"
)

// TestWorkersFetchTheirParts has workers without a model file, whose memory holds half of it each. One is
// killed in the middle of a stream and a new one joins.
func TestWorkersFetchTheirParts(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	gateway, through := s.gateway()
	serve := s.serve("--hub", through)
	serve.await("connected to hub")
	first, second := s.worker(s.address(), "--memory", "5MiB"), s.worker(s.address(), "--memory", "5MiB")
	for _, w := range []*process{first, second} {
		line := serve.await("worker is ready", w.id)
		if n := strings.Count(line, "layer"); n == 0 || strings.Contains(line, "layers 0-3") {
			t.Errorf("a worker with room for half a model is ready with %s", line)
		}
	}
	const tokens = 160
	want := local(t, story, tokens)
	var third *process
	got := answerOf(t, s.serveReady.URL, story, tokens, func(event int) {
		if event == 5 {
			first.kill()
			third = s.worker(s.address(), "--memory", "5MiB")
		}
	})
	if got != want {
		t.Errorf("with a worker killed and one that joins: %q, local: %q", got, want)
	}
	serve.await("worker left", first.id)
	serve.await("worker is ready", third.id)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); !strings.HasPrefix(want, got) {
		t.Errorf("with the new worker: %q, local: %q", got, want)
	}
	for _, w := range []*process{second, third} {
		w.stop()
		if line := serve.await("worker left", w.id); strings.Contains(line, `"picks":0`) {
			t.Errorf("a worker did nothing: %s", line)
		}
	}
	for _, p := range []*process{serve, gateway, hub} {
		p.stop()
	}
}

// TestWorkerThatComesBackHasItsPart is ended and started again: what it holds comes from its disk, and the
// next session begins with it.
func TestWorkerThatComesBackHasItsPart(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	home, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	w := s.workerAt(home, s.address(), "--cache", cache)
	w.await("holding")
	w.stop()
	kept, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(kept) == 0 {
		t.Fatalf("nothing is kept in %s (%v)", cache, err)
	}
	w = s.workerAt(home, s.address(), "--cache", cache)
	w.await("holding")
	want := local(t, story, 8)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != want {
		t.Errorf("with a worker that is back: %q, local: %q", got, want)
	}
	for _, p := range []*process{w, serve, hub} {
		p.stop()
	}
}

// TestAnotherModelIsFetchedAnew restarts the backbone with another model under the same worker.
func TestAnotherModelIsFetchedAnew(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	w := s.worker(s.address())
	serve.await("worker is ready", w.id)
	serve.stop()
	changed := bytes.Clone(tiny.Model())
	changed[len(changed)-1]++ // in a weight
	model := writeFile(t, "changed.gguf", changed)
	serve = s.serve("--hub", s.hubReady.Hub, "-m", model)
	serve.await("worker is ready", w.id)
	var r runResult
	kvasir(t, "run", story, "--json", "--tokens", "8", "-m", model).wantDone(t).object(t, &r)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != r.Text {
		t.Errorf("with the new model: %q, local: %q", got, r.Text)
	}
	for _, p := range []*process{w, serve, hub} {
		p.stop()
	}
}

// TestWorkerWithTheFileLoadsItsPart gives a worker the model file and too little memory for all of it.
func TestWorkerWithTheFileLoadsItsPart(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	model := writeFile(t, "model.gguf", tiny.Model())
	if err := os.WriteFile(model+engine.ProfileSuffix, tiny.Profile(), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := s.serve("--hub", s.hubReady.Hub)
	w := s.worker(s.address(), "-m", model, "--memory", "5MiB")
	line := serve.await("worker is ready", w.id)
	if strings.Contains(line, "layers 0-3") {
		t.Errorf("it is ready with %s", line)
	}
	want := local(t, story, 8)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != want {
		t.Errorf("with half a model elsewhere: %q, local: %q", got, want)
	}
	for _, p := range []*process{w, serve, hub} {
		p.stop()
	}
}

func TestWorkerSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	notFolder := writeFile(t, "file", []byte("x"))
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		want   []string
	}{
		{"cache that is a file", []string{"--cache", notFolder}, statusFailed, []string{"folder of fetched slices", notFolder, "--cache"}},
		{"no such model", []string{"-m", "/nowhere/model.gguf"}, statusFailed, []string{"/nowhere/model.gguf"}},
		{"a web server that is not there", []string{"-m", "http://127.0.0.1:1/model.gguf"}, statusFailed, []string{"127.0.0.1:1"}},
		{"memory", []string{"--memory", "much"}, statusUsage, []string{"--memory", "want a size"}},
		{"nice", []string{"--nice", "20"}, statusUsage, []string{"--nice", "0 to 19"}},
		{"processors", []string{"--max-cpu", "-1"}, statusUsage, []string{"--max-cpu"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"worker", s.address(), "--home", t.TempDir()}, tt.args...)
			kvasir(t, args...).wantFailure(t, tt.status, tt.want...)
		})
	}
	for _, p := range []*process{serve, hub} {
		p.stop()
	}
}

// TestTooLittleMemoryIsSaid has a worker with room for less than one expert: it stays, without work, and
// says why.
func TestTooLittleMemoryIsSaid(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	w := s.worker(s.address(), "--memory", "20KiB")
	serve.await("worker did not come in", w.id, "one expert takes")
	w.await("waiting", "sent this worker away", "one expert takes")
	for _, p := range []*process{w, serve, hub} {
		p.stop()
	}
}

func TestStatusIsOneLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    engine.WorkerStatus
		want string
	}{
		{engine.WorkerStatus{Status: worker.Status{State: worker.Waiting, Reason: "no backbone is\x1b here"}},
			`waiting: no backbone is\x1b here · 0.000000 units · pending 0.00000 KVR · settled 0.00000 KVR`},
		{engine.WorkerStatus{Status: worker.Status{State: worker.Working, Output: 1277952}, Pending: 8945664},
			"12 rows/s · 1.277952 units · pending 0.00895 KVR · settled 0.00000 KVR"},
		{engine.WorkerStatus{Status: worker.Status{State: worker.Working}, Settled: 7e9, Voided: 7e6, Mode: ledger.Probation},
			"12 rows/s · 0.000000 units · pending 0.00000 KVR · settled 7.00000 KVR · void 0.00700 KVR: a row was wrong · probation: paid when it ends"},
		{engine.WorkerStatus{Status: worker.Status{State: worker.Fetching, Loaded: 3 << 20, Loading: 4 << 20}},
			"fetching · [###############.....] 75 % of 4.19 MB · 0.000000 units · pending 0.00000 KVR · settled 0.00000 KVR"},
	} {
		if got := statusText(tt.s, 12.3); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	if got := bar(9, 3); got != fmt.Sprintf("[%s] 100 %% of 3 B", strings.Repeat("#", barWidth)) {
		t.Errorf("bar past its end: %q", got)
	}
	if got := clip("äöü", 2); got != "äö" {
		t.Errorf("clip gives %q", got)
	}
}

// TestWorkerReadsWeightsFromTheWeb has the model on a web server, and only hashes from the backbone.
func TestWorkerReadsWeightsFromTheWeb(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	var ranges atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/model.gguf" {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("Range") != "" {
			ranges.Add(1)
		}
		http.ServeContent(w, r, "model.gguf", time.Time{}, bytes.NewReader(tiny.Model()))
	}))
	defer web.Close()
	w := s.worker(s.address(), "-m", web.URL+"/model.gguf")
	serve.await("worker is ready", w.id)
	if ranges.Load() == 0 {
		t.Error("nothing was read from the web server")
	}
	want := local(t, story, 8)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != want {
		t.Errorf("with weights from the web: %q, local: %q", got, want)
	}
	kvasir(t, "worker", s.address(), "--home", t.TempDir(), "-m", web.URL+"/other.gguf").
		wantFailure(t, statusFailed, "/other.gguf", "404")
	for _, p := range []*process{w, serve, hub} {
		p.stop()
	}
}

// TestWorkerPrintsEvents reads what a program would.
func TestWorkerPrintsEvents(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	cmd := call{args: []string{"worker", s.address(), "--json", "--home", t.TempDir()}}.command(t)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(stdout)
	d.DisallowUnknownFields()
	var ready workerReady
	if err := d.Decode(&ready); err != nil || ready.ID == "" || ready.Memory <= 0 || ready.RowsPerSec <= 0 || ready.Model != "" {
		t.Fatalf("it begins with %+v, %v", ready, err)
	}
	var seen []string
	for {
		var e workerEvent
		if err := d.Decode(&e); err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		if e.Event == "holding" && e.Holds == "" {
			t.Errorf("%+v", e)
		}
		if seen = append(seen, e.Event); e.Event == "working" {
			break
		}
	}
	if !slices.Contains(seen, "holding") {
		t.Errorf("events %v: it works before it holds anything", seen)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := exitStatus(t, cmd.Wait()); status != statusDone {
		t.Errorf("exit status %d", status)
	}
	for _, p := range []*process{serve, hub} {
		p.stop()
	}
}
