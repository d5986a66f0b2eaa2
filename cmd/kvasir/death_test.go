package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// long reports whether tests are to run in their long form: make chaos.
func long() bool { return os.Getenv("KVASIR_CHAOS") == "1" }

// streams asks for the same text several times at once, and compares. each is called for every event of any;
// the longest time between two events of one stream is returned.
func streams(t *testing.T, url, want string, n, tokens int, each func()) (stall time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			last := time.Now()
			got := answerOf(t, url, story, tokens, func(event int) {
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); event > 1 {
					stall, last = max(stall, now.Sub(last)), now
				} else {
					last = now // what comes before is the queue and the prompt
				}
				each()
			})
			if got != want {
				t.Errorf("stream %d: %q, local: %q", i, got, want)
			}
		})
	}
	all.Wait()
	return stall
}

// TestKilledWorkerProcessFailsNoRequest kills one of three worker processes, as kill -9 does, while six texts
// are made. No request fails, every token is the same. In the long form it does so ten times, and no text may
// stand still for longer than two round trips and the time after which an answer is given up, against the
// longest pause while nobody is killed.
func TestKilledWorkerProcessFailsNoRequest(t *testing.T) {
	if !long() {
		t.Parallel()
	}
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	runs, tokens := 1, 60
	if long() {
		runs = 10
	}
	want := local(t, story, tokens)
	for range runs {
		var workers []*process
		for range 3 {
			w := s.worker(s.address())
			serve.await("worker is ready", w.id)
			workers = append(workers, w)
		}
		usual := streams(t, s.serveReady.URL, want, 6, tokens, func() {})
		events := 0
		stall := streams(t, s.serveReady.URL, want, 6, tokens, func() {
			if events++; events == 40 {
				_ = workers[1].cmd.Process.Kill() // the text goes on meanwhile
			}
		})
		t.Logf("longest pause %v, and %v while nobody is killed", stall, usual)
		const giveUp, rtt = 250 * time.Millisecond, time.Millisecond
		if long() && stall > usual+2*rtt+giveUp {
			t.Errorf("a text stood still for %v, usually for %v at most", stall, usual)
		}
		serve.await("worker left", workers[1].id)
		workers[1].kill() // it is waited for
		for _, w := range []*process{workers[0], workers[2]} {
			w.stop()
			serve.await("worker left", w.id)
		}
	}
	serve.stop()
	hub.stop()
}

// memoryOf is what a process has in memory, in KiB; 0: not known.
func memoryOf(t *testing.T, pid int) (kib int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	return 0
}

// TestFlappingWorkerProcessFailsNoRequest has a worker come and go, by turns in order and by kill -9, beside a
// steady one, while texts are made. In the long form it does so every 2 s for 5 minutes, and the memory of the
// backbone must not grow by more than a quarter after the first minute.
func TestFlappingWorkerProcessFailsNoRequest(t *testing.T) {
	if !long() {
		t.Parallel()
	}
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	steady := s.worker(s.address())
	serve.await("worker is ready", steady.id)
	const tokens = 20
	want := local(t, story, tokens)
	over := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				streams(t, s.serveReady.URL, want, 2, tokens, func() {})
			}
		}
	})
	rounds, pause := 3, time.Duration(0)
	if long() {
		rounds, pause = 75, 2*time.Second
	}
	home, early := t.TempDir(), 0
	for i := range rounds {
		w := s.workerAt(home, s.address())
		serve.await("worker joined", w.id)
		time.Sleep(pause)
		if i%2 == 0 {
			w.stop()
		} else {
			w.kill()
		}
		time.Sleep(pause)
		if i == rounds/5 {
			early = memoryOf(t, serve.cmd.Process.Pid)
		}
	}
	if late := memoryOf(t, serve.cmd.Process.Pid); long() && late > early+early/4 {
		t.Errorf("the backbone has %d KiB, %d KiB after the first minute", late, early)
	} else {
		t.Logf("the backbone has %d KiB, and had %d early on", late, early)
	}
	close(over)
	asking.Wait()
	res, err := http.Get(strings.TrimSuffix(s.serveReady.URL, "/v1") + "/v1/models")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %v, %v", res, err)
	} else {
		_ = res.Body.Close() // nothing of it is read
	}
	for _, p := range []*process{steady, serve, hub} {
		p.stop()
	}
}
