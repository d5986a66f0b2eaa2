package bench

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
	"kvasir/wire"
)

// The threads of the process's backend stay until it ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("kvasir/kernels/cpu.(*team).help"))
}

// small is a layer that takes microseconds.
func small() Dispatch {
	return Dispatch{
		Experts: 6, TopK: 2, Hidden: 512, FFN: 256, Quant: quant.Q4K, Batch: 3,
		RTTs: []time.Duration{time.Millisecond}, Workers: 1, Repeat: 2, Budget: time.Hour, Seed: 7,
	}
}

func run(t *testing.T, d Dispatch) *Report {
	t.Helper()
	r, err := d.Run(t.Context(), Observer[Report, Result]{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDispatchMeasuresEveryBatchOnEveryWay(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	for _, workers := range []int{1, 3} {
		d := small()
		d.Workers, d.least = workers, time.Millisecond
		var began bool
		var rows []Result
		r, err := d.Run(t.Context(), Observer[Report, Result]{
			Begin: func(r *Report) { began = len(r.Results) == 0 && r.Machine.CPU != "" },
			Row:   func(x Result) { rows = append(rows, x) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if !began || len(rows) != 11 || len(r.Results) != 11 {
			t.Fatalf("began %v, %d rows told, %d results; want true, 11, 11", began, len(rows), len(r.Results))
		}
		for i, x := range r.Results {
			n, k := 1+i/3, kind(i%3)
			if i >= 6 { // the largest, also with several under way
				n, k = 3, []kind{local, near, near, far, far}[i-6]
			}
			if x.piped() != (i == 8 || i == 10) || x.piped() != (x.Flights >= 2) {
				t.Errorf("result %d: pipelined %v, %d under way", i, x.piped(), x.Flights)
			}
			if x.Batch != n || x.kind() != k || len(x.times) != 2 || x.Pairs != 2 || x.TokensPerS <= 0 || x.Ms <= 0 || x.XVsBatch1 <= 0 {
				t.Errorf("result %d: %+v", i, x)
			}
			if k != local && (x.Roofline <= 0 || x.Bound != boundWork) {
				t.Errorf("result %d: %v of the roofline, by %q", i, x.Roofline, x.Bound)
			}
			if (k == far) != (x.RTTOverhead != nil) {
				t.Errorf("result %d: RTT overhead %v", i, x.RTTOverhead)
			}
			if k == local {
				if x.Allocs == nil || x.Workers != 0 || x.Identical != nil || x.BytesOut != 0 || x.BytesBack != 0 {
					t.Errorf("a local result tells of a network: %+v", x)
				}
				continue
			}
			if x.Allocs != nil || x.Workers != workers || x.Identical == nil || !*x.Identical {
				t.Errorf("result %d: workers %d, identical %v", i, x.Workers, x.Identical)
			}
		}
		list := variant.Available()
		if m := &r.Machine; (m.Int8Peak > 0) != (list[len(list)-1] != variant.Portable) || m.Read < 0 {
			t.Errorf("limits of the machine: %v GOP/s, %v GB/s", m.Int8Peak, m.Read)
		}
		s := &r.Settings
		if !slices.Equal(s.Batches, []int{1, 2, 3}) || !slices.Equal(s.Rounds, []int{2, 2, 2}) || s.LeftOut != nil {
			t.Errorf("settings: %+v", s)
		}
	}
	if got := runtime.GOMAXPROCS(0); got != procs {
		t.Errorf("GOMAXPROCS is %d after the run, was %d", got, procs)
	}
}

// TestBytesARowAreThoseOfTheWire holds the counts to what the messages must take, and to what framing may
// add: 16 bytes of header; for each chunk, of which there is one here, two TLS records of 22 bytes and a
// frame of at most 8 more; an acknowledgement of what came the other way, alone or along with it.
func TestBytesARowAreThoseOfTheWire(t *testing.T) {
	d := small()
	store, err := experts.Synthetic(d.shape(), d.Seed)
	if err != nil {
		t.Fatal(err)
	}
	if store, _, err = d.tune(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	all, err := d.makeRows(store.RowFormat(0))
	if err != nil {
		t.Fatal(err)
	}
	var answer moe.Partials
	if err := experts.NewLocal(store).Forward(t.Context(), all, &answer); err != nil {
		t.Fatal(err)
	}
	const header, records, credit = 16, 2*22 + 8, 16 + 8
	const most = header + records + 2*(credit+records)
	check := func(name string, x *Result, perRow float64, payload int) {
		t.Helper()
		got, least := perRow*float64(x.Batch), float64(payload+header)
		if x.piped() { // those that wait for a lane travel together, with one head
			least = 0.97 * float64(payload)
		}
		if got < least || got > float64(payload+most) {
			t.Errorf("batch %d, pipelined %v: %.1f bytes %s a dispatch, want %.0f to %d", x.Batch, x.piped(), got, name, least, payload+most)
		}
	}
	for _, x := range run(t, d).Results {
		if x.kind() == local {
			continue
		}
		n := x.Batch
		part := moe.Partials{Rows: n, Hidden: d.Hidden, Sum: answer.Sum[:n*d.Hidden], Status: answer.Status[:n]}
		check("out", &x, x.BytesOut, wire.DispatchSize(all.Shape, n, n*d.TopK))
		check("back", &x, x.BytesBack, len(wire.AppendPartials(nil, &part)))
	}
}

// liar changes one value of every answer to a batch of its size.
type liar struct {
	moe.Experts
	rows int
	told *atomic.Int64
}

func (l liar) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := l.Experts.Forward(ctx, b, out)
	if err == nil && b.Rows == l.rows {
		out.Sum[len(out.Sum)-1]++
		l.told.Add(1)
	}
	return err
}

func TestOneWrongBitIsSeen(t *testing.T) {
	d := small()
	var told atomic.Int64
	d.wrap = func(x moe.Experts) moe.Experts { return liar{x, 2, &told} }
	r := run(t, d)
	if got := r.Different(); !slices.Equal(got, []int{2}) || told.Load() == 0 {
		t.Errorf("batches %v differ, want 2 alone; %d answers were changed", got, told.Load())
	}
	for _, x := range r.Results {
		if x.Identical != nil && *x.Identical != (x.Batch != 2) {
			t.Errorf("batch %d at %v ms: identical %v", x.Batch, *x.RTT, *x.Identical)
		}
	}
}

func TestWithoutRoundTripThereIsOnePath(t *testing.T) {
	d := small()
	d.RTTs, d.Batch = nil, 1
	r := run(t, d)
	if len(r.Results) != 3 || r.Settings.Got != nil {
		t.Errorf("%d results, pings %v; want 3 and none", len(r.Results), r.Settings.Got)
	}
	if words := r.Words(); len(words) != 3 || !strings.Contains(words[2], "--rtt") {
		t.Errorf("words: %q", words)
	}
}

func TestInterruptedRunReturnsWhatIsFinished(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rows := 0
	r, err := small().Run(ctx, Observer[Report, Result]{Row: func(Result) {
		if rows++; rows == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || r == nil || len(r.Results) != 3 || len(r.Settings.Batches) != 1 {
		t.Fatalf("error %v, report %+v", err, r)
	}
	cancel()
	if r, err = small().Run(ctx, Observer[Report, Result]{}); !errors.Is(err, context.Canceled) || len(r.Results) != 0 {
		t.Errorf("cancelled before it began: error %v, %d results", err, len(r.Results))
	}
}

func TestCheckNamesTheFlagToChange(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*Dispatch)
		want  string
	}{
		{"good", func(*Dispatch) {}, ""},
		{"default", func(d *Dispatch) { *d = DefaultDispatch() }, ""},
		{"quick", func(d *Dispatch) { *d = QuickDispatch() }, ""},
		{"no batch", func(d *Dispatch) { d.Batch = 0 }, "--batch 0, want 1 to 4096"},
		{"batch too large", func(d *Dispatch) { d.Batch = 4097 }, "--batch 4097"},
		{"no experts", func(d *Dispatch) { d.Experts = 0 }, "--experts 0"},
		{"no picks", func(d *Dispatch) { d.TopK = 0 }, "--topk 0"},
		{"more picks than experts", func(d *Dispatch) { d.TopK = 7 }, "--topk 7 of 6 experts; lower --topk"},
		{"hidden of no whole block", func(d *Dispatch) { d.Hidden = 300 }, "--hidden 300, want a multiple of 256"},
		{"ffn of no whole block", func(d *Dispatch) { d.FFN = 300 }, "--ffn 300, want a multiple of 256"},
		{"no workers", func(d *Dispatch) { d.Workers = 0 }, "--workers 0"},
		{"more workers than experts", func(d *Dispatch) { d.Workers = 7 }, "--workers 7 for 6 experts"},
		{"negative round trip", func(d *Dispatch) { d.RTTs = []time.Duration{-1} }, "--rtt -1ns, want 0 to 10s"},
		{"round trip to the moon", func(d *Dispatch) { d.RTTs = []time.Duration{time.Minute} }, "--rtt 1m0s"},
		{"batches that fall", func(d *Dispatch) { d.Only = []int{3, 1} }, "--only 3,1, want ascending numbers"},
		{"round trips that fall", func(d *Dispatch) { d.RTTs = []time.Duration{2e6, 1e6} }, "--rtt 1ms after 2ms, want ascending"},
		{"too many round trips", func(d *Dispatch) { d.RTTs = []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9} }, "--rtt has 9 times"},
		{"round trip without a network", func(d *Dispatch) { d.Alone = true }, "--rtt 1ms, and expert has no network"},
		{"jitter beyond the round trip", func(d *Dispatch) { d.Path.Jitter = time.Second }, "--jitter 1s of a round trip of 1ms"},
		{"line of a modem", func(d *Dispatch) { d.Path.Up = 9600 }, "--up 9.6k, want 1M or more"},
		{"jitter of nothing", func(d *Dispatch) { d.RTTs, d.Path.Jitter = nil, time.Millisecond }, "--jitter 1ms without a round trip; give --rtt"},
		{"stall without end", func(d *Dispatch) { d.Path.Stall = Stall{2e9, 1e9} }, "--stall 2s/1s, want it shorter"},
		{"format of no kernel", func(d *Dispatch) { d.Quant = 9 }, "--quant Q8_1"},
		{"blocks of 32", func(d *Dispatch) { d.Quant, d.Hidden = quant.Q8_0, 272 }, "--hidden 272, want a multiple of 32"},
		{"negative rounds", func(d *Dispatch) { d.Repeat = -1 }, "--repeat -1"},
		{"no time", func(d *Dispatch) { d.Budget = 0 }, "--budget 0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := small()
			tt.spoil(&d)
			err := d.Check()
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want ErrSettings with %q", err, tt.want)
			}
			if r, err := d.Run(t.Context(), Observer[Report, Result]{}); r != nil || !errors.Is(err, ErrSettings) {
				t.Errorf("Run: report %v, error %v", r, err)
			}
		})
	}
}

func TestLayerThatDoesNotFitIsRefusedBeforeItIsMade(t *testing.T) {
	d := DefaultDispatch()
	weights, err := d.shape().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.checkMemory(weights, 1<<30); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "lower --experts") {
		t.Errorf("in 1 GiB: %v", err)
	}
	for _, available := range []uint64{0, 4 << 30} { // 0: the system does not tell
		if err := d.checkMemory(weights, available); err != nil {
			t.Errorf("in %d bytes: %v", available, err)
		}
	}
}

func TestRowsAreThoseOfTheSeed(t *testing.T) {
	d := small()
	rows := func(seed uint64) *moe.Batch {
		d.Seed = seed
		b, err := d.makeRows(moe.RowQ8K)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Validate(d.Experts); err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b, c := rows(1), rows(1), rows(2)
	if !slices.Equal(a.Q, b.Q) || !slices.Equal(a.Expert, b.Expert) || slices.Equal(a.Q, c.Q) || slices.Equal(a.Expert, c.Expert) {
		t.Error("rows do not follow the seed")
	}
	for r := range a.Rows {
		if e, w := a.Picks(r); e[0] == e[1] || w[0] <= w[1] || w[1] <= 0 {
			t.Errorf("row %d picks %v with weights %v", r, e, w)
		}
	}
	if d.hash() == small().hash() {
		t.Error("another seed has the same hash")
	}
}

func TestFaultedAnswersAreRefused(t *testing.T) {
	var p moe.Partials
	p.Reset(2, 4)
	if err := sound(&p); err != nil {
		t.Fatal(err)
	}
	p.Fault(1, moe.Range)
	if err := sound(&p); err == nil || !strings.Contains(err.Error(), "row 1 has status range") {
		t.Errorf("error %v", err)
	}
}

func TestEqualSeesEveryDifference(t *testing.T) {
	fresh := func() *moe.Partials {
		p := &moe.Partials{}
		p.Reset(2, 3)
		return p
	}
	if !equal(fresh(), fresh()) {
		t.Error("the same are not equal")
	}
	for name, spoil := range map[string]func(*moe.Partials){
		"value":  func(p *moe.Partials) { p.Sum[5] = 1 },
		"status": func(p *moe.Partials) { p.Status[1] = moe.Wide },
		"rows":   func(p *moe.Partials) { p.Reset(1, 3) },
		"hidden": func(p *moe.Partials) { p.Reset(2, 2) },
	} {
		p := fresh()
		spoil(p)
		if equal(p, fresh()) || equal(fresh(), p) {
			t.Errorf("another %s is not seen", name)
		}
	}
}

func TestTrafficCountsBothWays(t *testing.T) {
	var tr traffic
	near, far := net.Pipe()
	dial := tr.count(func(context.Context, string, string) (net.Conn, error) { return near, nil })
	c, err := dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		b := make([]byte, 5)
		if _, err := far.Read(b); err != nil {
			done <- err
			return
		}
		_, err := far.Write(b[:3])
		done <- err
	}()
	if _, err := c.Write(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write(make([]byte, 4)); n != 0 || err == nil {
		t.Errorf("wrote %d bytes into a closed pipe", n)
	}
	if out, back := tr.load(); out != 3 || back != 5 {
		t.Errorf("%d out and %d back, want 3 and 5", out, back)
	}
	refused := errors.New("refused")
	dial = tr.count(func(context.Context, string, string) (net.Conn, error) { return nil, refused })
	if c, err := dial(t.Context(), "", ""); c != nil || !errors.Is(err, refused) {
		t.Errorf("got %v, %v", c, err)
	}
}

// What measuring takes within the times that it counts is a hundredth of them at most: it is told, and a pipelined
// answer is compared in parts that come to the whole.
func TestMeasuringTakesLittleAndMissesNothing(t *testing.T) {
	a, b := &moe.Partials{}, &moe.Partials{}
	const rows = 37
	a.Reset(rows, 3)
	b.Reset(rows, 3)
	for wrong := range rows {
		b.Sum[3*wrong+1]++
		found := 0
		for n := range comparedPart {
			if !equalRows(a, b, n*rows/comparedPart, (n+1)*rows/comparedPart) {
				found++
			}
		}
		if found != 1 || equal(a, b) {
			t.Errorf("row %d is wrong: %d of %d parts say so, want 1", wrong, found, comparedPart)
		}
		b.Sum[3*wrong+1]--
	}
	var tl tally
	tl.spent(time.Duration(runtime.NumCPU())*time.Millisecond, 2*time.Second)
	if share := tl.measuring / tl.measured; math.Abs(share-0.0005) > 1e-9 {
		t.Errorf("%v of the time, want 0.0005", share)
	}
	if c := clockCost(); c <= 0 || c > time.Millisecond {
		t.Errorf("two looks at the clock take %v", c)
	}
}
