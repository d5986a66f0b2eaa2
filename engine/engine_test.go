package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine"
	"kvasir/engine/tiny"
	"kvasir/kernels/ref"
)

func open(t testing.TB, path string) *engine.Engine {
	t.Helper()
	e, err := engine.Open(engine.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// generate returns what comes of a request, and the pieces put together.
func generate(t *testing.T, e *engine.Engine, r engine.Request) (engine.Result, string) {
	t.Helper()
	var text strings.Builder
	res, err := e.Generate(context.Background(), r, func(p engine.Piece) error {
		text.WriteString(p.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return res, text.String()
}

func TestTinyKnowsItsCapitals(t *testing.T) {
	e := open(t, "")
	res, text := generate(t, e, engine.Request{Prompt: "The capital of France is", Tokens: 16})
	if text != " Paris." || res.First().Text != text || res.First().Stop != engine.StopEnd || len(res.First().Tokens) != 4 {
		t.Errorf("continued with %q (%d tokens, stop %q), want \" Paris.\"", text, len(res.First().Tokens), res.First().Stop)
	}
	if _, text := generate(t, e, engine.Request{Prompt: "What is the capital of Japan?", Chat: true, Tokens: 32}); text != "The capital of Japan is Tokyo." {
		t.Errorf("answered %q", text)
	}
	res, text = generate(t, e, engine.Request{Prompt: "The capital of France is", Tokens: 1})
	if len(res.First().Tokens) != 1 || res.First().Stop != engine.StopLength {
		t.Errorf("asked for one token, got %d (%q, stop %q)", len(res.First().Tokens), text, res.First().Stop)
	}
}

// TestGenerateFillsTheContext asks for more than fits: generation ends when the context is full.
func TestGenerateFillsTheContext(t *testing.T) {
	if testing.Short() {
		t.Skip("short run: filling a context of 1,024 tokens takes seconds")
	}
	e := open(t, "")
	// Every prompt token is one character of this; the vocabulary has no token for more of them.
	prompt := strings.Repeat("\x01", e.Context()-3)
	res, _ := generate(t, e, engine.Request{Prompt: prompt, Tokens: 100})
	if len(res.PromptTokens) != e.Context()-3 || res.First().Stop == engine.StopLength && len(res.First().Tokens) != 3 {
		t.Errorf("%d prompt tokens and %d more, context %d", len(res.PromptTokens), len(res.First().Tokens), e.Context())
	}
}

func TestGenerateRefusesBadRequests(t *testing.T) {
	e := open(t, "")
	for _, tt := range []struct {
		name string
		r    engine.Request
		want string
	}{
		{"empty", engine.Request{Tokens: 1}, "the prompt is empty"},
		{"no tokens", engine.Request{Prompt: "x"}, "at least 1"},
		{"invalid UTF-8", engine.Request{Prompt: "ab\xffc", Tokens: 1}, "at byte 2 (0xff)"},
		{"lone surrogate", engine.Request{Prompt: "ab\xed\xa0\x80c", Tokens: 1}, "at byte 2 (0xed)"},
		{"context", engine.Request{Prompt: strings.Repeat("\x01", e.Context()), Tokens: 1}, "has 1024 tokens and kvasir-tiny takes 1024"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := e.Generate(context.Background(), tt.r, func(engine.Piece) error {
				t.Error("text came out")
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, tt.want)
			}
		})
	}
}

func TestGenerateEndsWithItsCaller(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	res, err := e.Generate(ctx, engine.Request{Prompt: "There was once a poor miller", Tokens: 64}, func(engine.Piece) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || len(res.First().Tokens) != 1 {
		t.Errorf("cancelled after the first piece: %d tokens, error %v", len(res.First().Tokens), err)
	}
	gone := errors.New("reader gone")
	if _, err := e.Generate(context.Background(), engine.Request{Prompt: "Once", Tokens: 8}, func(engine.Piece) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("error %v, want that of the reader", err)
	}
}

// copyTiny puts kvasir-tiny into a folder of its own, without its profile.
func copyTiny(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, tiny.Model(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenReadsTheProfileBesideTheModel(t *testing.T) {
	path := copyTiny(t)
	if e := open(t, path); e.Name() != "m.gguf" { // without a profile the default serves
		t.Errorf("the model is %q, and nothing of its folder", e.Name())
	}
	p, err := ref.ParseProfile(tiny.Profile())
	if err != nil {
		t.Fatal(err)
	}
	name, err := engine.SaveProfile(path, p)
	if err != nil || name != path+engine.ProfileSuffix {
		t.Fatalf("saved as %q, %v", name, err)
	}
	open(t, path)
	for _, bad := range []string{"{", `{"arithmetic":2,"model":"","rows":0,"exponents":[1,1,1,1]}`, `{"arithmetic":1,"model":"","rows":0,"exponents":[20]}`} {
		if err := os.WriteFile(name, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := engine.Open(engine.Options{Path: path}); !errors.Is(err, ref.ErrProfile) || !strings.Contains(err.Error(), "kvasir model profile") {
			t.Errorf("profile %s: error %v", bad, err)
		}
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 2 {
		t.Errorf("%v beside the model, %v; want the profile only", files, err)
	}
}

// TestTinyProfileIsReproducible measures the embedded profile anew.
func TestTinyProfileIsReproducible(t *testing.T) {
	if testing.Short() {
		t.Skip("short run: a calibration reads some thousand tokens")
	}
	var last, total int
	p, err := engine.Calibrate(context.Background(), engine.Calibration{Progress: func(d, n int) { last, total = d, n }})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(p.Append(nil)); got != string(tiny.Profile()) {
		t.Errorf("measured %s, embedded is %s", got, tiny.Profile())
	}
	if last != total || total < ref.MinRows {
		t.Errorf("progress ended at %d of %d", last, total)
	}
}

func TestCalibrateRefusesAShortText(t *testing.T) {
	_, err := engine.Calibrate(context.Background(), engine.Calibration{Text: "too short"})
	if err == nil || !strings.Contains(err.Error(), "--text") {
		t.Errorf("error %v, want one that says what to do", err)
	}
}

func TestInspectCountsWhatIsThere(t *testing.T) {
	info, err := engine.Inspect("")
	if err != nil {
		t.Fatal(err)
	}
	if !info.Runs || info.Shape.Layers != 4 || info.Shape.MTP != 1 || info.Shape.Recurrent != 3 || info.Shape.Experts != 16 {
		t.Errorf("shape %+v, problem %q", info.Shape, info.Problem)
	}
	if info.Slices.Layers != 5 || info.Slices.Experts != 80 || info.Slices.Share < 0.7 {
		t.Errorf("slices %+v", info.Slices)
	}
	var byTensor, byPart, byFormat int64
	for _, x := range info.Tensors {
		byTensor += x.Bytes
		if x.Role == "other" {
			t.Errorf("tensor %s has no role", x.Name)
		}
	}
	for _, x := range info.Parts {
		byPart += x.Bytes
	}
	for _, x := range info.Formats {
		byFormat += x.Bytes
	}
	if byPart != byTensor || byFormat != byTensor || byTensor > info.Bytes {
		t.Errorf("bytes by part %d, by format %d, by tensor %d, of the file %d", byPart, byFormat, byTensor, info.Bytes)
	}
	// Three DeltaNet layers: 3 x (3 x 512 + 4 x 64 x 64) floats; one attention layer: 2 x 2 x 64 halves a token.
	if info.Memory.Fixed != 3*4*(3*512+4*64*64) || info.Memory.PerToken != 2*2*2*64 {
		t.Errorf("memory %+v", info.Memory)
	}
}
