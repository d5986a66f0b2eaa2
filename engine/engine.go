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
	"slices"
	"time"
	"unicode/utf8"

	"kvasir/engine/chat"
	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/engine/tiny"
	"kvasir/engine/tokenizer"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// ProfileSuffix follows a model file's name in the name of its arithmetic profile.
const ProfileSuffix = ".profile.json"

// Options say what to open.
type Options struct {
	Path string // of a GGUF file; empty: the embedded kvasir-tiny
}

// Engine is a model that is ready to generate. It is safe for concurrent use.
type Engine struct {
	name     string
	file     *gguf.File
	model    *model.Model
	memory   *model.Memory
	tokens   *tokenizer.Tokenizer
	template *chat.Template
	experts  moe.Experts
	profile  ref.Profile
	measured bool // the profile was measured, not the default
}

// Open loads a model with all its experts on this machine.
func Open(o Options) (*Engine, error) {
	f, err := openFile(o.Path)
	if err != nil {
		return nil, err
	}
	e, err := assemble(f, func(layers int) (ref.Profile, bool, error) { return loadProfile(o.Path, layers) })
	if err != nil {
		_ = f.Close() // read only: nothing is lost
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return e, nil
}

func openFile(path string) (*gguf.File, error) {
	if path == "" {
		return gguf.Parse(tiny.Model(), tiny.Name)
	}
	return gguf.Open(path)
}

// assemble puts an engine together; profile gives the arithmetic profile for a number of layers.
func assemble(f *gguf.File, profile func(layers int) (ref.Profile, bool, error)) (*Engine, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	e := &Engine{name: f.Name, file: f}
	c, err := model.ReadConfig(f)
	if err != nil {
		return nil, err
	}
	if e.profile, e.measured, err = profile(c.Layers); err != nil {
		return nil, err
	}
	if e.model, err = model.Load(f, model.Options{Profile: e.profile}); err != nil {
		return nil, err
	}
	e.memory = e.model.NewMemory(0)
	store, err := experts.Load(f, c.Layers, experts.Options{Profile: e.profile})
	if err != nil {
		return nil, err
	}
	e.experts = experts.NewLocal(store)
	if e.tokens, err = loadTokenizer(f, c.Vocab); err != nil {
		return nil, err
	}
	e.template, err = loadTemplate(f, e.tokens)
	return e, err
}

// loadProfile reads the arithmetic profile beside a model, and falls back to the default exponent where
// there is none.
func loadProfile(path string, layers int) (p ref.Profile, measured bool, err error) {
	data, name := tiny.Profile(), tiny.File+ProfileSuffix
	if path != "" {
		name = path + ProfileSuffix
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

// With returns an engine of the same model whose routed experts are computed by x. Close closes the model
// of both.
func (e *Engine) With(x moe.Experts) *Engine {
	other := *e
	other.experts = x
	return &other
}

// Experts is the executor of this machine, or what With has put in its place.
func (e *Engine) Experts() moe.Experts { return e.experts }

// Model describes what a worker of this model computes. It reads all weights, to name them by their hash.
func (e *Engine) Model() worker.Model {
	return worker.Model{
		Experts: e.experts, Layers: e.model.Layers, PerLayer: e.model.Experts, Hidden: e.model.Hidden,
		Hash: experts.HashModel(e.file, e.profile), Profile: experts.HashProfile(e.profile),
	}
}

// Close releases the model file. Nothing may be under way.
func (e *Engine) Close() error { return e.file.Close() }

// Name is the model's file name, or kvasir-tiny.
func (e *Engine) Name() string { return e.name }

// Context is how many tokens a sequence may have, prompt and answer together.
func (e *Engine) Context() int { return e.model.Context }

// Message is a turn of a conversation.
type Message = chat.Message

// Request asks for a continuation.
type Request struct {
	Prompt   string
	Chat     bool      // the prompt is a user's turn: put it into the model's chat template
	Messages []Message // a conversation, in the place of Prompt
	Tokens   int       // generate at most so many
}

// Result is what came of a request.
type Result struct {
	Text         string
	PromptTokens []int32
	Tokens       []int32 // generated, without the end token
	Stop         string  // StopEnd or StopLength
	Prefill      time.Duration
	Decode       time.Duration // of all tokens but the first, which the prefill yields
	Picks        int64         // that its rows had
	Logits       []float32     // after the last row
}

// Why a generation ended.
const (
	StopEnd    = "end"    // the model said so
	StopLength = "length" // the asked number of tokens, or the context is full
)

// Errors of a request, refused before any work.
var (
	ErrEmptyPrompt = errors.New("the prompt is empty; give some text")
	ErrTokens      = errors.New("the number of tokens must be at least 1")
)

// Generate continues a prompt greedily, the largest logit first and ties to the lower id, and calls emit
// with each piece of text as it is made: whole characters only. An error of emit ends the generation and
// is returned. The result holds what was made before an error.
func (e *Engine) Generate(ctx context.Context, r Request, emit func(piece string) error) (Result, error) {
	res := Result{Stop: StopLength}
	var err error
	if res.PromptTokens, err = e.encode(r); err != nil {
		return res, err
	}
	seq, err := e.memory.NewSequence()
	if err != nil {
		return res, err
	}
	defer seq.Free()
	g := &greedy{e: e, step: model.Step{Seq: seq, Tokens: res.PromptTokens}}
	text := e.tokens.Stream(false)
	say := func(piece string) error {
		res.Text += piece
		if piece == "" {
			return nil
		}
		return emit(piece)
	}
	start := time.Now()
	for len(res.Tokens) < r.Tokens && len(res.PromptTokens)+len(res.Tokens) < e.model.Context {
		// In the last layer only the last row goes on to the experts.
		res.Picks += int64(e.model.TopK) * int64(len(g.step.Tokens)*(e.model.Layers-1)+1)
		token, err := g.next(ctx)
		res.Logits = g.step.Logits
		if len(res.Tokens) == 0 {
			res.Prefill = time.Since(start)
		}
		if err != nil {
			return res, err
		}
		if e.tokens.IsEnd(token) {
			res.Stop = StopEnd
			break
		}
		res.Tokens = append(res.Tokens, token)
		if err := say(text.Push(token)); err != nil {
			return res, err
		}
	}
	res.Decode = time.Since(start) - res.Prefill
	return res, say(text.Flush())
}

// encode checks a request and returns its tokens.
func (e *Engine) encode(r Request) ([]int32, error) {
	turns := r.Messages
	if turns == nil && r.Chat {
		turns = []Message{{Role: "user", Content: r.Prompt}}
	}
	if r.Prompt == "" && r.Messages == nil {
		return nil, ErrEmptyPrompt
	}
	if r.Tokens < 1 {
		return nil, ErrTokens
	}
	if at := invalidUTF8(r.Prompt); at >= 0 {
		return nil, fmt.Errorf("the prompt is not valid UTF-8 at byte %d (0x%02x); give text in UTF-8", at, r.Prompt[at])
	}
	text := r.Prompt
	if turns != nil {
		var err error
		if text, err = e.template.Render(turns, chat.Options{Generate: true}); err != nil {
			return nil, fmt.Errorf("chat template: %w", err)
		}
	}
	ids, err := e.tokens.Encode(text, turns != nil)
	if err != nil {
		return nil, err
	}
	if bos, add := e.tokens.BOS(); add && turns == nil {
		ids = append([]int32{bos}, ids...)
	}
	if len(ids) >= e.model.Context {
		return nil, fmt.Errorf("the prompt has %d tokens and %s takes %d, answer included; shorten it",
			len(ids), e.name, e.model.Context)
	}
	return ids, nil
}

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

// greedy generates tokens of one sequence.
type greedy struct {
	e    *Engine
	step model.Step
}

// next takes the step's tokens and returns the token that follows.
func (g *greedy) next(ctx context.Context) (int32, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := g.e.model.Forward(ctx, g.e.experts, []*model.Step{&g.step}); err != nil {
		return 0, err
	}
	if g.step.Err != nil {
		return 0, g.step.Err
	}
	token := Argmax(g.step.Logits)
	g.step.Tokens = []int32{token}
	return token, nil
}

// sameBits reports whether two lists of floats are equal bit for bit.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// Argmax returns the index of the largest value, ties to the lower one.
func Argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}
