package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"kvasir/batcher/place"
)

const planExample = `
[model]
layers = 8
experts = 16
top_k = 2
hidden = 1024
expert_bytes = 1_000_000

[backbone]
layer_ms = 2
batch = 256

[[worker]]
name = "attic"
count = 2
memory_gb = 0.2
rows = 400_000
rtt_ms = 10
cached = ["0-1", "4:0-7"]

[[worker]]
name = "tiny"
memory_gb = 0.001
`

func TestPlanPredictsADescribedSwarm(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "swarm.toml", []byte(planExample))
	var r planResult
	kvasir(t, "plan", "--swarm", file, "--json").wantDone(t).object(t, &r)
	names := []string{}
	for _, w := range r.Workers {
		names = append(names, w.Name)
		if w.Used != (w.Name != "tiny") || w.Why == "" {
			t.Errorf("worker %+v", w)
		}
	}
	if !slices.Equal(names, []string{"attic-1", "attic-2", "tiny"}) || r.ExpertBytes != 128e6 || r.Batch != 256 {
		t.Errorf("%v; %+v", names, r)
	}
	// 256 rows every 16 ms of the backbone; a step is 8 layers of 2 + 10 ms and, as both hold all, 256 picks
	// at 400,000 a second.
	f := r.Forecast
	if f.Bound != place.ByAttention || math.Abs(f.Tokens-16000) > 1 || math.Abs(f.Step.Seconds()-8*0.01264) > 1e-3 || f.Needed != 7 {
		t.Errorf("forecast %+v", f)
	}
	text := kvasir(t, "plan", "--swarm", file).wantDone(t).stdout
	wantNarrow(t, text)
	for _, want := range []string{"attention", "7 micro-batches of 256 rows", "attic-1", "not used: of its memory", "layers 0-7"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestPlanReadsTheExampleOfItsHelp(t *testing.T) {
	t.Parallel()
	_, example, _ := strings.Cut(planCmd{}.Help(), "\n\n")
	example, _, _ = strings.Cut(example, "An expert-row is")
	var r planResult
	kvasir(t, "plan", "--json", "--swarm", writeFile(t, "swarm.toml", []byte(example))).wantDone(t).object(t, &r)
	if len(r.Workers) != 3 || r.Forecast.Tokens <= 0 || len(r.Backbone) != 2 {
		t.Errorf("plan of the example: %+v", r)
	}
}

func TestPlanTakesTheModelFromAFile(t *testing.T) {
	t.Parallel()
	model := writeFile(t, "m.gguf", nil)
	kvasir(t, "model", "synth", "--like", "mini", "--force", model).wantDone(t)
	var r planResult
	file := writeFile(t, "swarm.toml", []byte("[model]\nfile = '"+model+"'\n[[worker]]\nmemory_gb = 100\nrows = 1000\n"))
	kvasir(t, "plan", "--swarm", file, "--json").wantDone(t).object(t, &r)
	if r.Layers == 0 || r.ExpertBytes == 0 || len(r.Missing) != 0 {
		t.Errorf("plan %+v", r)
	}
}

func TestPlanNamesWhatIsWrongByKeyAndLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, from, to string
		want           []string
	}{
		{"no TOML", "[model]", "[model", []string{"swarm.toml:3"}},
		{"unknown table", "[backbone]", "[bakbone]", []string{":9", "unknown key bakbone", "did you mean backbone?"}},
		{"unknown key", "rtt_ms", "rtt", []string{":18", "unknown key rtt", "did you mean rtt_ms?"}},
		{"word for a number", "rows = 400_000", `rows = "many"`, []string{":17", "rows in [worker]", "a number above 0"}},
		{"below zero", "rtt_ms = 10", "rtt_ms = -1", []string{":18", "rtt_ms", "milliseconds"}},
		{"too many layers", "layers = 8", "layers = 5000", []string{":3", "layers in [model]", "from 1 to 1024"}},
		{"no number", "layer_ms = 2", "layer_ms = nan", []string{":10", "layer_ms"}},
		{"ranges", `"4:0-7"`, `"4:7-0"`, []string{":19", "cached", "a list of layers"}},
		{"range beyond", `"4:0-7"`, `"9"`, []string{"attic", "layer 9, and the model has 8"}},
		{"expert beyond", `"4:0-7"`, `"4:0-16"`, []string{"attic", "expert 16 of layer 4, which has 16"}},
		{"more picks than experts", "top_k = 2", "top_k = 17", []string{"top_k is 17, and a layer has 16 experts"}},
		{"half a byte", "1_000_000", "0.5", []string{":7", "expert_bytes in [model]", "bytes from 1 to 1e12"}},
		{"too many bytes to count", "1_000_000", "1e15", []string{":7", "expert_bytes in [model]"}},
		{"missing", "hidden = 1024", "", []string{"[model] lacks hidden"}},
		{"one name for two", `name = "tiny"`, `name = "attic-2"`, []string{"two workers are named attic-2"}},
		{"worker is no list", "[[worker]]\nname = \"tiny\"\nmemory_gb = 0.001", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, "swarm.toml", []byte(strings.Replace(planExample, c.from, c.to, 1)))
			o := kvasir(t, "plan", "--swarm", file)
			if c.want == nil {
				o.wantDone(t)
				return
			}
			o.wantFailure(t, statusUsage, c.want...)
		})
	}
	kvasir(t, "plan").wantFailure(t, statusUsage, "--swarm FILE")
	kvasir(t, "plan", "--swarm", "nowhere.toml").wantFailure(t, statusUsage, "nowhere.toml")
	kvasir(t, "plan", "--swarm", writeFile(t, "s.toml", []byte("worker = 3"))).wantFailure(t, statusUsage, ":1", "[[worker]]")
	kvasir(t, "plan", "--swarm", writeFile(t, "s.toml", []byte("model = 3"))).wantFailure(t, statusUsage, ":1", "[model]")
}
