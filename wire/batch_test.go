package wire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// randomBatch draws a batch of any shape, with any bits in its floats.
func randomBatch(t testing.TB, rng *rand.Rand, s moe.Shape, rows int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(s, rows, rows*moe.MaxTopK)
	if err != nil {
		t.Fatal(err)
	}
	for range rows {
		n := 1 + rng.IntN(moe.MaxTopK)
		expert, weight := make([]uint16, n), make([]float32, n)
		for i := range expert {
			expert[i] = uint16(rng.IntN(moe.MaxExperts))
			weight[i] = math.Float32frombits(rng.Uint32())
		}
		row := b.Row(b.Grow(expert, weight))
		for i := range row.Q {
			row.Q[i] = int8(rng.IntN(255) - 127)
		}
		for i := range row.Scales {
			row.Scales[i] = math.Float32frombits(rng.Uint32())
		}
		for i := range row.F {
			row.F[i] = math.Float32frombits(rng.Uint32())
		}
	}
	return b
}

func randomPartials(rng *rand.Rand, rows, hidden int) *moe.Partials {
	var p moe.Partials
	p.Reset(rows, hidden)
	for r := range rows {
		if rng.IntN(4) == 0 {
			p.Fault(r, moe.Status(1+rng.IntN(3)))
			continue
		}
		w := rng.IntN(52)
		for i := range p.Row(r) {
			p.Row(r)[i] = rng.Int64N(1<<w) - rng.Int64N(1<<w)
		}
	}
	return &p
}

// sameBits compares as bytes do: NaN equals itself.
func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func TestDispatchCarriesEveryBitOfABatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		s := moe.Shape{
			Layer:  rapid.IntRange(0, moe.MaxLayers-1).Draw(rt, "layer"),
			Hidden: rapid.IntRange(1, 700).Draw(rt, "hidden"),
			Format: moe.RowFormat(rapid.IntRange(0, int(moe.RowQ8)).Draw(rt, "format")),
		}
		rows := rapid.IntRange(1, 20).Draw(rt, "rows")
		b := randomBatch(t, rng, s, rows)
		epoch := rapid.Uint32().Draw(rt, "epoch")
		p := AppendDispatch([]byte("before"), epoch, b)[6:]
		if len(p) != DispatchSize(s, rows, len(b.Expert)) {
			rt.Fatalf("%d bytes, DispatchSize says %d", len(p), DispatchSize(s, rows, len(b.Expert)))
		}

		into, err := moe.NewBatch(s, rows+3, len(b.Expert)+3)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := ParseDispatch(into, p)
		if err != nil || got != epoch {
			rt.Fatalf("epoch %d, %v, want %d", got, err, epoch)
		}
		if err := into.Validate(moe.MaxExperts); err != nil {
			rt.Fatal(err)
		}
		if into.Shape != s || into.Rows != rows || !reflect.DeepEqual(into.Q, b.Q) || !sameBits(into.Scales, b.Scales) ||
			!sameBits(into.F, b.F) || !sameBits(into.Weight, b.Weight) ||
			!reflect.DeepEqual(into.First, b.First) || !reflect.DeepEqual(into.Expert, b.Expert) {
			rt.Fatal("the batch that arrived differs")
		}

		// In pieces of any size it is the same message.
		piece := 4 * rapid.IntRange(1, 500).Draw(rt, "piece")
		cut := bytes.Repeat([]byte{0xa5}, len(p))
		for off := 0; off < len(p); off += piece {
			CopyDispatch(cut[off:min(off+piece, len(p))], off, epoch, b)
		}
		if !bytes.Equal(cut, p) {
			rt.Fatalf("in pieces of %d the payload differs", piece)
		}
	})
}

func TestPartialsCarryEverySum(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		rows, hidden := rapid.IntRange(1, 20).Draw(rt, "rows"), rapid.IntRange(1, 700).Draw(rt, "hidden")
		want := randomPartials(rng, rows, hidden)
		p := AppendPartials(nil, want)
		if len(p) > PartialsBound(rows, hidden) {
			rt.Fatalf("%d bytes, the bound is %d", len(p), PartialsBound(rows, hidden))
		}
		got := randomPartials(rng, 3, 5)
		if err := ParsePartials(got, p, rows, hidden); err != nil {
			rt.Fatal(err)
		}
		if !reflect.DeepEqual(got.Sum, want.Sum) || !reflect.DeepEqual(got.Status, want.Status) {
			rt.Fatal("the partials that arrived differ")
		}
	})
}

func TestTheBoundOfPartialsIsReached(t *testing.T) {
	for _, dims := range [][2]int{{1, 1}, {3, 255}, {2, 256}, {2, 257}, {1, 3072}} {
		var p moe.Partials
		p.Reset(dims[0], dims[1])
		for i := range p.Sum {
			p.Sum[i] = -1 << 51
		}
		if got, want := len(AppendPartials(nil, &p)), PartialsBound(dims[0], dims[1]); got != want {
			t.Errorf("%v: widest partials are %d bytes, the bound says %d", dims, got, want)
		}
	}
}

func TestABatchThatCannotBeSentIsNamed(t *testing.T) {
	for name, spoil := range map[string]func(*moe.Batch){
		"layer":          func(b *moe.Batch) { b.Layer = -1 },
		"no rows":        func(b *moe.Batch) { b.Rows = 0 },
		"values":         func(b *moe.Batch) { b.Q = b.Q[1:] },
		"scales":         func(b *moe.Batch) { b.Scales = nil },
		"floats":         func(b *moe.Batch) { b.F = make([]float32, 1) },
		"offsets":        func(b *moe.Batch) { b.First = b.First[:1] },
		"offsets fall":   func(b *moe.Batch) { b.First[1] = 3 },
		"offsets wrap":   func(b *moe.Batch) { b.First[1], b.First[2] = -1<<31, 1<<31-1 },
		"row of nothing": func(b *moe.Batch) { b.First[1] = 0 },
		"experts":        func(b *moe.Batch) { b.Expert = b.Expert[:1] },
		"weights":        func(b *moe.Batch) { b.Weight = nil },
	} {
		b := q8k(t)
		spoil(b)
		if err := CheckBatch(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := CheckBatch(q8k(t)); err != nil {
		t.Errorf("a good batch: %v", err)
	}
}

func TestMessagesAllocateNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	out := randomPartials(rng, 8, 600)
	var buf []byte
	var hello Hello
	var assign Assign
	for _, m := range golden(t) {
		if m.typ == TypeDispatch {
			continue
		}
		p := m.payload
		allocates(t, "parse "+m.name, func() {
			var err error
			switch m.typ {
			case TypeHello:
				err = ParseHello(&hello, p)
			case TypeAssign:
				err = ParseAssign(&assign, p)
			case TypeFetch:
				_, err = ParseFetch(p)
			case TypeSliceData:
				_, err = ParseSliceData(p)
			case TypeReady:
				_, err = ParseReady(p)
			case TypePartials:
				err = ParsePartials(out, p, 3, 3)
			case TypeFault:
				_, err = ParseFault(p)
			case TypeCredit:
				_, err = ParseCredit(p)
			case TypePing, TypePong:
				_, err = ParsePing(p)
			case TypeReceipt:
				_, err = ParseReceipt(p)
			case TypeGoAway:
				_, err = ParseGoAway(p)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	*out = *randomPartials(rng, 8, 600)
	answer := AppendPartials(nil, out)
	chunk := make([]byte, MaxPayload)
	for _, f := range []moe.RowFormat{moe.RowF32, moe.RowQ8K, moe.RowQ8} {
		b := randomBatch(t, rng, moe.Shape{Hidden: 600, Format: f}, 8)
		into, dispatch := randomBatch(t, rng, b.Shape, 9), AppendDispatch(nil, 1, b)
		allocates(t, "dispatch of "+f.String(), func() {
			buf = AppendDispatch(buf[:0], 1, b)
			CopyDispatch(chunk[:400], 400, 1, b)
			if _, err := ParseDispatch(into, dispatch); err != nil {
				t.Fatal(err)
			}
		})
	}
	allocates(t, "partials", func() {
		buf = AppendPartials(buf[:0], out)
		if err := ParsePartials(out, answer, 8, 600); err != nil {
			t.Fatal(err)
		}
	})
	allocates(t, "the rest", func() {
		buf = AppendHeader(buf[:0], NewHeader(TypePing, pingLen, 1))
		buf = AppendHello(buf, &hello)
		buf = AppendAssign(buf, assign)
		buf = AppendFetch(buf, Fetch{})
		buf = AppendSliceData(buf, SliceData{})
		buf = AppendReady(buf, 1)
		buf = AppendFault(buf, Fault{Code: NotHeld})
		buf = AppendCredit(buf, 1)
		buf = AppendPing(buf, 1)
		buf = AppendReceipt(buf, Receipt{})
		buf = AppendGoAway(buf, GoAway{Reason: Moving})
		if _, err := ParseHeader(buf); err != nil {
			t.Fatal(err)
		}
	})
}

func allocates(t *testing.T, name string, f func()) {
	t.Helper()
	f() // buffers grow once
	if n := testing.AllocsPerRun(20, f); n != 0 {
		t.Errorf("%s allocates %v times", name, n)
	}
}

func BenchmarkDispatch(b *testing.B) {
	batch := randomBatch(b, rand.New(rand.NewPCG(1, 2)), moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, 512)
	p := AppendDispatch(nil, 1, batch)
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			p = AppendDispatch(p[:0], 1, batch)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			if _, err := ParseDispatch(batch, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestAForbiddenValueIsFoundWhereverItStands(t *testing.T) {
	for hidden := 1; hidden <= 19; hidden++ {
		for at := range hidden {
			s := moe.Shape{Hidden: hidden, Format: moe.RowQ8}
			b := randomBatch(t, rand.New(rand.NewPCG(uint64(hidden), uint64(at))), s, 1)
			p := AppendDispatch(nil, 0, b)
			if _, err := ParseDispatch(b, p); err != nil {
				t.Fatal(err)
			}
			p[dispatchLen+at] = 0x80
			if _, err := ParseDispatch(b, p); !errors.Is(err, ErrPayload) {
				t.Errorf("-128 at %d of %d: %v, want ErrPayload", at, hidden, err)
			}
		}
	}
}
