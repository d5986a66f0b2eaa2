package ws

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gobwas/ws"
)

// A rule is a case of the Autobahn test suite, re-created: frames that a peer sends, and what an
// echo over a Conn answers. The names are Autobahn's numbers. Its sections 9 (speed) and 12, 13
// (compression, which is never negotiated) are not here.
type rule struct {
	name string
	in   []frame
	chop int     // bytes a write of the peer; 0: a frame
	want []frame // of a Close, only the status code counts
}

func op(n byte, p string) frame { return frame{op: OpCode(n), fin: true, p: p} }
func rsv(n byte, f frame) frame { f.rsv = n; return f }
func list(fs ...frame) []frame  { return fs }
func bad(c int) frame           { return code(c, "") }
func stars(n int) string        { return strings.Repeat("*", n) }
func split(p string, n int) (fs []frame) { // a text message in fragments of n bytes
	for i := 0; i < len(p); i += n {
		f := fc(p[i:min(i+n, len(p))])
		f.fin = i+n >= len(p)
		if i == 0 {
			f.op = ws.OpText
		}
		fs = append(fs, f)
	}
	return fs
}

const (
	greek = "κόσμε"
	mixed = "Hello-µ@ßöäüàá-UTF-8!!"
)

func rules() []rule {
	all := []rule{
		{"1.1.8", list(fT(stars(65536))), 997, list(fT(stars(65536)))},
		{"1.2.8", list(fB(stars(65536))), 997, list(fB(stars(65536)))},
		{"2.1", list(fP("")), 0, list(fO(""))},
		{"2.2", list(fP("Hello, world!")), 0, list(fO("Hello, world!"))},
		{"2.3", list(fP("\x00\xff\xfe\xfd\xfc\xfb\x00\xff")), 0, list(fO("\x00\xff\xfe\xfd\xfc\xfb\x00\xff"))},
		{"2.4", list(fP(stars(125))), 0, list(fO(stars(125)))},
		{"2.5", list(fP(stars(126))), 0, list(bad(1002))},
		{"2.6", list(fP(stars(125))), 1, list(fO(stars(125)))},
		{"2.7", list(fO("")), 0, nil},
		{"2.8", list(fO("unsolicited")), 0, nil},
		{"2.9", list(fO("unsolicited"), fP("ping")), 0, list(fO("ping"))},
		{"2.10", list(fP("0"), fP("1"), fP("2"), fP("3"), fP("4"), fP("5"), fP("6"), fP("7"), fP("8"), fP("9")), 0,
			list(fO("0"), fO("1"), fO("2"), fO("3"), fO("4"), fO("5"), fO("6"), fO("7"), fO("8"), fO("9"))},
		{"2.11", list(fP("0"), fP("1"), fP("2")), 1, list(fO("0"), fO("1"), fO("2"))},
		{"3.1", list(rsv(1, fT("small"))), 0, list(bad(1002))},
		{"3.2", list(fT("small"), rsv(2, fT("small")), fP("")), 0, list(fT("small"), bad(1002))},
		{"3.3", list(fT("small"), rsv(3, fT("small")), fP("")), 0, list(fT("small"), bad(1002))},
		{"3.4", list(fT("small"), rsv(4, fT("small")), fP("")), 1, list(fT("small"), bad(1002))},
		{"3.5", list(rsv(5, fB("\x00\xff"))), 0, list(bad(1002))},
		{"3.6", list(rsv(6, fP("hello"))), 0, list(bad(1002))},
		{"3.7", list(rsv(7, fX("\x03\xe8"))), 0, list(bad(1002))},
		{"5.1", list(frame{op: ws.OpPing, p: "fragment1"}, fC("fragment2")), 0, list(bad(1002))},
		{"5.2", list(frame{op: ws.OpPong, p: "fragment1"}, fC("fragment2")), 0, list(bad(1002))},
		{"5.3", list(ft("fragment1"), fC("fragment2")), 0, list(fT("fragment1fragment2"))},
		{"5.4", list(ft("fragment1"), fC("fragment2")), 3, list(fT("fragment1fragment2"))},
		{"5.5", list(ft("fragment1"), fC("fragment2")), 1, list(fT("fragment1fragment2"))},
		{"5.6", list(ft("fragment1"), fP("ping"), fC("fragment2")), 0, list(fO("ping"), fT("fragment1fragment2"))},
		{"5.7", list(ft("fragment1"), fP("ping"), fC("fragment2")), 3, list(fO("ping"), fT("fragment1fragment2"))},
		{"5.8", list(ft("fragment1"), fP("ping"), fC("fragment2")), 1, list(fO("ping"), fT("fragment1fragment2"))},
		{"5.9", list(fC("non-continuation"), fT("Hello")), 0, list(bad(1002))},
		{"5.10", list(fC("non-continuation"), fT("Hello")), 3, list(bad(1002))},
		{"5.11", list(fC("non-continuation"), fT("Hello")), 1, list(bad(1002))},
		{"5.12", list(fc("non-continuation"), fT("Hello")), 0, list(bad(1002))},
		{"5.13", list(fc("non-continuation"), fT("Hello")), 3, list(bad(1002))},
		{"5.14", list(fc("non-continuation"), fT("Hello")), 1, list(bad(1002))},
		{"5.15", list(ft("fragment1"), fC("fragment2"), fc("fragment3"), fT("fragment4")), 0,
			list(fT("fragment1fragment2"), bad(1002))},
		{"5.16", list(fc("fragment1"), ft("fragment2"), fC("fragment3")), 0, list(bad(1002))},
		{"5.17", list(fC("fragment1"), ft("fragment2"), fC("fragment3")), 0, list(bad(1002))},
		{"5.18", list(ft("fragment1"), fT("fragment2")), 0, list(bad(1002))},
		{"5.19", list(ft("fragment1"), fc("fragment2"), fP("ping1"), fc("fragment3"), fc("fragment4"), fP("ping2"),
			fC("fragment5")), 0, list(fO("ping1"), fO("ping2"), fT("fragment1fragment2fragment3fragment4fragment5"))},
		{"5.20", list(ft("fragment1"), fc("fragment2"), fP("ping1"), fc("fragment3"), fc("fragment4"), fP("ping2"),
			fC("fragment5")), 1, list(fO("ping1"), fO("ping2"), fT("fragment1fragment2fragment3fragment4fragment5"))},
		{"6.1.1", list(fT("")), 0, list(fT(""))},
		{"6.1.2", list(ft(""), fc(""), fC("")), 0, list(fT(""))},
		{"6.1.3", list(ft(""), fc("middle frame payload"), fC("")), 0, list(fT("middle frame payload"))},
		{"6.2.1", list(fT(mixed)), 0, list(fT(mixed))},
		{"6.2.2", list(ft("Hello-µ@ßöä"), fC("üàá-UTF-8!!")), 0, list(fT(mixed))},
		{"6.2.3", split(mixed, 1), 0, list(fT(mixed))},
		{"6.2.4", split(greek, 1), 0, list(fT(greek))},
		{"6.3.1", list(fT(greek + "\xed\xa0\x80edited")), 0, list(bad(1007))},
		{"6.3.2", split(greek+"\xed\xa0\x80edited", 1), 0, list(bad(1007))},
		{"6.4.1", list(ft(greek), fc("\xf4\x90\x80\x80"), fC("edited")), 0, list(bad(1007))},
		{"6.4.2", list(ft(greek+"\xf4"), fc("\x90"), fC("\x80\x80edited")), 0, list(bad(1007))},
		{"6.4.3", list(fT(greek + "\xf4\x90\x80\x80edited")), 20, list(bad(1007))},
		{"6.4.4", list(fT(greek + "\xf4\x90\x80\x80edited")), 1, list(bad(1007))},
		{"7.1.1", list(fT("Hello World!"), code(1000, "")), 0, list(fT("Hello World!"), code(1000, ""))},
		{"7.1.2", list(code(1000, ""), code(1000, "")), 0, list(code(1000, ""))},
		{"7.1.3", list(code(1000, ""), fP("")), 0, list(code(1000, ""))},
		{"7.1.4", list(code(1000, ""), fT("Hello World!")), 0, list(code(1000, ""))},
		{"7.1.5", list(ft("fragment1"), code(1000, ""), fC("fragment2")), 0, list(code(1000, ""))},
		{"7.1.6", list(fT(stars(256<<10)), code(1000, ""), fP("")), 0, list(fT(stars(256<<10)), code(1000, ""))},
		{"7.3.1", list(fX("")), 0, list(fX(""))},
		{"7.3.2", list(fX("a")), 0, list(bad(1002))},
		{"7.3.3", list(code(1000, "")), 0, list(code(1000, ""))},
		{"7.3.4", list(code(1000, "Hello World!")), 0, list(code(1000, ""))},
		{"7.3.5", list(code(1000, stars(123))), 0, list(code(1000, ""))},
		{"7.3.6", list(code(1000, stars(124))), 0, list(bad(1002))},
		{"7.5.1", list(code(1000, greek+"\xed\xa0\x80edited")), 0, list(bad(1007))},
		{"10.1.1", split(stars(65536), 1300), 0, list(fT(stars(65536)))},
	}
	// Text is refused at once, though the message, or the frame, has no end yet.
	all = append(all,
		rule{"6.4.3 without an end", list(ft(greek), fc("\xf4\x90")), 0, list(bad(1007))},
		rule{"6.4.4 without an end", list(frame{op: ws.OpText, fin: true, p: greek + "\xf4\x90", missing: 8}), 0, list(bad(1007))},
		rule{"6.4.4 without an end, by bytes", list(frame{op: ws.OpText, p: greek + "\xf4\x90", missing: 8}), 1, list(bad(1007))})
	for i, n := range []int{0, 125, 126, 127, 128, 65535, 65536} {
		all = append(all,
			rule{fmt.Sprintf("1.1.%d", i+1), list(fT(stars(n))), 0, list(fT(stars(n)))},
			rule{fmt.Sprintf("1.2.%d", i+1), list(fB(stars(n))), 0, list(fB(stars(n)))})
	}
	for i := range byte(5) {
		all = append(all,
			rule{fmt.Sprintf("4.1.%d", i+1), list(fT("a"), op(3+i, stars(int(i))), fP("")), 0, list(fT("a"), bad(1002))},
			rule{fmt.Sprintf("4.2.%d", i+1), list(fT("a"), op(11+i, stars(int(i))), fP("")), 0, list(fT("a"), bad(1002))})
	}
	for _, c := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		all = append(all, rule{fmt.Sprintf("7.7 %d", c), list(code(c, "")), 0, list(code(c, ""))})
	}
	for _, c := range []int{0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		all = append(all, rule{fmt.Sprintf("7.9 %d", c), list(code(c, "")), 0, list(bad(1002))})
	}
	for i, p := range utf8Good {
		all = append(all, rule{fmt.Sprintf("6.5 good %d", i), list(fT(p)), 0, list(fT(p))},
			rule{fmt.Sprintf("6.5 good %d by bytes", i), split(p, 1), 0, list(fT(p))})
	}
	for i, p := range utf8Bad {
		all = append(all, rule{fmt.Sprintf("6.6 bad %d", i), list(fT(p)), 0, list(bad(1007))},
			rule{fmt.Sprintf("6.6 bad %d by bytes", i), split(p, 1), 0, list(bad(1007))})
	}
	return all
}

// Autobahn's sections 6.5 to 6.23.
var utf8Good = []string{
	greek, "\xc2\x80", "\xe0\xa0\x80", "\xf0\x90\x80\x80", "\x7f", "\xdf\xbf", "\xef\xbf\xbf",
	"\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd", "\x00", "\xef\xbf\xbe",
	"\xf0\x9f\xbf\xbe", "\xf4\x8f\xbf\xbe",
}

var utf8Bad = []string{
	"\xce", "\xce\xba\xe1", "\xce\xba\xe1\xbd", "\xf8\x88\x80\x80\x80", "\xfc\x84\x80\x80\x80\x80",
	"\xf7\xbf\xbf\xbf", "\xfb\xbf\xbf\xbf\xbf", "\xf4\x90\x80\x80", "\x80", "\xbf", "\x80\xbf\x80\xbf",
	"\xc0 ", "\xe0\x80 ", "\xf0\x80\x80 ", "\xdf", "\xef\xbf", "\xfe", "\xff", "\xfe\xfe\xff\xff",
	"\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",
	"\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80", "\xed\xad\xbf", "\xed\xbf\xbf",
	"\xed\xa0\x80\xed\xb0\x80", "\xed\xaf\xbf\xed\xbf\xbf",
}

func TestConnKeepsAutobahnRules(t *testing.T) {
	all := rules()
	for _, role := range []Role{Server, Client} {
		for _, r := range all {
			t.Run(fmt.Sprintf("%v/%s", role, r.name), func(t *testing.T) {
				bubble(t, func(t *testing.T) { r.run(t, role) })
			})
		}
	}
}

// The cases by Autobahn's sections, and each once: nobody drops one unseen.
func TestAutobahnRulesAreAllThere(t *testing.T) {
	want := map[string]int{
		"1":  16,  // framing: lengths of 0, 125, 126, 127, 128, 65535, 65536, whole and in small writes
		"2":  11,  // pings and pongs
		"3":  7,   // reserved bits
		"4":  10,  // reserved opcodes
		"5":  20,  // fragments, and control frames between them
		"6":  112, // UTF-8, also refused before the end
		"7":  41,  // close handshake, codes, reasons
		"10": 1,   // many fragments
	}
	got, names := map[string]int{}, map[string]bool{}
	for _, r := range rules() {
		section, _, _ := strings.Cut(r.name, ".")
		got[section]++
		if names[r.name] {
			t.Errorf("two cases are named %s", r.name)
		}
		names[r.name] = true
	}
	sum := 0
	for section, n := range want {
		if sum += n; got[section] != n {
			t.Errorf("section %s: %d cases, want %d", section, got[section], n)
		}
	}
	if len(names) != sum {
		t.Errorf("%d cases, want %d", len(names), sum)
	}
	t.Logf("%d cases, in both roles", sum)
}

func (r *rule) run(t *testing.T, role Role) {
	near, far := net.Pipe()
	c := New(near, role, nil, Options{Message: 256 << 10})
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		echo(c)
	}()
	out := collect(far)
	for _, f := range r.in {
		for b := f.wire(role); len(b) > 0; {
			n := len(b)
			if r.chop > 0 {
				n = min(n, r.chop)
			}
			if _, err := far.Write(b[:n]); err != nil {
				break // the Conn has heard enough
			}
			b = b[n:]
		}
		synctest.Wait()
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	<-echoed
	<-out.done
	got := frames(t, role, out.bytes())
	if len(got) != len(r.want) {
		t.Fatalf("got %v, want %v", got, r.want)
	}
	for i, g := range got {
		w := r.want[i]
		if g.op == ws.OpClose && len(g.p) > 2 && len(w.p) >= 2 {
			g.p = g.p[:2] // reasons are for people
		}
		if g != w {
			t.Errorf("frame %d: got %v, want %v", i, g, w)
		}
	}
}

// echo sends back what comes, until the connection ends.
func echo(c *Conn) {
	slab := make([]byte, 256<<10)
	for {
		op, n, err := c.ReadMessage(slab)
		if err == nil {
			err = c.WriteMessage(op, slab[:n])
		}
		if err != nil {
			_ = c.Close(StatusNormal, "")
			return
		}
	}
}

// Rules of RFC 6455 that Autobahn cannot try, and the limits that are ours.
func TestConnRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		role Role
		in   []byte
		want int
	}{
		{"an unmasked frame to a server", Server, wire(Client, fB("x")), 1002},
		{"a masked frame to a client", Client, wire(Server, fB("x")), 1002},
		{"an unmasked ping to a server", Server, wire(Client, fP("x")), 1002},
		{"a length of 5 in 2 bytes", Client, []byte("\x82\x7e\x00\x05hello"), 1002},
		{"a length of 5 in 8 bytes", Client, []byte("\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x05hello"), 1002},
		{"a length of 65535 in 8 bytes", Client, []byte("\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff"), 1002},
		{"a length with the top bit", Client, []byte("\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x05"), 1002},
		{"a ping with a length of 8 bytes", Client, []byte("\x89\x7f\x00\x00\x00\x00\x00\x01\x00\x00"), 1002},
		{"a frame of 2^63-1 bytes", Client, []byte("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"), 1009},
		{"a frame one byte too long", Client, wire(Client, fB(stars(1001))), 1009},
		{"fragments that sum to one byte too many", Client, wire(Client, fb(stars(500)), fc(stars(500)), fC("*")), 1009},
		{"a fragment of 2^63-1 bytes after one", Client,
			append(wire(Client, fb("x")), "\x80\x7f\x7f\xff\xff\xff\xff\xff\xff\xff"...), 1009},
		{"144 empty fragments", Client,
			append(wire(Client, fb("")), []byte(strings.Repeat("\x00\x00", 143))...), 1009},
		{"144 fragments of a byte", Server,
			append(wire(Server, fb("x")), bytes.Repeat(wire(Server, fc("x")), 143)...), 1009},
		{"one fragment and 143 pongs", Server,
			append(wire(Server, fb("x")), bytes.Repeat(wire(Server, fO("x")), 143)...), 1009},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				near, far := net.Pipe()
				c := New(near, tt.role, nil, Options{Message: 1000})
				out := collect(far)
				go func() {
					_, _ = far.Write(tt.in)
					synctest.Wait()
					_ = far.Close()
				}()
				_, _, err := c.ReadMessage(make([]byte, 2000))
				if err == nil {
					t.Fatal("accepted")
				}
				if _, _, again := c.ReadMessage(nil); !errors.Is(again, err) {
					t.Errorf("second read: %v, first %v", again, err)
				}
				if got := c.Close(StatusNormal, ""); !errors.Is(got, err) {
					t.Errorf("close: %v, want %v", got, err)
				}
				<-out.done
				got := frames(t, tt.role, out.bytes())
				if len(got) != 1 || got[0].op != ws.OpClose || got[0].p[:2] != code(tt.want, "").p {
					t.Errorf("sent %v, want close %d", got, tt.want)
				}
			})
		})
	}
}
