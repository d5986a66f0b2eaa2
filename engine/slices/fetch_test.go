package slices

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/wire"
)

// bundleOf is the bytes of a bundle as a backbone sends them.
func bundleOf(t testing.TB, s *Source, x wire.Slice) []byte {
	t.Helper()
	_, size, err := s.Read(context.Background(), x.Hash, 0, nil)
	b := make([]byte, size)
	n, _, e := s.Read(context.Background(), x.Hash, 0, b)
	if err = errors.Join(err, e); err != nil || n != len(b) {
		t.Fatalf("%d of %d bytes, %v", n, size, err)
	}
	return b
}

// reader serves a bundle from memory, and counts.
type reader struct {
	bundle   []byte
	requests atomic.Int64
	bytes    atomic.Int64
	longest  atomic.Int64
}

func (r *reader) read(_ context.Context, _ wire.Hash, off uint64, dst []byte) (int, uint64, error) {
	r.requests.Add(1)
	r.longest.Store(max(r.longest.Load(), int64(len(dst))))
	if off >= uint64(len(r.bundle)) {
		return 0, uint64(len(r.bundle)), nil
	}
	n := copy(dst, r.bundle[off:])
	r.bytes.Add(int64(n))
	return n, uint64(len(r.bundle)), nil
}

// small is a slice of experts of some KiB, and large one of more than a request each.
func slice(t testing.TB, k kind) (wire.Slice, []byte) {
	t.Helper()
	s := source(t, open(t, write(t, k)), 1)
	x := offered(t, s, 0, 1, k.experts)
	return x, bundleOf(t, s, x)
}

var (
	smallKind = kind{quant.Q4K, quant.Q6K, 256, 256, 9, false}
	largeKind = kind{quant.Q8_0, quant.Q8_0, 512, 800, 5, false} // 1.3 MB an expert
)

func TestSourceReadsTheBundleAtAnyOffset(t *testing.T) {
	k := kind{quant.F16, quant.BF16, 10, 3, 5, false} // tensors of 60 bytes
	s := source(t, open(t, write(t, k)), 1)
	x := offered(t, s, 0, 1, 4)
	want := bundleOf(t, s, x)
	h, err := parseHead(want)
	if err != nil || h.hash() != x.Hash || h.size() != int64(len(want)) || h.layer != 0 || h.lo != 1 || h.hi != 4 {
		t.Fatalf("%+v, %v", h, err)
	}
	for off := range len(want) + 2 {
		for _, n := range []int{1, 63, 700} {
			b := make([]byte, n)
			got, size, err := s.Read(context.Background(), x.Hash, uint64(off), b)
			if err != nil || size != uint64(len(want)) || !bytes.Equal(b[:got], want[min(off, len(want)):min(off+n, len(want))]) {
				t.Fatalf("%d bytes at %d: %d of %d, %v", n, off, got, size, err)
			}
		}
	}
	for _, off := range []uint64{1 << 63, 1<<64 - 1} {
		if n, _, err := s.Read(context.Background(), x.Hash, off, make([]byte, 9)); n != 0 || err != nil {
			t.Errorf("at %d: %d bytes, %v", off, n, err)
		}
	}
	if _, _, err := s.Read(context.Background(), wire.Hash{1}, 0, make([]byte, 9)); !errors.Is(err, moe.ErrNotHeld) {
		t.Errorf("a slice that was not offered: %v", err)
	}
	for _, r := range [][3]int{{1, 0, 1}, {-1, 0, 1}, {0, 0, 6}, {0, 2, 2}, {0, -1, 2}} {
		if _, err := s.Slice(t.Context(), r[0], r[1], r[2]); !errors.Is(err, moe.ErrNotHeld) {
			t.Errorf("slice %v: %v", r, err)
		}
	}
}

// Hashing ends with whoever asked for it, also while it waits for another's, and the next one begins anew.
func TestSourceEndsWithItsContext(t *testing.T) {
	s := source(t, open(t, write(t, smallKind)), 1)
	ctx, cancel := context.WithCancel(t.Context())
	s.layers[0].turn <- struct{}{} // another hashes
	done := make(chan error, 1)
	go func() {
		_, err := s.Slice(ctx, 0, 0, 4)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("while another hashes: %v", err)
	}
	<-s.layers[0].turn
	if _, err := s.Slice(ctx, 0, 0, 4); !errors.Is(err, context.Canceled) || s.layers[0].hashes != nil {
		t.Errorf("hashed after the end: %v", err)
	}
	if x := offered(t, s, 0, 0, 4); x.Hash.IsZero() {
		t.Error("no hash")
	}
}

func TestSourceIsConcurrent(t *testing.T) {
	f := open(t, write(t, smallKind, smallKind))
	s := source(t, f, 2)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			x, err := s.Slice(t.Context(), i%2, 0, 4)
			if err != nil {
				t.Error(err)
				return
			}
			if _, _, err := s.Read(context.Background(), x.Hash, 0, make([]byte, 1<<16)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.ExpertBytes(0); n < 256*256*3/2 || n > 1<<20 || s.ExpertBytes(2) != 0 || s.ExpertBytes(-1) != 0 {
		t.Errorf("an expert takes %d bytes", n)
	}
}

// What is asked for: no more than a request may have, each byte once, and none of what is there.
func TestGetAsksForEachByteOnce(t *testing.T) {
	for _, k := range []kind{smallKind, largeKind} {
		x, bundle := slice(t, k)
		r := &reader{bundle: bundle}
		c := cache(t, t.TempDir(), 0)
		get(t, c, x, r.read, GetOptions{})
		headAsked := int64(fixedLen + 8*hashLen + maxTensors*(tensorLen+maxName) + align)
		if n := r.bytes.Load(); n > int64(len(bundle))+headAsked || r.longest.Load() > wire.MaxSliceData {
			t.Errorf("%d bytes of %d, %d in one request", n, len(bundle), r.longest.Load())
		}
		r.requests.Store(0)
		get(t, c, x, r.read, GetOptions{})
		if n := r.requests.Load(); n != 0 {
			t.Errorf("%d requests for what is there", n)
		}
		if held := c.Held(); len(held) != 1 || held[0] != x {
			t.Errorf("held: %v", held)
		}
	}
}

// A long way does not bound a fetch: so many requests are under way at once, and no more.
func TestGetKeepsAWindow(t *testing.T) {
	x, bundle := slice(t, largeKind)
	r := &reader{bundle: bundle}
	var under, most atomic.Int64
	full := make(chan struct{})
	from := func(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error) {
		n := under.Add(1)
		defer under.Add(-1)
		most.Store(max(most.Load(), n))
		if n == DefaultWindow {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		if off > 0 {
			<-full // the first requests wait for one another
		}
		return r.read(ctx, h, off, dst)
	}
	get(t, cache(t, t.TempDir(), 0), x, from, GetOptions{})
	if most.Load() != DefaultWindow {
		t.Errorf("%d requests at once, want %d", most.Load(), DefaultWindow)
	}
}

// errBreak is a connection that breaks.
var errBreak = errors.New("broken")

// Whatever is left on the disk after a kill, and whatever a disk makes of it, the next Get ends with the
// right bytes, and what was complete and right is not fetched again.
func TestGetGoesOnAfterAnyBreak(t *testing.T) {
	x, bundle := slice(t, kind{quant.Q8_0, quant.Q4_0, 64, 32, 9, false})
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		part := ""
		for range rapid.IntRange(1, 4).Draw(rt, "kills") {
			left := int64(rapid.IntRange(0, len(bundle)).Draw(rt, "bytes before the break"))
			size := rapid.IntRange(1<<8, 3*int(h.stride)).Draw(rt, "bytes an answer")
			r := &reader{bundle: bundle}
			from := func(ctx context.Context, s wire.Hash, off uint64, dst []byte) (int, uint64, error) {
				n, total, err := r.read(ctx, s, off, dst[:min(len(dst), size)])
				if r.bytes.Load() > left {
					err = errBreak
				}
				return n, total, err
			}
			c, err := OpenCache(dir, 0)
			if err != nil {
				rt.Fatal(err)
			}
			part = c.path(x.Hash) + partSuffix
			b, err := c.Get(context.Background(), x, from, GetOptions{Window: rapid.IntRange(1, 4).Draw(rt, "window")})
			if err == nil {
				err = b.Close()
			}
			if err != nil && !errors.Is(err, errBreak) {
				rt.Fatal(err)
			}
			if err := c.Close(); err != nil {
				rt.Fatal(err)
			}
			damage(rt, part)
			damage(rt, c.path(x.Hash))
		}
		missing := int64(len(bundle)) - rightIn(part, bundle, h) - rightIn(strings.TrimSuffix(part, partSuffix), bundle, h)
		r := &reader{bundle: bundle}
		c, err := OpenCache(dir, 0)
		if err != nil {
			rt.Fatal(err)
		}
		b, err := c.Get(context.Background(), x, r.read, GetOptions{Verify: true})
		if err != nil {
			rt.Fatal(err)
		}
		if !bytes.Equal(b.mapping.Bytes(), bundle) {
			rt.Error("other bytes")
		}
		if n := r.bytes.Load(); n > missing+2*h.length {
			rt.Errorf("%d bytes were fetched, %d were missing", n, missing)
		}
		if err := errors.Join(b.Close(), c.Close()); err != nil {
			rt.Fatal(err)
		}
	})
}

// damage does what a disk or a kill may do to a file.
func damage(rt *rapid.T, path string) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return
	}
	switch rapid.SampledFrom([]string{"none", "none", "cut", "flip", "all marked"}).Draw(rt, "damage") {
	case "cut":
		b = b[:rapid.IntRange(0, len(b)).Draw(rt, "cut")]
	case "flip":
		b[rapid.IntRange(0, len(b)-1).Draw(rt, "flip")] ^= 1
	case "all marked":
		for i := max(0, len(b)-8); i < len(b); i++ {
			b[i] = 1
		}
	default:
		return
	}
	if err := os.WriteFile(path, b, fileMode); err != nil {
		rt.Fatal(err)
	}
}

// rightIn is how many bytes of a file are experts that are right and marked so, in a file of the right
// size.
func rightIn(path string, bundle []byte, h *head) (n int64) {
	b, err := os.ReadFile(path)
	marked := len(b) == len(bundle)+h.count()
	if err != nil || !marked && len(b) != len(bundle) {
		return 0
	}
	for i := range h.count() {
		at, end := h.expert(i), h.expert(i+1)
		if bytes.Equal(b[at:end], bundle[at:end]) && (!marked || b[len(bundle)+i] == 1) {
			n += h.stride
		}
	}
	return n
}

func TestGetEndsWithItsContext(t *testing.T) {
	x, bundle := slice(t, largeKind)
	c := cache(t, t.TempDir(), 0)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	r := &reader{bundle: bundle}
	from := func(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error) {
		if off > 2<<20 {
			cancel(why)
			<-ctx.Done()
			return 0, 0, ctx.Err()
		}
		return r.read(ctx, h, off, dst)
	}
	if _, err := c.Get(ctx, x, from, GetOptions{}); !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, x, from, GetOptions{}); err == nil {
		t.Error("a context that has ended was taken")
	}
	before := r.bytes.Load()
	get(t, c, x, r.read, GetOptions{})
	if n := r.bytes.Load() - before; n > int64(len(bundle))*9/10 {
		t.Errorf("%d of %d bytes were fetched again", n, len(bundle))
	}
}

// Who has no room for a slice says so before anything of it is fetched.
func TestGetAsksBeforeItBegins(t *testing.T) {
	x, bundle := slice(t, smallKind)
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	c := cache(t, t.TempDir(), 0)
	r := &reader{bundle: bundle}
	no, asked := errors.New("no room"), 0
	refuse := func(size, memory int64) error {
		asked++
		if size != h.size() || memory < h.stride*8 || memory > h.stride*9 {
			t.Errorf("%d bytes, %d of memory; the bundle has %d", size, memory, h.size())
		}
		return no
	}
	if _, err := c.Get(context.Background(), x, r.read, GetOptions{Begin: refuse}); !errors.Is(err, no) || r.bytes.Load() > h.length+600 {
		t.Errorf("%d bytes fetched, %v", r.bytes.Load(), err)
	}
	if n := c.Bytes(); n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
	fill(t, c, r.read, x)
	if _, err := c.Get(context.Background(), x, nil, GetOptions{Begin: refuse}); !errors.Is(err, no) || asked != 2 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if err := c.Remove(x.Hash); err != nil {
		t.Error(err)
	}
}

func TestGetWantsAHashAndSomebodyToAsk(t *testing.T) {
	x, _ := slice(t, smallKind)
	c := cache(t, t.TempDir(), 0)
	if _, err := c.Get(context.Background(), wire.Slice{Hi: 1}, nil, GetOptions{}); !errors.Is(err, ErrNoHash) {
		t.Error(err)
	}
	if _, err := c.Get(context.Background(), x, nil, GetOptions{}); err == nil || !strings.Contains(err.Error(), "nobody to fetch it from") {
		t.Error(err)
	}
}

// FuzzHead reads arbitrary bytes as the head of a bundle: what is taken has one encoding, and sizes that
// can be computed with.
func FuzzHead(f *testing.F) {
	shape := experts.Shape{{Name: "ffn_down_exps.weight", Format: quant.Q6K, In: 256, Out: 256},
		{Name: "ffn_gate_up_exps.weight", Format: quant.Q4K, In: 256, Out: 512}}
	good := newHead(3, 1, 4, shape, make([]experts.Hash, 3)).bytes()
	f.Add(good)
	f.Add(good[:40])
	for i := 16; i < 32; i++ {
		b := bytes.Clone(good)
		b[i] ^= 0xff
		f.Add(b)
	}
	huge := bytes.Clone(good)
	binary.LittleEndian.PutUint32(huge[24:], moe.MaxExperts)
	f.Add(huge)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHead(b)
		if err != nil {
			if !errors.Is(err, ErrHead) && !errors.Is(err, errShort) {
				t.Errorf("%v", err)
			}
			return
		}
		if !bytes.Equal(h.bytes(), b[:h.length]) || h.length > int64(maxHead) || h.size() > maxBundle || h.size() <= h.length {
			t.Errorf("head of %d bytes, bundle of %d", h.length, h.size())
		}
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		off := h.length + r.Int64N(h.size()-h.length)
		end := min(off+r.Int64N(1<<16), h.size())
		sum := int64(0)
		h.walk(off, end, func(expert, tensor int, from, n int64) {
			if expert < 0 || expert >= h.count() || n <= 0 || tensor >= 0 && from+n > h.places[tensor].size {
				t.Errorf("seed %d: expert %d, tensor %d, %d bytes from %d", seed, expert, tensor, n, from)
			}
			sum += n
		})
		if sum != end-off {
			t.Errorf("seed %d: %d bytes of %d", seed, sum, end-off)
		}
	})
}
