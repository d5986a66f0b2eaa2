package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/wire"
)

// experts are real ones: two of them, with synthetic weights.
type experts struct{ list []ref.Expert }

func newExperts(t testing.TB, gate, down quant.Format, hidden, length int) *experts {
	t.Helper()
	x := &experts{}
	for seed := range uint64(2) {
		matrix := func(f quant.Format, in, out int, salt uint64) ref.Matrix {
			row, err := f.RowBytes(in)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, row*out)
			quant.Synthetic(data, f, seed*3+salt)
			m, err := ref.NewMatrix(f, in, out, data)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		x.list = append(x.list, ref.Expert{
			Gate: matrix(gate, hidden, length, 0), Up: matrix(gate, hidden, length, 1), Down: matrix(down, length, hidden, 2)})
	}
	return x
}

func (x *experts) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	var s ref.Scratch
	out.Reset(b.Rows, b.Hidden)
	y := make([]float32, b.Hidden)
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		for i, e := range expert {
			status := x.list[int(e)%len(x.list)].Forward(y, b.Row(r), &s)
			if status == moe.OK {
				status = ref.AddPick(out.Row(r), y, weight[i], ref.DefaultExponent)
			}
			out.Fault(r, status)
		}
	}
	return nil
}

func TestRemoteEqualsLocalBitForBit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		x      moe.Experts
		format moe.RowFormat
		most   int
	}{
		{"K-quants", newExperts(t, quant.Q4K, quant.Q8_0, 256, 32), moe.RowQ8K, 64},
		{"blocks of 32", newExperts(t, quant.Q8_0, quant.MXFP4, 256, 32), moe.RowQ8, 64},
		{"floats", newExperts(t, quant.F16, quant.F16, 256, 8), moe.RowF32, 64},
		{"hashes", hashes{}, moe.RowQ8K, 512},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ends := map[string]*rig{}
			a, b := net.Pipe()
			ends["pipe"] = join(t, a, b, Worker{Experts: tt.x}, Options{}, Options{})
			a, b = loopback(t)
			ends["tcp"] = join(t, a, b, Worker{Experts: tt.x}, Options{}, Options{})
			for i, rows := range []int{1, 3, 64, 512} {
				if rows > tt.most {
					continue // seconds of computing that show nothing new
				}
				batch := newBatch(t, seeded(uint64(i)), moe.Shape{Layer: 3, Hidden: 256, Format: tt.format}, rows)
				want := direct(t, tt.x, batch)
				for name, r := range ends {
					var got moe.Partials
					if err := r.Forward(context.Background(), batch, &got); err != nil {
						t.Fatal(err)
					}
					if !same(&got, want) {
						t.Errorf("%d rows over %s: remote differs from local", rows, name)
					}
				}
			}
			for _, r := range ends {
				_ = r.end()
			}
		})
	}
}

func TestManyCallsAtOnceAreAllAnswered(t *testing.T) {
	a, b := loopback(t)
	wo := Options{Parallel: 5}
	wo.Hello.Calls, wo.Hello.Window = 40, 1<<20
	r := join(t, a, b, Worker{Experts: hashes{}}, Options{Answers: 8 << 20}, wo)
	var wg sync.WaitGroup
	errs := make(chan error, 300)
	for i := range 300 {
		wg.Go(func() {
			rng := seeded(uint64(i))
			for range 2 {
				s := moe.Shape{Layer: i % 4, Hidden: 1 + rng.IntN(600), Format: moe.RowFormat(rng.IntN(3))}
				if err := check(r.Session, newBatch(t, rng, s, 1+rng.IntN(30))); err != nil {
					errs <- fmt.Errorf("call %d: %w", i, err)
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if st := r.Stats(); st.Done != 600 || st.Faulted != 0 || st.Calls != 0 {
		t.Errorf("after 600 calls: %+v", st)
	}
	_ = r.end()
}

func TestFaultedRowsFailAlone(t *testing.T) {
	r := piped(t)
	defer func() { _ = r.end() }()
	b := small(t, 1, 5)
	b.Row(2).Scales[0] = float32(nan())
	var got moe.Partials
	if err := r.Forward(context.Background(), b, &got); err != nil {
		t.Fatal(err)
	}
	if !same(&got, direct(t, hashes{}, b)) || got.Status[2] != moe.NonFinite || got.Status[1] != moe.OK {
		t.Errorf("statuses %v", got.Status)
	}
}

func nan() float64 { z := 0.0; return z / z }

func TestFaultsComeBackAsErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"not held", fmt.Errorf("layer 9: %w", moe.ErrNotHeld), moe.ErrNotHeld},
		{"invalid", fmt.Errorf("%w: thing", moe.ErrInvalid), moe.ErrInvalid},
		{"internal", errors.New("out of memory"), ErrInternal},
		{"cancelled", context.Canceled, ErrCancelled},
		{"draining", ErrDraining, ErrDraining},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := net.Pipe()
			r := join(t, a, b, Worker{Experts: fakes(func(context.Context, *moe.Batch, *moe.Partials) error { return tt.err })}, Options{}, Options{})
			defer func() { _ = r.end() }()
			out := direct(t, hashes{}, small(t, 2, 3))
			err := r.Forward(context.Background(), small(t, 1, 3), out)
			if !errors.Is(err, tt.want) || out.Rows != 0 {
				t.Errorf("%v with %d rows, want %v and none", err, out.Rows, tt.want)
			}
			if err := r.Err(); err != nil {
				t.Errorf("the session ended: %v", err)
			}
		})
	}
}

func TestCodesAndSentinelsAreOneTable(t *testing.T) {
	seen := map[any]bool{}
	for _, f := range faults {
		seen[f.code] = true
		if got := codeOf(fmt.Errorf("x: %w", f.err)); got != f.code {
			t.Errorf("%v travels as %s, want %s", f.err, got, f.code)
		}
	}
	for c := wire.NotHeld; c.Valid(); c++ {
		if !seen[c] {
			t.Errorf("code %s is no error here", c)
		}
	}
	if codeOf(errors.New("any")) != 3 {
		t.Error("an unknown error is not internal")
	}
}

func TestABatchThatBreaksARuleIsRefusedBeforeItLeaves(t *testing.T) {
	r := piped(t)
	defer func() { _ = r.end() }()
	before := r.Stats().BytesOut
	b := small(t, 1, 3)
	b.Rows = 2
	if err := r.Forward(context.Background(), b, &moe.Partials{}); !errors.Is(err, moe.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Forward(ctx, small(t, 1, 3), &moe.Partials{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	if st := r.Stats(); st.BytesOut-before > 2*smallChunk {
		t.Errorf("%d bytes left", st.BytesOut-before)
	}
	// What only a look at every value shows, the worker finds.
	b = small(t, 1, 3)
	b.Q[100] = -128
	if err := r.Forward(context.Background(), b, &moe.Partials{}); !errors.Is(err, moe.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if err := check(r.Session, small(t, 4, 2)); err != nil {
		t.Error(err)
	}
}

func TestRowsOfAnotherModelAreRefused(t *testing.T) {
	a, b := net.Pipe()
	h := hello()
	h.Hidden = 64
	r := join(t, a, b, Worker{Experts: hashes{}}, Options{Hello: h}, Options{Hello: h})
	defer func() { _ = r.end() }()
	if err := check(r.Session, small(t, 1, 3)); err != nil {
		t.Error(err)
	}
	wide := newBatch(t, seeded(1), moe.Shape{Hidden: 65, Format: moe.RowQ8K}, 1)
	if err := r.Forward(context.Background(), wide, &moe.Partials{}); !errors.Is(err, moe.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

func TestABatchTooBigForTheSessionIsRefused(t *testing.T) {
	a, b := net.Pipe()
	wo := Options{}
	wo.Hello.Calls, wo.Hello.Window = 2, 2000
	r := join(t, a, b, Worker{Experts: hashes{}}, Options{Answers: 5000}, wo)
	defer func() { _ = r.end() }()
	if err := r.Forward(context.Background(), small(t, 1, 60), &moe.Partials{}); !errors.Is(err, ErrTooBig) {
		t.Errorf("beyond the window: %v, want ErrTooBig", err)
	}
	if err := r.Forward(context.Background(), small(t, 1, 12), &moe.Partials{}); !errors.Is(err, ErrTooBig) {
		t.Errorf("beyond the room for answers: %v, want ErrTooBig", err)
	}
	if err := check(r.Session, small(t, 1, 5)); err != nil {
		t.Error(err)
	}
}
