package ws

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// The whole way, with the parts of this package alone: a worker dials a hub over TLS and waits; a
// backbone dials the hub too; the hub splices them, and the two speak TLS to each other over
// WebSocket frames. The worker says hello the moment that it is paired, or before, and nothing of
// it is lost.
func TestPathThroughAHub(t *testing.T) {
	outer, pool := certificate(t, never)
	inner, innerPool := certificate(t, never)
	for name, early := range map[string]bool{"after paired": false, "early": true} {
		t.Run(name, func(t *testing.T) {
			offered := make(chan struct{})
			legs := make(chan net.Conn)
			hub := listen(t, func(nc net.Conn) { hubServe(t, tls.Server(nc, serverTLS(outer)), legs, offered) })
			done := make(chan struct{})
			go func() {
				defer close(done)
				<-offered
				backboneServe(t, hub, pool, inner)
			}()
			workerRun(t, hub, pool, innerPool, early)
			inTime(t, done)
		})
	}
}

func serverTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true}
}

// hubServe is a hub: a request for /worker waits for one for /session, and the two are spliced.
func hubServe(t *testing.T, nc net.Conn, legs chan net.Conn, offered chan struct{}) {
	req, err := ReadRequest(nc, nil, 0)
	if err != nil {
		t.Error(err)
		return
	}
	if req.URL.Path == "/session" {
		if err := Switch(nc, req, "kvasir-session/1", nil); err != nil {
			t.Error(err)
			return
		}
		legs <- prefixed{nc, io.MultiReader(bytes.NewReader(req.Rest), nc)}
		<-legs // until the splice is over
		return
	}
	if err := Switch(nc, req, WebSocket, nil); err != nil {
		t.Error(err)
		return
	}
	c := New(nc, Server, req.Rest, Options{})
	l := NewLobby(c, 16<<10)
	if err := c.WriteMessage(Text, []byte(`{"wait":"no backbone"}`)); err != nil {
		t.Error(err)
	}
	if p, err := l.Read(); err != nil || string(p) != "here" {
		t.Errorf("hub read %q, %v", p, err)
	}
	reader := make(chan error)
	go func() { _, err := l.Read(); reader <- err }()
	close(offered)
	leg := <-legs
	_ = l.Interrupt()
	if err := <-reader; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("hub's reader ended with %v", err)
	}
	if err := c.WriteMessage(Text, []byte(`{"paired":"7"}`)); err != nil {
		t.Error(err)
	}
	nc, rest, err := l.Detach()
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		_, _ = io.Copy(leg, io.MultiReader(bytes.NewReader(rest), nc))
		_ = leg.Close()
	}()
	_, _ = io.Copy(nc, leg)
	_ = nc.Close()
	legs <- nil
}

type prefixed struct {
	net.Conn
	r io.Reader
}

func (p prefixed) Read(b []byte) (int, error) { return p.r.Read(b) }

// backboneServe speaks the server's side of RFC 6455 from the first byte on, and echoes.
func backboneServe(t *testing.T, hub string, pool *x509.CertPool, cert tls.Certificate) {
	nc, rest, _, err := DialProtocol(t.Context(), "wss://"+hub+"/session", "kvasir-session/1", DialOptions{TLS: &tls.Config{RootCAs: pool}})
	if err != nil {
		t.Error(err)
		return
	}
	// The worker's last "here" may still be on its way.
	s := tls.Server(NetConn(New(nc, Server, rest, Options{DropText: true})), serverTLS(cert))
	_ = s.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(s, s); err != nil {
		t.Errorf("backbone: %v", err)
	}
	_ = s.Close()
}

func workerRun(t *testing.T, hub string, pool, innerPool *x509.CertPool, early bool) {
	c, _, err := Dial(t.Context(), "wss://"+hub+"/worker", DialOptions{
		TLS: &tls.Config{RootCAs: pool}, Options: Options{DropText: early}})
	if err != nil {
		t.Error(err)
		return
	}
	inner := tls.Client(NetConn(c), &tls.Config{RootCAs: innerPool, ServerName: "127.0.0.1", DynamicRecordSizingDisabled: true})
	slab := make([]byte, 1000)
	if _, _, err := c.ReadMessage(slab); err != nil {
		t.Error(err)
	}
	if err := c.WriteMessage(Text, []byte("here")); err != nil {
		t.Error(err)
	}
	if !early {
		if _, n, err := c.ReadMessage(slab); err != nil || string(slab[:n]) != `{"paired":"7"}` {
			t.Errorf("worker read %q, %v", slab[:n], err)
		}
	} // else its ClientHello goes to the hub, and "paired" is dropped by NetConn
	sent := bytes.Repeat([]byte("row"), 50_000)
	go func() { _, _ = inner.Write(sent); _ = inner.CloseWrite() }()
	got, err := io.ReadAll(inner)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("worker got %d of %d bytes, %v", len(got), len(sent), err)
	}
	_ = inner.Close()
}
