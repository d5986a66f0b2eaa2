package synth

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// small returns a preset cut down to what tests have time for.
func small(t *testing.T, like string) Shape {
	t.Helper()
	s, err := Like(like)
	if err != nil {
		t.Fatal(err)
	}
	s.Layers, s.Vocab, s.Hidden, s.FFN, s.Experts, s.TopK = min(s.Layers, 4), 600, 256, 256, 8, 2
	s.Heads, s.KVHeads, s.HeadDim = 4, 2, 64
	if s.Arch == Qwen35MoE {
		s.SharedFFN, s.KeyHeads, s.ValHeads, s.State = 256, 2, 4, 64
	}
	return s
}

// write writes a file of the shape and returns its name.
func write(t *testing.T, s Shape, o Options) string {
	t.Helper()
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := p.Write(context.Background(), path, o); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryFormatGivesAFileOfSoundBlocks(t *testing.T) {
	for _, arch := range []string{"anchor", "qwen3.5-122b-a10b"} {
		for _, format := range Formats() {
			s := small(t, arch)
			s.Format = format
			f, err := gguf.Open(write(t, s, Options{Seed: 1}))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Check(); err != nil {
				t.Errorf("%s %s: %v", arch, format, err)
			}
			for _, x := range f.Tensors {
				checkTensor(t, x, format)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// checkTensor holds the values of a tensor to what the package promises of them.
func checkTensor(t *testing.T, x *gguf.Tensor, format quant.Format) {
	t.Helper()
	if err := quant.Check(x.Format, x.Data); err != nil {
		t.Errorf("%s %s: %v", x.Name, format, err)
	}
	v := make([]float32, x.Values())
	quant.Dequantize(v, x.Format, x.Data)
	sum, square := 0.0, 0.0
	for _, f := range v {
		sum += float64(f)
		square += float64(float64(f) * float64(f))
	}
	mean, rms := sum/float64(len(v)), square/float64(len(v))
	want := format
	switch {
	case strings.Contains(x.Name, "norm"):
		if mean < 0.9 || mean > 1.1 {
			t.Errorf("%s: mean %v, want about 1", x.Name, mean)
		}
		want = quant.F32
	case strings.HasSuffix(x.Name, "ssm_a"):
		if slices.Max(v) >= 0 || slices.Min(v) < -1 {
			t.Errorf("%s: %v to %v, want -1 to below 0", x.Name, slices.Min(v), slices.Max(v))
		}
		want = quant.F32
	case strings.HasSuffix(x.Name, "bias"), strings.Contains(x.Name, "conv1d"):
		want = quant.F32
	default:
		if strings.Contains(x.Name, "ffn_gate_inp") {
			want = quant.F32
		}
		// 6 deviations of the mean of so many values, and what Q8_0 has: its q go from -128 to 127.
		if x.Name == embedding {
			mean, rms = mean/32, rms/(32*32)
		}
		most := 6/math.Sqrt(float64(len(v))) + 0.008
		if rms < 0.015*0.015 || rms > 0.06*0.06 || mean*mean > rms*most*most {
			t.Errorf("%s %s: mean %v, mean square %v; want about 0 with a deviation of 0.02 to 0.05", x.Name, x.Format, mean, rms)
		}
	}
	if x.Format != want {
		t.Errorf("%s has format %s, want %s", x.Name, x.Format, want)
	}
}

func TestBytesDoNotDependOnThreads(t *testing.T) {
	s := small(t, "mini")
	read := func(o Options) []byte {
		b, err := os.ReadFile(write(t, s, o))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := read(Options{Seed: 7, Threads: 1})
	if !bytes.Equal(one, read(Options{Seed: 7, Threads: 5})) {
		t.Error("5 threads wrote another file than 1")
	}
	if bytes.Equal(one, read(Options{Seed: 8, Threads: 1})) {
		t.Error("seeds 7 and 8 gave the same file")
	}
}

func TestPiecesOfATensorDiffer(t *testing.T) {
	s := small(t, "anchor")
	s.Experts, s.FFN = 64, 512 // several pieces a tensor
	f, err := gguf.Open(write(t, s, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	seen := map[string]string{}
	for _, x := range f.Tensors {
		if x.Format != quant.Q4K {
			continue
		}
		for from := 0; from < len(x.Data); from += 144 {
			key := string(x.Data[from : from+144])
			if other, twice := seen[key]; twice {
				t.Fatalf("a block of %s is one of %s too", x.Name, other)
			}
			seen[key] = x.Name
		}
	}
}

func TestPresetsHaveTheWeightsTheyAreNamedFor(t *testing.T) {
	f := func(name string, least, most int64, layers int) {
		t.Helper()
		s, err := Like(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Plan()
		if err != nil {
			t.Fatal(err)
		}
		if p.Values < least || p.Values > most {
			t.Errorf("%s has %d weights, want %d to %d", name, p.Values, least, most)
		}
		if s.Layers != layers {
			t.Errorf("%s has %d layers, want %d", name, s.Layers, layers)
		}
	}
	const b = 1e9
	f("anchor", 2.4*b, 2.5*b, 4)
	f("mini", 0.01*b, 0.02*b, 4)
	f("qwen3-30b-a3b", 30.5*b, 30.6*b, 48)
	f("qwen3-235b-a22b", 235*b, 235.2*b, 94)
	f("qwen3.5-35b-a3b", 34.5*b, 36.5*b, 40) // with MTP
	f("qwen3.5-122b-a10b", 121.5*b, 125.5*b, 48)
	if n := len(Presets()); n != 6 {
		t.Errorf("%d presets, and 6 are looked at here", n)
	}
	s, err := Like("Qwen3.5-122B-A10B")
	if err != nil {
		t.Fatal(err)
	}
	recurrent := 0
	for i := range s.Layers + s.MTP {
		if s.recurrent(i) {
			recurrent++
		}
	}
	if recurrent != 36 {
		t.Errorf("%d recurrent layers, want 36", recurrent)
	}
}

func TestDimensionsThatCannotBeAreNamed(t *testing.T) {
	f := func(want string, change func(*Shape)) {
		t.Helper()
		s := small(t, "mini")
		change(&s)
		_, err := s.Plan()
		if !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	f("architecture", func(s *Shape) { s.Arch = "llama" })
	f("vocab is 263, want 264", func(s *Shape) { s.Vocab = 263 })
	f("topk is 9, want 1 to 8", func(s *Shape) { s.TopK = 9 })
	f("4 heads cannot share 3", func(s *Shape) { s.KVHeads = 3 })
	f("kv-heads is 0", func(s *Shape) { s.KVHeads = 0 })
	f("head-dim 63 is odd", func(s *Shape) { s.HeadDim = 63 })
	f("hidden is 300, want a multiple of 256", func(s *Shape) { s.Hidden = 300 })
	f("ffn is 32, want a multiple of 256", func(s *Shape) { s.FFN = 32 })
	f("shared-ffn is 32", func(s *Shape) { s.SharedFFN = 32 })
	f("value-heads x state is 128", func(s *Shape) { s.State = 32 })
	f("value-heads cannot share", func(s *Shape) { s.KeyHeads = 3 })
	f("heads x head-dim is 320", func(s *Shape) { s.HeadDim = 80 })
	f("mtp is 2", func(s *Shape) { s.MTP = 2 })
	f("layers", func(s *Shape) { s.Layers = moe.MaxLayers + 1 })
	f("format Q2_K", func(s *Shape) { s.Format = 10 })
	if _, err := Like("gpt"); !errors.Is(err, ErrShape) {
		t.Errorf("Like: %v", err)
	}
	if _, err := ParseFormat("Q9"); !errors.Is(err, ErrShape) {
		t.Errorf("ParseFormat: %v", err)
	}
	if f, err := ParseFormat("q4_k"); err != nil || f != quant.Q4K {
		t.Errorf("ParseFormat: %v, %v", f, err)
	}
}

func TestSectionsCoverTheTurningPairs(t *testing.T) {
	s, err := Like("qwen3.5-122b-a10b")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.ropeSections(); !slices.Equal(got, []int32{11, 11, 10, 0}) {
		t.Errorf("sections %v, want 11 11 10 0", got)
	}
	for s.HeadDim = 4; s.HeadDim <= 300; s.HeadDim += 2 {
		sum := int32(0)
		for _, n := range s.ropeSections() {
			sum += n
		}
		if int(2*sum) != s.ropeDims() || s.ropeDims()%2 != 0 || s.ropeDims() > s.HeadDim {
			t.Errorf("head of %d: %d values turn, sections %v", s.HeadDim, s.ropeDims(), s.ropeSections())
		}
	}
}

func TestWriteLeavesNothingBehind(t *testing.T) {
	s := small(t, "mini")
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "model.gguf")
	left := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, want) {
			t.Errorf("the folder has %q, want %q", names, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	err = p.Write(ctx, path, Options{Progress: func(done, total int64) {
		if calls++; calls == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after a cancellation", err)
	}
	left()

	if err := p.Write(context.Background(), path, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(context.Background(), path, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("error %v where the file exists", err)
	}
	last := int64(0)
	err = p.Write(context.Background(), path, Options{Force: true, Progress: func(done, total int64) { last = total - done }})
	if err != nil {
		t.Error(err)
	}
	if last < 0 || last > 32*int64(p.Tensors+1) {
		t.Errorf("%d bytes were left when progress ended; there are gaps of up to 31 bytes only", last)
	}
	if err := p.Write(context.Background(), folder, Options{Force: true}); !errors.Is(err, ErrExists) {
		t.Errorf("error %v where a folder stands", err)
	}
	if err := p.Write(context.Background(), filepath.Join(folder, "no", "model.gguf"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v in a folder that is not there", err)
	}
	left("model.gguf")
}

func TestTooLittleSpaceIsSaidBeforehand(t *testing.T) {
	s, err := Like("qwen3-235b-a22b")
	if err != nil {
		t.Fatal(err)
	}
	s.Format, s.FFN, s.Experts, s.Hidden = quant.F32, ffnMost, moe.MaxExperts, 8192
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	err = p.Write(context.Background(), filepath.Join(folder, "model.gguf"), Options{})
	if !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), "GB free") {
		t.Errorf("error %v for a file of %d bytes", err, p.Size)
	}
}

func TestVocabulariesOfAllSizesAreSound(t *testing.T) {
	for _, n := range []int{vocabLeast, vocabLeast + 1, 512, 700, 151936} {
		v := newVocabulary(n)
		if len(v.tokens) != n || len(v.types) != n {
			t.Fatalf("%d tokens of %d types, want %d", len(v.tokens), len(v.types), n)
		}
		ids := map[string]int{}
		for i, token := range v.tokens {
			if first, twice := ids[token]; twice {
				t.Errorf("tokens %d and %d are both %q", first, i, token)
			}
			ids[token] = i
		}
		for _, m := range v.merges {
			left, right, _ := strings.Cut(m, " ")
			for _, part := range []string{left, right, left + right} {
				if _, ok := ids[part]; !ok {
					t.Errorf("merge %q needs %q", m, part)
				}
			}
		}
		for place, text := range specials {
			if int(v.special(place)) != ids[text] {
				t.Errorf("%s is token %d, not %d", text, ids[text], v.special(place))
			}
		}
	}
}
