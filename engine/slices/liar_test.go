package slices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kvasir/kernels/quant"
	"kvasir/wire"
	"kvasir/wire/link"
)

// Who sends something else is found at the expert, and nothing of it is kept.
func TestGetFindsLiars(t *testing.T) {
	x, bundle := slice(t, smallKind)
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	at := int(h.expert(2))
	other, wrong := slice(t, kind{quant.Q4K, quant.Q6K, 256, 256, 10, false})
	if other.Hash == x.Hash {
		t.Fatal("two slices alike")
	}
	serve := func(b []byte) link.SliceReader { return (&reader{bundle: b}).read }
	changed := func(at int, v byte) link.SliceReader {
		b := bytes.Clone(bundle)
		b[at] ^= v
		return serve(b)
	}
	answer := func(f func(off uint64, n int, size uint64) (int, uint64)) link.SliceReader {
		r := &reader{bundle: bundle}
		return func(ctx context.Context, s wire.Hash, off uint64, dst []byte) (int, uint64, error) {
			n, size, err := r.read(ctx, s, off, dst)
			n, size = f(off, n, size)
			return n, size, err
		}
	}
	for _, c := range []struct {
		name, says string
		from       link.SliceReader
		fetched    bool // up to the expert
	}{
		{"a bit of an expert", "expert 3 of layer 0", changed(at+100, 1), true},
		{"the last byte", "expert 8 of layer 0", changed(len(bundle)-1, 128), true},
		{"the magic", "begins with", changed(0, 1), false},
		{"the layer", "another slice", changed(16, 1), false},
		{"the range", "experts from 255", changed(20, 254), false},
		{"many experts", "experts from 1 to before 16777225", changed(27, 1), false},
		{"no tensors", "0 tensors", changed(28, 3), false},
		{"a format", "no expert", changed(32+4+len(h.shape[0].Name), 0x40), false},
		{"a hash", "another slice", changed(int(h.length)-100, 4), false},
		{"padding of the head", "not 0", changed(int(h.length)-1, 4), false},
		{"another slice", "another slice", serve(wrong), false},
		{"nothing", "its head", serve(nil), false},
		{"half", "where its head says", serve(bundle[:len(bundle)/2]), false},
		{"more", "where its head says", serve(append(bytes.Clone(bundle), 0)), false},
		{"another size", "were asked for", answer(func(off uint64, n int, size uint64) (int, uint64) {
			if off >= uint64(h.length) {
				size++
			}
			return n, size
		}), false},
		{"no progress", "0 bytes at", answer(func(off uint64, n int, size uint64) (int, uint64) {
			if off >= uint64(h.length) {
				n = 0
			}
			return n, size
		}), false},
		{"too many bytes", "bytes of", answer(func(_ uint64, n int, size uint64) (int, uint64) {
			return n + 1<<30, size
		}), false},
		{"an endless size", "bytes of", answer(func(_ uint64, n int, _ uint64) (int, uint64) {
			return n, 1 << 63
		}), false},
	} {
		dir := t.TempDir()
		l := cache(t, dir, 0)
		_, err := l.Get(context.Background(), x, c.from, GetOptions{Window: 1})
		if !errors.Is(err, ErrLiar) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s", c.name, err, c.says)
		}
		if !c.fetched && l.Bytes() > 0 && !strings.Contains(c.name, "size") && c.name != "no progress" {
			t.Errorf("%s: %d bytes are kept", c.name, l.Bytes())
		}
		if len(l.Held()) != 0 {
			t.Errorf("%s: it is held", c.name)
		}
		r := &reader{bundle: bundle}
		if b := get(t, l, x, r.read, GetOptions{}); !bytes.Equal(b.mapping.Bytes(), bundle) {
			t.Errorf("%s: other bytes are kept", c.name)
		}
	}
}

// A head with the right hashes and other tensors is found by the first expert, and does not stay.
func TestGetForgetsALyingHead(t *testing.T) {
	x, bundle := slice(t, smallKind)
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	shape := slices.Clone(h.shape)
	for i := range shape {
		shape[i].Format = quant.Q5K
	}
	lying := newHead(h.layer, h.lo, h.hi, shape, h.hashes)
	lie := append(lying.bytes(), make([]byte, lying.size()-lying.length)...)
	c := cache(t, t.TempDir(), 0)
	if _, err := c.Get(context.Background(), x, (&reader{bundle: lie}).read, GetOptions{}); !errors.Is(err, ErrLiar) {
		t.Error(err)
	}
	if b := get(t, c, x, (&reader{bundle: bundle}).read, GetOptions{}); !bytes.Equal(b.mapping.Bytes(), bundle) {
		t.Error("other bytes")
	}
}

// There is no byte of a bundle that may be another.
func TestGetFindsALieAtAnyByte(t *testing.T) {
	for _, k := range []kind{{quant.Q8_0, quant.Q4_0, 64, 32, 9, false}, {quant.F16, quant.BF16, 10, 3, 9, true}} {
		x, bundle := slice(t, k)
		h, err := parseHead(bundle)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		rapid.Check(t, func(rt *rapid.T) {
			at := rapid.Int64Range(0, int64(len(bundle)-1)).Draw(rt, "byte")
			lie := bytes.Clone(bundle)
			lie[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
			c, err := OpenCache(dir, 0)
			if err != nil {
				rt.Fatal(err)
			}
			_, err = c.Get(context.Background(), x, (&reader{bundle: lie}).read, GetOptions{Window: 1})
			if !errors.Is(err, ErrLiar) {
				rt.Errorf("%v", err)
			}
			if i := (at - h.length) / h.stride; at >= h.length && !strings.Contains(err.Error(), fmt.Sprintf("expert %d of", 1+i)) {
				rt.Errorf("%v, want expert %d", err, 1+i)
			}
			if err := errors.Join(c.Remove(x.Hash), c.Close()); err != nil {
				rt.Fatal(err)
			}
		})
	}
}

// What stands between tensors means nothing, and still must not become a hiding place.
func TestGetRefusesBytesBetweenTensors(t *testing.T) {
	x, bundle := slice(t, kind{quant.F16, quant.BF16, 10, 3, 4, false})
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range h.places {
		end := h.expert(1) + p.offset + p.size
		if end%align == 0 {
			continue
		}
		bad := bytes.Clone(bundle)
		bad[end] = 1
		_, err := cache(t, t.TempDir(), 0).Get(context.Background(), x, (&reader{bundle: bad}).read, GetOptions{})
		if !errors.Is(err, ErrLiar) || !strings.Contains(err.Error(), "expert 2 of layer 0") {
			t.Errorf("behind tensor %d: %v", i, err)
		}
		return
	}
	t.Fatalf("no padding in %v", h.places)
}
