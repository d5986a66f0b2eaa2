package engine_test

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"kvasir/engine"
	"kvasir/engine/chat"
	"kvasir/engine/grammar"
	"kvasir/engine/sample"
	"kvasir/engine/serve"
)

// callSchemas are parameters of functions; nil: none.
var callSchemas = map[string]string{
	"none":    ``,
	"free":    `{"type":"object"}`,
	"weather": `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9},"unit":{"enum":["C","F"]}},"required":["city","days","unit"]}`,
	"options": `{"type":"object","properties":{"a":{"type":"string","minLength":2,"maxLength":5},"b":{"type":["string","null"]},"c":{"type":["integer","null"]},"d":{"type":"boolean"}},"additionalProperties":false}`,
	"deep": `{"type":"object","properties":{"at":{"$ref":"#/$defs/point"},"kind":{"$ref":"#/$defs/kind"},"list":{"type":"array","items":{"$ref":"#/$defs/point"},"minItems":1,"maxItems":2}},
		"required":["at","kind","list"],"$defs":{"point":{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"integer"}},"required":["x","y"],"additionalProperties":false},"kind":{"enum":["near","far"]}}}`,
	"untyped": `{"properties":{"n":{"enum":[1,2.5]},"k":{"const":"fixed"},"o":{"properties":{"p":{"type":"null"}},"required":["p"]},"m":{"minimum":3},"any":{}},"required":["n","k","o","m","any"]}`,
	"either":  `{"type":"object","properties":{"x":{"anyOf":[{"type":"integer"},{"type":"string","pattern":"^[a-z]{2,4}$"}]},"y":{"anyOf":[{"type":"integer"},{"type":"null"}]},"day":{"type":"string","format":"date"}},"required":["x","y","day"]}`,
}

func callTool(name string) json.RawMessage {
	f := map[string]any{"name": name}
	if s := callSchemas[name]; s != "" {
		f["parameters"] = json.RawMessage(s)
	}
	b, err := json.Marshal(map[string]any{"type": "function", "function": f})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// checkCall says what is wrong with the arguments of a call.
func checkCall(call *chat.ToolCall) error {
	source, ok := callSchemas[call.Name]
	if !ok {
		return fmt.Errorf("no function %q", call.Name)
	}
	if source == "" {
		source = `{"type":"object","additionalProperties":false}`
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(source))
	if err != nil {
		return err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("s.json", doc); err != nil {
		return err
	}
	s, err := c.Compile("s.json")
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(call.Arguments))
	if err != nil {
		return fmt.Errorf("%q: %w", call.Arguments, err)
	}
	return s.Validate(v)
}

// callVocab is all bytes, what is likely in calls, and an end.
func callVocab(t *testing.T) (v *grammar.Vocab, tokens []string) {
	t.Helper()
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	tokens = append(tokens, "<think>", "</think>", "<tool_call>", "</tool_call>", "</parameter>", "</function>", "<parameter=",
		"<function=", "</", "</para", "hello ", "\n\n", `{"`, `"}`, `": `, "é", "</think>\n\n", "")
	end := int32(len(tokens) - 1)
	v, err := grammar.NewVocab(len(tokens), func(id int32) []byte { return []byte(tokens[id]) }, []int32{end})
	if err != nil {
		t.Fatal(err)
	}
	return v, tokens
}

// walk makes a text of a grammar at random. Rare tokens are taken more often than single bytes.
func walk(t *testing.T, g *grammar.Grammar, random *rand.Rand) (string, bool) {
	t.Helper()
	v, tokens := callVocab(t)
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	mask := make([]uint64, (len(tokens)+63)/64)
	for range 3000 {
		m.Mask(mask)
		var bytes, words []int
		for i, w := range mask {
			for ; w != 0; w &= w - 1 {
				if id := i*64 + bits.TrailingZeros64(w); id < 256 && len(tokens[id]) == 1 {
					bytes = append(bytes, id)
				} else {
					words = append(words, id)
				}
			}
		}
		from := bytes
		if len(words) > 0 && (len(bytes) == 0 || random.IntN(3) > 0) {
			from = words
		}
		id := from[random.IntN(len(from))]
		if id == len(tokens)-1 {
			return b.String(), true
		}
		b.WriteString(tokens[id])
		if err := m.Accept(int32(id)); err != nil {
			t.Fatal(err)
		}
		if m.Done() {
			return b.String(), true
		}
	}
	return b.String(), false
}

// TestForcedCallsAreReadBack walks the grammars of calls at random, in both forms, and reads the texts as
// answers: there is nothing but reasoning and calls, as many as asked for, and their arguments are valid.
func TestForcedCallsAreReadBack(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of texts are walked through, by one goroutine")
	}
	var tools []json.RawMessage
	var all []grammar.Function
	for name, schema := range callSchemas {
		f := grammar.Function{Name: name}
		if schema != "" {
			f.Parameters = []byte(schema)
		}
		all, tools = append(all, f), append(tools, callTool(name))
	}
	for _, tags := range []bool{false, true} {
		for _, thought := range []grammar.Thought{grammar.NoThought, grammar.MayThink, grammar.OpenThought} {
			ended := 0
			for most := range 3 {
				g, err := grammar.FromCalls(grammar.Calls{Functions: all, Least: 1, Most: most, Tags: tags, Thought: thought})
				if err != nil {
					t.Fatalf("tags %v: %v", tags, err)
				}
				for seed := range uint64(25) {
					text, whole := walk(t, g, rand.New(rand.NewPCG(seed, 1)))
					if !whole {
						continue
					}
					ended++
					r := chat.NewReply(chat.ReplyOptions{Tools: tools, Thinking: thought == grammar.OpenThought})
					calls := 0
					for _, part := range append(r.Push(text), r.Flush()...) {
						if part.Content != "" || part.Reasoning != "" && thought == grammar.NoThought {
							t.Fatalf("tags %v, thought %d, seed %d: part %+v of %q", tags, thought, seed, part, text)
						}
						if part.Call == nil {
							continue
						}
						calls++
						if err := checkCall(part.Call); err != nil {
							t.Fatalf("tags %v, seed %d: %+v: %v, in %q", tags, seed, part.Call, err, text)
						}
					}
					if calls == 0 || most > 0 && calls > most {
						t.Fatalf("tags %v, seed %d: %d calls, want 1 to %d: %q", tags, seed, calls, most, text)
					}
				}
			}
			if ended < 30 {
				t.Errorf("tags %v, thought %d: %d of 75 texts came to an end: the test proves little", tags, thought, ended)
			}
		}
	}
}

// TestFormatsComeAfterAnOpenThought is of templates that open the model's reasoning: the form is the answer's.
func TestFormatsComeAfterAnOpenThought(t *testing.T) {
	g, err := grammar.AfterThought(grammar.OpenThought, []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`))
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for seed := range uint64(20) {
		text, whole := walk(t, g, rand.New(rand.NewPCG(seed, 3)))
		if !whole {
			continue
		}
		ended++
		r := chat.NewReply(chat.ReplyOptions{Thinking: true})
		content := ""
		for _, part := range append(r.Push(text), r.Flush()...) {
			content += part.Content
		}
		var v struct{ N *int64 }
		if err := json.Unmarshal([]byte(content), &v); err != nil || v.N == nil {
			t.Errorf("seed %d: %v: content %q of %q", seed, err, content, text)
		}
	}
	if ended < 10 {
		t.Errorf("%d of 20 texts came to an end: the test proves little", ended)
	}
}

// TestOneCallAtMostMayStandAfterText is of texts that need not call.
func TestOneCallAtMostMayStandAfterText(t *testing.T) {
	tools := []json.RawMessage{callTool("weather")}
	g, err := grammar.FromCalls(grammar.Calls{Functions: []grammar.Function{{Name: "weather", Any: true}}, Most: 1})
	if err != nil {
		t.Fatal(err)
	}
	with, without := 0, 0
	for seed := range uint64(60) {
		text, whole := walk(t, g, rand.New(rand.NewPCG(seed, 2)))
		r := chat.NewReply(chat.ReplyOptions{Tools: tools})
		calls, content := 0, ""
		for _, part := range append(r.Push(text), r.Flush()...) {
			content += part.Content
			if part.Call != nil {
				calls++
			}
		}
		switch {
		case calls > 1 || whole && strings.Contains(content, "<tool_call>"):
			t.Errorf("seed %d: %d calls, content %q of %q", seed, calls, content, text)
		case whole && calls == 1:
			with++
		case whole:
			without++
		}
	}
	if with < 5 || without < 5 {
		t.Errorf("%d texts with a call and %d without: the test proves little", with, without)
	}
}

func TestModelsAreHeldToCalls(t *testing.T) {
	e := open(t, "")
	for _, c := range []struct {
		name  string
		calls serve.Calls
	}{{"required", serve.Calls{Must: true}}, {"one", serve.Calls{Must: true, One: true}}, {"named", serve.Calls{Must: true, Name: "weather", One: true}}} {
		seeds := uint64(3)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			p := sample.Defaults()
			p.Temperature, p.Seed = float32(seed), seed
			r := engine.Request{
				Messages: []engine.Message{{Role: "user", Content: "Weather in Ulm?"}}, Tokens: 120, Choices: 2, Sampling: &p, Calls: c.calls,
				Template: chat.Options{Tools: []json.RawMessage{callTool("options"), callTool("weather")}},
				Format:   engine.Format{JSON: true}, // of what it says, where it does not call
			}
			res, err := e.Generate(t.Context(), r, func(engine.Piece) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			for i := range res.Choices {
				text := res.Choices[i].Text
				reply, err := e.Reply(r)
				if err != nil {
					t.Fatal(err)
				}
				calls := 0
				for _, part := range append(reply.Push(text), reply.Flush()...) {
					switch {
					case part.Call == nil && res.Choices[i].Stop != engine.StopLength:
						t.Errorf("%s, seed %d: %+v in %q", c.name, seed, part, text)
					case part.Call == nil:
					case c.calls.Name != "" && part.Call.Name != c.calls.Name:
						t.Errorf("%s: %q calls %s", c.name, text, part.Call.Name)
					default:
						calls++
						if err := checkCall(part.Call); err != nil {
							t.Errorf("%s: %v", c.name, err)
						}
					}
				}
				if res.Choices[i].Stop == engine.StopEnd && (calls == 0 || c.calls.One && calls != 1) {
					t.Errorf("%s, seed %d: %d calls in %q", c.name, seed, calls, text)
				}
			}
		}
	}
}
