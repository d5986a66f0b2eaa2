package seal

import (
	"bytes"
	"crypto/ed25519"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key returns the same key for the same byte.
func key(b byte) Key {
	return Key{ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, ed25519.SeedSize))}
}

var (
	root     = key(1)
	worker   = key(2)
	backbone = key(3)
	stranger = key(4)

	issued = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
)

func token(t testing.TB, change func(*Token)) Token {
	t.Helper()
	tok := Token{Role: Worker, ID: TokenID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, Uses: 1, Issued: issued,
		Expires: issued.Add(24 * time.Hour), Hub: "hub-1"}
	if change != nil {
		change(&tok)
	}
	tok, err := SignToken(root, tok)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func grant(t testing.TB, change func(*Grant)) Grant {
	t.Helper()
	g := Grant{Role: Backbone, Key: backbone.Public(), Issued: issued, Expires: issued.AddDate(1, 0, 0), Name: "home"}
	if change != nil {
		change(&g)
	}
	g, err := SignGrant(root, g)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// clock is a clock that stands until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// counted keeps the writes on a connection.
type counted struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes = append(c.writes, bytes.Clone(p))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *counted) taken() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes
	c.writes = nil
	return w
}

// pair returns the two ends of a TCP connection.
func pair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// altered calls f with text, each time with another character wrong, missing or doubled.
func altered(text string, f func(name, text string)) {
	for i := range len(text) {
		for _, c := range "A_b9\n=" {
			if byte(c) != text[i] {
				f("changed to "+string(c), text[:i]+string(c)+text[i+1:])
			}
		}
		f("missing", text[:i]+text[i+1:])
		f("doubled", text[:i]+text[i:i+1]+text[i:])
	}
	for _, s := range []string{"", "A", "====", "\n", strings.Repeat("A", 5000)} {
		f("replaced", s)
	}
}

// oneLine fails the test unless err is one line, and does not say any of the secrets.
func oneLine(t testing.TB, err error, secrets ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	if s := err.Error(); strings.ContainsAny(s, "\r\n") || len(s) > 400 {
		t.Errorf("not one short line: %q", s)
	}
	for _, s := range secrets {
		if len(s) > 8 && strings.Contains(err.Error(), s[4:]) {
			t.Errorf("%v: gives a secret away", err)
		}
	}
}
