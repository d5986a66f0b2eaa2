package model_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// node is a model with all its experts at home.
type node struct {
	*model.Model
	memory  *model.Memory
	experts moe.Experts
}

// NewSequence returns an empty sequence.
func (n node) NewSequence() *model.Sequence {
	s, err := n.memory.NewSequence()
	if err != nil {
		panic(err) // the memory has no limit
	}
	return s
}

func openNode(t testing.TB, path string, profile *ref.Profile, float bool) node {
	t.Helper()
	return newNode(t, openPath(t, path), profile, float)
}

// openFile opens one of the small models.
func openFile(t testing.TB, name string) *gguf.File {
	t.Helper()
	return openPath(t, filepath.Join(mini, name+".gguf"))
}

func openPath(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func newNode(t testing.TB, f *gguf.File, profile *ref.Profile, float bool) node {
	t.Helper()
	o := model.Options{Float: float}
	if profile != nil {
		o.Profile = *profile
	}
	if float { // the references keep keys and values so
		o.KV = model.KVF32
	}
	return newNodeWith(t, f, o)
}

// newNodeWith takes the default profile where o has none.
func newNodeWith(t testing.TB, f *gguf.File, o model.Options) node {
	t.Helper()
	c, err := model.ReadConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	if o.Profile.Exponents == nil {
		o.Profile = ref.DefaultProfile(c.Layers)
	}
	m, err := model.Load(f, o)
	if err != nil {
		t.Fatal(err)
	}
	store, err := experts.Load(f, c.Layers, experts.Options{Profile: o.Profile, Float: o.Float, Backend: o.Backend})
	if err != nil {
		t.Fatal(err)
	}
	return node{m, m.NewMemory(0), experts.NewLocal(store)}
}

// logits runs tokens through a fresh sequence in chunks of at most chunk and returns the logits after
// each.
func (n node) logits(t testing.TB, tokens []int32, chunk int) [][]float32 {
	t.Helper()
	s := &model.Step{Seq: n.NewSequence(), Want: model.All}
	var rows [][]float32
	for len(tokens) > 0 {
		k := min(chunk, len(tokens))
		s.Tokens, tokens = tokens[:k], tokens[k:]
		if err := n.Forward(context.Background(), n.experts, []*model.Step{s}); err != nil {
			t.Fatal(err)
		}
		if s.Err != nil {
			t.Fatal(s.Err)
		}
		for at := 0; at < len(s.Logits); at += n.Vocab {
			rows = append(rows, append([]float32(nil), s.Logits[at:at+n.Vocab]...))
		}
	}
	return rows
}

// reference is one run of llama.cpp: the tokens it took and the logits after each.
type reference struct {
	tokens []int32 // prompt, then greedy steps
	prompt int     // tokens of the prompt
	logits [][]float32
}

// readReference reads prefix.npy and prefix.tokens; prompt is the prompt's ids.
func readReference(t testing.TB, prefix string, prompt []int32) reference {
	t.Helper()
	r := reference{logits: readNPY(t, prefix+".npy"), prompt: len(prompt)}
	generated := readIDs(t, prefix+".tokens")
	r.tokens = append(append(r.tokens, prompt...), generated...)[:len(r.logits)]
	return r
}

// readGreedy reads a reference that has 32 greedy steps after the prompt in ids.ids.
func readGreedy(t testing.TB, prefix, ids string) reference {
	t.Helper()
	r := readReference(t, prefix, readIDs(t, ids+".ids"))
	if len(r.logits) != r.prompt+32 || len(r.tokens) != r.prompt+32 {
		t.Fatalf("%s: %d rows of logits and %d tokens after a prompt of %d, want 32 more", prefix, len(r.logits), len(r.tokens), r.prompt)
	}
	for i, token := range r.tokens[r.prompt:] {
		if best := argmax(r.logits[r.prompt-1+i]); best != int(token) {
			t.Fatalf("%s: greedy step %d is token %d, and its logits say %d", prefix, i, token, best)
		}
	}
	return r
}

func readIDs(t testing.TB, path string) []int32 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, w := range strings.FieldsFunc(string(data), func(r rune) bool { return r == ' ' || r == '\n' || r == ',' }) {
		n, err := strconv.Atoi(w)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		ids = append(ids, int32(n))
	}
	return ids
}

// readNPY reads a two-dimensional little-endian float32 array.
func readNPY(t testing.TB, path string) [][]float32 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := int(binary.LittleEndian.Uint16(data[8:])) + 10
	var rows, cols int
	header := string(data[10:head])
	at := strings.Index(header, "'shape': (")
	if at < 0 || !strings.Contains(header, "'<f4'") {
		t.Fatalf("%s: unexpected header %s", path, header)
	}
	if _, err := fmt.Sscanf(header[at:], "'shape': (%d, %d,", &rows, &cols); err != nil {
		t.Fatalf("%s: %v in %s", path, err, header)
	}
	out := make([][]float32, rows)
	for r := range out {
		out[r] = make([]float32, cols)
		for c := range out[r] {
			out[r][c] = math.Float32frombits(binary.LittleEndian.Uint32(data[head+4*(r*cols+c):]))
		}
	}
	return out
}

func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// margin is the distance between the largest and the second largest value.
func margin(x []float32) float32 {
	best := argmax(x)
	second := float32(math.Inf(-1))
	for i, v := range x {
		if i != best {
			second = max(second, v)
		}
	}
	return x[best] - second
}

func maxDiff(a, b []float32) float64 {
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(float64(a[i])-float64(b[i])))
	}
	return worst
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

const mini = "testdata/mini"

var prompts = []string{"p1", "p7", "p64"}

// TestFloatLogitsMatchLlamaCpp is the bar for float activations: logits within 5e-4 at every position and
// all greedy tokens equal, for F32 files and for quantised files against their dequantised references.
func TestFloatLogitsMatchLlamaCpp(t *testing.T) {
	for _, tt := range []struct{ file, refs string }{
		{"mini35-f32", "mini35-f32"},
		{"mini35-q8_0", "mini35-q8_0-deq"},
		{"mini35k-q4_k_m", "mini35k-q4_k_m-deq"},
		{"mini3-f32", "mini3-f32"},
		{"mini3-q8_0", "mini3-q8_0-deq"},
		{"mini3k-q4_k_m", "mini3k-q4_k_m-deq"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			n := openNode(t, filepath.Join(mini, tt.file+".gguf"), nil, true)
			for _, p := range prompts {
				checkFloat(t, n, readGreedy(t, filepath.Join(mini, tt.refs+"-"+p), filepath.Join(mini, p)), p)
			}
		})
	}
}

func checkFloat(t *testing.T, n node, r reference, name string) {
	t.Helper()
	const bar = 5e-4
	worst := 0.0
	for i, got := range n.logits(t, r.tokens, 512) {
		d := maxDiff(got, r.logits[i])
		worst = max(worst, d)
		if d > bar {
			t.Errorf("%s, position %d: logits differ by %.2g, bar %.0e", name, i, d, bar)
			return
		}
		if i >= r.prompt-1 && argmax(got) != argmax(r.logits[i]) {
			t.Errorf("%s, position %d: greedy token %d, llama.cpp has %d", name, i, argmax(got), argmax(r.logits[i]))
		}
	}
	t.Logf("%s: %d positions, largest difference %.2g", name, len(r.logits), worst)
}

// TestLargerReferencesMatchLlamaCpp runs the same bar over the larger references, which are not part of
// the repository: KVASIR_ORACLE names their folder.
func TestLargerReferencesMatchLlamaCpp(t *testing.T) {
	dir := os.Getenv("KVASIR_ORACLE")
	if dir == "" {
		t.Skip("KVASIR_ORACLE is not set: the larger reference runs are not part of the repository")
	}
	for _, tt := range []struct{ file, refs string }{
		{"qwen35moe-f32", ""},
		{"qwen35moe-q8_0", "deq-"},
		{"qwen35moe-q4_k_m", "deq-"},
		{"qwen3moe-q8_0", "deq-"},
		{"qwen3moe-q4_k_m", "deq-"},
	} {
		t.Run(tt.file, func(t *testing.T) {
			n := openNode(t, filepath.Join(dir, tt.file+".gguf"), nil, true)
			for _, p := range prompts {
				checkFloat(t, n, readGreedy(t, filepath.Join(dir, tt.file, tt.refs+p), filepath.Join(dir, p)), p)
			}
		})
	}
}

// tinyPrompts are the prompts of kvasir-tiny's references.
func tinyPrompts(t testing.TB) map[string][]int32 {
	t.Helper()
	data, err := os.ReadFile("../tiny/testdata/ref/prompts.json")
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]struct {
		IDs []int32 `json:"ids"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	ids := map[string][]int32{}
	for name, p := range list {
		ids[name] = p.IDs
	}
	return ids
}

// profileOf is the default profile for a file.
func profileOf(t testing.TB, f *gguf.File) ref.Profile {
	t.Helper()
	c, err := model.ReadConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	return ref.DefaultProfile(c.Layers)
}
