package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"kvasir/engine"
	"kvasir/engine/access"
)

// tlsFlags say where certificates come from.
type tlsFlags struct {
	ACME      hostNames `name:"acme" help:"Get certificates of a public authority (Let's Encrypt) for these names, whose terms are accepted by that, and keep them in the home folder. Several with commas between. The authority must reach --listen as port 443 of each." placeholder:"NAME" group:"tls"`
	ACMEEmail string    `name:"acme-email" help:"Where the authority may write to." placeholder:"ADDRESS" group:"tls"`
	Directory httpsURL  `name:"acme-directory" help:"Directory of another authority than Let's Encrypt, or of its staging, to try things out: https://acme-staging-v02.api.letsencrypt.org/directory. Its certificates are kept apart." placeholder:"URL" group:"tls"`
	Cert      filePath  `help:"Certificate of a public authority, in PEM, with its chain. It is read again when it changes." placeholder:"FILE" group:"tls"`
	Key       filePath  `help:"Its private key, in PEM." placeholder:"FILE" group:"tls"`
}

// check says what does not go together.
func (f *tlsFlags) check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return usagef("--cert and --key go together")
	case f.Cert != "" && len(f.ACME) > 0:
		return usagef("--cert with --key and --acme are two ways to get a certificate, of which one can be gone")
	case f.ACMEEmail != "" && len(f.ACME) == 0:
		return usagef("--acme-email is of no use without --acme")
	case f.Directory != "" && len(f.ACME) == 0:
		return usagef("--acme-directory is of no use without --acme")
	}
	return nil
}

func (f *tlsFlags) acme() engine.ACMEOptions {
	return engine.ACMEOptions{Hosts: f.ACME, Email: f.ACMEEmail, Directory: string(f.Directory)}
}

// httpsURL is an address of a server that shows who it is.
type httpsURL string

// UnmarshalText refuses all others.
func (u *httpsURL) UnmarshalText(text []byte) error {
	p, err := url.Parse(string(text))
	if err != nil || p.Scheme != "https" || p.Host == "" || p.User != nil || p.Fragment != "" {
		return fmt.Errorf("want an address as https://ca.example.org/directory, got %.200q", text)
	}
	*u = httpsURL(text)
	return nil
}

// origins is a list of origins with commas between.
type origins []string

// UnmarshalText checks them, wherever they come from.
func (o *origins) UnmarshalText(text []byte) error {
	*o = nil
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		if err := access.CheckOrigin(part); err != nil {
			return fmt.Errorf("want origins such as https://example.org with commas between, or * for all, got %q", part)
		}
		*o = append(*o, part)
	}
	return nil
}

// doorFlags say who may come to a server, and how.
type doorFlags struct {
	Keys      bool     `help:"Ask everybody for an API key, as kvasir key create makes them. So it is without saying where others than this machine can reach --listen." group:"door"`
	Open      bool     `help:"Ask nobody for an API key, wherever they come from." group:"door"`
	CORS      origins  `name:"cors" help:"Origins of pages in browsers that may ask; several with commas between, * for all. Default: none but the server's own." placeholder:"ORIGIN" group:"door"`
	AccessLog filePath `help:"Write a line of JSON for each request to this file, or to standard output for -: who, what, how many tokens and how long, and nothing of the texts." placeholder:"FILE" group:"door"`
	tlsFlags
}

func (f *doorFlags) check() error {
	if f.Keys && f.Open {
		return usagef("--keys and --open are opposites")
	}
	return f.tlsFlags.check()
}

// options returns them, and what closes the log.
func (f *doorFlags) options(a *app) (o engine.DoorOptions, end func() error, err error) {
	o = engine.DoorOptions{
		Keys: f.Keys, Open: f.Open, Origins: f.CORS, CertFile: string(f.Cert), KeyFile: string(f.Key), ACME: f.acme(),
	}
	end = func() error { return nil }
	switch f.AccessLog {
	case "":
	case "-":
		o.Log = a.stdout
	default:
		file, err := os.OpenFile(string(f.AccessLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return o, end, fmt.Errorf("--access-log: %w", err)
		}
		o.Log, end = file, file.Close
	}
	return o, end, nil
}
