package experts_test

import (
	"encoding/hex"
	"testing"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

func TestHashModelSeesWhatCountsAndNothingElse(t *testing.T) {
	type tensor struct {
		name string
		dims []int
		data []byte
	}
	build := func(version uint32, alignment uint32, meta string, list ...tensor) *gguf.File {
		w := &gguf.Writer{Version: version}
		w.Set("general.alignment", alignment)
		w.Set("general.name", meta)
		for _, x := range list {
			w.Add(x.name, quant.F16, x.dims, gguf.Bytes(x.data))
		}
		return parse(t, w)
	}
	data := func(n int, seed byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i) * seed
		}
		return b
	}
	p := ref.DefaultProfile(2)
	a, x := tensor{"a", []int{4, 3}, data(24, 3)}, tensor{"blk.0.ffn_up_exps.weight", []int{4, 3, 2}, data(48, 5)}
	want := experts.HashModel(build(3, 32, "one", a, x), p)
	if got := experts.HashModel(build(2, 64, "two", x, a), p); got != want {
		t.Error("metadata, version, alignment or the order of tensors counts")
	}
	q := ref.DefaultProfile(2)
	q.Exponents[1] = 11
	b := a
	b.name = "b"
	turned := a
	turned.dims = []int{3, 4}
	changed := x
	changed.data = data(48, 7)
	for name, h := range map[string]experts.Hash{
		"profile":    experts.HashModel(build(3, 32, "one", a, x), q),
		"name":       experts.HashModel(build(3, 32, "one", b, x), p),
		"dimensions": experts.HashModel(build(3, 32, "one", turned, x), p),
		"bytes":      experts.HashModel(build(3, 32, "one", a, changed), p),
		"missing":    experts.HashModel(build(3, 32, "one", x), p),
	} {
		if h == want {
			t.Errorf("another %s gives the same hash", name)
		}
	}
	if experts.HashProfile(p) == experts.HashProfile(q) {
		t.Error("another exponent gives the same hash of the profile")
	}
}

// TestHashOfTiny holds the layout that is hashed: a change of it is a change of every model's name.
func TestHashOfTiny(t *testing.T) {
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	h := experts.HashModel(f, ref.DefaultProfile(4))
	const want = "44001aff88bae2427abad852f414d6dd3fad5a1d576f4ede8d7e509abea9f1a0"
	if got := hex.EncodeToString(h[:]); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}
