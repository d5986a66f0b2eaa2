package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvasir/internal/acmetest"
)

// wasCut reports whether a connection was ended without an answer.
func wasCut(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &op) && op.Op != "remote error" // which is a word of TLS
}

// TestServeGetsItsCertificateFromAnAuthority runs kvasir serve and, beside it, an authority that certifies who can
// prove that a name leads to it. A client asks by that name over TLS, and trusts the authority alone.
func TestServeGetsItsCertificateFromAnAuthority(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the authority's root is given in SSL_CERT_FILE, which other systems do not read")
	}
	ca, err := acmetest.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer ca.Close()
	dir := t.TempDir()
	root, home := filepath.Join(dir, "root.pem"), filepath.Join(dir, "home")
	if err := os.WriteFile(root, ca.Root(), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := call{
		args: []string{"serve", "--listen", anyPort, "--acme", "node.example", "--acme-directory", ca.Directory(), "--acme-email", "me@node.example"},
		env:  []string{"SSL_CERT_FILE=" + root},
	}
	var ready serveReady
	p := serve.launch(t, home, &ready)
	ca.Gate(ready.Listen)
	u, err := url.Parse(ready.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() != "node.example" {
		t.Errorf("it says that it is at %s, %v", ready.URL, err)
	}
	ask := func(addr string) error {
		c := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", addr) // the name is known nowhere
			},
		}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://node.example/v1/completions",
			strings.NewReader(`{"prompt": "Once", "max_tokens": 3}`))
		if err != nil {
			return err
		}
		r.Host = "127.0.0.1" // without keys the node answers this machine alone
		res, err := c.Do(r)
		if err != nil {
			return err
		}
		defer res.Body.Close() //nolint:errcheck // it was only read
		text, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusOK || !strings.Contains(string(text), `"completion_tokens":3`)) {
			err = fmt.Errorf("status %d: %s", res.StatusCode, text)
		}
		return err
	}
	ca.Break(true)
	if err := ask(ready.Listen); err == nil {
		t.Error("it answers without a certificate")
	}
	p.await("no certificate of the authority", "node.example", "not today")
	p.stop()

	ca.Break(false)
	p = serve.launch(t, home, &ready)
	ca.Gate(ready.Listen)
	for range 2 {
		err := ask(ready.Listen)
		for end := time.Now().Add(patience); wasCut(err) && time.Now().Before(end); {
			err = ask(ready.Listen) // a proof took longer than a handshake may, on a busy machine
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, p.logged())
		}
	}
	p.stop()
	p = serve.launch(t, home, &ready) // this one finds it in its home
	if err := ask(ready.Listen); err != nil {
		t.Errorf("started again: %v\n%s", err, p.logged())
	}
	p.stop()
	s := ca.Seen()
	if got := fmt.Sprintf("%v %v %v %v", s.Orders, s.Contacts[0], s.Proofs, s.Faults); got != "[node.example] mailto:me@node.example [acme-tls/1] []" {
		t.Errorf("the authority saw %s", got)
	}
	kept, err := filepath.Glob(filepath.Join(home, "acme", "@*", "node.example"))
	if err != nil || len(kept) != 1 {
		t.Errorf("kept: %q, %v", kept, err)
	}
}
