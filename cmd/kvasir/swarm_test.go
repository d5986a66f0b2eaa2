package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine/tiny"
)

// answerOf asks for a completion as a stream, and calls each after every event.
func answerOf(t *testing.T, url, prompt string, tokens int, each func(event int)) (text string) {
	t.Helper()
	body := fmt.Sprintf(`{"prompt": %q, "max_tokens": %d, "stream": true}`, prompt, tokens)
	res, err := http.Post(url+"/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	events := 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text
		}
		var c struct {
			Choices []struct{ Text string }
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil || len(c.Choices) != 1 {
			t.Fatalf("event %q: %v", data, err)
		}
		text += c.Choices[0].Text
		if events++; each != nil {
			each(events)
		}
	}
	t.Fatalf("the stream ends without [DONE] after %q", text)
	return ""
}

const story = "There was once a poor miller"

// TestSwarmOfProcesses has gateway and hub together on one machine and the backbone elsewhere, which
// dials out through the gateway as the workers do. One worker is killed in the middle of a stream.
func TestSwarmOfProcesses(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	gateway, through := s.gateway()
	serve := s.serve("--hub", through)
	serve.await("experts are computed here until a worker joins")
	first, second := s.worker(s.address()), s.worker(s.address())
	serve.await("worker is ready", first.id)
	serve.await("worker is ready", second.id)

	const tokens = 120
	want := local(t, story, tokens)
	got := answerOf(t, s.serveReady.URL, story, tokens, func(event int) {
		if event == 5 {
			first.kill()
		}
	})
	if got != want {
		t.Errorf("with a worker killed: %q, local: %q", got, want)
	}
	serve.await("worker left")
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); !strings.HasPrefix(want, got) {
		t.Errorf("with one worker: %q, local: %q", got, want)
	}

	second.stop()
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); !strings.HasPrefix(want, got) {
		t.Errorf("without workers: %q, local: %q", got, want)
	}
	serve.stop()   // it signs for the last work
	gateway.stop() // it credits once more
	hub.stop()

	var w struct{ Workers []walletRow }
	kvasir(t, "wallet", "--json", "--home", s.rented).wantDone(t).object(t, &w)
	if len(w.Workers) != 2 {
		t.Fatalf("wallet %+v, want two workers", w)
	}
	for _, b := range w.Workers {
		// kvasir-tiny has 256 values a row, of 4 bytes, of which each earns 7 nKVR.
		if b.Picks <= 0 || b.Pending+b.Settled != b.Picks*256*4*7 || b.Voided != 0 || !serve.says("worker left", fmt.Sprintf(`"picks":%d,`, b.Picks)) {
			t.Errorf("wallet has %+v; serve says:\n%s", b, serve.logged())
		}
	}
}

// TestHubThatEnds stops the hub first, which others then wait for and find again.
func TestHubThatEnds(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub) // no gateway: the hub is dialled
	worker := s.worker(s.address())
	worker.await("working")
	hub.stop()
	worker.await("peer goes away", "the hub ends")
	serve.await("hub lost, trying again")
	worker.await("no connection, trying again")
	want := local(t, story, 8)
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != want {
		t.Errorf("without a hub: %q, local: %q", got, want)
	}
	var again hubReady
	back := launch(t, s.rented, &again, "hub", "--root", s.root, "--listen", s.hubReady.Listen)
	back.await("paired")
	if got := answerOf(t, s.serveReady.URL, story, 8, nil); got != want {
		t.Errorf("with the hub back: %q, local: %q", got, want)
	}
	worker.stop()
	serve.stop()
	back.stop()
}

// TestMissingPeerIsWaitedFor starts everything before the hub.
func TestMissingPeerIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	s.hub().stop() // it has an id, and an address where nobody is now
	serve := s.serve("--hub", s.hubReady.Hub)
	worker := s.worker(s.address())
	serve.await("hub lost, trying again", "not there")
	worker.await("no connection, trying again", "not there")
	if n := strings.Count(worker.logged(), "trying again"); n != 1 {
		t.Errorf("said %d times:\n%s", n, worker.logged())
	}
	worker.stop()
	serve.stop()
}

// TestOneProcessServesAndTakesWorkers needs two commands: serve --embedded here, and its line elsewhere. The
// worker is known again after a restart, and what it did is in the wallet.
func TestOneProcessServesAndTakesWorkers(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	serve := s.serve("--embedded", "--embedded-listen", anyPort)
	worker := s.worker(s.address())
	serve.await("worker is ready", worker.id)
	want := local(t, story, 40)
	if got := answerOf(t, s.serveReady.URL, story, 40, nil); got != want {
		t.Errorf("with a worker: %q, local: %q", got, want)
	}
	root := strings.TrimSuffix(s.serveReady.URL, "/v1")
	if text := getText(t, root+"/"); !strings.Contains(text, "<title>Kvasir</title>") {
		t.Errorf("the page is %.80q", text)
	}
	var status struct {
		Model   string
		Tokens  struct{ Generated int64 }
		Workers []struct {
			ID    string
			Picks int64
		}
		Batches []struct{}
	}
	text := getText(t, root+"/status.json")
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Model != tiny.Name || status.Tokens.Generated < 40 ||
		len(status.Workers) != 1 || status.Workers[0].ID != worker.id || status.Workers[0].Picks <= 0 || status.Batches == nil {
		t.Errorf("%v: status %s", err, text)
	}
	if secret := s.address(); strings.Contains(text, secret[len(secret)-20:]) {
		t.Error("the status has the token of workers")
	}
	worker.stop()
	serve.await("worker left", worker.id)
	serve.stop()
	var w struct{ Workers []walletRow }
	kvasir(t, "wallet", "--json", "--home", s.own).wantDone(t).object(t, &w)
	if len(w.Workers) != 1 || w.Workers[0].Picks <= 0 || w.Workers[0].Pending != w.Workers[0].Picks*256*4*7 {
		t.Errorf("wallet %+v, want one worker with what it did", w)
	}

	again := s.serve("--embedded", "--embedded-listen", "0.0.0.0:0")
	if a := s.address(); strings.Contains(a, "0.0.0.0") || strings.Contains(a, ":0/") {
		t.Errorf("the line for friends names no machine: %s", a)
	}
	back := s.worker(s.address())
	again.await("worker is ready", back.id)
	again.stop() // with the worker there
	back.await("no connection, trying again")
	back.stop()
}

func getText(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, res.StatusCode, err)
	}
	return string(text)
}

func TestEmbeddedGoesWithNoOtherHub(t *testing.T) {
	t.Parallel()
	kvasir(t, "serve", "--embedded", "--hub", "aaaaaaaaaaaaaaaaaaaaaaaaaa@h:1").wantFailure(t, 2, "--embedded is a hub itself")
	kvasir(t, "serve", "--gateway", "x").wantFailure(t, 2, "of no use without --hub")
}

// TestServeAlone is without any hub.
func TestServeAlone(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	serve := s.serve()
	if got, want := answerOf(t, s.serveReady.URL, story, 8, nil), local(t, story, 8); got != want {
		t.Errorf("serve: %q, run: %q", got, want)
	}
	body := `{"model": "kvasir-tiny", "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}`
	res, err := http.Post(s.serveReady.URL+"/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	var c struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(res.Body).Decode(&c); err != nil || len(c.Choices) != 1 ||
		!strings.HasPrefix(c.Choices[0].Message.Content, "The capital of Japan is Tokyo") {
		t.Errorf("chat: %+v, %v", c, err)
	}
	serve.stop()
}

// A gateway elsewhere needs the owner's word, and says how to get it.
func TestGatewayElsewhereIsGranted(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	home := filepath.Join(t.TempDir(), "elsewhere")
	args := []string{"gateway", "--home", home, "--root", s.root, "--hub", s.hubReady.Hub, "--listen", anyPort}
	refused := kvasir(t, args...)
	refused.wantFailure(t, statusFailed, "not granted", "kvasir token grant gateway ")
	_, key, _ := strings.Cut(refused.stderr, "kvasir token grant gateway ")
	key, _, _ = strings.Cut(key, ",")
	var g struct{ Grant string }
	kvasir(t, "token", "grant", "gateway", key, "--json", "--home", s.own).wantDone(t).object(t, &g)
	var r gatewayReady
	launch(t, home, &r, "gateway", "--root", s.root, "--hub", s.hubReady.Hub, "--listen", anyPort, "--grant", g.Grant).stop()
	// It is kept.
	gateway := launch(t, home, &r, "gateway", "--root", s.root, "--hub", s.hubReady.Hub, "--listen", anyPort)
	serve := s.serve("--hub", s.hubReady.Hub, "--gateway", r.Listen)
	worker := s.worker(s.address())
	worker.await("working")
	for _, p := range []*process{worker, serve, gateway, hub} {
		p.stop()
	}
}

// TestRefusalsAreSaidOnBothSides holds that who is refused ends with status 1 and a line that says why,
// and that the hub's log says it too.
func TestRefusalsAreSaidOnBothSides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		refused func(t *testing.T, s *swarm) *process
		why     []string // said by who is refused
		logged  []string // by the hub
	}{
		{"worker of another swarm", func(t *testing.T, s *swarm) *process {
			other := &swarm{t: t, own: t.TempDir(), hubReady: s.hubReady}
			return s.worker(other.token().Line)
		}, []string{"not signed by the root of this swarm"}, []string{"refused", "not signed by the root"}},
		{"backbone of another swarm", func(t *testing.T, s *swarm) *process {
			other := &swarm{t: t, own: t.TempDir(), hubReady: s.hubReady}
			return other.serve("--hub", s.hubReady.Hub)
		}, []string{"not signed by the root of this swarm"}, []string{"refused", "grant of key"}},
		{"used token", func(t *testing.T, s *swarm) *process {
			once := s.token("--uses", "1")
			s.worker(once.Line).await("working")
			return s.worker(once.Line)
		}, []string{"token is used up"}, []string{"refused", "used up"}},
		{"revoked token", func(t *testing.T, s *swarm) *process {
			gone := s.token()
			kvasir(t, "token", "revoke", gone.ID, "--home", s.rented)
			return s.worker(gone.Line)
		}, []string{"token was revoked"}, []string{"refused", "revoked"}},
		{"another model", func(t *testing.T, s *swarm) *process {
			changed := bytes.Clone(tiny.Model())
			changed[len(changed)-1]++ // in a weight
			return s.worker(s.address(), "-m", writeFile(t, "changed.gguf", changed))
		}, []string{"no backbone serves the model", "give the model file"}, []string{"worker waits", "no backbone serves the model"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSwarm(t)
			hub := s.hub()
			s.serve("--hub", s.hubReady.Hub).await("connected to hub")
			p := c.refused(t, s)
			p.ends(statusFailed)
			if line := p.await(append(c.why, "kvasir: ")...); !strings.HasPrefix(line, "kvasir: ") {
				t.Errorf("the last line is %q", line)
			}
			hub.await(c.logged...)
		})
	}
}

func TestPortInUseIsSaid(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	for _, args := range [][]string{
		{"hub", "--home", s.rented, "--root", s.root},
		{"gateway", "--home", s.rented, "--hub", s.hubReady.Hub},
		{"serve", "--home", s.own},
	} {
		kvasir(t, append(args, "--listen", s.hubReady.Listen)...).
			wantFailure(t, statusFailed, "port in use", s.hubReady.Listen)
	}
	hub.stop()
}

// Two of one role in one home would have one key, and push each other out.
func TestHomeInUseIsSaid(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	home := t.TempDir()
	worker := s.workerAt(home, s.address())
	for _, args := range [][]string{
		{"hub", "--home", s.rented, "--listen", anyPort},
		{"serve", "--home", s.own, "--hub", s.hubReady.Hub, "--listen", anyPort},
		{"worker", "--home", home, s.address()},
	} {
		kvasir(t, args...).wantFailure(t, statusFailed, "another process of this home folder", "another --home")
	}
	for _, p := range []*process{worker, serve, hub} {
		p.stop()
	}
}

// A clock that is a day off matters to tokens that end, and to nothing else.
func TestClockThatIsADayOff(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub(clockVariable + "=24h")
	serve := s.serve("--hub", s.hubReady.Hub)
	short := s.token("--expires", "1h")
	late := s.worker(short.Line)
	late.ends(statusFailed)
	late.await("kvasir: ", "token expired at", "the hub's clock says", "behind the hub's")
	hub.await("refused", "token expired")
	worker := s.worker(s.address())
	worker.await("working")
	for _, p := range []*process{worker, serve, hub} {
		p.stop()
	}
}

// TestGarbageOnEveryPort is from strangers who know nothing of Kvasir.
func TestGarbageOnEveryPort(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	gateway, through := s.gateway()
	serve := s.serve("--hub", through)
	serve.await("connected to hub")
	_, gatewayAddr, _ := strings.Cut(through, "@")
	for _, addr := range []string{s.hubReady.Listen, gatewayAddr, s.serveReady.Listen} {
		for _, garbage := range []string{"\x00\xff\x13garbage\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\xfe", 1<<16)} {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = nc.Write([]byte(garbage)) // it may be cut in the middle
			_ = nc.Close()
		}
	}
	hub.await("refused", "tls")
	gateway.await("refused", "tls")
	worker := s.worker(s.address())
	worker.await("working")
	if got, want := answerOf(t, s.serveReady.URL, story, 4, nil), local(t, story, 4); got != want {
		t.Errorf("after garbage: %q, local: %q", got, want)
	}
	for _, p := range []*process{worker, serve, gateway, hub} {
		p.stop()
	}
}
