package engine_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"

	"kvasir/engine"
	"kvasir/engine/grammar"
	"kvasir/engine/sample"
)

// city is what the schema of TestTextsKeepTheirFormat describes.
type city struct {
	Name *string `json:"name"`
	Size *int    `json:"size"`
	Kind string  `json:"kind"`
}

const citySchema = `{"type":"object","properties":{"name":{"type":"string","maxLength":24},
	"size":{"type":"integer","minimum":0,"maximum":9999},"kind":{"enum":["town","port"]}},
	"required":["name","size","kind"],"additionalProperties":false}`

// TestTextsKeepTheirFormat holds several choices to a schema, to JSON and to a grammar, the likeliest
// tokens and drawn ones, all requests at once: what ends is valid, and what is cut off says so.
func TestTextsKeepTheirFormat(t *testing.T) {
	e := open(t, "")
	date := regexp.MustCompile(`^[0-9]{4}-[0-9]{2} (spring|autumn)$`)
	formats := map[string]struct {
		f     engine.Format
		valid func(text string) bool
	}{
		"schema": {engine.Format{Schema: []byte(citySchema)}, func(text string) bool {
			var c city
			return json.Unmarshal([]byte(text), &c) == nil && c.Name != nil && c.Size != nil && *c.Size <= 9999 &&
				(c.Kind == "town" || c.Kind == "port")
		}},
		"JSON": {engine.Format{JSON: true}, func(text string) bool { return json.Valid([]byte(text)) && text[0] == '{' }},
		"grammar": {
			engine.Format{Grammar: `root ::= [0-9]{4} "-" [0-9]{2} " " ("spring" | "autumn")`}, date.MatchString,
		},
	}
	ended := map[string]int{}
	texts := map[string][]string{} // by format and temperature, of all requests at once
	var mu sync.Mutex
	var wg sync.WaitGroup
	ask := func(name string, temperature float32) []string {
		f := formats[name]
		p := sample.Defaults()
		p.Temperature, p.Seed = temperature, 3
		r := engine.Request{Prompt: "Name a city.", Chat: true, Tokens: 80, Choices: 3, Sampling: &p, Format: f.f}
		res, err := e.Generate(t.Context(), r, func(engine.Piece) error { return nil })
		if err != nil {
			t.Errorf("%s at %v: %v", name, temperature, err)
			return nil
		}
		var list []string
		for i, c := range res.Choices {
			list = append(list, c.Text)
			if c.Stop == engine.StopLength {
				if err := begins(f.f, c.Text); err != nil {
					t.Errorf("%s at %v, choice %d was cut off and is no beginning: %v: %q", name, temperature, i, err, c.Text)
				}
				continue
			}
			mu.Lock()
			ended[name]++
			mu.Unlock()
			if c.Stop != engine.StopEnd || !f.valid(c.Text) {
				t.Errorf("%s at %v, choice %d ends by %q with %q", name, temperature, i, c.Stop, c.Text)
			}
		}
		return list
	}
	temperatures := []float32{0, 0.8, 1.5}
	for name := range formats {
		for _, temperature := range temperatures {
			wg.Go(func() {
				list := ask(name, temperature)
				mu.Lock()
				defer mu.Unlock()
				texts[fmt.Sprint(name, temperature)] = list
			})
		}
	}
	wg.Wait()
	for name := range formats {
		if ended[name] < 3 {
			t.Errorf("%d of 9 texts of format %s came to their end: the test proves little", ended[name], name)
		}
	}
	for name := range formats {
		for _, temperature := range temperatures {
			if alone, beside := ask(name, temperature), texts[fmt.Sprint(name, temperature)]; !slices.Equal(alone, beside) {
				t.Errorf("%s at %v alone: %q; beside others: %q", name, temperature, alone, beside)
			}
		}
	}
}

// begins returns an error where no text of the format begins like this. It reads the text byte by byte, not
// by the model's tokens.
func begins(f engine.Format, text string) error {
	var g *grammar.Grammar
	var err error
	switch {
	case f.JSON:
		g = grammar.JSON()
	case f.Schema != nil:
		g, err = grammar.FromSchema(f.Schema)
	default:
		g, err = grammar.Parse(f.Grammar)
	}
	if err != nil {
		return err
	}
	const end = 256
	v, err := grammar.NewVocab(end+1, func(id int32) []byte {
		if id == end {
			return nil
		}
		return []byte{byte(id)}
	}, []int32{end})
	if err != nil {
		return err
	}
	m, err := v.Matcher(g)
	if err != nil {
		return err
	}
	for i := range len(text) {
		if err := m.Accept(int32(text[i])); err != nil {
			return fmt.Errorf("byte %d: %w", i, err)
		}
	}
	return nil
}
