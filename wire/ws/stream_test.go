package ws

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// certificate returns a self-signed one for 127.0.0.1, and a pool that trusts it.
func certificate(t testing.TB, notAfter time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Unix(0, 0), NotAfter: notAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

var never = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// An inner TLS session over NetConn: one chunk is one record, one frame and one write.
func TestTLSRecordIsOneFrameAndOneWrite(t *testing.T) {
	x, y := loopback(t)
	w := &counted{Conn: x}
	cert, pool := certificate(t, never)
	client := tls.Client(NetConn(New(w, Client, nil, Options{})), &tls.Config{
		RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true})
	server := tls.Server(NetConn(New(y, Server, nil, Options{})), &tls.Config{
		Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, DynamicRecordSizingDisabled: true})
	done := make(chan struct{})
	got := sha(nil)
	go func() {
		defer close(done)
		b, err := io.ReadAll(server)
		if err != nil {
			t.Error(err)
		}
		got = sha(b)
		_ = server.Close()
	}()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	w.taken()
	var sent []byte
	for _, n := range []int{1, 15, 1000, 4096, 15999, 16000} {
		p := bytes.Repeat([]byte{byte(n)}, n)
		sent = append(sent, p...)
		if _, err := client.Write(p); err != nil {
			t.Fatal(err)
		}
		writes := w.taken()
		if len(writes) != 1 {
			t.Fatalf("chunk of %d bytes: %d writes", n, len(writes))
		}
		fs := frames(t, Client, writes[0])
		if len(fs) != 1 || fs[0].op != Binary || !fs[0].fin {
			t.Fatalf("chunk of %d bytes: %v", n, fs)
		}
		record := []byte(fs[0].p)
		if want := n + 22; len(record) != want || int(binary.BigEndian.Uint16(record[3:])) != want-5 {
			t.Errorf("chunk of %d bytes: frame of %d", n, len(record))
		}
	}
	if err := client.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	inTime(t, done)
	if got != sha(sent) {
		t.Error("other bytes came")
	}
}

func sha(b []byte) string { return acceptKey(string(b)) }

func TestStreamIsBytes(t *testing.T) {
	x, y := loopback(t)
	a, b := NetConn(New(x, Client, nil, Options{})), NetConn(New(y, Server, nil, Options{}))
	sent := make([]byte, 300_000)
	_, _ = rand.Read(sent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p := sent; len(p) > 0; {
			n := min(len(p), len(p)/3+1) // some longer than a frame
			if m, err := a.Write(p[:n]); m != n || err != nil {
				t.Errorf("write: %d of %d, %v", m, n, err)
				return
			}
			p = p[n:]
		}
		if err := a.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(sent), err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read after the end: %d, %v", n, err)
	}
	_ = b.Close()
	inTime(t, done)
}

var errPeer = errors.New("the peer said why")

func TestStreamReads(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []frame
		drop bool
		want string
		err  error // nil: io.EOF; errPeer: any *CloseError
	}{
		{"fragments and pings", list(fb("a"), fP("x"), fc(""), fc("b"), fC("c"), fB(""), fB("d"), code(1000, "")), false, "abcd", nil},
		{"going away", list(fB("d"), code(1001, "")), false, "d", nil},
		{"closed for a reason", list(fB("d"), code(1008, "no")), false, "d", errPeer},
		{"cut", list(fB("d")), false, "d", ErrCut},
		{"text", list(fB("d"), fT("e"), fB("f")), false, "d", ErrUnsupported},
		{"text, dropped", list(fT("here"), fB("d"), ft("e"), fc("g"), fP(""), fC("h"), fB("f"), fX("\x03\xe8")), true, "df", nil},
		{"empty text, dropped", list(ft(""), fC(""), fB("d"), code(1000, "")), true, "d", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				_, _ = far.Write(wire(Server, tt.in...))
				_ = far.Close()
			}()
			s := NetConn(New(near, Server, nil, Options{DropText: tt.drop}))
			got, err := io.ReadAll(s)
			if string(got) != tt.want {
				t.Errorf("read %q, want %q", got, tt.want)
			}
			var closed *CloseError
			if errors.As(err, &closed) {
				err = errPeer
			}
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			_ = s.Close()
		})
	}
}

func TestStreamDeadlineIsResumable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := NetConn(New(near, Server, nil, Options{}))
		p := make([]byte, 10)
		for range 3 {
			_ = s.SetReadDeadline(time.Now().Add(time.Second))
			_, err := s.Read(p)
			// crypto/tls goes on after an error that says so itself, not after one that wraps such.
			ne, ok := err.(net.Error) //nolint:errorlint // what crypto/tls does
			if !ok || !ne.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
		}
		_ = s.SetDeadline(time.Time{})
		go func() { _, _ = far.Write(fB("late").wire(Server)) }()
		if n, err := s.Read(p); err != nil || string(p[:n]) != "late" {
			t.Errorf("read %q, %v", p[:n], err)
		}
		_ = far.Close()
		_ = s.Close()
	})
}

func TestStreamHasLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := NetConn(New(near, Server, nil, Options{Message: 10}))
		out := collect(far)
		if n, err := s.Write([]byte("0123456789abcdefghijX")); n != 21 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		go func() { _, _ = far.Write(fB("0123456789a").wire(Server)) }()
		if _, err := s.Read(make([]byte, 20)); !errors.Is(err, ErrTooBig) {
			t.Errorf("read: %v", err)
		}
		_ = s.Close()
		<-out.done
		if got := frames(t, Server, out.bytes()); len(got) != 4 || got[1] != fB("abcdefghij") || got[2] != fB("X") {
			t.Errorf("sent %v", got)
		}
	})
}
