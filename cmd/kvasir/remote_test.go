package main

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestRunWithRemoteExperts has no worker at first: run says how one comes in, and waits.
func TestRunWithRemoteExperts(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	c := call{args: []string{"run", story, "--tokens", "8", "-v", "--experts", "remote", "--hub", s.hubReady.Hub, "--home", s.own}}
	cmd := c.command(t)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, buf := "", make([]byte, 4096)
	for !strings.Contains(said, "\n\n    kvasir worker kvasir://") || !strings.HasSuffix(said, "\n\n") {
		n, err := stderr.Read(buf)
		if said += string(buf[:n]); err != nil {
			t.Fatalf("run ends without waiting for a worker: %q", said)
		}
	}
	if !strings.HasPrefix(said, "Waiting for a worker. A friend helps with:") {
		t.Errorf("run says %q", said)
	}
	_, address, _ := strings.Cut(said, "kvasir worker ")
	worker := s.worker(strings.TrimSpace(address))
	for {
		n, err := stderr.Read(buf)
		if said += string(buf[:n]); err != nil {
			break
		}
	}
	if status := exitStatus(t, cmd.Wait()); status != statusDone {
		t.Errorf("exit status %d: %s", status, said)
	}
	if want := local(t, story, 8); strings.TrimSuffix(stdout.String(), "\n") != want {
		t.Errorf("with remote experts %q, with local ones %q", stdout.String(), want)
	}
	if !strings.Contains(said, " picks by 1 worker") || strings.Contains(said, " 0 picks") {
		t.Errorf("the statistics tell of no worker's work: %q", said)
	}
	worker.stop()
	hub.stop()
}

// TestServeAnswersManyAtOnceAsAlone asks as many at once as are let in, in little memory: some wait.
func TestServeAnswersManyAtOnceAsAlone(t *testing.T) {
	t.Parallel()
	var ready serveReady
	p := launch(t, t.TempDir(), &ready, "serve", "--listen", anyPort, "--memory", "16MiB", "--sequences", "24")
	const requests, prompts, tokens = 64, 4, 16
	prompt := func(i int) string { return fmt.Sprintf("The king said to the %d men", i%prompts) }
	var want [prompts]string
	for i := range want {
		want[i] = answerOf(t, ready.URL, prompt(i), tokens, nil)
	}
	var wg sync.WaitGroup
	got := make([]string, requests)
	for i := range got {
		wg.Go(func() { got[i] = answerOf(t, ready.URL, prompt(i), tokens, nil) })
	}
	wg.Wait()
	for i, text := range got {
		if text != want[i%prompts] {
			t.Errorf("request %d gets %q among others, and %q alone", i, text, want[i%prompts])
		}
	}
	p.stop()
}
