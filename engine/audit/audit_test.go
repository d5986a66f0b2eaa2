package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hidden = 8

// truth computes a row in its own way: what counts here is only that it is a function of the row.
func truth(b *moe.Batch, out *moe.Partials) {
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		row := b.Row(r)
		for i := range b.Hidden {
			sum := int64(0)
			for p, e := range expert {
				sum += int64(row.Q[i]) * int64(e+1) * int64(weight[p]*16)
			}
			out.Row(r)[i] = sum + int64(b.Layer)
		}
	}
}

// executor answers, with a fault of its own.
type executor struct {
	mu    sync.Mutex
	sizes []int
	spoil func(b *moe.Batch, out *moe.Partials)
	err   error
}

func (e *executor) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sizes = append(e.sizes, b.Rows)
	if e.err != nil {
		return e.err
	}
	truth(b, out)
	if e.spoil != nil {
		e.spoil(b, out)
	}
	return ctx.Err()
}

// judged is how many rows came at a time.
func (e *executor) judged() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.sizes)
}

func key(i byte) (k seal.PublicKey) {
	k[0] = i + 1
	return k
}

func batch(t testing.TB, rng *rand.Rand, layer, rows int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: hidden, Format: moe.RowQ8}, rows, rows*2)
	if err != nil {
		t.Fatal(err)
	}
	for range rows {
		row := b.Row(b.Grow([]uint16{uint16(rng.IntN(32)), uint16(rng.IntN(32))}, []float32{0.5, 0.25}))
		for i := range row.Q {
			row.Q[i] = int8(rng.IntN(255) - 127)
		}
		row.Scales[0] = 1
	}
	return b
}

func own(e moe.Experts) func(int, []seal.PublicKey) (Judge, bool) {
	return func(int, []seal.PublicKey) (Judge, bool) { return Judge{Experts: e}, true }
}

// drive judges all that waits, without a clock.
func drive(a *Auditor) {
	for {
		g, _ := a.next(time.Now().Add(a.o.Hold + time.Second))
		if g == nil {
			return
		}
		a.judge(context.Background(), g)
	}
}

// A cheat spoils answers of which he hopes that nobody looks.
type cheat struct {
	name   string
	spoil  func(rng *rand.Rand, out *moe.Partials, before *moe.Partials)
	within [2]int // batches of 512, with one row looked at and with four: found in 99 of 100
}

func share(p float64) func(rng *rand.Rand, out, before *moe.Partials) {
	return func(rng *rand.Rand, out, _ *moe.Partials) {
		// From one wrong row to the next it is as far as a geometric distribution says.
		gap := func() int { return int(math.Log(1-rng.Float64()) / math.Log(1-p)) }
		for r := gap(); r < out.Rows; r += 1 + gap() {
			out.Row(r)[rng.IntN(hidden)]++
		}
	}
}

var cheats = []cheat{
	{"zeros", func(_ *rand.Rand, out, _ *moe.Partials) { out.Reset(out.Rows, out.Hidden) }, [2]int{1, 1}},
	{"another expert's output", func(_ *rand.Rand, out, _ *moe.Partials) {
		for i := range out.Sum {
			out.Sum[i] += int64(i%7) + 1
		}
	}, [2]int{1, 1}},
	{"a cheaper quantisation", func(_ *rand.Rand, out, _ *moe.Partials) {
		for i := range out.Sum {
			out.Sum[i] = out.Sum[i]&^7 + 3
		}
	}, [2]int{1, 1}},
	{"10 % wrong rows", share(0.10), [2]int{44, 11}},
	{"1 % wrong rows", share(0.01), [2]int{459, 115}},
	{"answers of the batch before", func(_ *rand.Rand, out, before *moe.Partials) {
		if before.Rows == out.Rows {
			copy(out.Sum, before.Sum)
		} else {
			out.Reset(out.Rows, out.Hidden)
		}
	}, [2]int{1, 1}},
}

// TestCheatsAreFoundAsSoonAsTheSharesSay lets each kind of cheat loose on many auditors, and counts how
// many of them find him within as many batches as 1-(1-p)^n asks for 99 %.
func TestCheatsAreFoundAsSoonAsTheSharesSay(t *testing.T) {
	const seed = 41
	for _, c := range cheats {
		for i, every := range []int{512, 128} {
			t.Run(fmt.Sprintf("%s, one row of %d", c.name, every), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(every)))
				trials := 2000
				if c.within[i] > 100 {
					trials = 600
				}
				if testing.Short() {
					trials = 20
				}
				b := batch(t, rng, 1, 512)
				var right, sent, before moe.Partials
				truth(b, &right)
				caught := 0
				for trial := range trials {
					found := false
					a := New(Options{Judge: own(&executor{}), Every: every, Seed: [32]byte{1, byte(trial), byte(trial >> 8)},
						Found: func(f Finding) { found = f.Worker == key(1) }})
					w := a.Worker(key(1), NewRecord(a.o.Probation, 0))
					before.Reset(0, hidden)
					for range c.within[i] {
						sent.Reset(right.Rows, hidden)
						copy(sent.Sum, right.Sum)
						c.spoil(rng, &sent, &before)
						w.Answer(b, &sent)
						if _, waiting := a.Waiting(); waiting > a.o.Bytes/2 {
							drive(a)
						}
					}
					drive(a)
					if found {
						caught++
					}
				}
				share := float64(caught) / float64(trials)
				t.Logf("found in %.2f %% of %d within %d batches", 100*share, trials, c.within[i])
				deviation := math.Sqrt(0.99 * 0.01 / float64(trials))
				if share < 0.99-3*deviation {
					t.Errorf("seed %d: want 99 %%, three deviations of %.4f below it at least", seed, deviation)
				}
			})
		}
	}
}

// TestHonestWorkersAreNeverAccused has a million rows looked at.
func TestHonestWorkersAreNeverAccused(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	a := New(Options{Judge: own(&executor{}), Every: 1, Found: func(f Finding) { t.Errorf("seed %d: %+v", seed, f) }})
	w := a.Worker(key(1), NewRecord(0, 0))
	var out moe.Partials
	for i := 0; i < n; i += 512 {
		b := batch(t, rng, i>>9&3, 512)
		truth(b, &out)
		w.Answer(b, &out)
		drive(a)
	}
	if c := w.Counts(); c.Checked < int64(n) || c.Checked != c.Rows || c.Wrong != 0 || c.Skipped != 0 {
		t.Errorf("%+v", c)
	}
	if rows, bytes := a.Waiting(); rows != 0 || bytes != 0 {
		t.Errorf("%d rows and %d bytes are left", rows, bytes)
	}
}

// TestOneRowOfEachWindowIsDrawn: exactly one, in the long run everywhere, and not where another drew.
func TestOneRowOfEachWindowIsDrawn(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	b := batch(t, rng, 0, 64)
	var out moe.Partials
	truth(b, &out)
	places := func(seed byte) (at []int64) {
		a := New(Options{Judge: own(&executor{}), Every: 64, Group: 512, Bytes: 1 << 30, Seed: [32]byte{seed}})
		w := a.Worker(key(1), NewRecord(a.o.Probation, 0))
		for n := range 1000 {
			w.Answer(b, &out)
			if rows, _ := a.Waiting(); rows != n+1 {
				t.Fatalf("%d rows drawn in %d windows", rows, n+1)
			}
		}
		for _, s := range a.queues[b.Shape] {
			for r := range b.Rows {
				if slices.Equal(b.Row(r).Q, s.row.Values.Q) {
					at = append(at, int64(r))
				}
			}
		}
		return at
	}
	one, other := places(1), places(2)
	if slices.Equal(one, other) {
		t.Error("two seeds draw the same rows")
	}
	seen := map[int64]int{}
	for _, r := range one {
		seen[r]++
	}
	for r := range int64(64) {
		if n := seen[r]; n < 2 || n > 40 { // 15.6 expected
			t.Errorf("row %d was drawn %d times of 1000", r, n)
		}
	}
}

// TestRowsAreJudgedTogether looks at how many rows a judge gets at a time, and when.
func TestRowsAreJudgedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 3))
		e := &executor{}
		a := New(Options{Judge: own(e), Every: 1, Probation: 1, Group: 64, Hold: 10 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		w := a.Worker(key(1), NewRecord(1, 0))
		var out moe.Partials
		send := func(layer, rows int) {
			b := batch(t, rng, layer, rows)
			truth(b, &out)
			w.Answer(b, &out)
			synctest.Wait()
		}
		send(0, 63)
		send(1, 5)
		if got := e.judged(); len(got) != 0 {
			t.Errorf("judged %v at once", got)
		}
		send(0, 1)
		if got := e.judged(); !slices.Equal(got, []int{64}) {
			t.Errorf("judged %v, want 64 rows", got)
		}
		send(0, 1)
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if got := e.judged(); len(got) != 3 || got[0] != 64 || got[1]+got[2] != 6 {
			t.Errorf("judged %v after a while, want 1 and 5 more", got)
		}
		stop()
		<-done
	})
}

// TestTwoWorkersWaitForAThird has workers judge each other.
func TestTwoWorkersWaitForAThird(t *testing.T) {
	wrongSum := func(_ *moe.Batch, out *moe.Partials) { out.Row(0)[0]++ }
	for _, c := range []struct {
		name   string
		liars  []byte // of the judges 2, 3, 4
		spoilt bool   // the worker lies
		blamed []byte
		third  bool
	}{
		{"all agree", nil, false, nil, true},
		{"the worker lies", nil, true, []byte{1}, true},
		{"a judge lies", []byte{2}, false, []byte{2}, true},
		{"nobody else is there", nil, true, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var blamed []byte
			judges := []byte{2, 3, 4}
			if !c.third {
				judges = judges[:1]
			}
			a := New(Options{Every: 1, Found: func(f Finding) { blamed = append(blamed, f.Worker[0]-1) },
				Judge: func(_ int, not []seal.PublicKey) (Judge, bool) {
					for _, j := range judges {
						if !slices.Contains(not, key(j)) {
							e := &executor{}
							if slices.Contains(c.liars, j) {
								e.spoil = wrongSum
							}
							return Judge{Key: key(j), Experts: e}, true
						}
					}
					return Judge{}, false
				}})
			w := a.Worker(key(1), NewRecord(a.o.Probation, 0))
			b := batch(t, rand.New(rand.NewPCG(7, 7)), 0, 1)
			var out moe.Partials
			truth(b, &out)
			if c.spoilt {
				out.Row(0)[3] -= 5
			}
			w.Answer(b, &out)
			drive(a)
			if !slices.Equal(blamed, c.blamed) {
				t.Errorf("blamed %v, want %v", blamed, c.blamed)
			}
			rows, _ := a.Waiting()
			if decided := rows == 0; decided != c.third {
				t.Errorf("%d rows wait", rows)
			}
			if !c.third {
				if !w.Probation() {
					t.Error("one whose word stands against another's is not in probation")
				}
				a.next(time.Now().Add(a.o.Expire + time.Second))
				if n := w.Counts(); n.Skipped != 1 || n.Wrong != 0 {
					t.Errorf("after the time to wait: %+v", n)
				}
			}
		})
	}
}

// TestProbationEndsByRightRows follows the turns of a new worker.
func TestProbationEndsByRightRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	a := New(Options{Judge: own(&executor{}), Probation: 100})
	w := a.Worker(key(1), NewRecord(0, 0))
	var out moe.Partials
	send := func(rows int) {
		b := batch(t, rng, 0, rows)
		truth(b, &out)
		w.Answer(b, &out)
	}
	send(99)
	if got := w.Turn(); !got.Probation || got.Through != 0 || got.Rows != 99 || got.Checked != 0 {
		t.Errorf("at first %+v", got)
	}
	drive(a)
	send(1)
	if got := w.Turn(); !got.Probation || got.Checked != 99 {
		t.Errorf("one row short %+v", got)
	}
	drive(a)
	if got := w.Turn(); got.Probation || got.Through != 3 || got.Checked != 1 {
		t.Errorf("at the end %+v", got)
	}
	send(2560)
	send(2560)
	if got := w.Turn(); got.Through != 3 || got.Rows != 5120 {
		t.Errorf("undecided %+v", got)
	}
	if w.News() {
		t.Error("news while nothing is decided")
	}
	drive(a)
	if !w.News() {
		t.Error("no news of what is decided")
	}
	if got := w.Turn(); got.Through != 5 || got.Checked != 10 {
		t.Errorf("decided %+v", got)
	}
	if w.News() {
		t.Error("news of what was told")
	}
	out.Row(0)[0]++
	b := batch(t, rng, 0, 512)
	w.Answer(b, &out)
	drive(a)
	if got := w.Turn(); got.Wrong != 1 || !got.Probation {
		t.Errorf("one wrong row %+v", got)
	}
}

// TestWhatDoesNotFitIsSkippedAndCounted bounds the memory.
func TestWhatDoesNotFitIsSkippedAndCounted(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	a := New(Options{Judge: func(int, []seal.PublicKey) (Judge, bool) { return Judge{}, false }, Bytes: 100_000})
	w := a.Worker(key(1), NewRecord(0, 0))
	var out moe.Partials
	for range 20 {
		b := batch(t, rng, 0, 512)
		truth(b, &out)
		w.Answer(b, &out)
	}
	rows, bytes := a.Waiting()
	if bytes > 50_000 || rows < 50 {
		t.Errorf("%d rows in %d bytes wait, of 50000 for those in probation", rows, bytes)
	}
	if c := w.Counts(); c.Skipped != 20*512-int64(rows) {
		t.Errorf("%+v with %d rows waiting", c, rows)
	}
}

// TestAJudgeThatFailsIsNoVerdict has a judge answer with an error, and one with too few rows.
func TestAJudgeThatFailsIsNoVerdict(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	for _, e := range []*executor{
		{err: errors.New("away")},
		{spoil: func(b *moe.Batch, out *moe.Partials) { out.Reset(b.Rows-1, b.Hidden) }},
	} {
		a := New(Options{Judge: own(e), Found: func(f Finding) { t.Errorf("%+v", f) }})
		w := a.Worker(key(1), NewRecord(0, 0))
		b := batch(t, rng, 0, 3)
		var out moe.Partials
		truth(b, &out)
		w.Answer(b, &out)
		drive(a)
		if c := w.Counts(); c.Skipped != 3 || c.Checked != 0 {
			t.Errorf("%+v", c)
		}
	}
}

// TestWhatWasNotLookedAtIsOwed has no room for a while: what was answered then is decided only when as many other
// rows have been looked at, and a cheat is found by them.
func TestWhatWasNotLookedAtIsOwed(t *testing.T) {
	for name, cheats := range map[string]bool{"honest": false, "cheat": true} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(12, 12))
			found := 0
			a := New(Options{Judge: own(&executor{}), Every: 64, Bytes: 1, Found: func(Finding) { found++ }})
			w := a.Worker(key(1), NewRecord(512, 0))
			var out moe.Partials
			send := func(rows int) {
				b := batch(t, rng, 0, rows)
				truth(b, &out)
				for r := 0; cheats && r < rows; r++ {
					out.Row(r)[0]++
				}
				w.Answer(b, &out)
			}
			send(256)
			if got := w.Turn(); got.Skipped != 4 || got.Checked != 0 || got.Through != 0 || w.Open() != 0 {
				t.Errorf("without room %+v, %d wait", got, w.Open())
			}
			if got := w.Turn(); got.Through != 0 || got.Probation {
				t.Errorf("it is decided all the same: %+v", got)
			}
			a.mu.Lock()
			a.o.Bytes = 1 << 20
			a.mu.Unlock()
			checked, through, n := int64(0), int64(0), 0
			for ; n < 100 && through < 2 && found == 0; n++ {
				send(64)
				drive(a)
				got := w.Turn()
				checked, through = checked+got.Checked, got.Through
			}
			if cheats != (found > 0) || !cheats && (checked != int64(n)+4 || w.owed > 0 || w.Open() != 0) {
				t.Errorf("after %d windows %d rows were looked at and turns up to %d are decided; %d were found", n, checked, through, found)
			}
		})
	}
}

// TestNobodyHidesBehindAFullQueue has one in probation answer right until the queue would be full, and wrong from
// then on: there is room for some rows of many more answers.
func TestNobodyHidesBehindAFullQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 13))
	found := 0
	a := New(Options{Judge: own(&executor{}), Bytes: 600_000, Found: func(Finding) { found++ }})
	w := a.Worker(key(1), NewRecord(0, 0))
	var out moe.Partials
	for i := range 40 {
		b := batch(t, rng, 0, 64)
		truth(b, &out)
		if i >= 20 {
			out.Reset(64, hidden)
		}
		w.Answer(b, &out)
	}
	before := w.Counts()
	if before.Skipped == 0 || before.Skipped == before.Rows {
		t.Fatalf("%+v", before)
	}
	if drive(a); found < 3 {
		t.Errorf("%d rows of 20 batches of zeros were found; %+v", found, w.Counts())
	}
	if c := w.Counts(); c.Checked+c.Skipped != c.Rows {
		t.Errorf("%+v", c)
	}
}
