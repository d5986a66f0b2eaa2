package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// ACME is how a gateway gets certificates of a public authority by itself (RFC 8555), and renews them.
// The authority checks the names on the gateway's own port (TLS-ALPN-01, RFC 8737), which is therefore
// to be reached as 443 from outside.
type ACME struct {
	Hosts     []string // names to get certificates for, and no others
	Email     string   // for the authority's warnings; may be empty
	Cache     string   // folder for keys and certificates, made with mode 0700
	Directory string   // of the authority; empty: Let's Encrypt
	HTTP      *http.Client
	Log       *slog.Logger // is told why there is no certificate; may be nil
	Now       func() time.Time
	// Other is shown to whoever dials by another name or by an address, as workers do that know the
	// swarm. nil: they are refused.
	Other *tls.Config
}

// TLS returns what a gateway shows: for GatewayConfig.TLS.
func (a ACME) TLS() (*tls.Config, error) {
	if len(a.Hosts) == 0 {
		return nil, errors.New("acme: no name to get a certificate for")
	}
	for _, h := range a.Hosts {
		if net.ParseIP(h) != nil || !strings.Contains(h, ".") || strings.ContainsAny(h, "/:* ") {
			return nil, fmt.Errorf("acme: %q is not a name that an authority certifies; want one as gateway.example.org", h)
		}
	}
	if err := os.MkdirAll(a.Cache, 0o700); err != nil {
		return nil, fmt.Errorf("acme: folder for certificates: %w", err)
	}
	m := &autocert.Manager{
		Prompt:     autocert.AcceptTOS,
		Cache:      autocert.DirCache(a.Cache),
		HostPolicy: a.allow,
		Email:      a.Email,
	}
	if a.Directory != "" || a.HTTP != nil {
		m.Client = &acme.Client{DirectoryURL: a.Directory, HTTPClient: a.HTTP}
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: a.told(m.GetCertificate),
		NextProtos:     []string{"http/1.1", acme.ALPNProto},
	}
	if a.Other != nil {
		other := outerRules(a.Other)
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if a.allow(hello.Context(), hello.ServerName) == nil {
				return nil, nil // c holds
			}
			return other, nil
		}
	}
	return c, nil
}

// allow is an autocert.HostPolicy. Asking for a certificate for whatever name a stranger dials would use
// up what the authority grants in a week.
func (a ACME) allow(_ context.Context, host string) error {
	if slices.ContainsFunc(a.Hosts, func(h string) bool { return strings.EqualFold(h, strings.TrimSuffix(host, ".")) }) {
		return nil
	}
	return fmt.Errorf("acme: %.80q is none of the names of this gateway", host)
}

// acmeEvery is how often the log is told at most that a name has no certificate: each who dials finds out.
const acmeEvery = time.Minute

// told returns get with a word to the log where a name that is to have a certificate has none.
func (a ACME) told(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if a.Log == nil {
		return get
	}
	now := a.Now
	if now == nil {
		now = time.Now
	}
	var mu sync.Mutex
	var last time.Time
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := get(hello)
		if err == nil || a.allow(hello.Context(), hello.ServerName) != nil {
			return c, err
		}
		mu.Lock()
		defer mu.Unlock()
		if t := now(); last.IsZero() || t.Sub(last) >= acmeEvery {
			last = t
			a.Log.Warn("no certificate of the authority; the name must lead here, as port 443", "name", hello.ServerName, "err", err)
		}
		return c, err
	}
}

// certEvery is how often files are looked at for a newer certificate, when somebody dials.
const certEvery = 10 * time.Second

// CertFiles returns what a gateway shows: the certificate, with its chain, and the key in two PEM files.
// They are read again when they change, as tools do that renew certificates. Files that do not fit
// together are logged, and the last good ones stay. now may be nil.
func CertFiles(cert, key string, log *slog.Logger, now func() time.Time) (*tls.Config, error) {
	f := &certFiles{cert: cert, key: key, log: log, now: now}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.now == nil {
		f.now = time.Now
	}
	stamp, err := f.stat()
	if err == nil {
		err = f.load()
	}
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	f.stamp, f.looked = stamp, f.now()
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: f.get}, nil
}

type certFiles struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time

	mu     sync.Mutex
	have   *tls.Certificate
	stamp  [2]fileStamp // of what have was read from, or could not be
	looked time.Time
}

// fileStamp tells a file that has changed.
type fileStamp struct {
	size int64
	time time.Time
}

func (f *certFiles) stat() (s [2]fileStamp, err error) {
	for i, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return s, err
		}
		s[i] = fileStamp{info.Size(), info.ModTime()}
	}
	return s, nil
}

func (f *certFiles) load() error {
	c, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.have = &c
	return nil
}

func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if since := now.Sub(f.looked); since >= 0 && since < certEvery {
		return f.have, nil
	}
	f.looked = now
	stamp, err := f.stat()
	switch {
	case err == nil && stamp == f.stamp:
		return f.have, nil
	case err == nil:
		f.stamp = stamp
		err = f.load()
	}
	if err != nil { // half written, perhaps: its change is seen once more
		f.log.Warn("certificate not read, the last one stays", "file", f.cert, "err", err)
		return f.have, nil
	}
	f.log.Info("certificate read again", "file", f.cert)
	return f.have, nil
}
