package engine

import (
	"encoding/json"
	"errors"

	"kvasir/engine/chat"
	"kvasir/engine/grammar"
	"kvasir/engine/serve"
)

// form returns what a text is held to; nil if it is free. text is the conversation that it answers.
func (e *Engine) form(r Request, text chat.Prompt) (*grammar.Grammar, error) {
	formatted := r.Format.Grammar != "" || r.Format.Schema != nil || r.Format.JSON
	if len(r.Template.Tools) == 0 || formatted && !r.Calls.Must {
		return e.grammar(r.Format, text)
	}
	list, strict := functions(r)
	if len(list) == 0 || !r.Calls.Must && !r.Calls.One && !strict {
		return nil, nil
	}
	c := grammar.Calls{Functions: list, Tags: e.template.Tags()}
	if r.Calls.Must {
		c.Least = 1
	}
	if r.Calls.One {
		c.Most = 1
	}
	switch {
	case text.Thinks():
		c.Thought = grammar.OpenThought
	case text.MayThink():
		c.Thought = grammar.MayThink
	}
	g, err := grammar.FromCalls(c)
	if err != nil {
		err = &serve.ParamError{Param: "tools", Err: err}
	}
	return g, err
}

// functions are those that may be called, and whether one of them asks to be called as its schema says.
// Where nothing has to be called, the others are not held to theirs.
func functions(r Request) (list []grammar.Function, strict bool) {
	for _, raw := range r.Template.Tools {
		var t struct {
			Function struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
				Strict     bool            `json:"strict"`
			} `json:"function"`
		}
		f := &t.Function
		if json.Unmarshal(raw, &t) != nil || r.Calls.Must && r.Calls.Name != "" && f.Name != r.Calls.Name {
			continue
		}
		if string(f.Parameters) == "null" {
			f.Parameters = nil
		}
		list = append(list, grammar.Function{Name: f.Name, Parameters: f.Parameters, Any: !f.Strict && !r.Calls.Must})
		strict = strict || f.Strict
	}
	return list, strict
}

// grammar returns the grammar of a format; nil if the text is free. Where the template has opened a thought,
// JSON comes after that.
func (e *Engine) grammar(f Format, text chat.Prompt) (*grammar.Grammar, error) {
	given := 0
	for _, g := range []bool{f.Grammar != "", f.Schema != nil, f.JSON} {
		if g {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, errors.New("a text has one format: a grammar, a JSON schema or JSON")
	case f.Grammar != "":
		return grammar.Parse(f.Grammar)
	case f.Schema != nil && text.Thinks():
		return grammar.AfterThought(grammar.OpenThought, f.Schema)
	case f.Schema != nil:
		return grammar.FromSchema(f.Schema)
	case f.JSON && text.Thinks():
		return grammar.AfterThought(grammar.OpenThought, []byte(`{"type":"object"}`))
	case f.JSON:
		return e.json(), nil
	}
	return nil, nil
}
