package cpu

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// syntheticLayer is experts of plausible weights.
func syntheticLayer(tb testing.TB, f [3]quant.Format, hidden, length, experts int) *ref.Layer {
	tb.Helper()
	l := &ref.Layer{Number: 3, Exponent: 20}
	matrix := func(f quant.Format, in, out int, seed uint64) ref.Matrix {
		n, err := f.RowBytes(in)
		if err != nil {
			tb.Fatal(err)
		}
		data := make([]byte, n*out)
		quant.Synthetic(data, f, seed)
		m, err := ref.NewMatrix(f, in, out, data)
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}
	for i := range experts {
		seed := uint64(3*i + 1)
		l.Experts = append(l.Experts, &ref.Expert{
			Gate: matrix(f[0], hidden, length, seed), Up: matrix(f[1], hidden, length, seed+1),
			Down: matrix(f[2], length, hidden, seed+2),
		})
	}
	return l
}

// syntheticBatch is rows of normal values, each with topK experts.
func syntheticBatch(tb testing.TB, l *ref.Layer, rows, topK int, seed uint64) *moe.Batch {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	e := l.Experts[0]
	b, err := moe.NewBatch(moe.Shape{Layer: l.Number, Hidden: e.Gate.In, Format: e.RowFormat()}, rows, rows*topK)
	if err != nil {
		tb.Fatal(err)
	}
	x := make([]float32, e.Gate.In)
	for range rows {
		var experts []uint16
		var weights []float32
		for _, e := range rng.Perm(len(l.Experts))[:topK] {
			experts = append(experts, uint16(e))
			weights = append(weights, 1/float32(topK))
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		if s, at := ref.QuantizeRow(b.Row(b.Grow(experts, weights)), x); s != moe.OK {
			tb.Fatal(s, at)
		}
	}
	return b
}

func TestCheckNoticesAWrongBit(t *testing.T) {
	for _, v := range variants() {
		b := New(v, 2)
		defer b.Close()
		if err := b.Check(); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	l, err := checkLayer(quant.Q4K, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := agree(l, flipped{l}); !errors.Is(err, ErrInexact) {
		t.Errorf("one bit in one sum: %v", err)
	}
}

// flipped is a layer with one wrong bit in its last sum.
type flipped struct{ *ref.Layer }

func (f flipped) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := f.Layer.Forward(ctx, b, out)
	out.Sum[len(out.Sum)-1] ^= 1
	return err
}

func TestReadRateKeepsItsArena(t *testing.T) {
	b := New(variant.Portable, 2)
	defer b.Close()
	a := NewArena()
	if _, err := a.alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var collected sync.WaitGroup
	collected.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	rate := b.ReadRate(a, 50*time.Millisecond) // the last that anybody wants of a
	close(stop)
	collected.Wait()
	if rate <= 0 {
		t.Errorf("read at %g bytes a second", rate)
	}
}

func TestLoadGoesRound(t *testing.T) {
	a := NewArena()
	if at := a.Load(3, 100); at != 0 {
		t.Errorf("of nothing: stopped at %d", at)
	}
	if _, err := a.alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	size := len(a.largest())
	f := func(want, at, n int) {
		t.Helper()
		if got := a.Load(at, n); got != want {
			t.Errorf("%d bytes from %d on: stopped at %d, want %d", n, at, got, want)
		}
	}
	f(0, 0, 0)
	f(100, 0, 100)
	f(0, size-100, 100)
	f(50, size-100, 150)
	f(100, size, 100)
	f(10, 0, 2*size+10)
}

func TestNewLayerRefusesWhatDoesNotFit(t *testing.T) {
	b := New(variants()[0], 1)
	defer b.Close()
	l, err := checkLayer(quant.Q4K, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(s *Source){
		"exponent":  func(s *Source) { s.Exponent = 41 },
		"no number": func(s *Source) { s.Experts = -1 },
		"too many":  func(s *Source) { s.Experts = moe.MaxExperts + 1 },
		"cut matrix": func(s *Source) {
			s.Expert = func(int) (*ref.Expert, error) { e := *l.Experts[0]; e.Up.Data = e.Up.Data[1:]; return &e, nil }
		},
		"no expert": func(s *Source) { s.Expert = func(int) (*ref.Expert, error) { return nil, errors.New("no disk") } },
		"mixed": func(s *Source) {
			other, err := checkLayer(quant.Q8_0, 1)
			if err != nil {
				t.Fatal(err)
			}
			s.Expert = func(i int) (*ref.Expert, error) { return []*ref.Expert{l.Experts[0], other.Experts[1]}[i], nil }
		},
	} {
		s := From(l)
		change(&s)
		if ly, err := b.NewLayer(NewArena(), s); err == nil {
			t.Errorf("%s: a layer %v", name, ly)
		} else if !strings.Contains(err.Error(), "layer 0") {
			t.Errorf("%s: %v: want the layer named", name, err)
		}
	}
	if _, err := b.NewMatrix(NewArena(), &l.Experts[0].Gate, moe.RowFormat(9)); !errors.Is(err, ref.ErrShape) {
		t.Errorf("rows of an unknown format: %v", err)
	}
	if _, err := b.NewMatrix(NewArena(), &l.Experts[0].Gate, moe.RowQ8); !errors.Is(err, ref.ErrShape) {
		t.Errorf("rows of another format: %v", err)
	}
}

func TestNewLayerIsDoneWithWhatItRepacks(t *testing.T) {
	for _, v := range variant.Available() {
		for _, f := range []quant.Format{quant.Q4K, quant.F16} {
			b := New(v, 2)
			defer b.Close()
			l, err := checkLayer(f, 1)
			if err != nil {
				t.Fatal(err)
			}
			s := From(l)
			var mu sync.Mutex
			done := 0
			s.Done = func(*ref.Matrix) {
				mu.Lock()
				defer mu.Unlock()
				done++
			}
			if _, err := b.NewLayer(NewArena(), s); err != nil {
				t.Fatal(err)
			}
			want := 0
			if v != variant.Portable && f == quant.Q4K {
				want = 3 * len(l.Experts)
			}
			if done != want {
				t.Errorf("%s, %s: done with %d matrices, want %d", v, f, done, want)
			}
		}
	}
}
