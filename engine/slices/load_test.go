package slices

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"kvasir/engine/experts"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/wire"
)

// Going from one set of slices to another repacks what is new, and no more.
func TestLoadUsesLayersAgain(t *testing.T) {
	k := kinds[0]
	f := open(t, write(t, k, k, k))
	s := source(t, f, 3)
	c := cache(t, t.TempDir(), 0)
	bundle := func(layer, lo, hi, exponent int) *Bundle {
		x := offered(t, s, layer, lo, hi)
		if exponent != 0 {
			x.Exponent = exponent + wire.ExponentBias
		}
		return get(t, c, x, s.Read, GetOptions{})
	}
	first := load(t, []*Bundle{bundle(0, 0, 6, 0), bundle(1, 0, 6, 0)}, experts.Options{}, nil)
	second := load(t, []*Bundle{bundle(2, 0, 6, 0), bundle(1, 0, 6, 0)}, experts.Options{}, first)
	if second.layers[1] != first.layers[1] {
		t.Error("a layer was repacked")
	}
	if second.layers[0] != nil {
		t.Error("a layer is held that is not to be")
	}
	third := load(t, []*Bundle{bundle(2, 0, 3, 0), bundle(1, 0, 6, 11)}, experts.Options{}, second)
	if third.layers[2] == second.layers[2] {
		t.Error("other experts, and the same layer")
	}
	if third.layers[1].part == second.layers[1].part || third.layers[1].exponent != 11 {
		t.Error("another exponent, and the same layer")
	}
	profile := ref.DefaultProfile(3)
	profile.Exponents[1] = 11
	store, err := experts.Load(f, 3, experts.Options{Profile: profile})
	if err != nil {
		t.Fatal(err)
	}
	same(t, third, experts.NewLocal(store), batch(t, 1, store.RowFormat(1), k.hidden, 0, 6))
	same(t, third, experts.NewLocal(store), batch(t, 2, store.RowFormat(2), k.hidden, 0, 3))
	float := load(t, []*Bundle{bundle(1, 0, 6, 11)}, experts.Options{Float: true}, third)
	if float.layers[1].part == third.layers[1].part {
		t.Error("another arithmetic, and the same layer")
	}
	var loaded atomic.Int64
	b := bundle(1, 0, 6, 11)
	load(t, []*Bundle{b}, experts.Options{Loaded: func(n int) { loaded.Add(int64(n)) }}, third)
	if n := loaded.Load(); n < b.Bytes() {
		t.Errorf("%d bytes of %d were told", n, b.Bytes())
	}
	load(t, nil, experts.Options{}, third) // nothing is assigned any more
}

func TestLoadTakesTheExponentsOfTheProfile(t *testing.T) {
	k := kinds[0]
	f := open(t, write(t, k, k))
	profile := ref.DefaultProfile(2)
	profile.Exponents[1] = 13
	store, err := experts.Load(f, 2, experts.Options{Profile: profile})
	if err != nil {
		t.Fatal(err)
	}
	b, err := FromFile(f, wire.Slice{Layer: 1, Lo: 0, Hi: 6})
	if err != nil {
		t.Fatal(err)
	}
	x := load(t, []*Bundle{b}, experts.Options{Profile: profile}, nil)
	same(t, x, experts.NewLocal(store), batch(t, 1, store.RowFormat(1), k.hidden, 0, 6))
}

// A layer may come in pieces, and from different places.
func TestLoadJoinsPiecesOfALayer(t *testing.T) {
	for i, k := range kinds {
		f := open(t, write(t, k))
		store, err := experts.Load(f, 1, experts.Options{Profile: ref.DefaultProfile(1)})
		if err != nil {
			t.Fatal(err)
		}
		s := source(t, f, 1)
		c := cache(t, t.TempDir(), 0)
		direct, err := FromFile(f, offered(t, s, 0, 2, 4))
		if err != nil {
			t.Fatal(err)
		}
		x := load(t, []*Bundle{direct, get(t, c, offered(t, s, 0, 0, 2), s.Read, GetOptions{})}, experts.Options{}, nil)
		same(t, x, experts.NewLocal(store), batch(t, 0, store.RowFormat(0), k.hidden, 0, 4))
		if err := refuses(x, batch(t, 0, store.RowFormat(0), k.hidden, 4, 6)); err == nil {
			t.Errorf("kind %d: experts that are not held were computed on", i)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	f := open(t, write(t, kinds[0], kind{quant.Q8_0, quant.Q8_0, 64, 64, 6, false}))
	piece := func(layer, lo, hi, exponent int) *Bundle {
		b, err := FromFile(f, wire.Slice{Layer: layer, Lo: lo, Hi: hi, Exponent: exponent})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for says, list := range map[string][]*Bundle{
		"overlap":       {piece(0, 0, 4, 0), piece(0, 3, 5, 0)},
		"two exponents": {piece(0, 0, 2, 70), piece(0, 2, 4, 71)},
		"has exponent":  {piece(0, 0, 2, 1)},
		"hidden size":   {piece(0, 0, 2, 0), piece(1, 0, 2, 0)},
	} {
		if _, err := Load(list, experts.Options{}, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	f := open(t, write(t, smallKind))
	b, err := FromFile(f, wire.Slice{Hi: 9})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	var loaded atomic.Int64
	_, err = LoadContext(ctx, []*Bundle{b}, experts.Options{Loaded: func(n int) {
		loaded.Add(int64(n))
		cancel(why)
	}}, nil)
	if !errors.Is(err, why) || loaded.Load() >= b.Bytes() {
		t.Errorf("%d bytes of %d were loaded, %v", loaded.Load(), b.Bytes(), err)
	}
}

func TestFromFileRefusesOtherWeights(t *testing.T) {
	f := open(t, write(t, kinds[0]))
	x := offered(t, source(t, f, 1), 0, 0, 3)
	x.Lo, x.Hi = 1, 4
	for _, s := range []wire.Slice{x, {Layer: 1, Hi: 2}, {Layer: 0, Lo: 3, Hi: 9}} {
		if _, err := FromFile(f, s); !errors.Is(err, ErrOther) {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// Weights that are repacked are in memory once; those that are not stay where they are, and good, when
// the bundle is closed and the cache too.
func TestLoadGivesPagesBack(t *testing.T) {
	for _, k := range []kind{
		{quant.Q4K, quant.Q6K, 512, 512, 24, false},
		{quant.BF16, quant.BF16, 512, 256, 12, false},
	} {
		f := open(t, write(t, k))
		store, err := experts.Load(f, 1, experts.Options{Profile: ref.DefaultProfile(1)})
		if err != nil {
			t.Fatal(err)
		}
		s := source(t, f, 1)
		c := cache(t, t.TempDir(), 0)
		slice := offered(t, s, 0, 0, k.experts)
		b := get(t, c, slice, s.Read, GetOptions{})
		x := load(t, []*Bundle{b}, experts.Options{}, nil)
		kept := x.layers[0].part.Keeps()
		if runtime.GOOS == "linux" && !kept {
			if kib := resident(t, c.path(slice.Hash)); int64(kib)<<10 > b.Bytes()/20+1<<16 {
				t.Errorf("%s: %d KiB of %d are resident", k.format, kib, b.Bytes()>>10)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.Remove(slice.Hash); kept != (err != nil) {
			t.Errorf("%s: kept is %v, and Remove says %v", k.format, kept, err)
		}
		runtime.GC()
		same(t, x, experts.NewLocal(store), batch(t, 0, store.RowFormat(0), k.hidden, 0, k.experts))
	}
}

// resident returns how many KiB of a file's mapping are in memory for this process.
func resident(t *testing.T, path string) (kib int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	here, seen := false, false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			here = fields[len(fields)-1] == path
			seen = seen || here
		}
		if here && fields[0] == "Rss:" {
			n := 0
			for _, c := range fields[1] {
				n = 10*n + int(c-'0')
			}
			kib += n
		}
	}
	if !seen {
		t.Fatalf("%s is not mapped", path)
	}
	return kib
}
