// Package engine puts a node together: a model file, its tokenizer and chat template, the backbone, and
// an executor for the routed experts. What a command does beyond flags and printing is here.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"kvasir/engine/chat"
	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/grammar"
	"kvasir/engine/model"
	"kvasir/engine/schedule"
	slicing "kvasir/engine/slices"
	"kvasir/engine/tiny"
	"kvasir/engine/tokenizer"
	"kvasir/engine/worker"
	"kvasir/internal/machine"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// ProfileSuffix follows a model file's name in the name of its arithmetic profile.
const ProfileSuffix = ".profile.json"

// Options say what to open, and how.
type Options struct {
	Path string // of a GGUF file; empty: the embedded kvasir-tiny

	KV        model.KVFormat    // in which keys and values are kept
	State     model.StateFormat // in which the states of DeltaNet layers are kept
	Memory    int64             // bytes for sequences; 0: half of what the machine has left
	Sequences int               // that run at once; 0: schedule.DefaultSequences
	Waiting   int               // requests that wait until they run; 0: schedule.DefaultWaiting

	// Progress, if set, is told how many bytes of the file are ready, of how many, by several goroutines.
	Progress func(done, total int64)
}

// Engine is a model that is ready to generate. It is safe for concurrent use.
type Engine struct {
	name      string
	options   Options
	file      *gguf.File
	model     *model.Model
	memory    *model.Memory
	longest   int // tokens of a sequence, as the context and the memory allow
	tokens    *tokenizer.Tokenizer
	template  *chat.Template
	vocab     func() (*grammar.Vocab, error)
	json      func() *grammar.Grammar // of any JSON
	experts   moe.Experts
	pulse     *pulse // before experts
	scheduler *schedule.Scheduler
	other     bool // made by With: the file is another's
	profile   ref.Profile
	measured  bool // the profile was measured, not the default
	sum       func() experts.Hash
}

// Open loads a model with all its experts on this machine.
func Open(o Options) (*Engine, error) {
	f, err := openFile(o.Path)
	if err != nil {
		return nil, err
	}
	e := &Engine{name: filepath.Base(f.Name), file: f, options: o, json: sync.OnceValue(grammar.JSON)}
	if err := e.assemble(func(layers int) (ref.Profile, bool, error) { return loadProfile(o.Path, layers) }); err != nil {
		_ = f.Close() // read only: nothing is lost
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	e.sum = sync.OnceValue(func() experts.Hash { return experts.HashModel(e.file, e.profile) })
	return e, nil
}

func openFile(path string) (*gguf.File, error) {
	if path == "" {
		return gguf.Parse(tiny.Model(), tiny.Name)
	}
	return gguf.Open(path)
}

// assemble puts an engine together; profile gives the arithmetic profile for a number of layers.
func (e *Engine) assemble(profile func(layers int) (ref.Profile, bool, error)) error {
	f := e.file
	if err := f.Check(); err != nil {
		return err
	}
	c, err := model.ReadConfig(f)
	if err != nil {
		return err
	}
	if e.profile, e.measured, err = profile(c.Layers); err != nil {
		return err
	}
	// What is small comes first: a mistake in it is told at once.
	if e.tokens, err = loadTokenizer(f, c.Vocab); err != nil {
		return err
	}
	if e.template, err = loadTemplate(f, e.tokens); err != nil {
		return err
	}
	e.vocab = sync.OnceValues(func() (*grammar.Vocab, error) { return grammarVocab(e.tokens, c.Vocab) })
	loaded, whole := e.progress()
	e.model, err = model.Load(f, model.Options{
		Profile: e.profile, KV: e.options.KV, State: e.options.State, Loaded: loaded,
	})
	if err != nil {
		return err
	}
	store, err := experts.Load(f, c.Layers, experts.Options{Profile: e.profile, Loaded: loaded})
	if err != nil {
		return err
	}
	whole()
	e.experts = experts.NewLocal(store)
	return e.begin(1, nil)
}

// progress returns what counts bytes that are ready, and what says that all are.
func (e *Engine) progress() (loaded func(bytes int), whole func()) {
	if e.options.Progress == nil {
		return nil, func() {}
	}
	var total int64
	for _, t := range e.file.Tensors {
		total += int64(len(t.Data))
	}
	var done atomic.Int64
	return func(n int) { e.options.Progress(min(done.Add(int64(n)), total), total) },
		func() { e.options.Progress(total, total) }
}

// begin starts the scheduler, with so many micro-batches under way at once.
func (e *Engine) begin(flights int, wanted func() int) error {
	budget := e.options.Memory
	if budget == 0 {
		budget = max(int64(machine.Read().Available/2), smallMemory)
	}
	e.memory = e.model.NewMemory(budget)
	e.longest = e.model.Context
	if e.model.SequenceBytes(e.longest) > budget {
		e.longest = sort.Search(e.longest, func(n int) bool { return e.model.SequenceBytes(n+1) > budget })
	}
	if e.longest < 2 {
		return fmt.Errorf("a sequence takes %d MiB at least, and there are %d MiB for sequences; give more memory",
			(e.model.SequenceBytes(1)-1)>>20+1, budget>>20)
	}
	e.pulse = newPulse(e.experts, e.model.Layers)
	watch, _ := e.experts.(schedule.Watcher)
	var err error
	e.scheduler, err = schedule.New(schedule.Config{
		Model: e.model, Memory: e.memory, Experts: e.pulse, Flights: flights, Wanted: wanted,
		Sequences: e.options.Sequences, Waiting: e.options.Waiting, Mark: marked, Watch: watch,
	})
	return err
}

// smallMemory is for sequences at least, where a machine has nothing left or does not say.
const smallMemory = 256 << 20

// grammarVocab is the tokens as grammars see them.
func grammarVocab(t *tokenizer.Tokenizer, vocab int) (*grammar.Vocab, error) {
	var ends []int32
	for id := range int32(t.Size()) {
		if t.IsEnd(id) {
			ends = append(ends, id)
		}
	}
	return grammar.NewVocab(vocab, func(id int32) []byte {
		if int(id) >= t.Size() || t.IsControl(id) {
			return nil
		}
		return t.AppendToken(nil, id)
	}, ends)
}

// loadProfile reads the arithmetic profile beside a model, and falls back to the default exponent where
// there is none.
func loadProfile(path string, layers int) (p ref.Profile, measured bool, err error) {
	data, name := tiny.Profile(), tiny.File+ProfileSuffix
	if path != "" {
		name = profilePath(path)
		if data, err = os.ReadFile(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p, false, err
		}
	}
	if data == nil {
		return ref.DefaultProfile(layers), false, nil
	}
	if p, err = ref.ParseProfile(data); err == nil {
		err = p.Check(layers)
	}
	if err != nil {
		return p, false, fmt.Errorf("profile %s: %w; make it anew with kvasir model profile, or remove it", name, err)
	}
	return p, true, nil
}

// profilePath is where the profile of a model file is: beside the first part, if there are several.
func profilePath(path string) string {
	if m := part.FindStringSubmatchIndex(path); m != nil {
		path = path[:m[2]] + "00001" + path[m[3]:]
	}
	return path + ProfileSuffix
}

// part is how the name of a part of a split model ends.
var part = regexp.MustCompile(`-([0-9]{5})-of-[0-9]{5}\.gguf$`)

// loadTokenizer reads the tokenizer of a model file, of at most vocab tokens.
func loadTokenizer(f *gguf.File, vocab int) (*tokenizer.Tokenizer, error) {
	kind, err := f.String("tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if kind != "gpt2" {
		return nil, fmt.Errorf("tokenizer %q is not supported; supported is gpt2 (byte-level BPE)", kind)
	}
	v := tokenizer.Vocab{}
	if v.Pre, err = f.StringOr("tokenizer.ggml.pre", "default"); err != nil {
		return nil, err
	}
	if v.Tokens, err = f.Strings("tokenizer.ggml.tokens"); err != nil {
		return nil, err
	}
	if len(v.Tokens) > vocab {
		return nil, fmt.Errorf("the tokenizer has %d tokens and the model %d", len(v.Tokens), vocab)
	}
	if v.Merges, err = f.Strings("tokenizer.ggml.merges"); err != nil {
		return nil, err
	}
	types, err := f.Ints("tokenizer.ggml.token_type")
	if err != nil {
		return nil, err
	}
	for _, t := range types {
		v.Types = append(v.Types, int32(t))
	}
	for key, id := range map[string]*int32{"eos": &v.EOS, "eot": &v.EOT, "bos": &v.BOS, "padding": &v.Pad} {
		n, err := f.IntOr("tokenizer.ggml."+key+"_token_id", -1)
		if err != nil {
			return nil, err
		}
		if n < -1 || n >= int64(len(v.Tokens)) {
			return nil, fmt.Errorf("tokenizer.ggml.%s_token_id is %d, outside the vocabulary of %d", key, n, len(v.Tokens))
		}
		*id = int32(n)
	}
	if v.AddBOS, err = f.BoolOr("tokenizer.ggml.add_bos_token", false); err != nil {
		return nil, err
	}
	return tokenizer.New(v)
}

// loadTemplate reads the chat template of a model file; one without gets ChatML.
func loadTemplate(f *gguf.File, t *tokenizer.Tokenizer) (*chat.Template, error) {
	source, err := f.StringOr("tokenizer.chat_template", chat.ChatML)
	if err != nil {
		return nil, err
	}
	text := func(key string) string {
		id, err := f.IntOr("tokenizer.ggml."+key+"_token_id", -1)
		if err != nil || id < 0 || id >= int64(t.Size()) {
			return ""
		}
		return string(t.AppendToken(nil, int32(id)))
	}
	return chat.New(source, text("bos"), text("eos"))
}

// With returns an engine of the same model whose routed experts are computed by x, which answers flights
// calls at once. It is to be closed, before the engine that it was made of, and has memory of its own for
// sequences.
func (e *Engine) With(x moe.Experts, flights int) (*Engine, error) { return e.with(x, flights, nil) }

// with is With, with as many of flights as are wanted at present; nil: all.
func (e *Engine) with(x moe.Experts, flights int, wanted func() int) (*Engine, error) {
	other := *e
	other.experts, other.other = x, true
	if err := other.begin(flights, wanted); err != nil {
		return nil, err
	}
	return &other, nil
}

// Standing is how much there is to do, and the memory that it takes.
func (e *Engine) Standing() (schedule.Stats, model.MemoryStats) {
	return e.scheduler.Stats(), e.memory.Stats()
}

// Experts is the executor of this machine, or what With has put in its place.
func (e *Engine) Experts() moe.Experts { return e.experts }

// Model describes what a worker of this model computes. It reads all weights, to name them by their hash.
func (e *Engine) Model() worker.Model {
	return worker.Model{
		Experts: e.experts, Layers: e.model.Layers, PerLayer: e.model.Experts, Hidden: e.model.Hidden,
		Hash: e.sum(), Profile: experts.HashProfile(e.profile),
	}
}

// Source serves the routed experts of this model to workers.
func (e *Engine) Source() (*slicing.Source, error) { return slicing.NewSource(e.file, e.model.Layers) }

// Exponents are those of the model's arithmetic profile, one a layer.
func (e *Engine) Exponents() []int { return e.profile.Exponents }

// TopK is how many experts a row goes through in a layer.
func (e *Engine) TopK() int { return e.model.TopK }

// Close ends what is under way and releases the model file.
func (e *Engine) Close() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.scheduler.Close(now) // it says that it did not wait
	if e.other {
		return nil
	}
	e.model.Close()
	return e.file.Close()
}

// Name is the model's file name, or kvasir-tiny. The folder is nobody's business who asks a server.
func (e *Engine) Name() string { return e.name }

// IsControl reports whether a token marks a place in the text and is none itself.
func (e *Engine) IsControl(id int32) bool { return int(id) < e.tokens.Size() && e.tokens.IsControl(id) }

// TokenText is a token as text. Bytes that are no whole character become U+FFFD.
func (e *Engine) TokenText(id int32) string {
	if id < 0 || int(id) >= e.tokens.Size() {
		return ""
	}
	return strings.ToValidUTF8(string(e.tokens.AppendToken(nil, id)), "\uFFFD")
}

// Context is how many tokens a sequence may have, prompt and answer together.
func (e *Engine) Context() int { return e.longest }

// invalidUTF8 returns the place of the first byte that is not UTF-8, or -1.
func invalidUTF8(s string) int {
	for at := 0; at < len(s); {
		r, n := utf8.DecodeRuneInString(s[at:])
		if r == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
	return -1
}

// sameBits reports whether two lists of floats are equal bit for bit.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}
