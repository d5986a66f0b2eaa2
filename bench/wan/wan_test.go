package wan

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	msec  = time.Millisecond
	mbits = 1_000_000
)

// shutAll closes what a test is through with.
func shutAll(all ...io.Closer) {
	for _, c := range all {
		_ = c.Close()
	}
}

// bubble runs f in a synctest bubble with the ends of a connection over a link of profile p, and
// closes the link behind it. Time in it is exact: it passes only while all wait.
func bubble(t *testing.T, p Profile, f func(t *testing.T, l *Link, near, far *Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLink(p)
		if err != nil {
			t.Fatal(err)
		}
		defer shutAll(l)
		if l.bell != nil {
			t.Fatal("the link waits for the kernel's clock in a bubble")
		}
		near, far, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		f(t, l, near, far)
	})
}

// arrival is a time since the start, and what came.
type arrival struct {
	at   time.Duration
	text string
}

// listen reads from c until an error, in a goroutine of w, and returns where it notes what comes.
func listen(w *sync.WaitGroup, c net.Conn) *[]arrival {
	start := time.Now()
	var all []arrival
	w.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			if n > 0 {
				all = append(all, arrival{time.Since(start), string(buf[:n])})
			}
			if err != nil {
				all = append(all, arrival{time.Since(start), errorText(err)})
				return
			}
		}
	})
	return &all
}

// errorText names the errors that callers tell apart.
func errorText(err error) string {
	for _, known := range []error{
		io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
	} {
		if errors.Is(err, known) {
			return "<" + known.Error() + ">"
		}
	}
	return "<unknown: " + fmt.Sprint(err) + ">"
}

const (
	eof    = "<EOF>"
	reset  = "<connection reset by peer>"
	broken = "<broken pipe>"
	closed = "<use of closed network connection>"
	late   = "<i/o timeout>"
)

func check(t *testing.T, got []arrival, want ...arrival) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("arrived\n%v, want\n%v", got, want)
	}
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatalf("write %.10q: %v", text, err)
	}
}

func TestProfileCheckNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		p    Profile
		want string // "" is good
	}{
		{"zero", Profile{}, ""},
		{"home line", Profile{RTT: 13 * msec, Jitter: 2 * msec, Up: 20 * mbits, Down: 100 * mbits}, ""},
		{"gigabit over an ocean", Profile{RTT: 92 * msec, Up: 1000 * mbits}, ""},
		{"round trip below zero", Profile{RTT: -1}, "round trip"},
		{"round trip too long", Profile{RTT: time.Minute}, "round trip"},
		{"jitter without round trip", Profile{Jitter: 1}, "jitter"},
		{"jitter below zero", Profile{RTT: 2, Jitter: -1}, "jitter"},
		{"queue too long", Profile{Queue: QueueMax + 1}, "queue"},
		{"queue too short", Profile{Queue: 1}, "queue"},
		{"queue below zero", Profile{Queue: -1}, "queue"},
		{"rate below zero", Profile{Down: -1}, "rate"},
		{"wire too long", Profile{RTT: 10 * time.Second, Up: 1000 * mbits}, "on the wire"},
		{"kind", Profile{Faults: []Fault{{Kind: 9}}}, "fault 0: kind"},
		{"way", Profile{Faults: []Fault{{Kind: FaultFin}, {Kind: FaultFin, Way: 4}}}, "fault 1: way"},
		{"stall for no time", Profile{Faults: []Fault{{Kind: FaultStall}}}, "want For"},
		{"after below zero", Profile{Faults: []Fault{{Kind: FaultFin, After: -1}}}, "below zero"},
		{"too often", Profile{Faults: []Fault{{Kind: FaultFin, Every: 1}}}, "every"},
		{"overlap", Profile{Faults: []Fault{{Kind: FaultStall, Every: msec, For: msec}}}, "shorter"},
		{"too many faults", Profile{Faults: make([]Fault, faultsMax+1)}, "faults"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.p.Check()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if l, err := NewLink(c.p); err == nil {
				_ = l.Close()
				t.Error("NewLink takes it")
			}
			if !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrProfile with %q", err, c.want)
			}
		})
	}
}

func TestPipeTakesHalfARoundTripEachWay(t *testing.T) {
	bubble(t, Profile{RTT: 13 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		atFar, atNear := listen(&w, far), listen(&w, near)
		// All are under way at once: what is on the wire delays nothing.
		for i := range 5 {
			send(t, near, fmt.Sprint("u", i))
			send(t, far, fmt.Sprint("d", i))
			time.Sleep(msec)
		}
		_ = near.Close()
		_ = far.Close()
		w.Wait()
		var up, down []arrival
		for i := range 5 {
			at := 6500*time.Microsecond + time.Duration(i)*msec
			up = append(up, arrival{at, fmt.Sprint("u", i)})
			down = append(down, arrival{at, fmt.Sprint("d", i)})
		}
		// Both ends closed before anything came, so neither reads it.
		check(t, *atFar, arrival{5 * msec, closed})
		check(t, *atNear, arrival{5 * msec, closed})

		near, far, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		atFar, atNear = listen(&w, far), listen(&w, near)
		for i := range 5 {
			send(t, near, fmt.Sprint("u", i))
			send(t, far, fmt.Sprint("d", i))
			time.Sleep(msec)
		}
		_ = near.CloseWrite()
		_ = far.CloseWrite()
		w.Wait()
		check(t, *atFar, append(up, arrival{11500 * time.Microsecond, eof})...)
		check(t, *atNear, append(down, arrival{11500 * time.Microsecond, eof})...)
		if s := l.Stats(); s.Up != 10 || s.Down != 10 || s.Open != 1 || s.Made != 2 {
			t.Errorf("stats %+v, want 10 bytes each way, 1 of 2 connections open", s)
		}
	})
}

func TestRateHoldsBytesToIt(t *testing.T) {
	const size = 7 << 20
	for _, c := range []struct {
		name     string
		up, down int64
		want     [2]time.Duration // up, down; without the wire
	}{
		{"20 Mbit/s up", 20 * mbits, 0, [2]time.Duration{2936012800, 0}},
		{"20 Mbit/s up, 80 down", 20 * mbits, 80 * mbits, [2]time.Duration{2936012800, 734003200}},
		{"1 Gbit/s", 1000 * mbits, 1000 * mbits, [2]time.Duration{58720256, 58720256}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Profile{RTT: 13 * msec, Up: c.up, Down: c.down}
			bubble(t, p, func(t *testing.T, _ *Link, near, far *Conn) {
				var w sync.WaitGroup
				start := time.Now()
				for i, ends := range [][2]*Conn{{near, far}, {far, near}} {
					w.Go(func() { send(t, ends[0], string(make([]byte, size))) })
					w.Go(func() {
						_, err := io.CopyN(io.Discard, ends[1], size)
						got := time.Since(start) - 6500*time.Microsecond
						if off := got - c.want[i]; err != nil || off < -10*time.Microsecond || off > 10*time.Microsecond {
							t.Errorf("way %d took %v, want %v (error %v)", i, got, c.want[i], err)
						}
					})
				}
				w.Wait()
			})
		})
	}
}

func TestRateIsSharedByTheConnectionsOfALink(t *testing.T) {
	bubble(t, Profile{Up: 8 * mbits}, func(t *testing.T, l *Link, near, far *Conn) {
		near2, far2, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var w sync.WaitGroup
		start := time.Now()
		for _, ends := range [][2]*Conn{{near, far}, {near2, far2}} {
			w.Go(func() { send(t, ends[0], string(make([]byte, 1_000_000))) })
			w.Go(func() {
				_, err := io.CopyN(io.Discard, ends[1], 1_000_000)
				// Two megabytes at one a second. Who came first had the queue to itself, 65 ms.
				if got := time.Since(start); err != nil || got < 1900*msec || got > 2001*msec {
					t.Errorf("took %v, want about 2 s (error %v)", got, err)
				}
			})
		}
		w.Wait()
	})
}

func TestQueueHoldsTheWriterBack(t *testing.T) {
	for _, queue := range []int{0, 8 << 10} {
		t.Run(fmt.Sprint(queue), func(t *testing.T) {
			limit := queue
			if queue == 0 {
				limit = QueueMax
			}
			bubble(t, Profile{RTT: 100 * msec, Up: mbits, Queue: queue}, func(t *testing.T, _ *Link, near, _ *Conn) {
				_ = near.SetWriteDeadline(time.Now().Add(time.Nanosecond))
				n, err := near.Write(make([]byte, 1<<20))
				if errorText(err) != late || n > limit || n < limit-1448 {
					t.Errorf("took %d bytes at once, want %d or one packet less (error %v)", n, limit, err)
				}
				_ = near.SetWriteDeadline(time.Now().Add(time.Second))
				n, err = near.Write(make([]byte, 1<<20))
				if errorText(err) != late || n > 125_000+1448 || n < 125_000-limit/2 {
					t.Errorf("took %d bytes in a second, want 125000 at most (error %v)", n, err)
				}
			})
		})
	}
}

func TestUnreadBytesHoldTheWriterBack(t *testing.T) {
	bubble(t, Profile{RTT: msec}, func(t *testing.T, _ *Link, near, far *Conn) {
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := near.Write(make([]byte, 2*wireDefault))
		if errorText(err) != late || n > wireDefault || n < wireDefault-64<<10 {
			t.Errorf("took %d bytes that nobody reads, want about %d (error %v)", n, wireDefault, err)
		}
		if got := len(far.in.data.buf); got > wireDefault {
			t.Errorf("holds %d bytes, want at most %d", got, wireDefault)
		}
	})
}

func TestUnreadSmallWritesHoldTheWriterBack(t *testing.T) {
	bubble(t, Profile{RTT: msec}, func(t *testing.T, _ *Link, near, _ *Conn) {
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		n := 0
		var err error
		for err == nil && n < wireDefault/8 {
			_, err = near.Write([]byte{1})
			n++
		}
		if errorText(err) != late || n < wireDefault/64 {
			t.Errorf("took %d writes of a byte that nobody reads (error %v)", n, err)
		}
	})
}

func TestJitterKeepsOrderBoundsAndSeed(t *testing.T) {
	delays := func(t *testing.T, seed uint64, gap time.Duration) []time.Duration {
		var all []time.Duration
		p := Profile{RTT: 20 * msec, Jitter: 10 * msec, Seed: seed}
		bubble(t, p, func(t *testing.T, _ *Link, near, far *Conn) {
			const count = 200
			var w sync.WaitGroup
			sent := make([]time.Time, count)
			w.Go(func() {
				for i := range count {
					sent[i] = time.Now()
					send(t, near, string([]byte{byte(i)}))
					time.Sleep(gap)
				}
			})
			buf := make([]byte, 1)
			for i := range count {
				if _, err := far.Read(buf); err != nil || buf[0] != byte(i) {
					t.Fatalf("got %d, want %d (error %v)", buf[0], i, err)
				}
				all = append(all, time.Since(sent[i]))
			}
			w.Wait()
		})
		return all
	}
	apart := delays(t, 1, 30*msec)
	var sum time.Duration
	for _, d := range apart {
		if d < 5*msec || d > 15*msec {
			t.Errorf("took %v one way, want 5 to 15 ms", d)
		}
		sum += d
	}
	if mean := sum / time.Duration(len(apart)); mean < 9*msec || mean > 11*msec {
		t.Errorf("mean %v one way, want about 10 ms", mean)
	}
	for _, d := range delays(t, 1, 100*time.Microsecond) { // order is checked within
		if d < 5*msec || d > 15*msec {
			t.Errorf("took %v one way in a row, want 5 to 15 ms", d)
		}
	}
	if again := delays(t, 1, 30*msec); fmt.Sprint(again) != fmt.Sprint(apart) {
		t.Error("the same seed gave other delays")
	}
	if other := delays(t, 2, 30*msec); fmt.Sprint(other) == fmt.Sprint(apart) {
		t.Error("another seed gave the same delays")
	}
}

// Who reads a stream is not woken for every segment; what is alone, and the end, is on time all the same.
func TestReaderOfAStreamIsWokenSeldom(t *testing.T) {
	const rate, size = 1000 * mbits, 1 << 20
	bubble(t, Profile{RTT: 10 * msec, Up: rate, Down: rate}, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		start := time.Now()
		all := listen(&w, far)
		send(t, near, "alone")
		time.Sleep(20 * msec)
		began := time.Since(start)
		send(t, near, strings.Repeat("x", size))
		shutAll(near)
		w.Wait()
		if first := (*all)[0]; first.text != "alone" || first.at != 5*msec+l.up.span(len("alone")) {
			t.Errorf("%q came after %v", first.text, first.at)
		}
		stream := (*all)[1 : len(*all)-1]
		if last := stream[len(stream)-1].at; last != began+5*msec+l.up.span(size) {
			t.Errorf("the stream ended after %v", last-began)
		}
		if n := len(stream); n > 20 {
			t.Errorf("woken %d times for 1 MiB in 8.4 ms, want up to 20", n)
		}
		shutAll(far)
	})
}
