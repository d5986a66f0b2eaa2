package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/ledger"
)

// quickVariable makes of this test's executable the program, at the pace of quick: many reports are then on
// their way at every moment, and whoever was killed is back at once.
const quickVariable = "QUICK_TEST_OF_KVASIR"

var quick = pace{
	rhythm: engine.Rhythm{
		Report: 20 * time.Millisecond, Remind: 40 * time.Millisecond, Credit: 20 * time.Millisecond,
		Retry: 100 * time.Millisecond,
	},
	audit: engine.AuditOptions{Share: 1, Hold: 20 * time.Millisecond},
}

// The parties to a swarm's books.
const (
	aHub = iota
	aGateway
	aBackbone
	aWorker
	parties
)

// fourParties is a swarm of four processes on ports that stay the same, each with a home of its own.
type fourParties struct {
	*swarm
	random *rand.Rand
	homes  [parties]string
	calls  [parties]call
	now    [parties]*process
	dead   []*process // backbones
	deaths atomic.Int64
}

func newFourParties(t *testing.T) *fourParties {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &fourParties{swarm: newSwarm(t), random: rand.New(rand.NewPCG(seed, 0))}
	f.homes = [parties]string{f.rented, t.TempDir(), f.own, t.TempDir()}
	call := func(args ...string) call { return call{args: args, quick: true} }
	f.calls[aHub] = call("hub", "--root", f.root, "--listen", freePort(), "--key-rate", "1000", "--address-rate", "10000")
	f.start(aHub)
	f.calls[aGateway] = call("gateway", "--root", f.root, "--hub", f.hubReady.Hub, "--listen", freePort(), "--address-rate", "10000")
	refused := kvasir(t, append([]string{"--home", f.homes[aGateway]}, f.calls[aGateway].args...)...)
	_, key, _ := strings.Cut(refused.stderr, "kvasir token grant gateway ")
	key, _, _ = strings.Cut(key, ",")
	var g struct{ Grant string }
	kvasir(t, "token", "grant", "gateway", key, "--json", "--home", f.own).wantDone(t).object(t, &g)
	f.calls[aGateway].args = append(f.calls[aGateway].args, "--grant", g.Grant)
	f.start(aGateway)
	id, _, _ := strings.Cut(f.hubReady.Hub, "@")
	f.calls[aBackbone] = call("serve", "--listen", freePort(), "--log", "debug", "--audit-rows", "512",
		"--hub", id+"@"+f.calls[aGateway].args[6])
	f.start(aBackbone)
	f.calls[aWorker] = call("worker", f.address())
	f.start(aWorker)
	f.now[aBackbone].await("worker is ready")
	return f
}

func (f *fourParties) start(who int) {
	f.t.Helper()
	var gateway gatewayReady
	var worker workerReady
	into := [parties]any{&f.hubReady, &gateway, &f.serveReady, &worker}
	f.now[who] = f.calls[who].launch(f.t, f.homes[who], into[who])
}

// kill kills one of them and starts it again.
func (f *fourParties) kill(who int) {
	f.t.Helper()
	if who == aBackbone {
		f.deaths.Add(1)
		f.dead = append(f.dead, f.now[who])
	}
	f.now[who].kill()
	if err := f.now[who].err; err == nil {
		f.t.Errorf("%s ended well, though it was killed", f.now[who].name)
	}
	f.start(who)
	if who == aBackbone {
		f.deaths.Add(1)
	}
}

// outcomes is what came of requests.
type outcomes struct{ right, cut, refused atomic.Int64 }

// ask asks for texts until over is closed. Each is right, or the request fails: because the backbone is killed,
// or with a reason.
func (f *fourParties) ask(over <-chan struct{}, texts map[string]string, n *outcomes) {
	prompts := make([]string, 0, len(texts))
	for p := range texts {
		prompts = append(prompts, p)
	}
	client := http.Client{Timeout: patience}
	at := "http://" + f.calls[aBackbone].args[2] + "/v1/completions"
	for i := 0; ; i++ {
		select {
		case <-over:
			return
		default:
		}
		prompt, before := prompts[i%len(prompts)], f.deaths.Load()
		text, err := complete(&client, at, prompt)
		switch {
		case err == nil && text == texts[prompt]:
			n.right.Add(1)
		case err == nil:
			f.t.Errorf("%q becomes %q, local: %q", prompt, text, texts[prompt])
		case errors.Is(err, errRefused):
			n.refused.Add(1)
		case before%2 == 1 || f.deaths.Load() != before:
			n.cut.Add(1)
			time.Sleep(time.Millisecond) // nobody is there
		default:
			f.t.Errorf("a request failed, and nobody had killed the backbone: %v", err)
		}
	}
}

// errRefused is an answer with a reason.
var errRefused = errors.New("refused")

const askedTokens = 24

func complete(client *http.Client, at, prompt string) (string, error) {
	body := fmt.Sprintf(`{"prompt": %q, "max_tokens": %d}`, prompt, askedTokens)
	res, err := client.Post(at, "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return "", err
	}
	var c struct {
		Choices []struct{ Text string }
		Error   struct{ Message string }
	}
	err = json.Unmarshal(text, &c)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %.200q: %w", res.Status, text, err)
	case c.Error.Message != "":
		return "", fmt.Errorf("%w: %s", errRefused, c.Error.Message)
	case len(c.Choices) != 1:
		return "", fmt.Errorf("%s: %.200q", res.Status, text)
	}
	return c.Choices[0].Text, nil
}

// signed are the hashes of all reports that backbones say in their logs that they have signed, and kept.
// Until the hub has confirmed one, it is said again.
func (f *fourParties) signed() (all []string) {
	for _, p := range append(f.dead, f.now[aBackbone]) {
		for line := range strings.Lines(p.logged()) {
			var l struct{ Msg, Hash string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "report signed" {
				all = append(all, l.Hash)
			}
		}
	}
	return all
}

// rows reads what a query finds in a database of a home, which a process may have open: rows of a name and bytes.
func (f *fourParties) rows(who int, file, query string) map[string][]byte {
	f.t.Helper()
	u := url.URL{Scheme: "file", Path: filepath.Join(f.homes[who], file), RawQuery: "mode=ro&_pragma=busy_timeout(20000)"}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // it is only read
	rows, err := db.QueryContext(f.t.Context(), query)
	if err != nil {
		f.t.Fatal(file, err)
	}
	defer rows.Close() //nolint:errcheck // see Err
	all := map[string][]byte{}
	for rows.Next() {
		var name string
		var data []byte
		if err := rows.Scan(&name, &data); err != nil {
			f.t.Fatal(file, err)
		}
		if all[name] != nil {
			f.t.Fatalf("%s has %s twice", file, name)
		}
		all[name] = data
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(file, err)
	}
	return all
}

const (
	waitingReports    = "SELECT session || ' ' || sequence, report FROM items"
	waitingStatements = "SELECT session || ' ' || sequence, statement FROM items"
	keptReports       = "SELECT session || ' ' || sequence, signed FROM reports"
	openSessions      = "SELECT session, report FROM courses"
	keptStatements    = "SELECT session || ' ' || sequence, signed FROM statements"
)

// settle asks for texts until all that was signed, by whatever process, is settled: the worker's probation is over,
// and what was lost with a process is made up for. It does not wait for a report, which may have been signed while
// it asked: it asks again.
func (f *fourParties) settle(texts map[string]string) {
	f.t.Helper()
	client := http.Client{Timeout: patience}
	for end := time.Now().Add(patience); !f.settled(); {
		if w := f.wallet(); time.Now().After(end) {
			f.t.Fatalf("wallet %+v: something stays pending; kept are %d sessions", w, len(f.rows(aBackbone, "backbone.receipts.db", openSessions)))
		}
		for prompt, want := range texts {
			text, err := complete(&client, "http://"+f.calls[aBackbone].args[2]+"/v1/completions", prompt)
			if err != nil || text != want {
				f.t.Fatalf("%q becomes %q, local: %q; %v", prompt, text, want, err)
			}
		}
	}
}

// settled reports whether nothing is pending, nor was a hundred reports later.
func (f *fourParties) settled() bool {
	f.t.Helper()
	f.read()
	if w := f.wallet(); w.Pending > 0 || w.Settled == 0 {
		return false
	}
	time.Sleep(100 * quick.rhythm.Report)
	f.read()
	return f.wallet().Pending == 0
}

// wallet is what the gateway's books have of the worker.
func (f *fourParties) wallet() walletRow {
	f.t.Helper()
	var list struct{ Workers []walletRow }
	kvasir(f.t, "wallet", "--json", "--home", f.homes[aGateway]).wantDone(f.t).object(f.t, &list)
	if len(list.Workers) != 1 {
		f.t.Fatalf("wallet %+v, want one worker", list)
	}
	return list.Workers[0]
}

// read waits until a gateway has read all that was signed.
func (f *fourParties) read() {
	f.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		backbone := f.rows(aBackbone, "backbone.receipts.db", waitingReports)
		worker := f.rows(aWorker, "worker.receipts.db", waitingReports)
		if len(backbone)+len(worker) == 0 {
			break
		}
		if time.Now().After(end) {
			f.t.Fatalf("%d reports of the backbone and %d of the worker are read by no gateway", len(backbone), len(worker))
		}
	}
}

// drain waits until a gateway has read all that was signed, and ends all processes in order.
func (f *fourParties) drain() {
	f.t.Helper()
	f.read()
	for _, who := range []int{aWorker, aBackbone, aGateway, aHub} {
		f.now[who].stop()
	}
}

// wantKept checks that all of some is in the books as it was signed.
func (f *fourParties) wantKept(what string, some, books map[string][]byte) {
	f.t.Helper()
	for name, data := range some {
		if !bytes.Equal(books[name], data) {
			f.t.Errorf("%s %s is lost, or another", what, name)
		}
	}
}

// wantBooks checks that nothing is lost or doubled. It returns how many reports and statements there are.
func (f *fourParties) wantBooks() (reports, statements int, w walletRow) {
	f.t.Helper()
	hub, wallet := f.rows(aHub, "hub.db", keptReports), f.rows(aGateway, "wallet.db", keptReports)
	f.wantKept("the hub's report", hub, wallet)
	f.wantKept("the gateway's report", wallet, hub)
	f.wantKept("a report that the backbone keeps", f.rows(aBackbone, "backbone.receipts.db", waitingReports), wallet)
	f.wantKept("a report that the worker keeps", f.rows(aWorker, "worker.receipts.db", waitingReports), wallet)
	said, heard := f.rows(aHub, "hub.db", keptStatements), f.rows(aGateway, "wallet.db", keptStatements)
	f.wantKept("the hub's statement", said, heard)
	f.wantKept("the gateway's statement", heard, said)
	f.wantKept("a statement that the worker keeps", f.rows(aWorker, "worker.receipts.db", waitingStatements), heard)

	var picks, output int64
	var hashes []string
	for name, data := range hub {
		r, err := ledger.Verify(data)
		total, terr := r.Total()
		if err := errors.Join(err, terr); err != nil {
			f.t.Fatalf("report %s: %v", name, err)
		}
		picks, output = picks+total.Picks, output+total.Bytes
		hashes = append(hashes, fmt.Sprintf("%x", ledger.HashOf(data)))
	}
	slices.Sort(hashes)
	for _, h := range slices.Compact(f.signed()) {
		if _, found := slices.BinarySearch(hashes, h); !found {
			f.t.Errorf("report with hash %s was signed, and is lost", h)
		}
	}
	f.wantStatements(hub, said)

	home := f.homes[aGateway]
	kvasir(f.t, "ledger", "verify", "--home", home).wantDone(f.t)
	w = f.wallet()
	if w.Picks != picks || w.Pending != 0 || w.Settled != output*7 || w.Voided != 0 || w.Waiting != 0 {
		f.t.Errorf("wallet %+v; signed were %d picks and %d nKVR", w, picks, output*7)
	}
	if open := f.rows(aBackbone, "backbone.receipts.db", openSessions); len(open) > 0 {
		f.t.Errorf("%d sessions are not over, and nothing is pending", len(open))
	}
	if w.Agreed != int64(len(heard)) || w.Disputed != 0 {
		f.t.Errorf("wallet %+v; %d statements", w, len(heard))
	}
	return len(hub), len(said), w
}

// wantStatements checks that the worker agrees with what was signed for it.
func (f *fourParties) wantStatements(reports, statements map[string][]byte) {
	f.t.Helper()
	for name, data := range statements {
		s, err := ledger.VerifyStatement(data)
		if err != nil || s.Opinion != ledger.Agree || s.Report != ledger.HashOf(reports[name]) {
			f.t.Errorf("statement %s: %v, %+v", name, err, s)
		}
	}
}

// TestAnyOfFourProcessesIsKilledAndNothingIsLost kills hub, gateway, backbone and worker at random, as kill -9
// does, while texts are made, and starts them again. In the end the receipts that the backbones have signed are
// in the books of hub and gateway once each, and add up, and all of them are settled: nothing that was pending when a
// backbone died stays so. In the long form it does so 200 times.
func TestAnyOfFourProcessesIsKilledAndNothingIsLost(t *testing.T) {
	kills := 6
	if soak {
		kills = 200
	} else {
		t.Parallel()
	}
	f := newFourParties(t)
	texts := map[string]string{}
	for _, prompt := range []string{story, "The sun", "2 + 2 ="} {
		texts[prompt] = local(t, prompt, askedTokens)
	}
	over := make(chan struct{})
	var asking sync.WaitGroup
	var n outcomes
	for range 2 {
		asking.Go(func() { f.ask(over, texts, &n) })
	}
	var killed [parties]int
	order := f.random.Perm(parties) // each at least once
	for i := range kills {
		who := f.random.IntN(parties)
		if i < len(order) {
			who = order[i]
		}
		if f.random.IntN(4) > 0 { // else the next dies before all are back
			f.now[aBackbone].awaitMore("report signed")
		}
		time.Sleep(time.Duration(f.random.IntN(100)) * time.Millisecond)
		f.kill(who)
		killed[who]++
	}
	f.now[aBackbone].awaitMore("report signed")
	close(over)
	asking.Wait()
	f.settle(texts)
	f.drain()
	reports, statements, w := f.wantBooks()
	t.Logf("killed: hub %d, gateway %d, backbone %d, worker %d; texts: %d right, %d cut, %d refused", killed[aHub], killed[aGateway],
		killed[aBackbone], killed[aWorker], n.right.Load(), n.cut.Load(), n.refused.Load())
	t.Logf("%d reports and %d statements; %d picks, %d nKVR settled and %d pending", reports, statements, w.Picks, w.Settled, w.Pending)
	if n.right.Load() == 0 || w.Picks == 0 {
		t.Error("no work was done")
	}
}

// soak says that tests are to run in their long form: make soak.
var soak = os.Getenv("KVASIR_SOAK") == "1"

// awaitMore waits for a line with text that has not been said yet.
func (p *process) awaitMore(text string) {
	p.t.Helper()
	p.mu.Lock()
	seen := len(p.log)
	p.mu.Unlock()
	p.awaitFrom(seen, text)
}
