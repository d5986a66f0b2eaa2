package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Message is one turn of a conversation.
type Message struct {
	Role       string // "system", "user", "assistant", "tool", or what else the template knows
	Content    string
	Name       string     // of who speaks, where there are several
	Reasoning  string     // what the assistant thought before it answered
	ToolCalls  []ToolCall // what the assistant asks for
	ToolCallID string     // of the call that a tool answers
}

// ToolCall is a function that the assistant wants to have called.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // a JSON object; the template gets anything else as a string
}

// Options say what to render beside the messages.
type Options struct {
	Generate bool              // end with the beginning of the assistant's turn
	Tools    []json.RawMessage // what may be called, each as OpenAI's API has it; templates print it as it stands
	Thinking *bool             // enable_thinking; nil leaves it to the template

	// Extra has further variables of the template, by name. Thinking goes before one of its name.
	Extra map[string]json.RawMessage

	Now func() time.Time // the date for templates that ask for it; nil fails those

	// Controls finds where a text, by its bytes, holds a control token or the beginning of one at its
	// end (tokenizer.Controls). Without it Prompt.Plain stays empty.
	Controls func(text string) []int
}

// Limits of what comes as JSON.
const (
	maxJSONDepth  = 64
	maxJSONKeys   = 4096    // of one object
	maxJSONValues = 1 << 20 // in all
)

// variables returns what the template sees, and its size in bytes.
func (t *Template) variables(msgs []Message, o *Options) (vars dict, size int, err error) {
	if len(msgs) > maxMessages {
		return nil, 0, fmt.Errorf("%w: %d messages, at most %d", ErrLimit, len(msgs), maxMessages)
	}
	if size = inputSize(msgs, o); size > MaxInput {
		return nil, 0, fmt.Errorf("%w: %d bytes of messages, at most %d", ErrLimit, size, MaxInput)
	}
	in := input{values: maxJSONValues}
	list := make([]any, len(msgs))
	for i := range msgs {
		if list[i], err = in.message(&msgs[i]); err != nil {
			return nil, 0, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	vars = dict{{"messages", list}, {"add_generation_prompt", o.Generate}}
	tools, err := in.tools(o.Tools)
	if err != nil {
		return nil, 0, &OptionError{"Tools", err}
	}
	vars = append(vars, entry{"tools", tools})
	for _, name := range slices.Sorted(maps.Keys(o.Extra)) {
		if !isVariable(name) {
			return nil, 0, &OptionError{"Extra", fmt.Errorf("%w: %s cannot be a variable of a template", ErrInput, strconv.Quote(oneLine(name)))}
		}
		v, err := in.json(string(o.Extra[name]))
		if err != nil {
			return nil, 0, &OptionError{"Extra", fmt.Errorf("template variable %s: %w", name, err)}
		}
		if name != "enable_thinking" || o.Thinking == nil {
			vars = append(vars, entry{name, v})
		}
	}
	if o.Thinking != nil {
		vars = append(vars, entry{"enable_thinking", *o.Thinking})
	}
	return vars, size, nil
}

func inputSize(msgs []Message, o *Options) int {
	size := 0
	for i := range msgs {
		m := &msgs[i]
		size += len(m.Role) + len(m.Content) + len(m.Name) + len(m.Reasoning) + len(m.ToolCallID)
		for _, c := range m.ToolCalls {
			size += len(c.ID) + len(c.Name) + len(c.Arguments)
		}
	}
	for _, tool := range o.Tools {
		size += len(tool)
	}
	for name, value := range o.Extra {
		size += len(name) + len(value)
	}
	return size
}

// isVariable reports whether name is a name in Jinja, and not one that Render or a function has.
func isVariable(name string) bool {
	switch name {
	case "", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token":
		return false
	}
	for i, r := range name {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return functions[name] == nil
}

// input makes values of what comes from outside.
type input struct {
	values int // that JSON may still have
}

func (in *input) message(m *Message) (any, error) {
	if !isRole(m.Role) {
		return nil, fmt.Errorf("%w: its role is %s, want up to 64 letters, digits, _ and -",
			ErrInput, strconv.Quote(oneLine(m.Role)))
	}
	d := dict{{"role", m.Role}, {"content", m.Content}}
	for _, x := range []entry{{"name", m.Name}, {"reasoning_content", m.Reasoning}, {"tool_call_id", m.ToolCallID}} {
		if x.value != "" {
			d = append(d, x)
		}
	}
	for _, x := range d {
		if err := checkText(x.key.(string), x.value.(string)); err != nil {
			return nil, err
		}
	}
	if len(m.ToolCalls) == 0 {
		return d, nil
	}
	var calls []any
	for i, c := range m.ToolCalls {
		call, err := in.toolCall(&c)
		if err != nil {
			return nil, fmt.Errorf("tool call %d: %w", i+1, err)
		}
		calls = append(calls, call)
	}
	return append(d, entry{"tool_calls", calls}), nil
}

// toolCall gives the template a mapping where the arguments are one: it prints them in its own way.
func (in *input) toolCall(c *ToolCall) (any, error) {
	for _, x := range [][2]string{{"id", c.ID}, {"name", c.Name}, {"arguments", c.Arguments}} {
		if err := checkText(x[0], x[1]); err != nil {
			return nil, err
		}
	}
	var arguments any = dict{}
	if c.Arguments != "" {
		v, err := in.json(c.Arguments)
		if errors.Is(err, ErrLimit) {
			return nil, err
		}
		if d, ok := v.(dict); ok && err == nil {
			arguments = d
		} else {
			arguments = c.Arguments
		}
	}
	d := dict{{"type", "function"}, {"function", dict{{"name", c.Name}, {"arguments", arguments}}}}
	if c.ID != "" {
		d = append(dict{{"id", c.ID}}, d...)
	}
	return d, nil
}

// isRole keeps roles to words: some templates make the name of a control token of them.
func isRole(role string) bool {
	return role != "" && len(role) <= 64 && !strings.ContainsFunc(role, func(r rune) bool {
		return r != '_' && r != '-' && (r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r))
	})
}

func checkText(what, s string) error {
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return fmt.Errorf("%w: its %s is not valid UTF-8 at byte %d (0x%02x)", ErrInput, what, i, s[i])
		}
	}
	return nil
}

// tools returns None where there are none, as transformers has it.
func (in *input) tools(raw []json.RawMessage) (any, error) {
	var list []any
	for i, r := range raw {
		v, err := in.json(string(r))
		if err != nil {
			return nil, fmt.Errorf("tool %d: %w", i+1, err)
		}
		if _, ok := v.(dict); !ok {
			return nil, fmt.Errorf("tool %d: %w: it is %s, want a JSON object", i+1, ErrInput, kind(v))
		}
		list = append(list, v)
	}
	if list == nil {
		return nil, nil
	}
	return list, nil
}

// json reads one JSON value. Keys stay in order; of two the same the last value counts, as in
// Python. Half of a surrogate pair becomes U+FFFD.
func (in *input) json(text string) (any, error) {
	if err := checkText("JSON", text); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	v, err := in.value(d, 0)
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = errors.New("something follows the value")
		}
	}
	switch {
	case err == nil, errors.Is(err, ErrLimit), errors.Is(err, ErrInput):
		return v, err
	}
	return nil, fmt.Errorf("%w: no JSON: %s", ErrInput, oneLine(err.Error()))
}

func (in *input) value(d *json.Decoder, depth int) (any, error) {
	if in.values--; in.values < 0 || depth > maxJSONDepth {
		return nil, fmt.Errorf("%w: JSON of more than %d values or %d levels", ErrLimit, maxJSONValues, maxJSONDepth)
	}
	token, err := d.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return in.list(d, depth)
		}
		return in.object(d, depth)
	case json.Number:
		return numberValue(token.String())
	}
	return token, nil // nil, bool or string
}

func (in *input) list(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := in.value(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, err
}

func (in *input) object(d *json.Decoder, depth int) (any, error) {
	o := dict{}
	at := map[string]int{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := in.value(d, depth+1)
		if err != nil {
			return nil, err
		}
		name := key.(string) // the decoder takes no other key
		i, twice := at[name]
		if twice {
			o[i].value = v
			continue
		}
		if len(o) == maxJSONKeys {
			return nil, fmt.Errorf("%w: a JSON object of more than %d keys", ErrLimit, maxJSONKeys)
		}
		at[name] = len(o)
		o = append(o, entry{name, v})
	}
	_, err := d.Token()
	return o, err
}

// numberValue keeps whole numbers whole, however large, as Python does.
func numberValue(s string) (any, error) {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.Atoi(s); err == nil {
			return i, nil
		}
		return literal(s), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%w: the number %s is out of range", ErrInput, oneLine(s))
	}
	return f, nil
}
