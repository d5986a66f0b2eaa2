package model_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// bits is a checksum of logits, for comparing bits.
func bits(rows ...[]float32) uint32 {
	h := crc32.NewIEEE()
	var b [4]byte
	for _, row := range rows {
		for _, v := range row {
			binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
			_, _ = h.Write(b[:])
		}
	}
	return h.Sum32()
}

// invarianceModels are one of each architecture and row format.
var invarianceModels = []string{"mini35-q8_0", "mini35k-q4_k_m", "mini35-f32", "mini3-q8_0", "mini3k-q4_k_m"}

func TestSameBitsForAnyChunking(t *testing.T) {
	for _, file := range invarianceModels {
		t.Run(file, func(t *testing.T) {
			n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
			prompt := readIDs(t, filepath.Join(mini, "p64.ids"))
			want := bits(n.logits(t, prompt, len(prompt))...)
			for _, chunk := range []int{1, 3, 7, 63} {
				if got := bits(n.logits(t, prompt, chunk)...); got != want {
					t.Errorf("chunks of %d: logits %08x, in one chunk %08x", chunk, got, want)
				}
			}
		})
	}
}

// TestSameBitsBeyondOneBlockOfPositions crosses the blocks in which attention sums, with a context that
// is also longer than one micro-batch.
func TestSameBitsBeyondOneBlockOfPositions(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini35-q8_0.gguf"), nil, false)
	prompt := readIDs(t, filepath.Join(mini, "p64.ids"))
	for len(prompt) < 700 {
		prompt = append(prompt, prompt[:min(64, 700-len(prompt))]...)
	}
	want := bits(n.logits(t, prompt, len(prompt))...)
	for _, chunk := range []int{7, 255, 512} {
		if got := bits(n.logits(t, prompt, chunk)...); got != want {
			t.Errorf("chunks of %d: logits %08x, in one chunk %08x", chunk, got, want)
		}
	}
}

// TestSameBitsForAnyBatch runs one sequence among 0, 2, 63 and 511 others, and compares its logits in
// prefill and in decode.
func TestSameBitsForAnyBatch(t *testing.T) {
	sizes := []int{1, 3, 64, 512}
	if testing.Short() { // on an emulated processor half a minute: rows of a batch come in blocks of far less
		sizes = sizes[:3]
	}
	for _, file := range invarianceModels {
		t.Run(file, func(t *testing.T) {
			n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
			prompt := readIDs(t, filepath.Join(mini, "p7.ids"))
			var want uint32
			for _, size := range sizes {
				got := batchBits(t, n, prompt, size)
				if size == 1 {
					want = got
				} else if got != want {
					t.Errorf("in a batch of %d: logits %08x, alone %08x", size, got, want)
				}
			}
		})
	}
}

// batchBits runs prompt and two more tokens of one sequence, which stands in the middle of size
// sequences with other tokens, and returns the checksum of its logits.
func batchBits(t *testing.T, n node, prompt []int32, size int) uint32 {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(size), 1))
	steps := make([]*model.Step, size)
	for i := range steps {
		steps[i] = &model.Step{Seq: n.NewSequence(), Want: model.All}
		for range 1 + rng.IntN(2) {
			steps[i].Tokens = append(steps[i].Tokens, int32(rng.IntN(n.Vocab)))
		}
	}
	mine := steps[size/2]
	mine.Tokens = prompt
	var logits []float32
	for round := range 3 {
		if err := n.Forward(context.Background(), n.experts, steps); err != nil {
			t.Fatal(err)
		}
		for i, s := range steps {
			if s.Err != nil {
				t.Fatalf("sequence %d: %v", i, s.Err)
			}
			s.Tokens = []int32{int32((i + round) % n.Vocab)}
		}
		logits = append(logits, mine.Logits...)
		mine.Tokens = []int32{int32(7 * (round + 1))}
	}
	return bits(logits)
}

// TestTinyGivesTheSameBitsWithEveryVariant compares kvasir-tiny's logits of one sequence, alone and among
// 64, and holds a prompt to its checksums.
func TestTinyGivesTheSameBitsWithEveryVariant(t *testing.T) {
	prompt := tinyPrompts(t)["hello"]
	var want uint32
	for _, v := range variant.Available() {
		b := newBackend(t, v)
		for kv, golden := range goldenTiny {
			n := newNodeWith(t, tinyFile(t), model.Options{Backend: b, KV: kv})
			if got := bits(n.logits(t, prompt, 512)...); got != golden {
				t.Errorf("%s, %s: logits %08x, want %08x", v, kv, got, golden)
			}
		}
		n := newNodeWith(t, tinyFile(t), model.Options{Backend: b})
		for _, size := range []int{1, 64} {
			got := batchBits(t, n, prompt, size)
			if v == variant.Portable && size == 1 {
				want = got
			}
			if got != want {
				t.Errorf("%s, in a batch of %d: logits %08x, want %08x", v, size, got, want)
			}
		}
	}
}

// newBackend returns a backend of two threads.
func newBackend(t testing.TB, v variant.Variant) *cpu.Backend {
	b := cpu.New(v, 2)
	t.Cleanup(b.Close)
	return b
}

// TestFaultFailsItsOwnSequenceOnly lets the experts fault one row, and checks that its sequence fails
// with the row named while its neighbours keep their bits.
func TestFaultFailsItsOwnSequenceOnly(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini35k-q4_k_m.gguf"), nil, false)
	run := func(e moe.Experts) []*model.Step {
		steps := make([]*model.Step, 3)
		for i := range steps {
			steps[i] = &model.Step{Seq: n.NewSequence(), Tokens: []int32{int32(10 * i), 3, 4}, Want: model.All}
		}
		if err := n.Forward(context.Background(), e, steps); err != nil {
			t.Fatal(err)
		}
		return steps
	}
	want := run(n.experts)
	for _, status := range []moe.Status{moe.Wide, moe.Range, moe.NonFinite} {
		got := run(faulty{Experts: n.experts, layer: 2, row: 4, status: status})
		var re *model.RowError
		if !errors.As(got[1].Err, &re) || re.Layer != 2 || re.Pos != 1 || re.Status != status {
			t.Errorf("%v: sequence 1 has error %v", status, got[1].Err)
		}
		if len(got[1].Logits) != 0 {
			t.Errorf("%v: the failed sequence has logits", status)
		}
		for _, i := range []int{0, 2} {
			if got[i].Err != nil || bits(got[i].Logits) != bits(want[i].Logits) {
				t.Errorf("%v: sequence %d changed (error %v)", status, i, got[i].Err)
			}
		}
		again := []*model.Step{{Seq: got[1].Seq, Tokens: []int32{1}}}
		if err := n.Forward(context.Background(), n.experts, again); err != nil || again[0].Err == nil {
			t.Errorf("%v: the failed sequence went on (%v, %v)", status, err, again[0].Err)
		}
	}
}

// faulty faults one row of one layer.
type faulty struct {
	moe.Experts
	layer, row int
	status     moe.Status
}

func (f faulty) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := f.Experts.Forward(ctx, b, out)
	if b.Layer == f.layer {
		out.Fault(f.row, f.status)
	}
	return err
}

func TestNaNWeightIsNamed(t *testing.T) {
	f, err := gguf.Open(filepath.Join(mini, "mini3-f32.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, name := range []string{"token_embd.weight", "blk.1.attn_k.weight", "blk.1.ffn_gate_inp.weight", "blk.2.ffn_down_exps.weight", "output.weight"} {
		tensor, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		whole := tensor.Data
		tensor.Data = append([]byte(nil), whole...)
		for at := 0; at < len(tensor.Data); at += 4 * 64 { // the first value of each row
			binary.LittleEndian.PutUint32(tensor.Data[at:], 0x7fc12345)
		}
		n := newNode(t, f, nil, false)
		steps := []*model.Step{{Seq: n.NewSequence(), Tokens: []int32{1, 2, 3}}}
		if err := n.Forward(context.Background(), n.experts, steps); err != nil {
			t.Fatal(err)
		}
		var re *model.RowError
		if !errors.As(steps[0].Err, &re) || re.Status != moe.NonFinite {
			t.Errorf("%s full of NaN: error %v, want a row that is NaN", name, steps[0].Err)
		} else {
			t.Logf("%s: %v", name, re)
		}
		tensor.Data = whole
	}
}

// TestOverflowInAttentionIsNamed makes norms so large that scores leave float32: what follows from them
// is NaN, and the next matrix takes no such row.
func TestOverflowInAttentionIsNamed(t *testing.T) {
	for _, v := range variant.Available() {
		f := openFile(t, "mini3-f32")
		for _, name := range []string{"blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight"} {
			tensor, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			tensor.Data = make([]byte, len(tensor.Data))
			for at := 0; at < len(tensor.Data); at += 4 {
				binary.LittleEndian.PutUint32(tensor.Data[at:], math.Float32bits(1e30))
			}
		}
		n := newNodeWith(t, f, model.Options{Backend: newBackend(t, v), KV: model.KVF32})
		steps := []*model.Step{{Seq: n.NewSequence(), Tokens: []int32{1, 2, 3}}}
		if err := n.Forward(context.Background(), n.experts, steps); err != nil {
			t.Fatal(err)
		}
		want := model.RowError{Layer: 1, Where: "the attention output", Status: moe.NonFinite}
		var re *model.RowError
		if !errors.As(steps[0].Err, &re) || *re != want {
			t.Errorf("%s: error %v, want %v", v, steps[0].Err, &want)
		}
	}
}

func TestForwardRefusesBeforeAnyWork(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini3-q8_0.gguf"), nil, false)
	seq := n.NewSequence()
	tests := []struct {
		name string
		step *model.Step
		want error
	}{
		{"no tokens", &model.Step{Seq: seq}, model.ErrEmpty},
		{"negative token", &model.Step{Seq: seq, Tokens: []int32{1, -1}}, model.ErrToken},
		{"token above", &model.Step{Seq: seq, Tokens: []int32{int32(n.Vocab)}}, model.ErrToken},
		{"context", &model.Step{Seq: seq, Tokens: make([]int32, n.Context+1)}, model.ErrContext},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := n.Forward(context.Background(), n.experts, []*model.Step{tt.step}); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(tt.step.Err, tt.want) || seq.Len() != 0 {
				t.Errorf("error %v, want %v; sequence has %d tokens", tt.step.Err, tt.want, seq.Len())
			}
		})
	}
	twice := []*model.Step{{Seq: seq, Tokens: []int32{1}}, {Seq: seq, Tokens: []int32{2}}}
	if err := n.Forward(context.Background(), n.experts, twice); err != nil {
		t.Fatal(err)
	}
	if twice[0].Err != nil || !errors.Is(twice[1].Err, model.ErrBusy) || seq.Len() != 1 {
		t.Errorf("a sequence twice in one call: %v, %v, %d tokens", twice[0].Err, twice[1].Err, seq.Len())
	}
	if err := n.Forward(context.Background(), n.experts, twice[:1]); err != nil || twice[0].Err != nil {
		t.Errorf("the sequence is still busy: %v, %v", err, twice[0].Err)
	}
}

// TestExpertsErrorEndsTheSequences checks that a batch that could not run leaves no half-moved sequence
// in use.
func TestExpertsErrorEndsTheSequences(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini3-q8_0.gguf"), nil, false)
	s := &model.Step{Seq: n.NewSequence(), Tokens: []int32{1, 2}}
	err := n.Forward(context.Background(), nowhere{}, []*model.Step{s})
	if !errors.Is(err, moe.ErrNotHeld) || !errors.Is(s.Err, moe.ErrNotHeld) || s.Seq.Err() == nil {
		t.Errorf("error %v, of the step %v, of the sequence %v", err, s.Err, s.Seq.Err())
	}
}

type nowhere struct{}

func (nowhere) Forward(context.Context, *moe.Batch, *moe.Partials) error { return moe.ErrNotHeld }

func TestLoadRefusesAnotherProfile(t *testing.T) {
	f, err := gguf.Open(filepath.Join(mini, "mini3-q8_0.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := model.Load(f, model.Options{Profile: ref.DefaultProfile(2)}); err == nil {
		t.Error("a profile of 2 layers was taken for a model of 3")
	}
}

func BenchmarkTinyForward(b *testing.B) {
	n := tinyNode(b, nil, false)
	for _, size := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("rows=%d", size), func(b *testing.B) {
			steps := make([]*model.Step, size)
			for i := range steps {
				steps[i] = &model.Step{Seq: n.NewSequence(), Tokens: []int32{int32(i)}}
			}
			for b.Loop() {
				if err := n.Forward(context.Background(), n.experts, steps); err != nil {
					b.Fatal(err)
				}
				for _, s := range steps {
					if s.Seq.Len() == n.Context {
						s.Seq = n.NewSequence()
					}
				}
			}
			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "tok/s")
		})
	}
}
