package main

import (
	"errors"
	"net/url"
)

// batchesFlags say where batch jobs lie that several servers work on.
type batchesFlags struct {
	Batches databaseURL `help:"PostgreSQL database of batch jobs that several servers share (default: in --home, of this server alone)." placeholder:"URL" group:"batches"`
	Files   filePath    `help:"Folder of files of batch jobs that those servers share." placeholder:"FOLDER" group:"batches"`
}

func (f *batchesFlags) check() error {
	if (f.Batches == "") != (f.Files == "") {
		return usagef("--batches and --files belong together: servers that share batch jobs share both")
	}
	return nil
}

// databaseURL is the address of a database. It may have a password in it, which is never shown.
type databaseURL string

// UnmarshalText checks an address, wherever it comes from.
func (d *databaseURL) UnmarshalText(text []byte) error {
	u, err := url.Parse(string(text))
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Host == "" {
		return errors.New("want postgres://USER:PASSWORD@HOST:PORT/DATABASE") // err would show the password
	}
	*d = databaseURL(text)
	return nil
}

// shown is the address without its password.
func (d databaseURL) shown() string {
	u, err := url.Parse(string(d))
	if err != nil {
		panic("BUG: an address of a database passed its check") // which parses it
	}
	q := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if q.Has(name) {
			q.Set(name, "xxxxx")
		}
	}
	u.RawQuery = q.Encode()
	return u.Redacted()
}
