package serve

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"kvasir/engine/chat"
	"kvasir/engine/sample"
)

// asked is a request that is understood: one for each prompt.
type asked struct {
	requests []Request
	request  Request // what all of them have in common
	prompts  []string
	stream   bool
	usage    bool // the stream ends with counts
	echo     bool
	seeded   bool
	none     bool            // no tool is to be called
	oneCall  bool            // not more than one
	names    map[string]bool // of tools

	instructions     *string         // of a response
	format, metadata json.RawMessage // of a response, as they came
}

// A param takes one parameter of a request, which is not null.
type param func(a *asked, raw json.RawMessage) error

// defaultTokens is OpenAI's, of a completion that does not say how long; a chat goes on to its end.
const defaultTokens = 16

// Limits of a request.
const (
	maxPrompts = 128
	maxTools   = 128
)

// params is what may stand in a request to either endpoint. Ranges of sampling are those of package sample.
var params = map[string]param{
	"stream":         func(a *asked, raw json.RawMessage) error { return decode(raw, &a.stream, "true or false") },
	"stream_options": streamOptions,
	"max_tokens":     tokens,

	"temperature":        number(func(p *sample.Params) *float32 { return &p.Temperature }, 0, 2),
	"top_p":              number(func(p *sample.Params) *float32 { return &p.TopP }, 0, 1),
	"min_p":              number(func(p *sample.Params) *float32 { return &p.MinP }, 0, 1),
	"presence_penalty":   number(func(p *sample.Params) *float32 { return &p.Presence }, -2, 2),
	"frequency_penalty":  number(func(p *sample.Params) *float32 { return &p.Frequency }, -2, 2),
	"repetition_penalty": number(func(p *sample.Params) *float32 { return &p.Repetition }, 1.0/sample.MaxRepetition, sample.MaxRepetition),
	"top_k":              topK,
	"seed":               seed,
	"n":                  choices,
	"stop":               stop,
	"stop_token_ids":     stopTokens,
	"logit_bias":         bias,

	"store": only("this server stores nothing: leave it out, or give false", false),
}

// plainParams and chatParams are in one of the two alone.
var (
	plainParams = map[string]param{
		"prompt":   prompt,
		"logprobs": plainLogprobs,
		"best_of":  only("this server makes no more choices than it gives: leave it out, or give 1", 1),
		"echo":     func(a *asked, raw json.RawMessage) error { return decode(raw, &a.echo, "true or false") },
		"suffix":   empty("this server does not fill in before a text: leave it out"),
	}
	chatParams = map[string]param{
		"messages":              messages,
		"max_completion_tokens": tokens,
		"logprobs": func(a *asked, raw json.RawMessage) error {
			return decode(raw, &a.request.Sampling.Logprobs, "true or false")
		},
		"top_logprobs":         topLogprobs,
		"tools":                tools,
		"tool_choice":          toolChoice,
		"parallel_tool_calls":  parallelCalls,
		"functions":            empty("this server takes tools in the place of functions"),
		"function_call":        only("this server takes tool_choice in the place of function_call", "none"),
		"response_format":      responseFormat,
		"chat_template_kwargs": templateKwargs,
		"modalities":           modalities,
		"audio":                empty("this server writes text: leave it out"),
	}
)

// parse reads the body of a request. draw is asked for a seed where one is needed and none is given.
func (h *Handler) parse(body []byte, k kind, draw func() uint64) (*asked, *failure) {
	a := &asked{}
	a.request.Choices, a.request.Sampling = 1, sample.Defaults()
	fields, f := object(body)
	if f != nil {
		return nil, f
	}
	needed, own := "prompt", plainParams
	switch k {
	case chatText:
		needed, own = "messages", chatParams
	case responseText:
		needed, own = "input", responseParams
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // so that of two mistakes always the same is told
	for _, name := range names {
		if f := h.param(a, own, name, fields[name]); f != nil {
			return nil, f
		}
	}
	s := &a.request.Sampling
	switch {
	case k != plainText && a.request.Messages == nil, k == plainText && isNull(fields["prompt"]):
		return nil, invalid(http.StatusBadRequest, needed, "%s is missing", needed)
	case !isNull(fields["stream_options"]) && !a.stream:
		return nil, invalid(http.StatusBadRequest, "stream_options", "stream_options is for streams only")
	case s.Top > 0 && !s.Logprobs:
		return nil, invalid(http.StatusBadRequest, "top_logprobs", "top_logprobs needs logprobs to be true")
	case a.echo && s.Logprobs:
		return nil, unsupported("echo", "echo: this server gives no log probabilities of a prompt")
	case len(a.prompts)*a.request.Choices > maxPrompts:
		return nil, invalid(http.StatusBadRequest, "n", "n: %d texts of %d prompts, want %d in all at most",
			a.request.Choices, len(a.prompts), maxPrompts)
	case k == plainText && a.request.Tokens == 0:
		a.request.Tokens = defaultTokens
	}
	if f := a.checkCalls(); f != nil {
		return nil, f
	}
	a.complete(k, draw)
	return a, nil
}

// object reads the body as an object.
func object(body []byte) (map[string]json.RawMessage, *failure) {
	var fields map[string]json.RawMessage
	if !utf8.Valid(body) {
		return nil, invalid(http.StatusBadRequest, "", "the request is not valid UTF-8: at byte %d", 1+validTo(body))
	}
	err := json.Unmarshal(body, &fields)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, invalid(http.StatusBadRequest, "", "the request is not JSON: at byte %d, %v", syntax.Offset, err)
	case err != nil || fields == nil:
		return nil, invalid(http.StatusBadRequest, "", "the request is not a JSON object")
	}
	return fields, nil
}

// validTo is how many bytes of a text are valid UTF-8.
func validTo(text []byte) (n int) {
	for n < len(text) {
		r, size := utf8.DecodeRune(text[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

// complete makes the requests of what was read.
func (a *asked) complete(k kind, draw func() uint64) {
	if s := &a.request.Sampling; s.Temperature > 0 && !a.seeded {
		s.Seed = draw()
	}
	a.request.All = max(1, len(a.prompts)) * a.request.Choices
	if a.none {
		a.request.Template.Tools = nil
	}
	if i := a.instructions; i != nil && *i != "" {
		a.request.Messages = append([]chat.Message{{Role: "system", Content: *i}}, a.request.Messages...)
	}
	if k != plainText {
		a.requests = []Request{a.request}
		return
	}
	for _, p := range a.prompts {
		r := a.request
		r.Prompt = p
		a.requests = append(a.requests, r)
	}
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return binary.LittleEndian.Uint64(b[:])
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
	take := own[name]
	if take == nil {
		take = params[name]
	}
	if take == nil || isNull(raw) { // clients send what the newest interface has
		return nil
	}
	err := take(a, raw)
	var cannot *cannotError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &cannot):
		return unsupported(name, "%s: %v", name, err)
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

// only takes some values: whole numbers, however they are written, or what is not a number.
func only(why string, values ...any) param {
	return func(_ *asked, raw json.RawMessage) error {
		var got any
		if err := decode(raw, &got, "a value"); err != nil {
			return err
		}
		for _, want := range values {
			if n, ok := want.(int); ok {
				want = float64(n)
			}
			if got == want {
				return nil
			}
		}
		return &cannotError{why}
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

// number takes a number of sampling.
func number(to func(*sample.Params) *float32, least, most float64) param {
	want := fmt.Sprintf("a number from %v to %v", least, most)
	return func(a *asked, raw json.RawMessage) error {
		var v float64
		if err := decode(raw, &v, want); err != nil {
			return err
		}
		if v < least || v > most {
			return errors.New("want " + want)
		}
		*to(&a.request.Sampling) = float32(v)
		return nil
	}
}

// whole reads a whole number, also when it is written with a point.
func whole(raw json.RawMessage, least, most int64) (int64, error) {
	want := fmt.Sprintf("want a whole number from %d to %d", least, most)
	var v json.Number
	if json.Unmarshal(raw, &v) != nil || raw[0] == '"' {
		return 0, errors.New(want)
	}
	n, err := strconv.ParseInt(v.String(), 10, 64)
	if f, ferr := v.Float64(); err != nil && ferr == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		n, err = int64(f), nil
	}
	if err != nil || n < least || n > most {
		return 0, errors.New(want)
	}
	return n, nil
}

func topK(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, -1, math.MaxInt32) // -1 is others' word for all
	a.request.Sampling.TopK = max(0, int(n))
	return err
}

func seed(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, math.MinInt64, math.MaxInt64)
	a.request.Sampling.Seed, a.seeded = uint64(n), true
	return err
}

func choices(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, 1, maxPrompts)
	a.request.Choices = int(n)
	return err
}

func tokens(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, 1, math.MaxInt32)
	if err != nil {
		return err
	}
	if a.request.Tokens == 0 || int(n) < a.request.Tokens { // both names of it are given: the smaller holds
		a.request.Tokens = int(n)
	}
	return nil
}

func stop(a *asked, raw json.RawMessage) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		a.request.Stop = []string{one}
	} else if err := decode(raw, &a.request.Stop, "text, or a list of texts"); err != nil {
		return err
	}
	_, err := sample.NewStops(a.request.Stop)
	return err
}

func stopTokens(a *asked, raw json.RawMessage) error {
	const want = "a list of whole numbers"
	var list []*int32 // null is no number
	if err := decode(raw, &list, want); err != nil {
		return err
	}
	for _, t := range list {
		if t == nil {
			return errors.New("want " + want)
		}
		a.request.Sampling.Stop = append(a.request.Sampling.Stop, *t)
	}
	return nil
}

func bias(a *asked, raw json.RawMessage) error {
	const want = "an object of numbers, by token"
	var list map[string]*float64 // null is no number
	if err := decode(raw, &list, want); err != nil {
		return err
	}
	if len(list) > sample.MaxBiases {
		return fmt.Errorf("want %d tokens at most", sample.MaxBiases)
	}
	for key, v := range list {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			return fmt.Errorf("%.40q is no token", key)
		}
		if v == nil {
			return errors.New("want " + want)
		}
		if a.request.Sampling.Bias == nil {
			a.request.Sampling.Bias = map[int32]float32{}
		}
		a.request.Sampling.Bias[int32(id)] = float32(*v)
	}
	return nil
}

func plainLogprobs(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, 0, sample.MaxTop)
	a.request.Sampling.Logprobs, a.request.Sampling.Top = true, int(n)
	return err
}

func topLogprobs(a *asked, raw json.RawMessage) error {
	n, err := whole(raw, 0, sample.MaxTop)
	a.request.Sampling.Top = int(n)
	return err
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

func prompt(a *asked, raw json.RawMessage) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		a.prompts = []string{one}
		return nil
	}
	if err := decode(raw, &a.prompts, "text, or a list of texts; prompts in tokens are not taken"); err != nil {
		return err
	}
	if len(a.prompts) < 1 || len(a.prompts) > maxPrompts {
		return fmt.Errorf("want 1 to %d prompts", maxPrompts)
	}
	return nil
}
