package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"unicode/utf8"
)

// asked is a request that is understood.
type asked struct {
	request Request
	stream  bool
	usage   bool // the stream ends with counts
}

// A param takes one parameter of a request, which is not null.
type param func(a *asked, raw json.RawMessage) error

// defaultTokens is OpenAI's, of a completion that does not say how long; a chat goes on to its end.
const defaultTokens = 16

// params is what may stand in a request. Of what would change the text, only what means "the likeliest
// token, always" is taken.
var params = map[string]param{
	"stream":         func(a *asked, raw json.RawMessage) error { return decode(raw, &a.stream, "true or false") },
	"stream_options": streamOptions,
	"max_tokens":     tokens,

	"temperature":       only("this server is greedy: leave it out, or give 0", 0),
	"top_p":             only("this server is greedy: leave it out, or give 1", 1),
	"n":                 only("this server makes one choice", 1),
	"presence_penalty":  only("this server has no penalties: leave it out, or give 0", 0),
	"frequency_penalty": only("this server has no penalties: leave it out, or give 0", 0),
	"stop":              empty("this server has no stop sequences yet: leave it out"),
	"logit_bias":        empty("this server has no biases: leave it out"),
	"logprobs":          empty("this server gives no log probabilities: leave it out"),

	// They change nothing: a greedy text is the same for every seed, and for everybody.
	"seed":     ignored,
	"user":     ignored,
	"metadata": ignored,
	"store":    only("this server stores nothing: leave it out, or give false", false),
}

// plainParams and chatParams are in one of the two alone.
var (
	plainParams = map[string]param{
		"prompt":  prompt,
		"best_of": only("this server makes one choice", 1),
		"echo":    only("this server does not repeat the prompt: leave it out", false),
		"suffix":  empty("this server does not fill in before a text: leave it out"),
	}
	chatParams = map[string]param{
		"messages":              messages,
		"max_completion_tokens": tokens,
		"top_logprobs":          empty("this server gives no log probabilities: leave it out"),
		"tools":                 empty("this server calls no tools: leave it out"),
		"tool_choice":           only("this server calls no tools: leave it out", "none"),
		"functions":             empty("this server calls no functions: leave it out"),
		"parallel_tool_calls":   ignored, // there are no tools
		"response_format":       responseFormat,
	}
)

// parse reads the body of a request.
func (h *Handler) parse(body []byte, k kind) (asked, *failure) {
	var a asked
	var fields map[string]json.RawMessage
	if !utf8.Valid(body) {
		return a, invalid(http.StatusBadRequest, "", "the request is not valid UTF-8")
	}
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return a, invalid(http.StatusBadRequest, "", "the request is not a JSON object")
	}
	needed, own := "prompt", plainParams
	if k == chat {
		needed, own = "messages", chatParams
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // so that of two mistakes always the same is told
	for _, name := range names {
		if f := h.param(&a, own, name, fields[name]); f != nil {
			return a, f
		}
	}
	switch {
	case k == chat && a.request.Messages == nil, k == plain && isNull(fields["prompt"]):
		return a, invalid(http.StatusBadRequest, needed, "%s is missing", needed)
	case !isNull(fields["stream_options"]) && !a.stream:
		return a, invalid(http.StatusBadRequest, "stream_options", "stream_options is for streams only")
	case k == plain && a.request.Tokens == 0:
		a.request.Tokens = defaultTokens
	}
	return a, nil
}

func (h *Handler) param(a *asked, own map[string]param, name string, raw json.RawMessage) *failure {
	if name == "model" {
		var model string
		if err := decode(raw, &model, "text"); err != nil {
			return invalid(http.StatusBadRequest, name, "model: %v", err)
		}
		if model != h.o.Model {
			return h.noModel(model)
		}
		return nil
	}
	take := params[name]
	if take == nil {
		take = own[name]
	}
	if take == nil {
		return invalid(http.StatusBadRequest, name, "unrecognized request argument: %.100s", name)
	}
	if isNull(raw) {
		return nil
	}
	err := take(a, raw)
	var cannot *cannotError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &cannot):
		return unsupported(name, "%s: %s", name, cannot.why)
	}
	return invalid(http.StatusBadRequest, name, "%s: %v", name, err)
}

// cannotError is a value that this server cannot follow.
type cannotError struct{ why string }

func (e *cannotError) Error() string { return e.why }

func isNull(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// decode reads raw into v; want is what it should be.
func decode(raw json.RawMessage, v any, want string) error {
	if json.Unmarshal(raw, v) != nil {
		return fmt.Errorf("want %s", want)
	}
	return nil
}

func ignored(*asked, json.RawMessage) error { return nil }

// only takes one value: a whole number, however that is written, or what is not a number.
func only(why string, value any) param {
	return func(_ *asked, raw json.RawMessage) error {
		var got any
		if err := decode(raw, &got, "a value"); err != nil {
			return err
		}
		want := value
		if n, ok := value.(int); ok {
			want = float64(n)
		}
		if got != want {
			return &cannotError{why}
		}
		return nil
	}
}

// empty takes an empty list, object or text, false and 0.
func empty(why string) param {
	return func(_ *asked, raw json.RawMessage) error {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return err
		}
		if !slices.Contains([]string{"[]", "{}", `""`, "false", "0"}, b.String()) {
			return &cannotError{why}
		}
		return nil
	}
}

func tokens(a *asked, raw json.RawMessage) error {
	const want = "a whole number of 1 or more"
	n := 0
	if err := decode(raw, &n, want); err != nil {
		return err
	}
	if n < 1 || n > math.MaxInt32 {
		return errors.New("want " + want)
	}
	if a.request.Tokens == 0 || n < a.request.Tokens { // both names of it are given: the smaller holds
		a.request.Tokens = n
	}
	return nil
}

func streamOptions(a *asked, raw json.RawMessage) error {
	var o struct {
		Usage       bool  `json:"include_usage"`
		Obfuscation *bool `json:"include_obfuscation"`
	}
	if err := decode(raw, &o, "an object"); err != nil {
		return err
	}
	if o.Obfuscation != nil && *o.Obfuscation {
		return &cannotError{"this server does not pad its streams: leave out include_obfuscation"}
	}
	a.usage = o.Usage
	return nil
}

func responseFormat(_ *asked, raw json.RawMessage) error {
	var f struct {
		Type string `json:"type"`
	}
	if err := decode(raw, &f, "an object with a type"); err != nil {
		return err
	}
	if f.Type != "text" {
		return &cannotError{"this server writes text: leave it out"}
	}
	return nil
}

func prompt(a *asked, raw json.RawMessage) error {
	if json.Unmarshal(raw, &a.request.Prompt) == nil {
		return nil
	}
	var list []string
	if err := decode(raw, &list, "text; prompts in tokens are not taken"); err != nil {
		return err
	}
	if len(list) != 1 {
		return &cannotError{"this server takes one prompt a request"}
	}
	a.request.Prompt = list[0]
	return nil
}

func messages(a *asked, raw json.RawMessage) error {
	var list []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Name    json.RawMessage `json:"name"`
		Calls   json.RawMessage `json:"tool_calls"`
	}
	if err := decode(raw, &list, "a list of objects with role and content"); err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("want one message at least")
	}
	for i, m := range list {
		switch {
		case m.Role == "developer":
			m.Role = "system" // the newer name of it
		case m.Role != "system" && m.Role != "user" && m.Role != "assistant":
			return fmt.Errorf("message %d: role %.40q, want system, user or assistant", i, m.Role)
		case !isNull(m.Calls):
			return &cannotError{fmt.Sprintf("message %d: this server calls no tools", i)}
		}
		text, err := content(m.Content)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		a.request.Messages = append(a.request.Messages, Message{m.Role, text})
	}
	return nil
}

// content is text, or a list of parts that are text.
func content(raw json.RawMessage) (text string, err error) {
	if !isNull(raw) && json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct{ Type, Text string }
	if isNull(raw) || json.Unmarshal(raw, &parts) != nil {
		return "", errors.New("content: want text, or a list of parts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", &cannotError{fmt.Sprintf("content of type %.40q: this server reads text", p.Type)}
		}
		text += p.Text
	}
	return text, nil
}
