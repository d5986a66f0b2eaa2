package vector

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"kvasir/kernels/ref"
)

// unlikeParse parses src as o and as ref do, and says in what they differ. Sums are compared also
// where there is an error.
func unlikeParse(o *Ops, got []int64, src []byte) string {
	want := make([]int64, len(got))
	for i := range got {
		got[i], want[i] = 77, 77
	}
	n, err := o.ParsePartial(got, src)
	wantN, wantErr := ref.ParsePartial(want, src)
	if n != wantN || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		return fmt.Sprintf("%d, %v; want %d, %v", n, err, wantN, wantErr)
	}
	return unlikeSums(got, want)
}

func TestPartialsArePackedAsByRef(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, seed := newRand(t)
		sums, back, packed := newRegion(t, 32<<10), newRegion(t, 32<<10), newRegion(t, 32<<10)
		for turn, n := range lengths {
			for w := range 53 {
				if n > 520 && w%5 != 0 {
					continue
				}
				where := (turn + w) % places
				sum := place[int64](sums, n, where)
				if fillSums(sum, max(w, 1), r); w == 0 {
					clear(sum)
				}
				want := ref.AppendPartial([]byte("before"), sum)
				room := place[byte](packed, len(want), where)
				got := o.AppendPartial(append(room[:0], "before"...), sum)
				if !bytes.Equal(got, want) {
					t.Fatalf("seed %#x, %d sums of %d bits: %x, want %x", seed, n, w, got, want)
				}
				if len(got) > 0 && &got[0] != &room[0] {
					t.Fatalf("%d sums of %d bits: dst had room and was not used", n, w)
				}
				if d := unlikeParse(o, place[int64](back, n, where), got[6:]); d != "" {
					t.Fatalf("seed %#x, %d sums of %d bits: %s", seed, n, w, d)
				}
				if !sums.intact() || !back.intact() || !packed.intact() {
					t.Fatalf("%d sums of %d bits: wrote outside", n, w)
				}
			}
		}
	})
}

// TestPackingSeesOneWideValue has one sum that needs more bits than the others, in
// many places: it decides the width, and without it the width would be refused.
func TestPackingSeesOneWideValue(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		for _, n := range []int{1, 8, 29, 256} {
			step := max(1, n/32-1) // 7 in 256: it meets every place of a group
			for at := 0; at < n; at += step {
				for w := 1; w <= 34; w++ {
					for _, v := range []int64{1<<w - 1, -1 << w, 1 << w, -1<<w - 1} {
						sum := make([]int64, n)
						for i := range sum {
							sum[i] = int64(i%3-1) << (w - 1) // up to w bits
						}
						sum[at] = v
						got, want := o.AppendPartial(nil, sum), ref.AppendPartial(nil, sum)
						if !bytes.Equal(got, want) {
							t.Fatalf("%d sums, %d at %d: %x, want %x", n, v, at, got, want)
						}
						if d := unlikeParse(o, make([]int64, n), got); d != "" {
							t.Fatalf("%d sums, %d at %d: %s", n, v, at, d)
						}
					}
				}
			}
		}
	})
}

// TestDamagedPartialsAreRefusedAsByRef changes widths, padding and lengths.
func TestDamagedPartialsAreRefusedAsByRef(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, seed := newRand(t)
		src := newRegion(t, 32<<10)
		for range 300 {
			n := []int{1, 7, 8, 31, 256, 300, 515}[r.IntN(7)]
			sum := make([]int64, n)
			fillSums(sum, 1+r.IntN(52), r)
			packed := ref.AppendPartial(nil, sum)
			for range 20 {
				damaged := slices.Clone(packed)
				switch r.IntN(5) {
				case 0:
					damaged = damaged[:r.IntN(len(damaged)+1)]
				case 1:
					damaged[0] = byte(r.IntN(60))
				case 2:
					damaged[len(damaged)-1] ^= 1 << r.IntN(8)
				case 3:
					damaged[r.IntN(len(damaged))] = byte(r.Uint32())
				case 4:
					damaged = append(damaged, byte(r.Uint32()))
				}
				in := place[byte](src, len(damaged), atEnd)
				copy(in, damaged)
				if d := unlikeParse(o, make([]int64, n), in); d != "" {
					t.Fatalf("seed %#x, %d sums from %x: %s", seed, n, damaged, d)
				}
			}
			// A width larger than it has to be.
			for w := int(packed[0]) + 1; w <= 52; w++ {
				wide := widened(sum[:min(n, 256)], w)
				if d := unlikeParse(o, make([]int64, min(n, 256)), wide); d != "" {
					t.Fatalf("seed %#x, %d sums in %d bits: %s", seed, n, w, d)
				}
			}
		}
	})
}

// widened packs one block with a given width.
func widened(sum []int64, w int) []byte {
	out := make([]byte, 1+(len(sum)*w+7)/8)
	out[0] = byte(w)
	for i, v := range sum {
		for b := range w {
			at := i*w + b
			out[1+at/8] |= byte(v>>b&1) << (at % 8)
		}
	}
	return out
}

func TestPartialsDoNotAllocate(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		sum := make([]int64, 256+77)
		room := make([]byte, ref.MaxPartialBytes(len(sum)))
		for _, w := range []int{1, 17, 31, 32, 40} {
			fillSums(sum, w, r)
			if allocs := testing.AllocsPerRun(10, func() {
				if _, err := o.ParsePartial(sum, o.AppendPartial(room[:0], sum)); err != nil {
					t.Fatal(err)
				}
			}); allocs != 0 {
				t.Errorf("%d bits: %v allocations", w, allocs)
			}
		}
	})
}

func FuzzParsePartial(f *testing.F) {
	f.Add(9, ref.AppendPartial(nil, []int64{1, -2, 3, 400, 5, 6, -7, 8, 9}))
	f.Add(256, ref.AppendPartial(nil, make([]int64, 256)))
	f.Fuzz(func(t *testing.T, n int, src []byte) {
		if n < 0 || n > 1024 {
			n = 1024 & n
		}
		got := make([]int64, n)
		if d := unlikeParse(best(), got, src); d != "" {
			t.Errorf("%d sums from %x: %s", n, src, d)
		}
		if n, err := ref.ParsePartial(got, src); err == nil {
			if again := best().AppendPartial(nil, got); !bytes.Equal(again, src[:n]) {
				t.Errorf("%x is packed again as %x", src[:n], again)
			}
		}
	})
}
