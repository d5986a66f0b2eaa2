package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"kvasir/engine/chat"
)

// wireCall is a call of a tool, as it stands in messages and answers.
type wireCall struct {
	Index    *int         `json:"index,omitempty"` // in streams
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// wireMessage is a message of a request.
type wireMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Name      string          `json:"name"`
	Reasoning string          `json:"reasoning_content"`
	Calls     []wireCall      `json:"tool_calls"`
	CallID    string          `json:"tool_call_id"`
}

func messages(a *asked, raw json.RawMessage) error {
	var list []wireMessage
	if err := decode(raw, &list, "a list of objects with role and content"); err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("want one message at least")
	}
	for i := range list {
		m, err := list[i].message()
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		a.request.Messages = append(a.request.Messages, m)
	}
	return nil
}

// message checks a message.
func (w *wireMessage) message() (m chat.Message, err error) {
	switch w.Role {
	case "developer":
		w.Role = "system" // the newer name of it
	case "system", "user", "assistant", "tool":
	default:
		return m, fmt.Errorf("role %.40q, want system, developer, user, assistant or tool", w.Role)
	}
	m = chat.Message{Role: w.Role, Name: w.Name, Reasoning: w.Reasoning, ToolCallID: w.CallID}
	switch {
	case w.Role == "tool" && w.CallID == "":
		return m, errors.New("tool_call_id is missing")
	case w.Role != "assistant" && len(w.Calls) > 0:
		return m, errors.New("tool_calls are the assistant's")
	}
	for i, c := range w.Calls {
		if c.Function.Name == "" {
			return m, fmt.Errorf("tool call %d has no function with a name", i)
		}
		m.ToolCalls = append(m.ToolCalls, chat.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	if isNull(w.Content) && len(m.ToolCalls) > 0 {
		return m, nil
	}
	m.Content, err = content(w.Content)
	return m, err
}

// content is text, or a list of parts that are text.
func content(raw json.RawMessage) (text string, err error) {
	if !isNull(raw) && json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string
		Text *string
	}
	if isNull(raw) || json.Unmarshal(raw, &parts) != nil {
		return "", errors.New("content: want text, or a list of parts")
	}
	for _, p := range parts {
		if p.Type != "text" && p.Type != "input_text" && p.Type != "output_text" {
			return "", &cannotError{fmt.Sprintf("content of type %.40q: this server reads text", p.Type)}
		}
		if p.Text == nil {
			return "", errors.New("content: a part of it has no text")
		}
		text += *p.Text
	}
	return text, nil
}

var functionName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

func tools(a *asked, raw json.RawMessage) error {
	var list []json.RawMessage
	if err := decode(raw, &list, "a list of tools"); err != nil {
		return err
	}
	if len(list) > maxTools {
		return fmt.Errorf("%d tools, want %d at most", len(list), maxTools)
	}
	a.names = map[string]bool{}
	for i, raw := range list {
		var t struct {
			Type     string `json:"type"`
			Function *struct {
				Name       string         `json:"name"`
				Parameters map[string]any `json:"parameters"`
			} `json:"function"`
		}
		switch err := decode(raw, &t, "an object with type and function"); {
		case err != nil:
			return fmt.Errorf("tool %d: %w", i, err)
		case t.Type != "function":
			return &cannotError{fmt.Sprintf("tool %d is of type %.40q: this server takes functions", i, t.Type)}
		case t.Function == nil || !functionName.MatchString(t.Function.Name):
			return fmt.Errorf("tool %d: want a function with a name of up to 64 letters, digits and the signs . _ -", i)
		case a.names[t.Function.Name]:
			return fmt.Errorf("tool %d: the name %s is there twice", i, t.Function.Name)
		}
		a.names[t.Function.Name] = true
	}
	a.request.Template.Tools = list
	return nil
}

// toolChoice takes OpenAI's words, or a function.
func toolChoice(a *asked, raw json.RawMessage) error {
	const want = "want auto, none, required, or a function"
	var choice string
	if json.Unmarshal(raw, &choice) != nil {
		var named struct {
			Type     string
			Function struct{ Name string }
		}
		switch {
		case json.Unmarshal(raw, &named) != nil:
			return errors.New(want)
		case named.Type != "function":
			return &cannotError{fmt.Sprintf("type %.40q: this server takes functions", named.Type)}
		case named.Function.Name == "":
			return errors.New("want a function with a name")
		}
		a.request.Calls.Must, a.request.Calls.Name = true, named.Function.Name
		return nil
	}
	switch choice {
	case "auto":
	case "none":
		a.none = true
	case "required":
		a.request.Calls.Must = true
	default:
		return errors.New(want)
	}
	return nil
}

func parallelCalls(a *asked, raw json.RawMessage) error {
	many := true
	err := decode(raw, &many, "true or false")
	a.oneCall = !many
	return err
}

// checkCalls looks at what has to be called, and says what is wrong with tool_choice.
func (a *asked) checkCalls() *failure {
	c := &a.request.Calls
	c.One = a.oneCall || c.Name != ""
	switch {
	case !c.Must:
	case len(a.names) == 0:
		return invalid(http.StatusBadRequest, "tool_choice", "tool_choice: there are no tools to call")
	case c.Name != "" && !a.names[c.Name]:
		return invalid(http.StatusBadRequest, "tool_choice", "tool_choice: there is no function %q among the tools", c.Name)
	}
	return nil
}

func responseFormat(a *asked, raw json.RawMessage) error {
	var f struct {
		Type   string `json:"type"`
		Schema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if err := decode(raw, &f, "an object with a type"); err != nil {
		return err
	}
	return a.hold("json_schema.", f.Type, f.Schema.Schema)
}

// hold holds the text to a format; at is where its schema stands.
func (a *asked) hold(at, kind string, schema json.RawMessage) error {
	switch kind {
	case "text":
	case "json_object":
		a.request.JSON = true
	case "json_schema":
		if isNull(schema) {
			return fmt.Errorf("%sschema is missing", at)
		}
		a.request.Schema = schema
	default:
		return fmt.Errorf("type %.40q, want text, json_object or json_schema", kind)
	}
	return nil
}

// templateKwargs are variables of the model's template, as other servers take them.
func templateKwargs(a *asked, raw json.RawMessage) error {
	var vars map[string]json.RawMessage
	if err := decode(raw, &vars, "an object"); err != nil {
		return err
	}
	if v, ok := vars["enable_thinking"]; ok {
		if err := decode(v, &a.request.Template.Thinking, "true or false for enable_thinking"); err != nil {
			return err
		}
		delete(vars, "enable_thinking")
	}
	a.request.Template.Extra = vars
	return nil
}

func modalities(_ *asked, raw json.RawMessage) error {
	var list []string
	if err := decode(raw, &list, "a list of texts"); err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(s string) bool { return s != "text" }) {
		return &cannotError{"this server writes text: leave it out"}
	}
	return nil
}
