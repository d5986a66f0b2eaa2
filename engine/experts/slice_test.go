package experts_test

import (
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// sliced is a file with the experts of layers 0, 2 and 10, the last of them an MTP block. change may
// alter the bytes of a tensor.
func sliced(t *testing.T, change func(name string, data []byte)) *gguf.File {
	t.Helper()
	w := &gguf.Writer{}
	add := func(name string, f quant.Format, dims ...int) {
		n, err := f.RowBytes(dims[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dims[1:] {
			n *= d
		}
		data := make([]byte, n)
		quant.Synthetic(data, f, uint64(len(name)))
		if change != nil {
			change(name, data)
		}
		w.Add(name, f, dims, gguf.Bytes(data))
	}
	add("blk.10.nextn.eh_proj.weight", quant.F32, 64, 32)
	for _, p := range []string{"blk.10.", "blk.0.", "blk.2."} {
		add(p+"ffn_up_exps.weight", quant.Q4_0, 32, 64, 3)
		add(p+"ffn_down_exps.weight", quant.Q8_0, 64, 32, 3)
		add(p+"ffn_gate_exps.weight", quant.Q4_0, 32, 64, 3)
		add(p+"ffn_gate_inp.weight", quant.F32, 32, 3)
	}
	return parse(t, w)
}

func hashes(t *testing.T, f *gguf.File) (list []experts.Hash) {
	t.Helper()
	all, err := experts.Slices(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		list = append(list, s.Hash(f))
	}
	return list
}

func TestSlicesAreTheLayersWithExperts(t *testing.T) {
	list, err := experts.Slices(sliced(t, nil))
	if err != nil || len(list) != 3 {
		t.Fatalf("%d slices, %v", len(list), err)
	}
	for i, want := range []int{0, 2, 10} {
		s := list[i]
		if s.Layer != want || s.Experts != 3 || s.MTP != (want == 10) || s.Bytes != 3*(2*64*18+32*68) ||
			!slices.Equal(s.Formats(), []string{"Q8_0", "Q4_0"}) || len(s.Tensors) != 3 {
			t.Errorf("slice %d: %+v, %v", i, s, s.Formats())
		}
	}
}

func TestSlicesRefuseWhatCannotBeDivided(t *testing.T) {
	for _, c := range []struct {
		down, up int
		says     string
	}{
		{4, 3, "tensor blk.0.ffn_up_exps.weight has 3 experts, blk.0.ffn_down_exps.weight has 4"},
		{1 << 17, 3, "tensor blk.0.ffn_down_exps.weight has 131072 experts; at most "},
	} {
		w := &gguf.Writer{}
		w.Add("blk.0.ffn_down_exps.weight", quant.F16, []int{1, 1, c.down}, gguf.Bytes(make([]byte, 2*c.down)))
		w.Add("blk.0.ffn_up_exps.weight", quant.F16, []int{1, 1, c.up}, gguf.Bytes(make([]byte, 2*c.up)))
		if _, err := experts.Slices(parse(t, w)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %s", err, c.says)
		}
	}
	w := &gguf.Writer{}
	for _, name := range []string{"blk.00.ffn_up_exps.weight", "blk.-1.ffn_up_exps.weight", "blk.99999999999999999999.ffn_up_exps.weight", "blk.ffn_up_exps.weight", "ffn_up_exps.weight"} {
		w.Add(name, quant.F16, []int{1, 1, 2}, gguf.Bytes(make([]byte, 4)))
	}
	if list, err := experts.Slices(parse(t, w)); err != nil || len(list) != 0 {
		t.Errorf("%d slices of tensors that are no layer's, %v", len(list), err)
	}
}

// A byte of one expert changes its hash and its slice's, and no other.
func TestSliceHashSeesItsExpertsAlone(t *testing.T) {
	plain := sliced(t, nil)
	want := hashes(t, plain)
	for layer, prefix := range []string{"blk.0.", "blk.2.", "blk.10."} {
		for _, role := range []string{"ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_exps.weight", "ffn_gate_inp.weight"} {
			f := sliced(t, func(name string, data []byte) {
				if name == prefix+role {
					data[len(data)-1] ^= 1 // the last expert's
				}
			})
			for i, h := range hashes(t, f) {
				if changed := i == layer && role != "ffn_gate_inp.weight"; (h != want[i]) != changed {
					t.Errorf("%s%s: slice %d changed is %v, want %v", prefix, role, i, h != want[i], changed)
				}
			}
			list, err := experts.Slices(f)
			if err != nil {
				t.Fatal(err)
			}
			before, err := experts.Slices(plain)
			if err != nil {
				t.Fatal(err)
			}
			for e := range 3 {
				changed := e == 2 && role != "ffn_gate_inp.weight"
				if got := list[layer].HashExpert(f, e) != before[layer].HashExpert(plain, e); got != changed {
					t.Errorf("%s%s: expert %d changed is %v, want %v", prefix, role, e, got, changed)
				}
			}
		}
	}
	list, err := experts.Slices(plain)
	if err != nil {
		t.Fatal(err)
	}
	if list[0].HashExpert(plain, 1) != list[1].HashExpert(plain, 1) || want[0] == want[1] {
		t.Error("the layer is to count for a slice, and not for an expert")
	}
}

// Neither what a model is called nor what a slice or an expert is depends on the files that hold it.
func TestHashesDoNotDependOnTheSplit(t *testing.T) {
	whole, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	p := ref.DefaultProfile(4)
	for _, count := range []int{1, 2, 5} {
		paths, err := whole.WriteParts(filepath.Join(t.TempDir(), "m"), count)
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(paths[count-1])
		if err != nil {
			t.Fatal(err)
		}
		if experts.HashModel(f, p) != experts.HashModel(whole, p) || !slices.Equal(hashes(t, f), hashes(t, whole)) {
			t.Errorf("%d parts: other hashes", count)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSliceHashOfTiny holds the layout that is hashed: workers of all versions must have the same.
func TestSliceHashOfTiny(t *testing.T) {
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	h := hashes(t, f)[3]
	const want = "89a180f8249e454775062dad4489d5130f7ba86b38926a6c6f535501ed26fd18"
	if got := hex.EncodeToString(h[:]); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}
