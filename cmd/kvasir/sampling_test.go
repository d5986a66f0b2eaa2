package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	capital = "The capital of France is"
	story2  = "Once upon a time"
)

// drawn is a run whose tokens are drawn.
func drawn(t *testing.T, args ...string) (r runResult) {
	t.Helper()
	kvasir(t, append([]string{"run", story2, "--json", "--tokens", "12"}, args...)...).wantDone(t).object(t, &r)
	return r
}

func TestSeedDecidesWhatIsDrawn(t *testing.T) {
	t.Parallel()
	first := drawn(t, "--temperature", "1.5", "--seed", "7")
	if again := drawn(t, "--temperature", "1.5", "--seed", "7"); again.Text != first.Text {
		t.Errorf("the same seed draws %q and %q", first.Text, again.Text)
	}
	if other := drawn(t, "--temperature", "1.5", "--seed", "8"); other.Text == first.Text {
		t.Errorf("seeds 7 and 8 both draw %q", other.Text)
	}
	greedy := drawn(t)
	for _, args := range [][]string{
		{"--seed", "8"}, // without a temperature nothing is drawn
		{"--temperature", "1.5", "--top-k", "1"},
		{"--temperature", "1.5", "--top-p", "0"},
		{"--temperature", "1.5", "--min-p", "1"},
	} {
		if r := drawn(t, args...); r.Text != greedy.Text {
			t.Errorf("%q gives %q, want what is likeliest, %q", args, r.Text, greedy.Text)
		}
	}
}

func TestFlagsOfSamplingChangeTheText(t *testing.T) {
	t.Parallel()
	r := drawn(t)
	for _, args := range [][]string{
		{"--repetition-penalty", "5"},
		{"--repetition-penalty", "5", "--repetition-window", "8"},
		{"--presence-penalty", "2", "--frequency-penalty", "2"},
		{fmt.Sprintf("--bias=%d=-100", r.TokenIDs[0])},
	} {
		if other := drawn(t, args...); other.Text == r.Text {
			t.Errorf("%q changes nothing: %q", args, r.Text)
		}
	}
}

func TestStopsEndATextBeforeThem(t *testing.T) {
	t.Parallel()
	whole := drawn(t)
	third := fmt.Sprint(whole.TokenIDs[2])
	at := slices.Index(whole.TokenIDs, whole.TokenIDs[2])
	if r := drawn(t, "--stop-token", "1", "--stop-token", third); r.Stop != "stop" || !slices.Equal(r.TokenIDs, whole.TokenIDs[:at]) {
		t.Errorf("stopped at a token: %+v of %+v", r, whole)
	}
	words := strings.Fields(whole.Text)
	before, _, _ := strings.Cut(whole.Text, words[2])
	if r := drawn(t, "--stop", "not there", "--stop", words[2]); r.Stop != "stop" || r.Text != before {
		t.Errorf("stopped at %q: %+v, want %q", words[2], r, before)
	}
}

func TestSeveralChoicesAreTold(t *testing.T) {
	t.Parallel()
	r := drawn(t, "-n", "3", "--temperature", "1.5")
	if len(r.Choices) != 3 || r.Text != r.Choices[0].Text || r.Choices[0].Text == r.Choices[1].Text {
		t.Fatalf("choices %+v", r)
	}
	alone := drawn(t, "--temperature", "1.5")
	if alone.Text != r.Text || alone.Choices != nil {
		t.Errorf("alone: %+v; first of three: %q", alone, r.Text)
	}
	text := kvasir(t, "run", story2, "--tokens", "12", "-n", "3", "--temperature", "1.5").wantDone(t).stdout
	at := 0
	for i, c := range r.Choices {
		next := strings.Index(text[at:], fmt.Sprintf("%d of 3\n%s\n", i+1, strings.TrimSuffix(c.Text, "\n")))
		if next < 0 {
			t.Fatalf("text %d, %q, is not in its place:\n%s", i+1, c.Text, text)
		}
		at += next + 1
	}
}

func TestLogprobsAreTold(t *testing.T) {
	t.Parallel()
	var r runResult
	kvasir(t, "run", capital, "--json", "--tokens", "4", "--logprobs", "2").wantDone(t).object(t, &r)
	if len(r.Logprobs) != r.Tokens {
		t.Fatalf("%d log probabilities of %d tokens", len(r.Logprobs), r.Tokens)
	}
	text := ""
	for i, l := range r.Logprobs {
		text += l.Text
		if l.ID != r.TokenIDs[i] || l.Logprob > 0 || len(l.Top) != 2 || l.Top[0].ID != l.ID || l.Top[0].Logprob < l.Top[1].Logprob {
			t.Errorf("token %d: %+v", i, l)
		}
	}
	if text != r.Text {
		t.Errorf("the tokens are %q, the text %q", text, r.Text)
	}
	table := kvasir(t, "run", capital, "--tokens", "4", "--logprobs", "1").wantDone(t).stdout
	if !strings.HasPrefix(table, " Paris.\n\ntoken ") || strings.Count(table, "\n") != 7 {
		t.Errorf("the table is\n%s", table)
	}
	wantNarrow(t, table)
	var without map[string]any
	kvasir(t, "run", capital, "--json", "--tokens", "2", "--logprobs", "0").wantDone(t).object(t, &without)
	if l := without["logprobs"].([]any)[0].(map[string]any); l["logprob"] == nil || l["top"] != nil {
		t.Errorf("without others: %v", l)
	}
}

// reasoned has the model reason, though it knows nothing of that.
const reasoned = `root ::= "<think>\nhm, what\n</think>\n\nParis \x1B[2J"`

func TestGrammarHoldsTheText(t *testing.T) {
	t.Parallel()
	yes := writeFile(t, "yes.gbnf", []byte(`root ::= "yes" | "no"`))
	for range 2 {
		if text := kvasir(t, "run", "hi", "--grammar", yes).wantDone(t).stdout; text != "yes\n" && text != "no\n" {
			t.Errorf("held to yes or no the model says %q", text)
		}
	}
	var r runResult
	kvasir(t, "run", "hi", "--chat", "--json", "--grammar", writeFile(t, "r.gbnf", []byte(reasoned))).wantDone(t).object(t, &r)
	if r.Reasoning != "hm, what" || r.Content == nil || *r.Content != "Paris \x1b[2J" || !strings.HasPrefix(r.Text, "<think>") {
		t.Errorf("answer %+v", r)
	}
}

func TestBadValuesNameTheirFlag(t *testing.T) {
	t.Parallel()
	bad := func(name, text string) string { return writeFile(t, name, []byte(text)) }
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"--temperature=-1", statusUsage, "--temperature: want 0 to 100, got -1"},
		{"--temperature=nan", statusUsage, `--temperature: want a number, got "nan"`},
		{"--temperature=1e60", statusUsage, `--temperature: want a number, got "1e60"`},
		{"--temperature -1", statusUsage, "--temperature needs an equals sign before a number below 0: --temperature=-1"},
		{"--top-k=-1", statusUsage, `--top-k: want a whole number of 0 or more, got "-1"`},
		{"--top-k=1.5", statusUsage, `--top-k: want a whole number`},
		{"--top-p=1.5", statusUsage, "--top-p: want 0 to 1, got 1.5"},
		{"--min-p=-0.5", statusUsage, "--min-p: want 0 to 1, got -0.5"},
		{"--repetition-penalty=0", statusUsage, "--repetition-penalty: want 0.01 to 100, got 0"},
		{"--repetition-window=-1", statusUsage, "--repetition-window: want a whole number of 0 or more"},
		{"--presence-penalty=3", statusUsage, "--presence-penalty: want -2 to 2, got 3"},
		{"--frequency-penalty=-3", statusUsage, "--frequency-penalty: want -2 to 2, got -3"},
		{"--bias=5", statusUsage, `--bias: want TOKEN=VALUE, as in 198=-5, got "5"`},
		{"--bias=x=1", statusUsage, "--bias: want TOKEN=VALUE"},
		{"--bias=5=101", statusUsage, "--bias: want -100 to 100, got 101 for token 5"},
		{"--bias=2048=1", statusUsage, "--bias: want 0 to 2047, got token 2048"},
		{"--seed=-1", statusUsage, `--seed: want a whole number of 0 to 2^64-1, got "-1"`},
		{"--seed=99999999999999999999", statusUsage, "--seed: want a whole number"},
		{"-n 0", statusUsage, `--choices: want a whole number of 1 or more, got "0"`},
		{"-n 129", statusUsage, "--choices: want 1 to 128"},
		{"--logprobs=21", statusUsage, "--logprobs: want 0 to 20, got 21"},
		{"--logprobs=x", statusUsage, "--logprobs: want a whole number"},
		{"--stop=", statusUsage, "--stop: want some text"},
		{"--stop=\xff", statusUsage, "--stop: want text in UTF-8"},
		{"--stop-token=x", statusUsage, `--stop-token: want the number of a token, got "x"`},
		{"--stop-token=2048", statusUsage, "--stop-token: want 0 to 2047, got token 2048"},
		{"--grammar=nowhere", statusFailed, "--grammar nowhere: no such file"},
		{"--grammar=.", statusFailed, "--grammar .: is a directory"},
		{"--grammar=" + bad("empty.gbnf", ""), statusFailed, "the file is empty"},
		{"--grammar=" + bad("bad.gbnf", "root ::= ["), statusFailed, "bad.gbnf: grammar: bad syntax"},
		{"--schema=nowhere", statusFailed, "--schema nowhere: no such file"},
		{"--grammar=a --json-text", statusUsage, "one of --grammar, --schema and --json-text"},
		{"--system=x", statusUsage, "--system is of no use without --chat"},
		{"--chat --system=\xff", statusUsage, "--system: want text in UTF-8"},
		{"--no-thinking", statusUsage, "--thinking is of no use without --chat"},
		{"--chat --thinking=maybe", statusUsage, "--thinking: want true or false"},
		{"--tools=x", statusUsage, "--tools is of no use without --chat"},
		{"--chat --tools=nowhere", statusFailed, "--tools nowhere: no such file"},
		{"--chat --tools=" + bad("object.json", "{}"), statusFailed, "want a JSON list of functions"},
		{"--chat --tools=" + bad("numbers.json", "[1]"), statusFailed, "want a JSON list of functions"},
		{"--kv=f15", statusUsage, `--kv: want f16, q8_0 or f32, got "f15"`},
		{"--kv=", statusUsage, "--kv: want f16, q8_0 or f32"},
		{"--state=f16", statusUsage, `--state: want f32 or bf16, got "f16"`},
		{"--memory=0B", statusUsage, "--memory: want a size such as 512MiB or 8GiB"},
		{"--memory=8", statusUsage, `got "8"`},
		{"--memory=8XB", statusUsage, `got "8XB"`},
		{"--memory=99999999TiB", statusUsage, `got "99999999TiB"`},
		{"--memory=1B", statusFailed, "give more memory"},
		{"--experts=near", statusUsage, `--experts: want local or remote, got "near"`},
		{"--experts=remote", statusUsage, "--experts remote needs --hub"},
		{"--workers=3", statusUsage, "--workers is of no use without --experts remote"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			kvasir(t, append([]string{"run", "hi", "--tokens", "2"}, strings.Fields(c.args)...)...).wantFailure(t, c.status, c.want)
		})
	}
}

func TestLossyStatesAreLabelled(t *testing.T) {
	t.Parallel()
	var r runResult
	kvasir(t, "run", capital, "--json", "--tokens", "3", "--state", "BF16", "--kv", "q8_0").wantDone(t).object(t, &r)
	if r.Lossy == "" || r.Text != " Paris" {
		t.Errorf("object %+v", r)
	}
	o := kvasir(t, "run", capital, "--tokens", "3", "--state", "bf16", "-v")
	if !strings.Contains(o.stderr, "states in bf16, which is lossy") {
		t.Errorf("standard error %q", o.stderr)
	}
	o = kvasir(t, "run", capital, "--tokens", "3", "--kv", "f32", "-v")
	if strings.Contains(o.stderr, "lossy") {
		t.Errorf("standard error %q", o.stderr)
	}
}

func TestMemoryBoundsTheContext(t *testing.T) {
	t.Parallel()
	c := call{args: []string{"run", "--memory", "512KiB"}, stdin: strings.Repeat("The king said so. ", 150)}
	c.run(t).wantFailure(t, statusFailed, "there is memory for", "give more memory")
	c.args = []string{"run", "--tokens", "1"}
	c.run(t).wantDone(t)
}

// Settings of every kind reach a command from the file.
func TestSettingsFileHasFractionsAndLists(t *testing.T) {
	t.Parallel()
	whole := drawn(t)
	words := strings.Fields(whole.Text)
	text := fmt.Sprintf("temperature = 0.5\ntop-k = 1\nseed = 7\n[run]\nstop = [\"not there\", %q]\nlogprobs = 1\nmemory = \"64 MiB\"\nsystem = \"x\"\n", words[2])
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "kvasir.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(whole.Text, words[2])
	if r := drawn(t, "--home", home); r.Text != before || len(r.Logprobs) == 0 {
		t.Errorf("text %q, want %q", r.Text, before)
	}
	c := call{args: []string{"--home", home}}
	for setting, want := range map[string]any{
		"temperature": 0.5, "top-k": 1., "seed": 7., "logprobs": 1., "memory": "64 MiB", "thinking": nil, "min-p": 0.,
	} {
		if v := c.inForce(t, setting, "run"); v.Value != want {
			t.Errorf("%s is %v, want %v", setting, v.Value, want)
		}
	}
	if v := c.inForce(t, "stop", "run"); fmt.Sprint(v.Value) != fmt.Sprintf("[not there %s]", words[2]) {
		t.Errorf("stop is %v", v.Value)
	}
	for _, bad := range []struct{ text, want string }{
		{"temperature = \"1\"", "temperature must be a number, without quotes"},
		{"top-k = 1.5", "top-k must be a whole number"},
		{"stop = 5", "stop must be text in quotes, or a list of such"},
		{"stop = []", "stop must be text in quotes, or a list of such"},
		{"stop = [1]", "stop must be text in quotes, or a list of such"},
		{"bias = [\"5=1\", \"x\"]", `bias is wrong: want TOKEN=VALUE, as in 198=-5, got "x"`},
		{"seed = -1", "seed is wrong: want a whole number of 0 to 2^64-1"},
		{"thinking = 1", "thinking must be true or false"},
		{"memory = 8", "memory must be text in quotes"},
	} {
		file := writeFile(t, "kvasir.toml", []byte(bad.text))
		kvasir(t, "version", "--config", file).wantFailure(t, statusUsage, ":1: ", bad.want)
	}
}
