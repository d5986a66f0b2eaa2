package wan

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestStallStandsTheWayStill(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		do       func(l *Link)
		up, down time.Duration // when what was sent at 0 arrives; 10 ms without a stall
	}{
		{"none", func(*Link) {}, 10 * msec, 10 * msec},
		{"both", func(l *Link) { l.Stall(Both, s) }, s + 10*msec, s + 10*msec},
		{"up", func(l *Link) { l.Stall(Up, s) }, s + 10*msec, 10 * msec},
		{"down", func(l *Link) { l.Stall(Down, s) }, 10 * msec, s + 10*msec},
		{"on the wire", func(l *Link) { time.Sleep(4 * msec); l.Stall(Up, s) }, s + 10*msec, 10 * msec},
		{"after arrival", func(l *Link) { time.Sleep(11 * msec); l.Stall(Up, s) }, 10 * msec, 10 * msec},
		{"twice", func(l *Link) { l.Stall(Up, s); time.Sleep(s / 2); l.Stall(Up, s) }, 3*s/2 + 10*msec, 10 * msec},
		{"within", func(l *Link) { l.Stall(Up, 3*s); time.Sleep(s / 2); l.Stall(Up, s) }, 3*s + 10*msec, 10 * msec},
		{"one after another", func(l *Link) { l.Stall(Up, msec); time.Sleep(2 * msec); l.Stall(Up, msec) }, 12 * msec, 10 * msec},
		{"resumed", func(l *Link) { l.Stall(Both, time.Hour); time.Sleep(s); l.Resume(Up) }, s + 10*msec, time.Hour + 10*msec},
		{"resumed without stall", func(l *Link) { l.Resume(Both) }, 10 * msec, 10 * msec},
		{"for no time", func(l *Link) { l.Stall(Both, 0); l.Stall(Both, -s) }, 10 * msec, 10 * msec},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
				var w sync.WaitGroup
				atFar, atNear := listen(&w, far), listen(&w, near)
				send(t, near, "up")
				send(t, far, "down")
				_ = near.CloseWrite()
				_ = far.CloseWrite()
				c.do(l)
				w.Wait()
				check(t, *atFar, arrival{c.up, "up"}, arrival{c.up, eof})
				check(t, *atNear, arrival{c.down, "down"}, arrival{c.down, eof})
			})
		})
	}
}

func TestStallFillsTheQueueAndNoMore(t *testing.T) {
	for _, rate := range []int64{0, 10 * mbits} {
		bubble(t, Profile{RTT: 20 * msec, Up: rate}, func(t *testing.T, l *Link, near, far *Conn) {
			l.Stall(Up, time.Second)
			_ = near.SetWriteDeadline(time.Now().Add(900 * msec))
			n, err := near.Write(make([]byte, 1<<20))
			if errorText(err) != late || n > QueueMax || n < QueueMax-1448 {
				t.Errorf("rate %d: took %d bytes in a stall, want %d (error %v)", rate, n, QueueMax, err)
			}
			_ = near.SetWriteDeadline(time.Time{})
			var w sync.WaitGroup
			w.Go(func() { send(t, near, "end") })
			buf := make([]byte, n+3)
			if _, err := io.ReadFull(far, buf); err != nil || string(buf[n:]) != "end" {
				t.Errorf("rate %d: read %q after the stall, want all (error %v)", rate, buf[n:], err)
			}
			w.Wait()
			l.Stall(Up, time.Second) // its queue is its own
			_ = near.SetWriteDeadline(time.Now().Add(900 * msec))
			if n, _ := near.Write(make([]byte, 1<<20)); n > QueueMax || n < QueueMax-1448 {
				t.Errorf("rate %d: took %d bytes in the second stall, want %d", rate, n, QueueMax)
			}
		})
	}
}

func TestBlackHoleSwallowsAndKeepsTheConnection(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		atFar, atNear := listen(&w, far), listen(&w, near)
		send(t, near, "before")
		time.Sleep(15 * msec)
		send(t, near, "under way")
		time.Sleep(5 * msec)
		l.BlackHole(Up)
		send(t, near, string(make([]byte, 4*wireDefault))) // a writer in a black hole goes on
		send(t, far, "other way")
		time.Sleep(time.Hour)
		l.Heal(Up)
		send(t, near, "after") // the connection does not come back, though the way does
		_ = near.CloseWrite()
		time.Sleep(time.Hour)
		synctest.Wait()
		check(t, *atFar, arrival{10 * msec, "before"})
		check(t, *atNear, arrival{30 * msec, "other way"})

		near2, far2, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		at2 := listen(&w, far2)
		send(t, near2, "new")
		_ = near2.Close()
		_ = far.Close() // what it says of itself goes the way that works
		w.Wait()
		check(t, *at2, arrival{10 * msec, "new"}, arrival{10 * msec, eof})
		check(t, *atFar, arrival{10 * msec, "before"}, arrival{2*time.Hour + 20*msec, closed})
		check(t, *atNear, arrival{30 * msec, "other way"}, arrival{2*time.Hour + 30*msec, eof})
	})
}

func TestBlackHoleHidesThatTheOtherEndLeft(t *testing.T) {
	for _, first := range []string{"close", "hole"} {
		bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
			if first == "close" {
				_ = far.Close()
				l.BlackHole(Down)
			} else {
				l.BlackHole(Down)
				_ = far.Close()
			}
			for range 10 {
				time.Sleep(time.Minute)
				send(t, near, "hello")
			}
			_ = near.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := near.Read(make([]byte, 1)); errorText(err) != late {
				t.Errorf("%s first: read in a black hole: %v, want a time-out", first, err)
			}
		})
	}
}

func TestBlackHoleMeetsNewConnections(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, _, _ *Conn) {
		l.BlackHole(Down)
		near, far, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		send(t, near, "up")
		send(t, far, "down")
		buf := make([]byte, 2)
		if _, err := io.ReadFull(far, buf); err != nil {
			t.Error(err)
		}
		_ = near.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := near.Read(buf); errorText(err) != late {
			t.Errorf("read in a black hole: %v, want a time-out", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := l.Dial(ctx, "tcp", "127.0.0.1:9"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial into a black hole: %v, want the context's error", err)
		}
	})
}

func TestCutEndsBothEndsAtOnce(t *testing.T) {
	for _, c := range []struct {
		name        string
		how         How
		read, write string
		kept        []arrival
	}{
		{"reset", Reset, reset, reset, []arrival{{10 * msec, "read"}}},
		{"fin", Fin, eof, broken, []arrival{{10 * msec, "read"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
				var w sync.WaitGroup
				atFar, atNear := listen(&w, far), listen(&w, near)
				send(t, near, "read")
				time.Sleep(12 * msec)
				send(t, near, "under way")
				time.Sleep(msec)
				if n := l.Cut(c.how); n != 1 {
					t.Errorf("cut %d connections, want 1", n)
				}
				w.Wait()
				check(t, *atFar, append(c.kept, arrival{13 * msec, c.read})...)
				check(t, *atNear, arrival{13 * msec, c.read})
				for _, end := range []*Conn{near, far} {
					if _, err := end.Write([]byte("x")); errorText(err) != c.write {
						t.Errorf("write after the cut: %v, want %s", err, c.write)
					}
					if err := end.Close(); err != nil {
						t.Error(err)
					}
				}
				if _, _, err := l.Pipe(); err != nil {
					t.Errorf("connect after the cut: %v", err)
				}
			})
		})
	}
}

func TestCutByFinLeavesWhatHadArrived(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
		send(t, near, "arrived")
		time.Sleep(11 * msec)
		send(t, near, "under way")
		l.Cut(Fin)
		got, err := io.ReadAll(far)
		if err != nil || string(got) != "arrived" {
			t.Errorf("read %q, %v, want what had arrived", got, err)
		}
	})
}

func TestCutReleasesAWriterThatWaits(t *testing.T) {
	for _, how := range []How{Reset, Fin} {
		for _, p := range []Profile{{}, {Up: mbits}} { // for the reader, for the queue
			bubble(t, p, func(t *testing.T, l *Link, near, _ *Conn) {
				var w sync.WaitGroup
				w.Go(func() {
					if _, err := near.Write(make([]byte, 4*wireDefault)); err == nil {
						t.Error("wrote all over a connection that was cut")
					}
				})
				time.Sleep(msec)
				l.Cut(how)
				w.Wait()
			})
		}
	}
}

func TestFaultsHappenByTheClock(t *testing.T) {
	p := Profile{RTT: 20 * msec, Faults: []Fault{
		{Kind: FaultStall, Way: Up, After: 100 * msec, For: 50 * msec, Every: 200 * msec},
		{Kind: FaultReset, After: 450 * msec},
	}}
	bubble(t, p, func(t *testing.T, _ *Link, near, far *Conn) {
		var w sync.WaitGroup
		atFar, atNear := listen(&w, far), listen(&w, near)
		time.Sleep(95 * msec)
		send(t, near, "a") // stalled after 5 ms for 50
		send(t, far, "b")
		time.Sleep(100 * msec)
		send(t, near, "c") // between the stalls
		time.Sleep(104 * msec)
		send(t, near, "d") // a millisecond before the second stall
		w.Wait()
		check(t, *atFar, arrival{155 * msec, "a"}, arrival{205 * msec, "c"},
			arrival{359 * msec, "d"}, arrival{450 * msec, reset})
		check(t, *atNear, arrival{105 * msec, "b"}, arrival{450 * msec, reset})
	})
}

func TestFaultBlackHoleHeals(t *testing.T) {
	p := Profile{RTT: 2 * msec, Faults: []Fault{{Kind: FaultBlackHole, After: 10*msec + 1, For: 10 * msec}}}
	bubble(t, p, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		at := listen(&w, far)
		for range 30 {
			send(t, near, ".")
			time.Sleep(msec)
		}
		_ = far.Close()
		w.Wait()
		if n := len(*at) - 1; n != 10 { // the close is there too
			t.Errorf("%d arrived, want 10, those of the first 10 ms", n)
		}
		near, far, err := l.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		send(t, near, ".")
		if _, err := far.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsFaultsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLink(Profile{Faults: []Fault{
			{Kind: FaultStall, After: time.Hour, For: time.Second},
			{Kind: FaultBlackHole, For: time.Hour},
			{Kind: FaultFin, Every: msec},
		}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * msec)
		_ = l.Close() // a goroutine left would hang the bubble
	})
}
