package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must come; a loaded machine is slow.
const patience = 3 * time.Minute

// process is a server under test. Its standard output begins with one JSON object; its log is watched.
type process struct {
	t    *testing.T
	name string
	id   string // of a worker
	cmd  *exec.Cmd
	over chan struct{} // closed when it has ended
	err  error         // of Wait, then

	mu    sync.Mutex
	log   []string      // lines of standard error, under mu
	grown chan struct{} // closed and replaced when log grows, under mu
}

// launch starts a server with a home of its own and reads what it says when it is ready.
func launch(t *testing.T, home string, ready any, args ...string) *process {
	t.Helper()
	return launchWith(t, home, nil, ready, args...)
}

func launchWith(t *testing.T, home string, env []string, ready any, args ...string) *process {
	t.Helper()
	return call{args: args, env: env}.launch(t, home, ready)
}

// launch is launchWith of a call.
func (c call) launch(t *testing.T, home string, ready any) *process {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot send Ctrl-C to one process, which this test ends servers with")
	}
	p := &process{t: t, name: c.args[0], over: make(chan struct{}), grown: make(chan struct{})}
	c.args = append(slices.Clone(c.args), "--json", "--home", home)
	p.cmd = c.command(t)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.log = append(p.log, lines.Text())
			close(p.grown)
			p.grown = make(chan struct{})
			p.mu.Unlock()
		}
	}()
	t.Cleanup(p.kill)
	first := json.NewDecoder(stdout).Decode(ready)
	go func() {
		_, _ = io.Copy(io.Discard, stdout) // nothing more is to come
		<-watched
		p.err = p.cmd.Wait()
		close(p.over)
	}()
	if first != nil {
		<-p.over
		t.Fatalf("%s is not ready: %v\n%s", p.name, first, p.logged())
	}
	return p
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}

// await waits for a line of the log that holds all texts, and returns it.
func (p *process) await(texts ...string) string {
	p.t.Helper()
	return p.awaitFrom(0, texts...)
}

// awaitFrom is await for a line after so many others.
func (p *process) awaitFrom(seen int, texts ...string) string {
	p.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	last := false
	for {
		p.mu.Lock()
		for ; seen < len(p.log); seen++ {
			if containsAll(p.log[seen], texts) {
				line := p.log[seen]
				p.mu.Unlock()
				return line
			}
		}
		grown := p.grown
		p.mu.Unlock()
		if last {
			p.t.Fatalf("%s does not say %q:\n%s", p.name, texts, p.logged())
		}
		select {
		case <-grown:
		case <-p.over:
			last = true
		case <-limit.C:
			last = true
		}
	}
}

// says reports whether a line of the log so far holds all texts.
func (p *process) says(texts ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.log, func(line string) bool { return containsAll(line, texts) })
}

func containsAll(s string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(s, text) {
			return false
		}
	}
	return true
}

// ends waits for the end and checks its status.
func (p *process) ends(status int) {
	p.t.Helper()
	select {
	case <-p.over:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end:\n%s", p.name, p.logged())
	}
	if got := exitStatus(p.t, p.err); got != status {
		p.t.Errorf("%s ends with status %d, want %d:\n%s", p.name, got, status, p.logged())
	}
}

// stop is Ctrl-C, which must end a server in order.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatalf("%s: %v\n%s", p.name, err, p.logged())
	}
	p.ends(statusDone)
}

// kill is what a power cut does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.over
}

// swarm is the homes and servers of a test.
type swarm struct {
	t          *testing.T
	own        string // home of the owner, with the root key
	root       string
	rented     string // home of the machine with hub and gateway
	hubReady   hubReady
	serveReady serveReady
}

func newSwarm(t *testing.T) *swarm {
	t.Helper()
	dir := t.TempDir()
	s := &swarm{t: t, own: filepath.Join(dir, "own"), rented: filepath.Join(dir, "rented")}
	var r struct{ Root string }
	kvasir(t, "token", "root", "--json", "--home", s.own).wantDone(t).object(t, &r)
	s.root = r.Root
	return s
}

const anyPort = "127.0.0.1:0"

// freePort is an address on which nobody listens, of a port that systems give to nobody by themselves: it stays
// free when whoever has listened there is gone.
func freePort() string {
	for {
		addr := fmt.Sprint("127.0.0.1:", 12_000+rand.IntN(18_000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close() // nobody was answered
			return addr
		}
	}
}

func (s *swarm) hub(env ...string) *process {
	s.t.Helper()
	return launchWith(s.t, s.rented, env, &s.hubReady, "hub", "--root", s.root, "--listen", freePort())
}

// gateway returns a gateway beside the hub, and how to reach the hub through it.
func (s *swarm) gateway() (p *process, hub string) {
	s.t.Helper()
	var r gatewayReady
	p = launch(s.t, s.rented, &r, "gateway", "--hub", s.hubReady.Hub, "--listen", anyPort)
	return p, r.Hubs[0]
}

func (s *swarm) serve(args ...string) *process {
	s.t.Helper()
	return launch(s.t, s.own, &s.serveReady, append([]string{"serve", "--listen", anyPort}, args...)...)
}

// address is what a friend is given.
func (s *swarm) address() string {
	return strings.TrimPrefix(s.serveReady.Workers[0], "kvasir worker ")
}

// token makes a token and returns its row.
func (s *swarm) token(args ...string) (r tokenRow) {
	s.t.Helper()
	args = append([]string{"token", "create", "--json", "--home", s.own, "--hub", s.hubReady.Hub}, args...)
	kvasir(s.t, args...).wantDone(s.t).object(s.t, &r)
	return r
}

func (s *swarm) worker(args ...string) *process {
	s.t.Helper()
	return s.workerAt(s.t.TempDir(), args...)
}

func (s *swarm) workerAt(home string, args ...string) *process {
	s.t.Helper()
	var r workerReady
	// A worker that measures less than the others, for the work beside it, is left out of some plans.
	p := launch(s.t, home, &r, append([]string{"worker", "--rows-per-s", "100"}, args...)...)
	if r.RowsPerSec != 100 {
		s.t.Errorf("told to count on 100 rows a second, it counts on %d", r.RowsPerSec)
	}
	p.id = r.ID
	return p
}

// local is what one machine makes of a prompt.
func local(t *testing.T, prompt string, tokens int) string {
	t.Helper()
	var r runResult
	kvasir(t, "run", prompt, "--json", "--tokens", fmt.Sprint(tokens)).wantDone(t).object(t, &r)
	return r.Text
}
