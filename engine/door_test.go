package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/access"
)

// servedNode is a serving node of kvasir-tiny that runs.
type servedNode struct {
	t   *testing.T
	n   *engine.ServeNode
	c   *http.Client
	url string
}

func newServedNode(t *testing.T, home engine.Home, listen string, door engine.DoorOptions) *servedNode {
	t.Helper()
	n, err := engine.NewServeNode(engine.ServeOptions{
		BackboneOptions: engine.BackboneOptions{Home: home}, Listen: listen, Door: door,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	_, port, err := net.SplitHostPort(n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &servedNode{t: t, n: n, c: &http.Client{Transport: &http.Transport{}}, url: "http://127.0.0.1:" + port}
	t.Cleanup(func() {
		s.c.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends a request with a key, if there is one.
func (s *servedNode) ask(method, path, key, body string) (status int, text string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := s.c.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(all)
}

func createKey(t *testing.T, home engine.Home, k access.Key) (text string) {
	t.Helper()
	text, _, err := home.CreateAPIKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestBeyondThisMachineKeysAreAskedFor(t *testing.T) {
	home := engine.Home(t.TempDir())
	_, err := engine.NewServeNode(engine.ServeOptions{BackboneOptions: engine.BackboneOptions{Home: home}, Listen: "0.0.0.0:0"})
	if !errors.Is(err, engine.ErrOpen) {
		t.Fatalf("without a key: %v, want %v", err, engine.ErrOpen)
	}
	key := createKey(t, home, access.Key{Scopes: []access.Scope{access.Chat}, Limits: access.Limits{Sequences: 2}})
	s := newServedNode(t, home, "0.0.0.0:0", engine.DoorOptions{})
	if status, text := s.ask("GET", "/v1/models", "", ""); status != http.StatusUnauthorized {
		t.Errorf("without a key status %d: %s", status, text)
	}
	if status, text := s.ask("POST", "/v1/completions", key, `{"prompt": "a", "max_tokens": 2, "n": 2}`); status != http.StatusOK {
		t.Errorf("with a key status %d: %s", status, text)
	}
	if status, text := s.ask("POST", "/v1/completions", key, `{"prompt": "a", "max_tokens": 2, "n": 3}`); status != http.StatusBadRequest ||
		!strings.Contains(text, `"param":"n"`) {
		t.Errorf("with more sequences than the key may have status %d: %s", status, text)
	}
	if status, text := s.ask("POST", "/v1/completions", key, `{"prompt": ["a", "b", "c"], "max_tokens": 2}`); status != http.StatusBadRequest ||
		!strings.Contains(text, `"param":"prompt"`) {
		t.Errorf("with more prompts than the key may have sequences status %d: %s", status, text)
	}
	open := newServedNode(t, engine.Home(t.TempDir()), "0.0.0.0:0", engine.DoorOptions{Open: true})
	if status, text := open.ask("GET", "/v1/models", "", ""); status != http.StatusOK {
		t.Errorf("with Open status %d: %s", status, text)
	}
	near := newServedNode(t, engine.Home(t.TempDir()), "127.0.0.1:0", engine.DoorOptions{})
	if status, text := near.ask("GET", "/metrics", "", ""); status != http.StatusOK || !strings.Contains(text, "vllm:num_requests_running") {
		t.Errorf("on this machine status %d: %s", status, text)
	}
}

func TestTokensOfAKeyAreChargedAsTheyAreMade(t *testing.T) {
	home := engine.Home(t.TempDir())
	key := createKey(t, home, access.Key{Scopes: []access.Scope{access.Chat}, Limits: access.Limits{Tokens: 6}})
	s := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{Keys: true})
	if status, text := s.ask("POST", "/v1/completions", key, `{"prompt": "The capital of France", "max_tokens": 20}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	if status, text := s.ask("POST", "/v1/completions", key, `{"prompt": "a"}`); status != http.StatusTooManyRequests || !strings.Contains(text, "tokens a minute") {
		t.Errorf("when they are used up status %d: %s", status, text)
	}
}

// selfSigned writes a certificate of 127.0.0.1 and node.example, for a year, and its key.
func selfSigned(t *testing.T) (cert, key string, trust *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, NotAfter: time.Now().AddDate(1, 0, 0),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"node.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, trust = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	trust.AppendCertsFromPEM(public)
	if err := errors.Join(os.WriteFile(cert, public, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)); err != nil {
		t.Fatal(err)
	}
	return cert, key, trust
}

func TestServingNodeSpeaksTLS(t *testing.T) {
	cert, key, trust := selfSigned(t)
	s := newServedNode(t, engine.Home(t.TempDir()), "127.0.0.1:0", engine.DoorOptions{CertFile: cert, KeyFile: key})
	if !s.n.TLS {
		t.Error("it does not say so")
	}
	s.c.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}}
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	if status, text := s.ask("POST", "/v1/completions", "", `{"prompt": "a", "max_tokens": 2}`); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	_, err := engine.NewServeNode(engine.ServeOptions{Listen: "127.0.0.1:0", Door: engine.DoorOptions{CertFile: key, KeyFile: cert}})
	if err == nil {
		t.Error("files that are no certificate are taken")
	}
}

// TestServingNodeShowsWhatAnAuthorityGaveItByName starts with a certificate that lies in its home from earlier, as
// the authority's answer is kept: how it is asked is tested where that is done.
func TestServingNodeShowsWhatAnAuthorityGaveItByName(t *testing.T) {
	cert, key, trust := selfSigned(t)
	home := engine.Home(t.TempDir())
	var kept []byte
	for _, path := range []string{key, cert} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, text...)
	}
	folder := filepath.Join(string(home), "acme")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "node.example"), kept, 0o600)); err != nil {
		t.Fatal(err)
	}
	s := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{ACME: engine.ACMEOptions{Hosts: []string{"node.example"}}})
	if !s.n.TLS {
		t.Error("it does not say that it speaks TLS")
	}
	s.c.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust, ServerName: "node.example"}}
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	if status, text := s.ask("POST", "/v1/completions", "", `{"prompt": "a", "max_tokens": 2}`); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	if c, err := tls.Dial("tcp", s.n.Addr, &tls.Config{RootCAs: trust, ServerName: "other.example"}); err == nil {
		_ = c.Close() // it should not be there
		t.Error("it shows itself by another name")
	}
}

// raw sends bytes as they are, all of them before it reads, and returns the answer's status.
func raw(t *testing.T, c net.Conn, text []byte) int {
	t.Helper()
	defer c.Close() //nolint:errcheck // the answer counts
	if _, err := c.Write(text); err != nil {
		t.Fatalf("the request could not be sent: %v", err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func TestHeadersOfAMebibyteGet431(t *testing.T) {
	cert, key, trust := selfSigned(t)
	head := append([]byte("POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Large: "), bytes.Repeat([]byte("x"), 1<<20)...)
	head = append(head, "\r\n\r\n"...)
	for name, door := range map[string]engine.DoorOptions{"plain": {}, "TLS": {CertFile: cert, KeyFile: key}} {
		s := newServedNode(t, engine.Home(t.TempDir()), "127.0.0.1:0", door)
		c, err := net.Dial("tcp", s.n.Addr)
		if err != nil {
			t.Fatal(err)
		}
		if name == "TLS" {
			c = tls.Client(c, &tls.Config{RootCAs: trust, ServerName: "127.0.0.1"})
		}
		if status := raw(t, c, head); status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: status %d, want 431", name, status)
		}
	}
}

func TestLargeBodiesGet413(t *testing.T) {
	s := newServedNode(t, engine.Home(t.TempDir()), "127.0.0.1:0", engine.DoorOptions{})
	c, err := net.Dial("tcp", s.n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	const size = 6 << 20
	head := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", size)
	if status := raw(t, c, append(head, make([]byte, size)...)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", status)
	}
}

func TestFullNodeSaysWhenToComeAgain(t *testing.T) {
	n, err := engine.NewServeNode(engine.ServeOptions{
		BackboneOptions: engine.BackboneOptions{Options: engine.Options{Sequences: 1}}, Listen: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer func() {
		client.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	const asked = 1300 // more than run and wait
	var mu sync.Mutex
	refused := 0
	var wg sync.WaitGroup
	for range asked {
		wg.Go(func() {
			res, err := client.Post("http://"+n.Addr+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "a", "max_tokens": 40}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close() //nolint:errcheck // it is only read
			var body struct {
				Error struct{ Code string } `json:"error"`
			}
			if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			switch wait, err := strconv.Atoi(res.Header.Get("Retry-After")); {
			case res.StatusCode == http.StatusOK:
			case res.StatusCode == http.StatusTooManyRequests && err == nil && wait >= 1 && wait <= 60 && body.Error.Code == "rate_limit_exceeded":
				mu.Lock()
				refused++
				mu.Unlock()
			default:
				t.Errorf("status %d, Retry-After %q, %+v", res.StatusCode, res.Header.Get("Retry-After"), body)
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d were told to come again", refused, asked)
}
