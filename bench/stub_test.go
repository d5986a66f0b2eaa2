package bench

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

func TestSpeedIsReadAsItIsWritten(t *testing.T) {
	f := func(text string, want Speed, written string) {
		t.Helper()
		got, err := ParseSpeed(text)
		if err != nil || got != want || got.String() != written {
			t.Errorf("%q is %+v, %v, written %q; want %+v and %q", text, got, err, got, want, written)
		}
	}
	f("cpu", Speed{}, "cpu")
	f("stub:gpu", GPU, "stub:gpu")
	f("stub:1.45ms+16us", Speed{1450 * time.Microsecond, 16 * time.Microsecond}, "stub:1.45ms+16µs")
	for _, text := range []string{"", "gpu", "stub:", "stub:1ms", "stub:-1ms+1us", "stub:0s+0s", "stub:1ms+20s", "1ms+1us"} {
		if s, err := ParseSpeed(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
	for rows, want := range map[int]time.Duration{1: 1450 * time.Microsecond, 512: 9600 * time.Microsecond} {
		if got := GPU.of(8*rows, 8); (got - want).Abs() > time.Microsecond {
			t.Errorf("a GPU takes %v for %d rows, want %v", got, rows, want)
		}
	}
}

func TestRateAndStallAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]Rate{"100M": 100e6, "1G": 1e9, "1.5g": 15e8, "250k": 250e3, "9600": 9600, "0": 0} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	if got := Rate(15e8).String() + " " + Rate(100e6).String() + " " + Rate(12).String(); got != "1.5G 100M 12" {
		t.Errorf("written %s", got)
	}
	for _, text := range []string{"", "M", "-1M", "NaN", "Inf", "1T", "1000000G", "1 M"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	if s, err := ParseStall("1s/30s"); err != nil || s != (Stall{time.Second, 30 * time.Second}) || s.String() != "1s/30s" {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := ParseStall("1s"); err == nil {
		t.Error("a stall without end is read")
	}
}

// TestStubsAreDevicesOfTheirOwn holds that a stub takes as long as it says, one batch after the other, and
// that parts of a batch add up to the whole, whoever answers them.
func TestStubsAreDevicesOfTheirOwn(t *testing.T) {
	d := small()
	b, err := d.makeRows(moe.RowQ8K)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newStub(Speed{10 * time.Millisecond, 2 * time.Millisecond}, d.TopK, d.Hidden, 1)
		other := s.another()
		start := time.Now()
		var whole, again, part moe.Partials
		done := make(chan time.Duration, 2)
		for _, x := range []*stub{s, other} {
			go func() {
				var p moe.Partials
				if err := x.Forward(t.Context(), b, &p); err != nil {
					t.Error(err)
				}
				done <- time.Since(start)
			}()
		}
		synctest.Wait()
		if err := s.Forward(t.Context(), b, &whole); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(start); got != 32*time.Millisecond {
			t.Errorf("the second of two batches of 3 rows is done after %v, want 32ms", got)
		}
		for range 2 {
			if got := <-done; got != 16*time.Millisecond {
				t.Errorf("the first is done after %v, want 16ms", got)
			}
		}
		half, err := moe.NewBatch(b.Shape, b.Rows, b.Rows)
		if err != nil {
			t.Fatal(err)
		}
		sum := make([]int64, len(whole.Sum))
		for pick := range d.TopK {
			half.Reset(0)
			for r := range b.Rows {
				e, w := b.Picks(r)
				row := half.Row(half.Grow(e[pick:pick+1], w[pick:pick+1]))
				copy(row.Q, b.Row(r).Q)
				copy(row.Scales, b.Row(r).Scales)
			}
			if err := other.Forward(t.Context(), half, &part); err != nil {
				t.Fatal(err)
			}
			for i, v := range part.Sum {
				sum[i] += v
			}
		}
		if err := s.Forward(t.Context(), b, &again); err != nil || !equal(&again, &whole) || !slices.Equal(sum, whole.Sum) {
			t.Errorf("%v; again the same %v, parts add up %v", err, equal(&again, &whole), slices.Equal(sum, whole.Sum))
		}
	})
}

// TestStubsAreMeasuredLikeWorkers holds that the bars of a stub's run are those that are set for it.
func TestStubsAreMeasuredLikeWorkers(t *testing.T) {
	d := small()
	d.Worker, d.Workers, d.Path = Speed{time.Millisecond, 10 * time.Microsecond}, 2, Path{Up: 100e6, Down: 200e6}
	d.Only, d.RTTs = []int{1, 3}, []time.Duration{time.Millisecond, 2 * time.Millisecond}
	r := run(t, d)
	if len(r.Results) != 4+7 || len(r.Different()) > 0 || r.Settings.Weights != 0 || r.Settings.Worker != d.Worker.String() {
		t.Fatalf("%d results, %v differ, %d bytes of weights, %q", len(r.Results), r.Different(), r.Settings.Weights, r.Settings.Worker)
	}
	for _, x := range r.Results {
		if (x.kind() == local) != (x.Roofline == 0) || x.PeakShare != 0 {
			t.Errorf("batch %d, %v: %v of the roofline by %q, %v of the peak", x.Batch, x.kind(), x.Roofline, x.Bound, x.PeakShare)
		}
	}
	if n := len(r.Settings.Paths); n != 3 {
		t.Fatalf("%d paths were calibrated, want 3", n)
	}
	for _, p := range r.Settings.Paths {
		// No ping is quicker than the path, on any machine. What else it gave is the machine's to say:
		// TestRateOfAPathIsWhatArrives holds how it is measured.
		if p.UpGot <= 0 || p.DownGot <= 0 || p.Idle == nil || p.Idle.Median < p.RTT {
			t.Errorf("a path of %v ms gave %v and %v bit/s, %+v", p.RTT, p.UpGot, p.DownGot, p.Idle)
		}
	}
}

// TestRateOfAPathIsWhatArrives holds that a path delivers its limit, where the clock stands while one computes.
func TestRateOfAPathIsWhatArrives(t *testing.T) {
	for _, limit := range []Rate{1e6, 100e6, 200e6} {
		synctest.Test(t, func(t *testing.T) {
			l, err := wan.NewLink(wan.Profile{RTT: 13 * time.Millisecond, Up: int64(limit), Down: int64(limit)})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close() //nolint:errcheck // nothing is left of it
			near, far, err := l.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			for name, ends := range map[string][2]*wan.Conn{"up": {near, far}, "down": {far, near}} {
				got, err := arrivalRate(ends[0], ends[1], limit)
				// The rest of the packet in which the measured part begins counts, and takes no time.
				if err != nil || got < float64(limit) || got > 1.02*float64(limit) {
					t.Errorf("%s: %v bit/s of %d arrive (%v)", name, got, limit, err)
				}
			}
		})
	}
}

func TestBoundIsThatOfTheSlowestPart(t *testing.T) {
	r := &dispatchRun{d: Dispatch{TopK: 8, Workers: 1, Worker: GPU, Path: Path{Up: 1e9, Down: 1e9}}}
	f := func(want time.Duration, who string) {
		t.Helper()
		if s := r.boundOf(512, time.Second, 3183, 4959); (s.took-want).Abs() > 10*time.Microsecond || s.who != who {
			t.Errorf("%v by %s, want %v by %s", s.took, s.who, want, who)
		}
	}
	f(20312*time.Microsecond, boundBack)
	r.d.Path.Down = 1e8
	f(130376*time.Microsecond, boundOut)
	r.d.Path = Path{}
	f(9600*time.Microsecond, boundWork)
	r.d.Workers = 2
	f(5517*time.Microsecond, boundWork)
	r.d.Worker = Speed{}
	f(time.Second, boundWork)
	if n := r.d.flightsFor(56*time.Millisecond, 20*time.Millisecond); n != 4 {
		t.Errorf("%d under way hide 56 ms of 20, want 4", n)
	}
}

func TestFormatsAreReadByName(t *testing.T) {
	if f, err := ParseQuant("q5_k"); err != nil || f != quant.Q5K {
		t.Errorf("%v, %v", f, err)
	}
	if _, err := ParseQuant("Q8_1"); err == nil {
		t.Error("a format of no kernel is read")
	}
}
