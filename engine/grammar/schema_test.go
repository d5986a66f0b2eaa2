package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// walkedSchemas are walked at random; a validator of others judges what comes out.
var walkedSchemas = map[string]string{
	"anything":    `true`,
	"any object":  `{"type":"object"}`,
	"any array":   `{"type":"array","maxItems":4}`,
	"string":      `{"type":"string"}`,
	"lengths":     `{"type":"string","minLength":3,"maxLength":7}`,
	"exact":       `{"type":"array","items":{"type":"string","minLength":2,"maxLength":2},"minItems":3,"maxItems":3}`,
	"long":        `{"type":"string","minLength":40,"maxLength":300}`,
	"integer":     `{"type":"array","items":{"type":"integer"},"minItems":3,"maxItems":9}`,
	"number":      `{"type":"array","items":{"type":"number"},"minItems":3,"maxItems":9}`,
	"range":       `{"type":"array","items":{"type":"integer","minimum":-17,"maximum":1203},"minItems":5,"maxItems":9}`,
	"open range":  `{"type":"array","items":{"type":"integer","exclusiveMinimum":98},"minItems":5,"maxItems":9}`,
	"upper range": `{"type":"array","items":{"type":"integer","maximum":-98.5},"minItems":5,"maxItems":9}`,
	"share":       `{"type":"array","items":{"type":"number","minimum":0,"maximum":1},"minItems":5,"maxItems":9}`,
	"signed":      `{"type":"array","items":{"type":"number","exclusiveMinimum":-12,"exclusiveMaximum":3},"minItems":5,"maxItems":9}`,
	"positive":    `{"type":"array","items":{"type":"number","exclusiveMinimum":0},"minItems":5,"maxItems":9}`,
	"negative":    `{"type":"array","items":{"type":"number","maximum":-3},"minItems":5,"maxItems":9}`,
	"enum":        `{"enum":["a","ab","abc","é😀\n\"\\","",1,-2.50,true,null,{"x":[1,"y"]},[]]}`,
	"typed enum":  `{"type":["string","null"],"enum":["a",1,null,"b"]}`,
	"const":       `{"properties":{"k":{"const":"fixed"}},"required":["k"],"additionalProperties":false}`,
	"person": `{"type":"object","properties":{"name":{"type":"string","description":"who"},"age":{"type":"integer","minimum":0,"maximum":150},
		"tags":{"type":"array","items":{"enum":["a","b"]}},"mail":{"type":["string","null"],"format":"email"}},
		"required":["name","age","tags","mail"],"additionalProperties":false}`,
	"optional": `{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"},"d":{"type":"null"}},"required":["b"]}`,
	"extra":    `{"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"integer"},"é":{"type":"integer"}},"required":["ab","z"],"additionalProperties":{"type":"boolean"}}`,
	"free":     `{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true}`,
	"map":      `{"type":"object","additionalProperties":{"type":"string","maxLength":3}}`,
	"odd keys": `{"type":"object","properties":{"":{"type":"null"},"\"":{"type":"null"},"\n":{"type":"null"},"a/b~c":{"type":"null"}},"required":["","\"","\n","a/b~c"],"additionalProperties":{"type":"boolean"}}`,
	"tuple":    `{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"},{"type":"null"}],"items":{"type":"boolean"},"minItems":2,"maxItems":5}`,
	"closed":   `{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`,
	"none":     `{"type":"array","maxItems":0}`,
	"tree": `{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#/$defs/node"},"maxItems":2}},
		"required":["v","children"],"additionalProperties":false}}}`,
	"list":  `{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]},"value":{"type":"string"}},"required":["value","next"],"additionalProperties":false}`,
	"any":   `{"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"type":"boolean"}]}},"required":["a"],"additionalProperties":false}]}`,
	"typed": `{"type":["object","null"],"anyOf":[{"properties":{"a":{"const":1}},"required":["a"]},{"properties":{"b":{"const":2}},"required":["b"]},{"type":["null","string"]}]}`,
	"one": `{"oneOf":[{"type":"string"},{"type":"object","properties":{"kind":{"const":"x"},"x":{"type":"integer"}},"required":["kind","x"],"additionalProperties":false},
		{"$ref":"#/definitions/y"}],"definitions":{"y":{"type":"object","properties":{"kind":{"enum":["y","z"]}},"required":["kind"],"additionalProperties":false}}}`,
	"all":        `{"allOf":[{"$ref":"#/$defs/base"},{"properties":{"b":{"type":"boolean"}},"required":["b"]}],"properties":{"c":{"type":"null"}},"$defs":{"base":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}`,
	"all of one": `{"allOf":[{"type":"string","maxLength":2}],"description":"x"}`,
	"pattern":    `{"type":"array","items":{"type":"string","pattern":"^[A-Z]{2}-\\d{3}(?:\\.[^\\W_a-z]+|x)?$"},"minItems":3,"maxItems":4}`,
	"either":     `{"type":"array","items":{"type":"string","pattern":"^a\"{1,3}$|^\\\\b+$"},"minItems":3,"maxItems":3}`,
	"classes":    `{"type":"array","items":{"type":"string","pattern":"^[à-ÿ\\n\"\\\\]\\s\\S[^a-z\\s].\\x41\\/$"},"minItems":3,"maxItems":3}`,
	"formats": `{"type":"object","properties":{"a":{"type":"string","format":"date"},"b":{"type":"string","format":"time"},"c":{"type":"string","format":"date-time"},
		"d":{"type":"string","format":"duration"},"e":{"type":"string","format":"uuid"},"f":{"type":"string","format":"ipv4"},"g":{"type":"string","format":"ipv6"},
		"h":{"type":"string","format":"hostname"},"i":{"type":"string","format":"email"}},"required":["a","b","c","d","e","f","g","h","i"]}`,
	"nested": `{"type":"object","properties":{"steps":{"type":"array","items":{"type":"object","properties":{"explanation":{"type":"string"},"output":{"type":"array","items":{"type":"array","items":{"type":"number"}}}},
		"required":["explanation","output"],"additionalProperties":false},"minItems":1,"maxItems":300},"final":{"type":"string"}},"required":["steps","final"],"additionalProperties":false}`,
}

func validator(t *testing.T, schema string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// walk generates a text by choosing any of the tokens that are allowed; after a while, what ends it
// soonest: an end token, or else a closing one.
func walk(t *testing.T, v *Vocab, g *Grammar, random *rand.Rand) []byte {
	t.Helper()
	m, err := v.Matcher(g)
	if err != nil {
		t.Fatal(err)
	}
	allowed := make([]uint64, len(v.isEnd))
	var text []byte
	patience := 5 + random.IntN(120)
	for i := 0; i < 20000; i++ {
		m.Mask(allowed)
		id := pick(random, allowed)
		if i > patience && random.IntN(8) > 0 {
			for _, c := range []int32{int32(v.size - 1), '"', '\\', '}', ']', ',', ':', '0', '.', 'n', 't'} {
				if has(allowed, c) {
					id = c
					break
				}
			}
		}
		if id < 0 {
			t.Fatalf("nothing is allowed after %q", text)
		}
		if err := m.Accept(id); err != nil {
			t.Fatalf("after %q: %v", text, err)
		}
		if has(v.isEnd, id) {
			return text
		}
		text = append(text, v.token(id)...)
	}
	t.Fatalf("no end after %d bytes: %.300q", len(text), text)
	return nil
}

func TestRandomWalksAreValidBySchema(t *testing.T) {
	for name, schema := range walkedSchemas {
		t.Run(name, func(t *testing.T) {
			g, err := FromSchema([]byte(schema))
			if err != nil {
				t.Fatal(err)
			}
			valid := validator(t, schema)
			seen := make(map[string]bool)
			for seed := range uint64(25) {
				random := rand.New(rand.NewPCG(seed, 2))
				v := testVocab(t, random, []string{`":`, `": `, `",`, `{"`, `"}`, `"a`, "true", "null", "\n  ", `\u00`, `\ud83d\ude00`, `"kind":"`}, testAlphabet, 200)
				text := walk(t, v, g, random)
				seen[string(text)] = true
				if !utf8.Valid(text) || !json.Valid(text) {
					t.Fatalf("seed %d: not JSON: %q", seed, text)
				}
				doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
				if err != nil {
					t.Fatalf("seed %d: %q: %v", seed, text, err)
				}
				if err := valid.Validate(doc); err != nil {
					t.Fatalf("seed %d: %q: %v", seed, text, err)
				}
			}
			if len(seen) < 2 && name != "none" && name != "const" {
				t.Errorf("only %v", seen)
			}
		})
	}
}

func TestSchemaMasksEqualTryingEveryToken(t *testing.T) {
	for name, schema := range walkedSchemas {
		t.Run(name, func(t *testing.T) {
			g, err := FromSchema([]byte(schema))
			if err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(2) {
				walkBesideTwin(t, g, seed)
			}
		})
	}
}

func TestFromSchemaMatches(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		yes, no      []string
	}{
		{"blanks", `{"properties":{"a":{"type":"null"},"b":{"type":"array"}},"required":["a"]}`,
			[]string{`{"a":null}`, `{"a": null, "b": [1, 2]}`, "{\n  \"a\": null,\n  \"b\": [\n    1,\n    2\n  ]\n}", `{ "a":null }`, `{"a":null,"b":[ ]}`},
			[]string{`{}`, `{"b":[]}`, `{"a":null,}`, ` {"a":null}`, `{"a":null} `, `{"a" :null}`, `{"a":  null}`, `{"a":null,"a":null}`, `{"a":null,"c":1}`}},
		{"order", `{"properties":{"b":true,"a":true}}`, []string{`{}`, `{"b":1}`, `{"a":1}`, `{"b":1,"a":[]}`}, []string{`{"a":1,"b":1}`}},
		{"numbers", `{"type":"number"}`, []string{"0", "-0", "10", "1.5", "1e5", "-1.25E-10"}, []string{"", "01", "1.", ".5", "+1", "1e", "1e999", "NaN", strings.Repeat("1", 30)}},
		{"integers", `{"type":"integer"}`, []string{"0", "-7", "123456789012345678"}, []string{"1.0", "1e2", "00"}},
		{"range", `{"type":"integer","minimum":-10,"maximum":105}`, []string{"-10", "-1", "0", "9", "10", "99", "100", "105"}, []string{"-11", "106", "-0", "1000", "05"}},
		{"above", `{"type":"integer","minimum":1000}`, []string{"1000", "999999999999999999"}, []string{"999", "-1000"}},
		{"fractions", `{"type":"integer","minimum":-1.5,"maximum":2.5}`, []string{"-1", "0", "2"}, []string{"-2", "3"}},
		{"negative fractions", `{"type":"integer","maximum":-1.5}`, []string{"-2", "-30"}, []string{"-1", "0"}},
		{"exclusive", `{"type":"number","exclusiveMinimum":0,"maximum":1}`, []string{"0.1", "0.001", "1"}, []string{"0", "0.0", "1.0", "1.1", "-0.5"}},
		{"tighter", `{"type":"integer","minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":7}`, []string{"4", "6"}, []string{"3", "7"}},
		{"surrogates", `{"type":"string","minLength":1,"maxLength":1}`, []string{`"\ud83d\ude00"`, `"😀"`, `"\n"`, `"\u00e9"`, `"\uD7FF"`},
			[]string{`"\ud83d"`, `"\ude00"`, `"\ud83da"`, `""`, `"ab"`, "\"\n\""}},
		{"pattern", `{"type":"string","pattern":"^[a\"\\n\\\\é]+$"}`, []string{`"a"`, `"\"\n\\é"`}, []string{`""`, `"b"`, `"\u0061"`}},
		{"cases", `{"type":"string","pattern":"^[aA](x|X)[éÉ]b$"}`, []string{`"axéb"`, `"AXÉb"`, `"aXéb"`}, []string{`"axéB"`, `"bxéb"`}},
		{"integers of an enum", `{"type":"integer","enum":[1.5,2,3.0,40e-1,1.5e1,25e-1,0.0,1e99999999999999999999]}`,
			[]string{"2", "3.0", "40e-1", "1.5e1", "0.0"}, []string{"1.5", "25e-1", "1e99999999999999999999"}},
		{"search", `{"type":"string","pattern":"b$"}`, []string{`"b"`, `"\n\u00e9ab"`}, []string{`"ba"`}},
		{"extra keys", `{"properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"boolean"}}`,
			[]string{`{"a":true}`, `{"abc":true}`, `{"ab":null,"b":true,"":false}`}, []string{`{"ab":true}`, `{"\u0061b":true}`, `{"a":null}`}},
		{"no schema but a list", `{"minItems":1,"maxItems":2}`, []string{"[1]", `["a", {}]`}, []string{"[]", "[1,2,3]", "1"}},
		{"reference into a list", `{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/anyOf/0"}}]}`, []string{"null", "[null,null]"}, []string{"[[]]"}},
		{"annotations", `{"$schema":"s","$id":"i","title":"t","default":1,"examples":[],"x-order":3,"type":"null","uniqueItems":false}`, []string{"null"}, []string{"1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := FromSchema([]byte(c.schema))
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !accepts(g, text) {
					t.Errorf("%q is refused", text)
				}
			}
			for _, text := range c.no {
				if accepts(g, text) {
					t.Errorf("%q is accepted", text)
				}
			}
		})
	}
}

func TestFromSchemaRefuses(t *testing.T) {
	for _, c := range []struct {
		schema   string
		sentinel error
		says     string
	}{
		{`{"properties":{"a/b":{"not":{}}}}`, ErrSchema, `#/properties/a~1b: keyword "not" is not supported`},
		{`{"type":"array","uniqueItems":true}`, ErrSchema, `"uniqueItems" is not`},
		{`{"patternProperties":{}}`, ErrSchema, `"patternProperties"`},
		{`{"type":"number","multipleOf":2}`, ErrSchema, `"multipleOf"`},
		{`{"if":{}}`, ErrSchema, `"if"`},
		{`{"type":"object","minProperties":2}`, ErrSchema, `"minProperties"`},
		{`{"items":{"$id":"x"}}`, ErrSchema, `#/items: keyword "$id"`},
		{`{"type":"strin"}`, ErrSchema, `#/type: "strin" is no type`},
		{`{"type":[]}`, ErrSchema, "empty"},
		{`{"type":"string","maxLength":-1}`, ErrSchema, `"maxLength"`},
		{`{"type":"string","maxLength":99999999}`, ErrSchema, `"maxLength"`},
		{`{"type":"string","minLength":3,"maxLength":2}`, ErrSchema, "more than"},
		{`{"type":"string","format":"uri"}`, ErrSchema, `"format" "uri"`},
		{`{"type":"string","format":"date","minLength":2}`, ErrSchema, `"minLength" beside "format"`},
		{`{"type":"string","pattern":"a(?=b)"}`, ErrSchema, `"(?="`},
		{`{"type":"string","pattern":"(a)\\1"}`, ErrSchema, `"\\1"`},
		{`{"type":"string","pattern":"\\bx"}`, ErrSchema, `"\\b"`},
		{`{"type":"string","pattern":"[\\S]"}`, ErrSchema, `"\\S"`},
		{`{"type":"string","pattern":"(^a)b"}`, ErrSchema, "^ or $ within"},
		{`{"type":"string","pattern":"a("}`, ErrSchema, "missing closing"},
		{`{"type":"string","pattern":"[]a]"}`, ErrSchema, "empty class"},
		{`{"type":"number","minimum":0.5}`, ErrSchema, `"minimum"`},
		{`{"type":"integer","minimum":1e300}`, ErrSchema, `"minimum"`},
		{`{"type":"integer","minimum":3,"maximum":2}`, ErrSchema, "no number"},
		{`{"type":"integer","minimum":0.1,"maximum":0.9}`, ErrSchema, "no number"},
		{`{"$ref":"other.json"}`, ErrSchema, "within the schema only"},
		{`{"$ref":"#/$defs/x"}`, ErrSchema, "leads nowhere"},
		{`{"$ref":"#/$defs/x","type":"null","$defs":{"x":{}}}`, ErrSchema, `"type" beside "$ref"`},
		{`{"$ref":"#"}`, ErrSchema, "# begins with itself"},
		{`{"anyOf":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"anyOf":[{"$ref":"#"}]}}}`, ErrSchema, "begins with itself"},
		{`{"properties":{"a":{"$ref":"#"}},"required":["a"]}`, ErrSchema, "matches no text that ends"},
		{`{"enum":[]}`, ErrSchema, "not empty"},
		{`{"type":"null","enum":["a"]}`, ErrSchema, "no value is left"},
		{`{"enum":["a"],"minLength":1}`, ErrSchema, `"minLength" beside "enum"`},
		{`{"anyOf":[{}],"properties":{}}`, ErrSchema, `"properties" beside "anyOf"`},
		{`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, ErrSchema, `use "anyOf"`},
		{`{"oneOf":[{"properties":{"a":{"const":"x"}}},{"properties":{"a":{"const":"y"}}}]}`, ErrSchema, `use "anyOf"`},
		{`{"allOf":[{"type":"string"},{"maxLength":3}]}`, ErrSchema, `"allOf"`},
		{`{"allOf":[{"properties":{"a":{}}},{"properties":{"a":{"type":"null"}}}]}`, ErrSchema, "another schema elsewhere"},
		{`{"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]}`, ErrSchema, "forbids"},
		{`{"required":["a"],"properties":{},"additionalProperties":false}`, ErrSchema, `"a" is required`},
		{`{"type":"object","properties":{"a":{"type":"null","items":[]}},"required":"a"}`, ErrSchema, `"required"`},
		{`{"type":"array","items":[{}]}`, ErrSchema, "#/items: a schema is an object"},
		{`{"type":"array","items":false,"minItems":1}`, ErrSchema, `"minItems"`},
		{`{"items":{"type":"integer"},"type":"array","nullable":true}`, ErrSchema, `"nullable"`},
		{`false`, ErrSchema, "false"},
		{`3`, ErrSchema, "object or a boolean"},
		{`{"a"`, ErrSyntax, "not JSON"},
		{``, ErrSyntax, "not JSON"},
		{`{} {}`, ErrSyntax, "after its end"},
		{`{"type":"null","type":"string"}`, ErrSyntax, "two members"},
		{"{\"title\":\"\xff\"}", ErrSyntax, "UTF-8"},
		{strings.Repeat(`{"items":`, 300) + "{}" + strings.Repeat("}", 300), ErrLimit, "deeper"},
		{`{"title":"` + strings.Repeat("x", MaxSource) + `"}`, ErrLimit, "bytes"},
	} {
		_, err := FromSchema([]byte(c.schema))
		if !errors.Is(err, c.sentinel) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.200s: got %v, want %v with %q", c.schema, err, c.sentinel, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
	}
}

func TestNestingDoesNotDoubleTheGrammar(t *testing.T) {
	const depth = 100
	for _, begin := range []string{`{"type":"array","maxItems":50,"items":`, `{"type":"object","additionalProperties":`} {
		g, err := FromSchema([]byte(strings.Repeat(begin, depth) + "true" + strings.Repeat("}", depth)))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(g.prog.nodes); n > depth*300 {
			t.Errorf("%s...: %d nodes", begin, n)
		}
	}
}

func TestJSONIsAnyObject(t *testing.T) {
	g := JSON()
	for _, text := range []string{`{}`, `{"a":[1,{"b":null}], "c": "\u00e9"}`, "{\n    \"a\": -1.5e3\n}"} {
		if !accepts(g, text) {
			t.Errorf("%q is refused", text)
		}
	}
	for _, text := range []string{`[]`, `1`, ``, `{"a":}`, `{a:1}`, `{}{}`} {
		if accepts(g, text) {
			t.Errorf("%q is accepted", text)
		}
	}
}

func FuzzFromSchema(f *testing.F) {
	for _, schema := range walkedSchemas {
		f.Add([]byte(schema))
	}
	f.Add([]byte(`{"type":"string","pattern":"^((a{1,9}){1,9}|b*){1,9}$"}`))
	f.Fuzz(func(t *testing.T, schema []byte) {
		g, err := FromSchema(schema)
		if err != nil {
			return
		}
		// The shortest way to an end that a byte at a time finds is JSON, if it ends soon.
		var text []byte
		s := g.start()
		for range 200 {
			if s.accept {
				if !json.Valid(text) {
					t.Fatalf("%s gives %q", schema, text)
				}
				return
			}
			for _, b := range []byte("]}\",:0123456789.-aZ{[ntfulrse\\") {
				if next := g.step(s, b); next.alive() {
					s, text = next, append(text, b)
					break
				}
			}
		}
	})
}
