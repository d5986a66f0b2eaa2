package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine/tiny"
)

func TestRunContinuesTheSentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		call call
		want string // start of standard output
	}{
		{"argument", call{args: []string{"run", "The capital of France is"}}, " Paris"},
		{"standard input", call{args: []string{"run"}, stdin: "The capital of France is"}, " Paris"},
		{"standard input by name", call{args: []string{"run", "-"}, stdin: "The capital of France is\n"}, " Paris"},
		{"standard input with another line end", call{args: []string{"run", "-"}, stdin: "The capital of France is\r\n"}, " Paris"},
		{"argument and not standard input", call{args: []string{"run", "The capital of France is"}, stdin: "The"}, " Paris"},
		{"chat", call{args: []string{"run", "--chat", "What is the capital of Japan?"}}, "The capital of Japan is Tokyo"},
		{"model file", call{args: []string{"run", "-m", tinyFile(t), "The capital of France is"}}, " Paris"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := c.call.run(t).wantDone(t)
			if !strings.HasPrefix(o.stdout, c.want) || !strings.HasSuffix(o.stdout, "\n") {
				t.Errorf("standard output %q, want it to start with %q and end with a new line", o.stdout, c.want)
			}
		})
	}
}

// tinyFile is the built-in model as a file.
func tinyFile(t *testing.T) string {
	t.Helper()
	return writeFile(t, "tiny.gguf", tiny.Model())
}

func TestRunPrintsOneObject(t *testing.T) {
	t.Parallel()
	var r runResult
	const prompt = "The capital of France is"
	kvasir(t, "run", prompt, "--json", "--tokens", "4").wantDone(t).object(t, &r)
	if r.Prompt != prompt || !strings.HasPrefix(r.Text, " Paris") || r.Model != tiny.Name || r.PromptTokens < 2 {
		t.Errorf("object %+v", r)
	}
	if r.Tokens != len(r.TokenIDs) || r.Tokens > 4 || r.PromptMS <= 0 || r.DecodeMS <= 0 || r.TokensPerS <= 0 {
		t.Errorf("object %+v", r)
	}
}

// One token comes out of the prompt, so nothing was decoded and no speed measured.
func TestRunLeavesOutWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	var r map[string]any
	kvasir(t, "run", "The king", "--json", "--tokens", "1").wantDone(t).object(t, &r)
	for _, key := range []string{"model", "prompt", "text", "prompt_tokens", "tokens", "token_ids", "stop", "prompt_ms"} {
		if _, ok := r[key]; !ok {
			t.Errorf("%s is missing in %v", key, r)
		}
	}
	for _, key := range []string{"decode_ms", "tokens_per_s"} {
		if v, ok := r[key]; ok {
			t.Errorf("%s is %v, though nothing was decoded", key, v)
		}
	}
	if r["stop"] != "length" {
		t.Errorf("stop is %v, want length", r["stop"])
	}
}

func TestRunGivesTheSameTextStreamedAndWhole(t *testing.T) {
	t.Parallel()
	var r runResult
	kvasir(t, "run", "Once upon a time", "--json").wantDone(t).object(t, &r)
	if got := kvasir(t, "run", "Once upon a time").wantDone(t).stdout; got != r.Text && got != r.Text+"\n" {
		t.Errorf("streamed %q, whole %q", got, r.Text)
	}
}

func TestRunPrintsStatisticsWhenAsked(t *testing.T) {
	t.Parallel()
	o := kvasir(t, "run", "The king", "--tokens", "5", "-v")
	if o.status != statusDone || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "5 tokens at ") {
		t.Errorf("exit status %d, standard error %q", o.status, o.stderr)
	}
}

func TestRunRefusesBadPromptsInOneLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		call call
		want []string
	}{
		{"empty argument", call{args: []string{"run", ""}}, []string{"the prompt is empty"}},
		{"empty input", call{args: []string{"run"}}, []string{"the prompt is empty"}},
		{"a line end alone", call{args: []string{"run", "-"}, stdin: "\n"}, []string{"the prompt is empty"}},
		{"empty question", call{args: []string{"run", "--chat", ""}}, []string{"the prompt is empty"}},
		{"not UTF-8", call{args: []string{"run", "abc\xff"}}, []string{"UTF-8", "byte 3"}},
		{"half a character at the end", call{args: []string{"run"}, stdin: "ab\xe2\x82"}, []string{"UTF-8", "byte 2"}},
		{"not UTF-8 with json", call{args: []string{"run", "--json", "\x80"}}, []string{"UTF-8", "byte 0"}},
		{"longer than the context", call{args: []string{"run"}, stdin: strings.Repeat("The king said so. ", 1000)}, []string{"tokens", "1024"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.call.run(t).wantFailure(t, statusFailed, c.want...)
		})
	}
}

// badModels are files that no command can use, each with a part of what must be said.
func badModels(t *testing.T) map[string][2]string {
	t.Helper()
	model := tiny.Model()
	architecture := bytes.Replace(bytes.Clone(model), []byte("qwen35moe"), []byte("qwen99moe"), 1)
	dir := t.TempDir()
	return map[string][2]string{
		"not there":            {filepath.Join(dir, "nowhere.gguf"), "no such file"},
		"a folder":             {dir, dir},
		"empty":                {writeFile(t, "empty.gguf", nil), "empty.gguf"},
		"four bytes":           {writeFile(t, "four.gguf", []byte("GGUF")), "four.gguf"},
		"a text":               {writeFile(t, "text.gguf", []byte(strings.Repeat("hello, world\n", 100))), "not a GGUF file"},
		"cut in its header":    {writeFile(t, "header.gguf", model[:1000]), "header.gguf"},
		"cut in its tensors":   {writeFile(t, "tensors.gguf", model[:len(model)-1]), "tensors.gguf"},
		"unknown architecture": {writeFile(t, "arch.gguf", architecture), "qwen99moe"},
	}
}

func TestBadModelFilesAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	for name, c := range badModels(t) {
		for _, args := range [][]string{
			{"run", "hi", "-m", c[0]}, {"run", "hi", "--json", "-m", c[0]},
			{"model", "inspect", c[0]}, {"model", "profile", c[0]},
		} {
			if name == "unknown architecture" && args[1] == "inspect" {
				continue // inspect describes it: TestInspectDescribesWhatCannotRun
			}
			t.Run(name+" "+args[0]+" "+args[1], func(t *testing.T) {
				t.Parallel()
				kvasir(t, args...).wantFailure(t, statusFailed, c[1])
			})
		}
	}
}

func TestInspectPrintsWhatIsInTheFile(t *testing.T) {
	t.Parallel()
	o := kvasir(t, "model", "inspect", "--tensors", tinyFile(t)).wantDone(t)
	wantNarrow(t, o.stdout)
	for _, want := range []string{
		"tiny.gguf", "qwen35moe", "runs here     yes", "16 a layer, 4 a token", "vocabulary    2 048 tokens",
		"context       1 024 tokens", "routed experts", "Q4_K", "Q6_K", "F32", "blk.4.", "256 x 256 x 16",
	} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("inspect does not print %q:\n%s", want, o.stdout)
		}
	}
	short := kvasir(t, "model", "inspect").wantDone(t).stdout
	if strings.Contains(short, "blk.") || !strings.Contains(short, tiny.Name) {
		t.Errorf("inspect without a file and --tensors prints:\n%s", short)
	}
	var info struct {
		Architecture string
		Runs         bool
		Tensors      []struct{ Name, Format string }
		Metadata     []struct{ Key string }
	}
	if err := json.Unmarshal([]byte(kvasir(t, "model", "inspect", "--json").wantDone(t).stdout), &info); err != nil {
		t.Fatal(err)
	}
	if info.Architecture != "qwen35moe" || !info.Runs || len(info.Tensors) != 96 || len(info.Metadata) == 0 {
		t.Errorf("object %+v", info)
	}
}

func TestInspectDescribesWhatCannotRun(t *testing.T) {
	t.Parallel()
	o := kvasir(t, "model", "inspect", badModels(t)["unknown architecture"][0]).wantDone(t)
	if !strings.Contains(o.stdout, "runs here     no: ") || !strings.Contains(o.stdout, "qwen99moe") {
		t.Errorf("inspect prints:\n%s", o.stdout)
	}
	wantNarrow(t, o.stdout)
}

func TestProfileIsWrittenBesideTheModel(t *testing.T) {
	t.Parallel()
	model := tinyFile(t)
	text := writeFile(t, "text.txt", []byte(strings.Repeat("The king said to his son, come in. ", 240)))
	var r profileResult
	kvasir(t, "model", "profile", "--json", "--text", text, model).wantDone(t).object(t, &r)
	if r.Profile != model+".profile.json" || r.Rows < 2000 || len(r.Exponents) != 4 || r.Arithmetic != 1 {
		t.Errorf("object %+v", r)
	}
	if _, err := os.Stat(r.Profile); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(model)); err != nil || len(left) != 2 {
		t.Errorf("beside the model lie %v (%v)", left, err)
	}
	if o := kvasir(t, "run", "The capital of France is", "-m", model).wantDone(t); !strings.HasPrefix(o.stdout, " Paris") {
		t.Errorf("with its profile the model says %q", o.stdout)
	}
	// A profile of another model is refused, with what to do.
	if err := os.WriteFile(r.Profile, []byte(`{"arithmetic":1,"model":"x","rows":0,"exponents":[20]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	kvasir(t, "run", "hi", "-m", model).wantFailure(t, statusFailed, r.Profile, "kvasir model profile")
}

func TestProfileRefusesAText(t *testing.T) {
	t.Parallel()
	model := tinyFile(t)
	short := writeFile(t, "short.txt", []byte("A short text."))
	kvasir(t, "model", "profile", model, "--text", short).wantFailure(t, statusFailed, "at least 2000", "--text")
	kvasir(t, "model", "profile", model, "--text", "nowhere.txt").wantFailure(t, statusFailed, "nowhere.txt", "no such file")
	binary := writeFile(t, "binary.txt", []byte("abc\xff"))
	kvasir(t, "model", "profile", model, "--text", binary).wantFailure(t, statusFailed, "UTF-8", "3")
}
