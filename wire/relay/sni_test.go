package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// helloFor returns the ClientHello that this system's TLS sends for a name.
func helloFor(t testing.TB, name string) []byte {
	t.Helper()
	var sent bytes.Buffer
	c := tls.Client(&scripted{in: bytes.NewReader(nil), out: &sent}, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := c.Handshake(); err == nil {
		t.Fatal("a handshake with nobody")
	}
	return sent.Bytes()
}

// scripted is a connection that reads what was written down before.
type scripted struct {
	net.Conn
	in   io.Reader
	out  io.Writer
	read int
}

func (s *scripted) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.read += n
	return n, err
}

func (s *scripted) Write(p []byte) (int, error) { return s.out.Write(p) }

// recut cuts a handshake into records of n bytes.
func recut(hello []byte, n int) (out []byte) {
	for p := hello[5:]; len(p) > 0; {
		k := min(n, len(p))
		out = binary.BigEndian.AppendUint16(append(out, 22, 3, 1), uint16(k))
		out = append(out, p[:k]...)
		p = p[k:]
	}
	return out
}

func TestHelloIsReadToItsName(t *testing.T) {
	hello := helloFor(t, "Hub.Example.")
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"whole":                    {hello, "hub.example"},
		"in records of 100 bytes":  {recut(hello, 100), "hub.example"},
		"in records of 7 bytes":    {recut(hello, 7), "hub.example"},
		"with bytes behind it":     {append(bytes.Clone(hello), "\x17\x03\x03early data"...), "hub.example"},
		"without a name":           {helloFor(t, ""), ""},
		"for an address":           {helloFor(t, "192.0.2.1"), ""}, // which is not sent
		"without a name, in parts": {recut(helloFor(t, ""), 64), ""},
	} {
		for _, slow := range []bool{false, true} {
			var in io.Reader = bytes.NewReader(c.in)
			if slow {
				in = iotest.OneByteReader(in)
			}
			got, early, err := readHello(&scripted{in: in, out: failing{t}})
			if err != nil || got != c.want || !bytes.HasPrefix(c.in, early) {
				t.Errorf("%s, slow %v: %q, %v", name, slow, got, err)
			}
			rest, _ := io.ReadAll(in)
			if !bytes.Equal(append(early, rest...), c.in) {
				t.Errorf("%s, slow %v: a byte is lost", name, slow)
			}
		}
	}
}

// failing fails a test that writes: a hello is read without an answer.
type failing struct{ t testing.TB }

func (f failing) Write(p []byte) (int, error) {
	f.t.Errorf("%x was answered", p)
	return len(p), nil
}

func TestWhatIsNoHelloIsRefused(t *testing.T) {
	hello := helloFor(t, "hub.example")
	huge := append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{1}, 1<<20)...)
	endless := recut(append([]byte{22, 3, 1, 0, 0, 1, 0, 0xff, 0x00}, make([]byte, 100<<10)...), 1)
	long := helloFor(t, "hub.example")
	for name, c := range map[string]struct {
		in   []byte
		says string
	}{
		"nothing":                    {nil, ""},
		"HTTP":                       {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "does not look like a TLS handshake"},
		"SSH":                        {[]byte("SSH-2.0-OpenSSH_9.9\r\n"), "does not look like a TLS handshake"},
		"zeros":                      {make([]byte, 64<<10), ""},
		"half a hello":               {hello[:len(hello)/2], "EOF"},
		"a huge length":              {huge, "longer than 16384 bytes"},
		"a huge record":              {append([]byte{22, 3, 1, 0xff, 0xff}, make([]byte, 70<<10)...), ""},
		"one byte a record, no end":  {endless, "longer than 16384 bytes"},
		"another message":            {append([]byte{22, 3, 1, 0, 4}, 2, 0, 0, 0), ""},
		"a record of alerts":         {[]byte{21, 3, 3, 0, 2, 2, 40}, ""},
		"lengths that lie inside it": {append(long[:43], bytes.Repeat([]byte{0xff}, len(long)-43)...), ""},
	} {
		s := &scripted{in: bytes.NewReader(c.in), out: failing{t}}
		got, early, err := readHello(s)
		if !errors.Is(err, errHello) || got != "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if s.read > maxHello || len(early) != s.read {
			t.Errorf("%s: %d bytes were read", name, s.read)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(helloFor(f, "hub.example"))
	f.Add(recut(helloFor(f, ""), 9))
	f.Add([]byte{22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &scripted{in: bytes.NewReader(in), out: failing{t}}
		name, early, err := readHello(s)
		if s.read > maxHello || !bytes.Equal(early, in[:s.read]) {
			t.Errorf("%d bytes were read, %d kept", s.read, len(early))
		}
		if err != nil && (name != "" || !errors.Is(err, errHello)) || len(name) > len(in) {
			t.Errorf("%q, %v", name, err)
		}
	})
}

// A gateway that holds no key leads two swarms' workers to two hubs, by their names.
func TestPassthroughLeadsByName(t *testing.T) {
	one, two := newRig(t, rigConfig{limits: quick, hubTLS: true}), newRig(t, rigConfig{limits: quick, hubTLS: true})
	log := &logbook{}
	g, err := NewGateway(GatewayConfig{Passthrough: true, Limits: quick, Log: log.logger(), Routes: []Route{
		{Host: "one.example", Hub: one.hub.ID(), Addr: strings.TrimPrefix(one.hubAt, "wss://"), TLS: true},
		{Host: "two.example", Hub: two.hub.ID(), Addr: strings.TrimPrefix(two.hubAt, "wss://")}}})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, g.Serve, g.Close)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	for i, r := range []*rig{one, two} {
		host := []string{"one.example", "two.example"}[i]
		b := r.backbone("wss://"+host, func(c *BackboneConfig) { c.Dialer.NetDial = dial })
		for _, name := range []string{host, strings.ToUpper(host), r.hub.ID() + ".gateway.example"} {
			w := r.worker("wss://" + name)
			w.Dialer.NetDial = dial
			p, a := r.join(b, w) // TLS is with the hub: nobody else has its key
			exchange(t, p.Conn, a.Conn, uint64(i), 20)
		}
	}
	// The wrong hub's key is not taken for the right one's.
	w := one.worker("wss://two.example")
	w.Dialer.NetDial = dial
	_, err = DialWorker(within(t), w)
	oneLine(t, err, ErrUntrusted)

	for _, name := range []string{"three.example", ""} {
		c := tls.Client(dialRaw(t, addr, false), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	nc := dialRaw(t, addr, false)
	_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if b, _ := io.ReadAll(nc); !strings.Contains(string(b), "speaks TLS") {
		t.Errorf("HTTP: %q", b)
	}
	one.hub.Close()
	c := tls.Client(dialRaw(t, addr, false), &tls.Config{ServerName: "one.example", InsecureSkipVerify: true})
	if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("hub away: %v", err)
	}
	counts := g.Counts()
	if counts["refused_route"] != 2 || counts["refused_hello"] != 1 || counts["refused_hub"] == 0 || counts["spliced"] < 14 {
		t.Errorf("counts: %v", counts)
	}
	if !strings.Contains(log.String(), `no hub for the name`) {
		t.Errorf("log:\n%s", log)
	}
}

func TestPassthroughWithoutANameGoesToWhoNeedsNone(t *testing.T) {
	g, err := NewGateway(GatewayConfig{Passthrough: true, Routes: []Route{
		{Host: "a.example", Addr: "h:1"}, {Hub: "b", Addr: "h:2"}, {Hub: "c", Addr: "h:3"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for name, want := range map[string]string{"": "h:2", "a.example": "h:1", "c.x": "h:3", "b": "h:2", "x.y": "h:2"} {
		if r, _ := g.routeName(name); r.Addr != want {
			t.Errorf("%q: %s, want %s", name, r.Addr, want)
		}
	}
	for i, c := range []GatewayConfig{{Plain: true}, {TLS: &tls.Config{}}} { //nolint:gosec // never used
		c.Passthrough, c.Routes = true, []Route{{Addr: "h:1"}}
		if _, err := NewGateway(c); err == nil {
			t.Errorf("number %d was taken", i)
		}
	}
}

// Whoever says nothing, or half of it, is cut.
func TestPassthroughCutsSlowHellos(t *testing.T) {
	g, err := NewGateway(GatewayConfig{Passthrough: true, Routes: []Route{{Addr: "127.0.0.1:1"}},
		Limits: Limits{Greet: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, g.Serve, g.Close)
	hello := helloFor(t, "x.example")
	for _, say := range []string{"", string(hello[:3]), string(hello[:len(hello)-1])} {
		nc := dialRaw(t, addr, false)
		_, _ = io.WriteString(nc, say)
		if b, err := io.ReadAll(nc); errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
			t.Errorf("%d bytes of hello: %q, %v", len(say), b, err)
		}
	}
	drip(t, dialRaw(t, addr, false), string(hello))
	until(t, "nobody is left", func() bool { return g.Active() == 0 })
	if n := g.Counts()["refused_hello"]; n != 4 {
		t.Errorf("%d are counted", n)
	}
}
