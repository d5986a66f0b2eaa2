package experts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// layerShape is the shape and the formats of one synthetic layer.
type layerShape struct {
	hidden, ffn, experts int
	gate, up, down       quant.Format
	fused                bool // gate and up in one tensor
}

// synthetic returns a file with the given layers of random experts.
func synthetic(t testing.TB, layers ...layerShape) *gguf.File {
	t.Helper()
	w := &gguf.Writer{}
	for i, l := range layers {
		add := func(role string, f quant.Format, in, out int) {
			size, err := f.RowBytes(in)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, size*out*l.experts)
			quant.Synthetic(data, f, uint64(i)<<8|uint64(len(role)))
			w.Add(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", i, role), f, []int{in, out, l.experts}, gguf.Bytes(data))
		}
		if l.fused {
			add("gate_up", l.gate, l.hidden, 2*l.ffn)
		} else {
			add("gate", l.gate, l.hidden, l.ffn)
			add("up", l.up, l.hidden, l.ffn)
		}
		add("down", l.down, l.ffn, l.hidden)
	}
	return parse(t, w)
}

func parse(t testing.TB, w io.WriterTo) *gguf.File {
	t.Helper()
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(out.Bytes(), "synthetic.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// definition returns the experts of a layer as kernels/ref defines them.
func definition(t testing.TB, f *gguf.File, layer int, l layerShape, exponent int) *ref.Layer {
	t.Helper()
	cut := func(role string, in, out int) []ref.Matrix {
		tensor, err := f.Tensor(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, role))
		if err != nil {
			t.Fatal(err)
		}
		size := len(tensor.Data) / l.experts
		list := make([]ref.Matrix, l.experts)
		for i := range list {
			if list[i], err = ref.NewMatrix(tensor.Format, in, out, tensor.Data[i*size:(i+1)*size]); err != nil {
				t.Fatal(err)
			}
		}
		return list
	}
	gates, ups, downs := cut("gate", l.hidden, l.ffn), cut("up", l.hidden, l.ffn), cut("down", l.ffn, l.hidden)
	def := &ref.Layer{Number: layer, Exponent: exponent}
	for i := range gates {
		def.Experts = append(def.Experts, &ref.Expert{Gate: gates[i], Up: ups[i], Down: downs[i]})
	}
	return def
}

// batch returns a batch of random rows with topK picks each, some of them twice the same.
func batch(t testing.TB, layer int, l layerShape, rows, topK int, seed uint64) *moe.Batch {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	format := ref.RowFormat(l.gate, l.up)
	b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: l.hidden, Format: format}, rows, rows*topK)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, l.hidden)
	expert, weight := make([]uint16, topK), make([]float32, topK)
	for range rows {
		for i := range expert {
			expert[i] = uint16(rng.IntN(l.experts))
			weight[i] = rng.Float32()
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		if status, at := ref.QuantizeRow(b.Row(b.Grow(expert, weight)), x); status != moe.OK {
			t.Fatalf("row is %v at %d", status, at)
		}
	}
	return b
}

func load(t testing.TB, f *gguf.File, layers int) *experts.Local {
	t.Helper()
	s, err := experts.Load(f, layers, experts.Options{Profile: ref.DefaultProfile(layers)})
	if err != nil {
		t.Fatal(err)
	}
	return experts.NewLocal(s)
}

func equal(t *testing.T, got, want *moe.Partials) {
	t.Helper()
	if !slices.Equal(got.Status, want.Status) {
		t.Fatalf("status %v, want %v", got.Status, want.Status)
	}
	for i, v := range want.Sum {
		if got.Sum[i] != v {
			t.Fatalf("row %d, value %d: %d, want %d", i/want.Hidden, i%want.Hidden, got.Sum[i], v)
		}
	}
}

var shapes = []layerShape{
	{hidden: 256, ffn: 256, experts: 5, gate: quant.Q4K, up: quant.Q4K, down: quant.Q6K},
	{hidden: 64, ffn: 96, experts: 3, gate: quant.Q8_0, up: quant.MXFP4, down: quant.Q8_0},
	{hidden: 256, ffn: 64, experts: 4, gate: quant.Q5K, up: quant.Q8_0, down: quant.Q5_0},
	{hidden: 48, ffn: 40, experts: 2, gate: quant.F32, up: quant.F16, down: quant.BF16},
}

func TestLocalEqualsTheDefinition(t *testing.T) {
	f := synthetic(t, shapes...)
	s, err := experts.Load(f, 1, experts.Options{Profile: ref.DefaultProfile(1)})
	if err != nil || s.Layers() != 1 || s.Experts(0) != 5 || s.Hidden != 256 {
		t.Fatalf("store of one layer: %+v, %v", s, err)
	}
	for layer, l := range shapes {
		one := synthetic(t, l) // one layer a file: hidden sizes differ
		local := load(t, one, 1)
		def := definition(t, one, 0, l, ref.DefaultExponent)
		for _, rows := range []int{1, 3, 64} {
			b := batch(t, 0, l, rows, 3, uint64(rows))
			var got, want moe.Partials
			if err := def.Forward(context.Background(), b, &want); err != nil {
				t.Fatal(err)
			}
			if err := local.Forward(context.Background(), b, &got); err != nil {
				t.Fatalf("shape %d: %v", layer, err)
			}
			equal(t, &got, &want)
		}
	}
}

func TestLocalFaultsOneRowOnly(t *testing.T) {
	l := shapes[0]
	f := synthetic(t, l)
	local, def := load(t, f, 1), definition(t, f, 0, l, ref.DefaultExponent)
	b := batch(t, 0, l, 9, 3, 1)
	b.Scales[2] = float32(math.NaN())
	b.Weight[3*5] = float32(math.Inf(1))
	b.Weight[3*7+1] = 1e30
	var got, want moe.Partials
	if err := local.Forward(context.Background(), b, &got); err != nil {
		t.Fatal(err)
	}
	if err := def.Forward(context.Background(), b, &want); err != nil {
		t.Fatal(err)
	}
	equal(t, &got, &want)
	if got.Status[2] != moe.NonFinite || got.Status[5] != moe.NonFinite || got.Status[7] != moe.Range || got.Status[0] != moe.OK {
		t.Errorf("status %v", got.Status)
	}
}

func TestLocalServesManyAtOnce(t *testing.T) {
	l := shapes[0]
	f := synthetic(t, l)
	local, def := load(t, f, 1), definition(t, f, 0, l, ref.DefaultExponent)
	var wg sync.WaitGroup
	for i := range 8 {
		b := batch(t, 0, l, 5+i, 2, uint64(i))
		var want moe.Partials
		if err := def.Forward(context.Background(), b, &want); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			var got moe.Partials
			for range 4 {
				if err := local.Forward(context.Background(), b, &got); err != nil {
					t.Error(err)
				}
				if !slices.Equal(got.Sum, want.Sum) {
					t.Error("another result beside other calls")
				}
			}
		})
	}
	wg.Wait()
}

func TestLocalRefusesWhatItCannotRun(t *testing.T) {
	l := shapes[0]
	local := load(t, synthetic(t, l), 1)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		spoil func(*moe.Batch)
		want  error
	}{
		{"layer not held", context.Background(), func(b *moe.Batch) { b.Layer = 1 }, moe.ErrNotHeld},
		{"expert that is not there", context.Background(), func(b *moe.Batch) { b.Expert[0] = 5 }, moe.ErrInvalid},
		{"another hidden size", context.Background(), func(b *moe.Batch) {
			*b = *batch(t, 0, layerShape{hidden: 512, experts: 5, gate: quant.Q4K, up: quant.Q4K}, 1, 1, 1)
		}, moe.ErrInvalid},
		{"another row format", context.Background(), func(b *moe.Batch) {
			*b = *batch(t, 0, layerShape{hidden: 256, experts: 5, gate: quant.F32, up: quant.F32}, 1, 1, 1)
		}, moe.ErrInvalid},
		{"cancelled", cancelled, func(*moe.Batch) {}, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := batch(t, 0, l, 2, 2, 1)
			tt.spoil(b)
			if err := local.Forward(tt.ctx, b, &moe.Partials{}); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestLoadReadsFusedGateAndUp(t *testing.T) {
	l := layerShape{hidden: 256, ffn: 256, experts: 3, gate: quant.Q4K, up: quant.Q4K, down: quant.Q4K}
	apart := synthetic(t, l)
	tensor := func(role string) []byte {
		x, err := apart.Tensor("blk.0.ffn_" + role + "_exps.weight")
		if err != nil {
			t.Fatal(err)
		}
		return x.Data
	}
	gate, up := tensor("gate"), tensor("up")
	var both []byte
	n := len(gate) / l.experts
	for e := range l.experts {
		both = append(append(both, gate[e*n:(e+1)*n]...), up[e*n:(e+1)*n]...)
	}
	w := &gguf.Writer{}
	w.Add("blk.0.ffn_gate_up_exps.weight", quant.Q4K, []int{256, 512, 3}, gguf.Bytes(both))
	w.Add("blk.0.ffn_down_exps.weight", quant.Q4K, []int{256, 256, 3}, gguf.Bytes(tensor("down")))
	b := batch(t, 0, l, 7, 2, 3)
	var got, want moe.Partials
	if err := load(t, apart, 1).Forward(context.Background(), b, &want); err != nil {
		t.Fatal(err)
	}
	if err := load(t, parse(t, w), 1).Forward(context.Background(), b, &got); err != nil {
		t.Fatal(err)
	}
	equal(t, &got, &want)
}

func TestLoadRefusesExpertsThatDoNotFit(t *testing.T) {
	zeros := func(f quant.Format, dims ...int) []byte {
		n, err := f.RowBytes(dims[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dims[1:] {
			n *= d
		}
		return make([]byte, n)
	}
	type tensor struct {
		role   string
		format quant.Format
		dims   []int
	}
	gate, up := tensor{"gate", quant.F16, []int{64, 32, 2}}, tensor{"up", quant.F16, []int{64, 32, 2}}
	tests := []struct {
		name    string
		tensors []tensor
		want    string
	}{
		{"none", nil, "no ffn_*_exps tensors"},
		{"no up", []tensor{gate, {"down", quant.F16, []int{32, 64, 2}}}, "ffn_up_exps"},
		{"no gate", []tensor{up, {"down", quant.F16, []int{32, 64, 2}}}, "ffn_gate_exps"},
		{"two dimensions", []tensor{gate, up, {"down", quant.F16, []int{32, 64}}}, "2 dimensions"},
		{"other number", []tensor{gate, up, {"down", quant.F16, []int{32, 64, 3}}}, "2 gate, 2 up and 3 down"},
		{"shapes", []tensor{gate, up, {"down", quant.F16, []int{64, 32, 2}}}, "do not fit"},
		{"fused of odd rows", []tensor{{"gate_up", quant.F16, []int{64, 31, 2}}, {"down", quant.F16, []int{32, 64, 2}}}, "31 rows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := &gguf.Writer{}
			for _, x := range tt.tensors {
				w.Add("blk.0.ffn_"+x.role+"_exps.weight", x.format, x.dims, gguf.Bytes(zeros(x.format, x.dims...)))
			}
			_, err := experts.Load(parse(t, w), 1, experts.Options{Profile: ref.DefaultProfile(1)})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	hot := zeros(quant.MXFP4, 32, 32, 1)
	hot[0] = 191
	w := &gguf.Writer{}
	for _, role := range []string{"gate", "up", "down"} {
		w.Add("blk.0.ffn_"+role+"_exps.weight", quant.MXFP4, []int{32, 32, 1}, gguf.Bytes(hot))
	}
	if _, err := experts.Load(parse(t, w), 1, experts.Options{Profile: ref.DefaultProfile(1)}); !errors.Is(err, quant.ErrBlock) {
		t.Errorf("an MXFP4 exponent of 191: %v", err)
	}
	if _, err := experts.Load(synthetic(t, shapes[0]), 1, experts.Options{Profile: ref.DefaultProfile(2)}); !errors.Is(err, ref.ErrProfile) {
		t.Errorf("a profile of another model: %v", err)
	}
	if _, err := experts.Load(synthetic(t, shapes[0], shapes[1]), 2, experts.Options{Profile: ref.DefaultProfile(2)}); err == nil {
		t.Error("layers of different hidden sizes were taken")
	}
}
