package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

func TestKeepWaitsWithFullJitterAndSaysThingsOnce(t *testing.T) {
	var waits []time.Duration
	var said []string
	now := time.Unix(1_000_000, 0)
	lives := []time.Duration{0, 0, 0, 0, 0, 0, 0, 0, time.Minute, 0, 0}
	ctx, cancel := context.WithCancel(context.Background())
	b := Backoff{
		Rand: func() float64 { return 0.5 },
		Now:  func() time.Time { return now },
		Sleep: func(_ context.Context, d time.Duration) {
			if waits = append(waits, d); len(waits) == len(lives) {
				cancel()
			}
		},
	}
	err := Keep(ctx, b, func(context.Context) error {
		now = now.Add(lives[len(waits)])
		return fmt.Errorf("port %d is closed", 40_000+len(waits))
	}, func(err error, _ time.Duration) { said = append(said, err.Error()) })
	oneLine(t, err, context.Canceled)
	want := "[500ms 1s 2s 4s 8s 16s 30s 30s 500ms 1s 2s]"
	if got := fmt.Sprint(waits); got != want {
		t.Errorf("waits %s, want %s", got, want)
	}
	if got := fmt.Sprint(said); got != "[port 40000 is closed port 40008 is closed]" {
		t.Errorf("said %s", got)
	}
}

func TestKeepEndsWhereAnotherTryCannotHelp(t *testing.T) {
	tries := 0
	err := Keep(context.Background(), Backoff{Sleep: func(context.Context, time.Duration) {}}, func(context.Context) error {
		if tries++; tries < 5 {
			return ErrNotThere
		}
		return fmt.Errorf("hub: %w", seal.ErrTokenUsed)
	}, nil)
	oneLine(t, err, seal.ErrTokenUsed)
	for wait, err := range map[time.Duration]error{
		0:               nil,
		7 * time.Second: &ws.StatusError{Header: http.Header{"Retry-After": {"7"}}},
		5 * time.Minute: &ws.StatusError{Header: http.Header{"Retry-After": {"9999"}}},
	} {
		if got := retryAfter(err); got != wait {
			t.Errorf("%v: %v, want %v", err, got, wait)
		}
	}
}

func TestBackboneComesBackWhenTheHubDoes(t *testing.T) {
	key, addr := seal.NewKey(), freePort(t)
	log := &logbook{}
	k := seal.NewKey()
	waits := make(chan struct{}, 1000)
	b, err := NewBackbone(BackboneConfig{Key: k, Grant: granted(t, k, seal.Backbone), Root: root.Public(), Want: Want{Workers: 5},
		Hubs: []Target{{Address: "ws://" + addr, Hub: seal.HubID(key.Public())}}, Log: log.logger(),
		Backoff: Backoff{Sleep: func(ctx context.Context, _ time.Duration) {
			waits <- struct{}{}
			sleep(ctx, time.Millisecond)
		}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for range 5 {
		<-waits
	}
	if n := strings.Count(log.String(), "hub lost"); n != 1 {
		t.Errorf("%d lines about a hub that is not there:\n%s", n, log)
	}
	for range 2 {
		h, err := NewHub(HubConfig{Key: key, Root: root.Public(), Plain: true})
		if err != nil {
			t.Fatal(err)
		}
		l, err := Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- h.Serve(l) }()
		until(t, "the backbone is there", func() bool { return h.Status().Backbones == 1 })
		h.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLedgerIsForGatewaysOfTheRoot(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var from seal.PublicKey
		r := newRig(t, rigConfig{limits: quick, hubTLS: secure, hub: HubConfig{
			Ledger: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				p, _ := ProofFrom(req.Context())
				from = p.Key
				body, err := io.ReadAll(req.Body)
				_, _ = fmt.Fprintf(w, "%s %s %d %v", req.Method, req.URL, len(body), err)
			})}})
		k := seal.NewKey()
		c := HubClientConfig{Address: strings.Replace(r.hubAt, "ws", "http", 1), Hub: r.hub.ID(), Root: root.Public(),
			Key: k, Grant: granted(t, k, seal.Gateway)}
		ask := func(c HubClientConfig, method, path string, body []byte) (string, error) {
			t.Helper()
			hc, err := NewHubClient(c)
			if err != nil {
				t.Fatal(err)
			}
			defer hc.Close()
			req, err := http.NewRequestWithContext(within(t), method, "http://hub"+path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			res, err := hc.Do(req)
			if err != nil {
				return "", err
			}
			defer res.Body.Close() //nolint:errcheck // it was only read
			got, err := io.ReadAll(res.Body)
			return string(got), err
		}
		got, err := ask(c, "GET", "/ledger/receipts?after=7", nil)
		if err != nil || got != "GET /ledger/receipts?after=7 0 <nil>" || from != k.Public() {
			t.Fatalf("TLS %v: %q, %v", secure, got, err)
		}
		if got, err = ask(c, "POST", "/"+r.hub.ID()+"/ledger/ack", make([]byte, 100_000)); err != nil || got != "POST /ledger/ack 100000 <nil>" {
			t.Errorf("TLS %v: %q, %v", secure, got, err)
		}
		if got, err = ask(c, "POST", "/ledger/ack", make([]byte, maxBody+1)); err == nil && !strings.Contains(got, "too large") {
			t.Errorf("TLS %v: %q, %v", secure, got, err)
		}
		bad := c
		bad.Grant = granted(t, k, seal.Backbone)
		_, err = ask(bad, "GET", "/ledger/", nil)
		oneLine(t, err, seal.ErrWrongRole, "for a backbone")
		bad.Grant, err = seal.SignGrant(seal.NewKey(), seal.Grant{Role: seal.Gateway, Key: k.Public(), Issued: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ask(bad, "GET", "/ledger/", nil)
		oneLine(t, err, seal.ErrNotRoot)
		bad = c
		bad.Address = "http://" + freePort(t)
		_, err = ask(bad, "GET", "/ledger/", nil)
		oneLine(t, err, ErrNotThere)
		_, err = ask(c, "GET", "/elsewhere", nil)
		oneLine(t, err, ErrProtocol, "404")
	}
}

func TestGatewayChoosesTheHubByPathThenHost(t *testing.T) {
	g, err := NewGateway(GatewayConfig{Plain: true, Routes: []Route{
		{Hub: "a", Addr: "h:1"}, {Host: "b.example", Addr: "h:2"}, {Hub: "c", Host: "c.example", Addr: "h:3"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, c := range []struct{ path, host, want string }{
		{"/a/worker", "b.example", "h:1"},
		{"/worker", "B.example:443", "h:2"},
		{"/c/worker", "x", "h:3"},
		{"/worker", "c.example", "h:3"},
		{"/worker", "x", "h:1"}, // the first without a host
		{"/z/worker", "b.example", "h:2"},
	} {
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + c.path + " HTTP/1.1\r\nHost: " + c.host + "\r\n\r\n")))
		if err != nil {
			t.Fatal(err)
		}
		if r, _ := g.route(&ws.Request{Request: req}); r.Addr != c.want {
			t.Errorf("%s at %s: %s, want %s", c.path, c.host, r.Addr, c.want)
		}
	}
	for _, routes := range [][]Route{nil, {{Addr: "no port"}}, {{Addr: "h:1", TLS: true}}} {
		if _, err := NewGateway(GatewayConfig{Routes: routes, Plain: true}); err == nil {
			t.Errorf("routes %v were taken", routes)
		}
	}
}

// What a hub and a backbone say to each other is bounded before it is believed.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{`{"type":"ping"}`, `{"type":"want","want":{"workers":-1}}`, `{"type":"offer"}`, `[]`, ``,
		`{"type":"report","number":18446744073709551615,"body":"AAAA"}`} {
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0})
	h, err := NewHub(HubConfig{Key: seal.NewKey(), Root: root.Public(), Plain: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(h.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		near, far := net.Pipe()
		defer near.Close() //nolint:errcheck // of a test
		defer far.Close()  //nolint:errcheck // of a test
		d := &desk{talk: newTalk(near, nil, h.f.o)}
		l := &hubLink{b: &Backbone{c: BackboneConfig{Log: h.f.log, Root: root.Public()}}, places: make(chan struct{}, 1)}
		for r := bytes.NewReader(raw); ; {
			m, err := readMessage(r)
			if err != nil {
				if len(raw) >= 4 && binary.BigEndian.Uint32(raw) > maxTalk && !errors.Is(err, ErrProtocol) && r.Len() == len(raw)-4 {
					t.Error(err)
				}
				return
			}
			_ = h.hear(d, m)
			if m.Worker == nil { // no stranger signs for the root
				_ = l.hear(d.talk, m)
			}
		}
	})
}
