package engine_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"testing"

	"kvasir/engine"
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
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, f := range formats {
		for _, temperature := range []float32{0, 0.8, 1.5} {
			wg.Go(func() {
				p := sample.Defaults()
				p.Temperature, p.Seed = temperature, 3
				r := engine.Request{Prompt: "Name a city.", Chat: true, Tokens: 80, Choices: 3, Sampling: &p, Format: f.f}
				res, err := e.Generate(t.Context(), r, func(engine.Piece) error { return nil })
				if err != nil {
					t.Errorf("%s at %v: %v", name, temperature, err)
					return
				}
				for i, c := range res.Choices {
					if c.Stop == engine.StopLength {
						continue
					}
					mu.Lock()
					ended[name]++
					mu.Unlock()
					if c.Stop != engine.StopEnd || !f.valid(c.Text) {
						t.Errorf("%s at %v, choice %d ends by %q with %q", name, temperature, i, c.Stop, c.Text)
					}
				}
			})
		}
	}
	wg.Wait()
	for name := range formats {
		if ended[name] < 3 {
			t.Errorf("%d of 9 texts of format %s came to their end: the test proves little", ended[name], name)
		}
	}
	if t.Failed() {
		t.Log(fmt.Sprint(ended))
	}
}
