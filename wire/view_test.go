package wire

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// aligned returns p at a multiple of 64 bytes and off more.
func aligned(p []byte, off int) []byte {
	slab := moe.AlignedBytes(off + len(p))
	return slab[off : off+copy(slab[off:], p) : off+len(p)]
}

func TestAViewIsTheBatchThatWasSent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		s := moe.Shape{
			Layer:  rapid.IntRange(0, moe.MaxLayers-1).Draw(rt, "layer"),
			Hidden: rapid.IntRange(1, 700).Draw(rt, "hidden"),
			Format: moe.RowFormat(rapid.IntRange(0, int(moe.RowQ8)).Draw(rt, "format")),
		}
		b := randomBatch(t, rng, s, rapid.IntRange(1, 20).Draw(rt, "rows"))
		// Any place in memory: what cannot be a view is a copy.
		p := aligned(AppendDispatch(nil, 7, b), rapid.SampledFrom([]int{0, 0, 64, 4, 2, 1}).Draw(rt, "offset"))
		var v moe.Batch
		epoch, err := ViewDispatch(&v, p)
		if err != nil || epoch != 7 {
			rt.Fatalf("epoch %d, %v", epoch, err)
		}
		if err := v.Validate(moe.MaxExperts); err != nil {
			rt.Fatal(err)
		}
		if v.Shape != s || v.Rows != b.Rows || !reflect.DeepEqual(v.Q, b.Q) || !sameBits(v.Scales, b.Scales) ||
			!sameBits(v.F, b.F) || !sameBits(v.Weight, b.Weight) ||
			!reflect.DeepEqual(v.First, b.First) || !reflect.DeepEqual(v.Expert, b.Expert) {
			rt.Fatal("the view differs from the batch")
		}
	})
}

// TestAViewSharesTheSlab changes the payload, and sees the rows change: so there is no copy, and the rows
// lie at the slab's multiples of 64.
func TestAViewSharesTheSlab(t *testing.T) {
	if _, ok := moe.View[uint16](moe.AlignedBytes(2)); !ok {
		t.Skip("numbers are copied on this machine: it is not little-endian")
	}
	for _, f := range []moe.RowFormat{moe.RowF32, moe.RowQ8K, moe.RowQ8} {
		b := randomBatch(t, rand.New(rand.NewPCG(1, uint64(f))), moe.Shape{Hidden: 300, Format: f}, 5)
		p := aligned(AppendDispatch(nil, 0, b), 0)
		var v moe.Batch
		if _, err := ViewDispatch(&v, p); err != nil {
			t.Fatal(err)
		}
		at := layoutOf(b.Shape, b.Rows, len(b.Expert))
		for i := range p[dispatchLen:] {
			p[dispatchLen+i] = 0
		}
		for i := range v.Weight {
			if v.Weight[i] != 0 || v.Expert[i] != 0 {
				t.Fatalf("%v: pick %d is a copy", f, i)
			}
		}
		set := func(at int) { p[at], p[at+1], p[at+2], p[at+3] = 0, 0, 0x80, 0x3f } // 1
		if f == moe.RowF32 {
			if set(at.values); v.F[0] != 1 {
				t.Errorf("%v: row 0 is a copy, or not at %d", f, at.values)
			}
			continue
		}
		if p[at.values] = 9; v.Q[0] != 9 || at.values%64 != 0 {
			t.Errorf("%v: row 0 is a copy, or not at %d", f, at.values)
		}
		if set(at.scales); v.Scales[0] != 1 || at.scales%64 != 0 {
			t.Errorf("%v: scale 0 is a copy, or not at %d", f, at.scales)
		}
	}
}

func TestAViewAllocatesNothing(t *testing.T) {
	b := randomBatch(t, rand.New(rand.NewPCG(1, 2)), moe.Shape{Hidden: 600, Format: moe.RowQ8K}, 8)
	p := aligned(AppendDispatch(nil, 1, b), 0)
	var v moe.Batch
	allocates(t, "view of a dispatch", func() {
		if _, err := ViewDispatch(&v, p); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAViewRefusesWhatParseRefuses spoils a dispatch in every byte.
func TestAViewRefusesWhatParseRefuses(t *testing.T) {
	for _, good := range []*moe.Batch{q8k(t), f32(t)} {
		p := AppendDispatch(nil, 3, good)
		for i := range p {
			for _, x := range []byte{1, 0x80, 0xff} {
				q := aligned(p, 0)
				q[i] ^= x
				var v moe.Batch
				_, verr := ViewDispatch(&v, q)
				_, perr := recodeDispatch(q)
				if (verr == nil) != (perr == nil) || verr != nil && (!errors.Is(verr, ErrPayload) || verr.Error() != perr.Error()) {
					t.Fatalf("byte %d ^ %#02x: view %v, parse %v", i, x, verr, perr)
				}
			}
		}
	}
}

func BenchmarkViewDispatch(b *testing.B) {
	batch := randomBatch(b, rand.New(rand.NewPCG(1, 2)), moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, 512)
	p := aligned(AppendDispatch(nil, 1, batch), 0)
	b.SetBytes(int64(len(p)))
	var v moe.Batch
	for b.Loop() {
		if _, err := ViewDispatch(&v, p); err != nil {
			b.Fatal(err)
		}
	}
}
