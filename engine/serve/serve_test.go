package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/engine/chat"
)

// fake says back what it was asked, a word a piece, in each choice.
type fake struct {
	say  string        // what it says in the place of that
	hold chan struct{} // if set, Generate waits for it, or for the end of its context, after the first choice
	gone chan struct{} // if set, closed when a context has ended
	err  error         // after the first piece
	got  chan Request  // if set, gets every request
}

func (f *fake) Reply(r Request) (chat.ReplyOptions, error) {
	if r.Messages[0].Content == "refused" {
		return chat.ReplyOptions{}, fmt.Errorf("%w: %w", ErrRequest, &ParamError{"messages", "", errors.New("not like this")})
	}
	return chat.ReplyOptions{Tools: r.Template.Tools}, nil
}

func (f *fake) Generate(ctx context.Context, r Request, emit func(Piece) error) (Result, error) {
	if f.got != nil {
		f.got <- r
	}
	if r.Prompt == "bad" {
		return Result{}, fmt.Errorf("%w: the prompt is bad", ErrRequest)
	}
	text := r.Prompt
	for _, m := range r.Messages {
		text += m.Role + ":" + m.Content + " "
	}
	if f.say != "" {
		text = f.say
	}
	res := Result{Prompt: 7}
	for i := range r.Choices {
		out := Outcome{}
		at := 0
		for _, word := range strings.SplitAfter(strings.TrimSpace(text), " ") {
			if out.Length = r.Tokens > 0 && out.Tokens == r.Tokens; out.Length {
				break
			}
			p := Piece{Choice: i, Text: word}
			if r.Sampling.Logprobs {
				p.Token = &Logprob{Text: []byte(word), At: at, Logprob: -0.5}
				at += utf8.RuneCountInString(word)
				for range r.Sampling.Top {
					p.Token.Top = append(p.Token.Top, Logprob{Text: []byte("ü")[:1], Logprob: -1})
				}
			}
			if err := emit(p); err != nil {
				return res, err
			}
			out.Tokens++
			if f.err != nil {
				return res, f.err
			}
		}
		if f.hold != nil {
			select {
			case <-f.hold:
			case <-ctx.Done():
				close(f.gone)
				return res, ctx.Err()
			}
		}
		res.Choices = append(res.Choices, out)
		if err := emit(Piece{Choice: i, End: &out}); err != nil {
			return res, err
		}
	}
	return res, nil
}

func start(t *testing.T, f *fake, o Options) string {
	t.Helper()
	o.Model = "tiny"
	s := httptest.NewServer(New(f, o))
	t.Cleanup(s.Close)
	return s.URL
}

func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func TestAnswersAreOpenAIObjects(t *testing.T) {
	url := start(t, &fake{}, Options{})
	for _, c := range []struct {
		name, path, body string
		want             []string
	}{
		{"completion", "/v1/completions", `{"model":"tiny","prompt":"one two three","max_tokens":2,"temperature":0}`,
			[]string{`"object":"text_completion"`, `"text":"one two "`, `"finish_reason":"length"`, `"logprobs":null`,
				`"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}`}},
		{"prompt in a list", "/v1/completions", `{"prompt":["one"],"n":1,"top_p":1.0,"stop":[],"seed":5,"temperature":null}`,
			[]string{`"text":"one"`, `"finish_reason":"stop"`}},
		{"two prompts, two choices", "/v1/completions", `{"prompt":["one","two"],"n":2,"echo":true}`,
			[]string{`"index":0,"text":"oneone"`, `"index":1,"text":"oneone"`, `"index":2,"text":"twotwo"`, `"index":3,"text":"twotwo"`,
				`"prompt_tokens":14,"completion_tokens":4,`}},
		{"unknown parameters", "/v1/completions", `{"prompt":"one","temprature":0,"service_tier":"flex","messages":5}`, []string{`"text":"one"`}},
		{"log probabilities", "/v1/completions", `{"prompt":"über alles","logprobs":1}`,
			[]string{`"logprobs":{"tokens":["über ","alles"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"\ufffd":-1},{"\ufffd":-1}],"text_offset":[0,5]}`}},
		{"log probabilities of a chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1}`,
			[]string{`"content":[{"token":"user:x","logprob":-0.5,"bytes":[117,115,101,114,58,120],"top_logprobs":[{"token":"\ufffd","logprob":-1,"bytes":[195]}]}]`}},
		{"empty text", "/v1/completions", `{"prompt":""}`, []string{`"text":""`}},
		{"chat", "/v1/chat/completions", `{"messages":[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
			[]string{`"object":"chat.completion"`, `"message":{"role":"assistant","content":"system:be user:hi"}`}},
		{"chat, shorter", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a b c"}],"max_tokens":9,"max_completion_tokens":1}`,
			[]string{`"content":"user:a "`, `"finish_reason":"length"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := post(t, url+c.path, c.body)
			if status != http.StatusOK {
				t.Errorf("status %d: %s", status, text)
			}
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("answer %s, want %s in it", text, w)
				}
			}
		})
	}
}

func TestStreamsAreServerSentEvents(t *testing.T) {
	url := start(t, &fake{}, Options{})
	for _, c := range []struct {
		name, path, body string
		want             []string // in the order of the events
	}{
		{"completion", "/v1/completions", `{"prompt":"one two","stream":true,"stream_options":{"include_usage":true}}`,
			[]string{`"text":"one "`, `"text":"two"`, `"finish_reason":"stop"`, `"choices":[],"usage":{"prompt_tokens":7,`, "[DONE]"}},
		{"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a b"}],"stream":true}`,
			[]string{`"delta":{"role":"assistant","content":""}`, `"delta":{"content":"user:a "}`, `"delta":{"content":"b"}`,
				`"delta":{},"logprobs":null,"finish_reason":"stop"`, "[DONE]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := post(t, url+c.path, c.body)
			events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
			if status != http.StatusOK || len(events) != len(c.want) {
				t.Fatalf("status %d, %d events, want %d: %s", status, len(events), len(c.want), text)
			}
			for i, w := range c.want {
				if data, ok := strings.CutPrefix(events[i], "data: "); !ok || !strings.Contains(data, w) {
					t.Errorf("event %d is %q, want %s in it", i, events[i], w)
				}
			}
		})
	}
}

func TestWhatCannotBeDoneIsRefusedByName(t *testing.T) {
	url := start(t, &fake{}, Options{Body: 4096})
	p := func(more string) string { return `{"prompt":"x",` + more + `}` }
	m := func(more string) string { return `{"messages":[{"role":"user","content":"x"}],` + more + `}` }
	for _, c := range []struct {
		name, path, body string
		status           int
		param, text      string
	}{
		{"temperature", "completions", p(`"temperature":2.5`), 400, "temperature", "from 0 to 2"},
		{"temperature in words", "completions", p(`"temperature":"hot"`), 400, "temperature", "a number"},
		{"top_p", "chat/completions", m(`"top_p":-0.1`), 400, "top_p", "from 0 to 1"},
		{"no choices", "completions", p(`"n":0`), 400, "n", "from 1 to 128"},
		{"too many texts", "completions", `{"prompt":["a","b"],"n":100}`, 400, "n", "128 in all"},
		{"empty stop", "completions", p(`"stop":[""]`), 400, "stop", "stop"},
		{"stop in numbers", "completions", p(`"stop":5`), 400, "stop", "text"},
		{"penalty", "completions", p(`"presence_penalty":3`), 400, "presence_penalty", "from -2 to 2"},
		{"huge number", "completions", p(`"frequency_penalty":1e999`), 400, "frequency_penalty", "a number"},
		{"bias", "completions", p(`"logit_bias":{"x":1}`), 400, "logit_bias", "no token"},
		{"bias in words", "completions", p(`"logit_bias":{"5":"x"}`), 400, "logit_bias", "numbers"},
		{"log probabilities", "completions", p(`"logprobs":21`), 400, "logprobs", "from 0 to 20"},
		{"top without log probabilities", "chat/completions", m(`"top_logprobs":3`), 400, "top_logprobs", "needs logprobs"},
		{"echo with log probabilities", "completions", p(`"logprobs":0,"echo":true`), 400, "echo", "prompt"},
		{"seed", "completions", p(`"seed":1.5`), 400, "seed", "whole number"},
		{"best of", "completions", p(`"best_of":2`), 400, "best_of", "choices"},
		{"tool without a name", "chat/completions", m(`"tools":[{"type":"function"}]`), 400, "tools", "name"},
		{"tool of another type", "chat/completions", m(`"tools":[{"type":"web_search"}]`), 400, "tools", "web_search"},
		{"forced call", "chat/completions", m(`"tool_choice":"required"`), 400, "tool_choice", "no tools"},
		{"certain call", "chat/completions", m(`"tool_choice":{"type":"function"}`), 400, "tool_choice", "a name"},
		{"call of another", "chat/completions", m(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}`), 400, "tool_choice", `no function "g"`},
		{"choice of another type", "chat/completions", m(`"tool_choice":{"type":"custom","custom":{"name":"g"}}`), 400, "tool_choice", "custom"},
		{"choice in numbers", "chat/completions", m(`"tool_choice":5`), 400, "tool_choice", "want auto"},
		{"two of a name", "chat/completions", m(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`), 400, "tools", "twice"},
		{"parallel in words", "chat/completions", m(`"parallel_tool_calls":"no"`), 400, "parallel_tool_calls", "true or false"},
		{"format", "chat/completions", m(`"response_format":{"type":"yaml"}`), 400, "response_format", "json_schema"},
		{"schema without one", "chat/completions", m(`"response_format":{"type":"json_schema"}`), 400, "response_format", "schema is missing"},
		{"sound", "chat/completions", m(`"modalities":["text","audio"]`), 400, "modalities", "writes text"},
		{"no prompts", "completions", `{"prompt":[]}`, 400, "prompt", "1 to 128"},
		{"prompt of tokens", "completions", `{"prompt":[1,2]}`, 400, "prompt", "want text"},
		{"no prompt", "completions", `{}`, 400, "prompt", "missing"},
		{"null prompt", "completions", `{"prompt":null}`, 400, "prompt", "missing"},
		{"no messages", "chat/completions", `{}`, 400, "messages", "missing"},
		{"empty messages", "chat/completions", `{"messages":[]}`, 400, "messages", "one message"},
		{"unknown role", "chat/completions", `{"messages":[{"role":"function","content":"x"}]}`, 400, "messages", "role"},
		{"tool without a call", "chat/completions", `{"messages":[{"role":"tool","content":"x"}]}`, 400, "messages", "tool_call_id"},
		{"call of a user", "chat/completions", `{"messages":[{"role":"user","content":"x","tool_calls":[{"id":"a"}]}]}`, 400, "messages", "assistant"},
		{"call of nothing", "chat/completions", `{"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]}]}`, 400, "messages", "name"},
		{"refused by the template", "chat/completions", `{"messages":[{"role":"user","content":"refused"}]}`, 400, "messages", "not like this"},
		{"message without content", "chat/completions", `{"messages":[{"role":"user"}]}`, 400, "messages", "content"},
		{"picture", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages", "reads text"},
		{"no tokens", "completions", p(`"max_tokens":0`), 400, "max_tokens", "whole number from 1"},
		{"half a token", "completions", p(`"max_tokens":1.5`), 400, "max_tokens", "whole number from 1"},
		{"stream in words", "completions", p(`"stream":"yes"`), 400, "stream", "true or false"},
		{"options without a stream", "completions", p(`"stream_options":{"include_usage":true}`), 400, "stream_options", "streams"},
		{"another model", "completions", p(`"model":"gpt-4"`), 404, "model", "gpt-4"},
		{"not JSON", "completions", `{"prompt":x}`, 400, "", "at byte 11"},
		{"not an object", "completions", `[]`, 400, "", "JSON"},
		{"null", "completions", `null`, 400, "", "JSON"},
		{"not UTF-8", "completions", "{\"prompt\":\"\xff\"}", 400, "", "UTF-8: at byte 12"},
		{"too long", "completions", p(`"user":"` + strings.Repeat("x", 5000) + `"`), 413, "", "4096"},
		{"for the generator", "completions", `{"prompt":"bad"}`, 400, "", "the prompt is bad"},
		{"for the generator, as a stream", "completions", `{"prompt":"bad","stream":true}`, 400, "", "the prompt is bad"},
		{"NaN", "completions", p(`"temperature":NaN`), 400, "", "at byte 29"},
		{"infinite", "completions", p(`"top_p":-Infinity`), 400, "", "not JSON"},
		{"negative tokens", "completions", p(`"max_tokens":-5`), 400, "max_tokens", "whole number from 1"},
		{"more tokens than there are numbers", "completions", p(`"max_tokens":99999999999999999999`), 400, "max_tokens", "whole number from 1"},
		{"negative top_k", "completions", p(`"top_k":-2`), 400, "top_k", "from -1"},
		{"huge seed", "completions", p(`"seed":1e30`), 400, "seed", "whole number"},
		{"huge choices", "completions", p(`"n":1e18`), 400, "n", "from 1 to 128"},
		{"bias that is no number", "completions", p(`"logit_bias":{"5":1e999}`), 400, "logit_bias", "numbers"},
		{"token below", "completions", p(`"logit_bias":{"-1":1}`), 400, "logit_bias", "no token"},
		{"token beyond", "completions", p(`"logit_bias":{"99999999999":1}`), 400, "logit_bias", "no token"},
		{"sound in a message", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"input_audio"}]}]}`, 400, "messages", "input_audio"},
		{"file in a message", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"file"}]}]}`, 400, "messages", "message 0: content of type \"file\""},
		{"invented role", "chat/completions", `{"messages":[{"role":"user","content":"x"},{"role":"wizard","content":"x"}]}`, 400, "messages", "message 1: role \"wizard\""},
		{"cut off", "completions", `{"prompt":"x"`, 400, "", "at byte 13"},
		{"two objects", "completions", `{"prompt":"x"}{}`, 400, "", "at byte 15"},
		{"response without input", "responses", `{}`, 400, "input", "missing"},
		{"response of nothing", "responses", `{"input":[]}`, 400, "input", "one message"},
		{"response of numbers", "responses", `{"input":5}`, 400, "input", "text, or a list"},
		{"response to a picture", "responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, 400, "input", "item 0: content of type \"input_image\""},
		{"response to a call", "responses", `{"input":[{"type":"function_call","name":"f"}]}`, 400, "input", "function_call"},
		{"response by a tool", "responses", `{"input":[{"role":"tool","content":"x","tool_call_id":"c"}]}`, 400, "input", "role"},
		{"response with tools", "responses", `{"input":"x","tools":[{"type":"web_search"}]}`, 400, "tools", "call no tools"},
		{"response that goes on", "responses", `{"input":"x","previous_response_id":"resp_1"}`, 400, "previous_response_id", "stores nothing"},
		{"response in the background", "responses", `{"input":"x","background":true}`, 400, "background", "/v1/batches"},
		{"response of another form", "responses", `{"input":"x","text":{"format":{"type":"yaml"}}}`, 400, "text", "json_schema"},
		{"response by no schema", "responses", `{"input":"x","text":{"format":{"type":"json_schema"}}}`, 400, "text", "format.schema"},
		{"response of no tokens", "responses", `{"input":"x","max_output_tokens":0}`, 400, "max_output_tokens", "from 1"},
		{"response by the old name", "responses", `{"input":"x","max_tokens":5}`, 400, "max_tokens", "max_output_tokens"},
		{"metadata in numbers", "responses", `{"input":"x","metadata":{"a":5}}`, 400, "metadata", "texts"},
		{"metadata of nothing", "responses", `{"input":"x","metadata":{"a":null}}`, 400, "metadata", "texts"},
		{"long metadata", "responses", `{"input":"x","metadata":{"a":"` + strings.Repeat("x", 513) + `"}}`, 400, "metadata", "512"},
		{"bias of nothing", "completions", p(`"logit_bias":{"5":null}`), 400, "logit_bias", "numbers"},
		{"stop token of nothing", "completions", p(`"stop_token_ids":[null]`), 400, "stop_token_ids", "whole numbers"},
		{"part without text", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, 400, "messages", "no text"},
		{"no such path", "embeddings", `{}`, 404, "", "not answered here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := post(t, url+"/v1/"+c.path, c.body)
			var b errorBody
			if err := json.Unmarshal([]byte(text), &b); err != nil {
				t.Fatalf("answer %q: %v", text, err)
			}
			if status != c.status || !strings.Contains(b.Error.Message, c.text) || b.Error.Type != "invalid_request_error" {
				t.Errorf("status %d, %s; want %d and %q", status, text, c.status, c.text)
			}
			if param := b.Error.Param; param == nil && c.param != "" || param != nil && *param != c.param {
				t.Errorf("param of %s, want %q", text, c.param)
			}
		})
	}
}

// said is what a stream's events added up to, by choice.
type said struct {
	text, reasoning, finish string
	calls                   []wireCall
	tokens                  int // with log probabilities
}

// hear reads a stream.
func hear(t *testing.T, text string) (list map[int]*said, last string) {
	t.Helper()
	list = map[int]*said{}
	for event := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if strings.HasPrefix(event, ": ") {
			continue
		}
		data, ok := strings.CutPrefix(event, "data: ")
		if last = data; !ok || data == "[DONE]" {
			continue
		}
		var o struct {
			Choices []struct {
				Index    int
				Text     string
				Delta    turn
				Finish   *string `json:"finish_reason"`
				Logprobs *chatLogs
			}
		}
		if err := json.Unmarshal([]byte(data), &o); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		for _, c := range o.Choices {
			if list[c.Index] == nil {
				list[c.Index] = &said{}
			}
			x := list[c.Index]
			if x.finish != "" {
				t.Errorf("choice %d goes on after its end: %s", c.Index, data)
			}
			if x.text += c.Text; c.Delta.Content != nil {
				x.text += *c.Delta.Content
			}
			x.reasoning += c.Delta.Reasoning
			x.calls = append(x.calls, c.Delta.Calls...)
			if c.Logprobs != nil {
				x.tokens += len(c.Logprobs.Content)
			}
			if c.Finish != nil {
				x.finish = *c.Finish
			}
		}
	}
	return list, last
}

const calling = `<think>what now</think>I look. <tool_call>
{"name": "weather", "arguments": {"city": "Ulm"}}
</tool_call> <tool_call>{"name": "time", "arguments": {}}</tool_call>`

const withTools = `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"n":2,
	"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}},{"type":"function","function":{"name":"time"}}]`

func TestAnswersHaveReasoningAndCallsApart(t *testing.T) {
	url := start(t, &fake{say: calling}, Options{}) + "/v1/chat/completions"
	status, text := post(t, url, withTools+`}`)
	var o struct {
		Choices []struct {
			Message turn
			Finish  string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil || status != http.StatusOK || len(o.Choices) != 2 {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	status, text = post(t, url, withTools+`,"stream":true}`)
	list, last := hear(t, text)
	if status != http.StatusOK || last != "[DONE]" || len(list) != 2 {
		t.Fatalf("status %d, %d choices, last %s", status, len(list), last)
	}
	for i, c := range o.Choices {
		x := list[i]
		if c.Finish != "tool_calls" || c.Message.Reasoning != "what now" || c.Message.Content == nil || strings.TrimSpace(*c.Message.Content) != "I look." {
			t.Errorf("choice %d: %+v", i, c)
		}
		if x.finish != c.Finish || x.reasoning != c.Message.Reasoning || x.text != *c.Message.Content {
			t.Errorf("choice %d as a stream: %+v", i, x)
		}
		if want := strings.Count(calling, " ") + 1; x.tokens != want {
			t.Errorf("choice %d: %d tokens have log probabilities, want %d", i, x.tokens, want)
		}
		for k, calls := range [][]wireCall{c.Message.Calls, x.calls} {
			if len(calls) != 2 || calls[0].Function.Name != "weather" || calls[1].Function.Name != "time" ||
				calls[0].Function.Arguments != `{"city": "Ulm"}` || calls[0].ID == calls[1].ID || calls[0].Type != "function" ||
				k == 1 && *calls[1].Index != 1 {
				t.Errorf("choice %d: calls %+v", i, calls)
			}
		}
	}
	_, text = post(t, url, withTools+`,"tool_choice":"none"}`)
	if strings.Contains(text, `"tool_calls"`) || !strings.Contains(text, `"finish_reason":"stop"`) {
		t.Errorf("without tools: %s", text)
	}
}

func TestResponsesAreCutAndFail(t *testing.T) {
	url := start(t, &fake{say: "one two three"}, Options{}) + "/v1/responses"
	for body, want := range map[string]string{
		`{"input":"x","max_output_tokens":2}`:                                                            `"incomplete_details":{"reason":"max_output_tokens"}`,
		`{"input":"x","max_output_tokens":2,"stream":true}`:                                              `"type":"response.incomplete"`,
		`{"input":"x","tools":[],"tool_choice":"auto","store":false,"metadata":{"a":"b"},"stream":true}`: `"metadata":{"a":"b"}`,
	} {
		if status, text := post(t, url, body); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: status %d: %s, want %s in it", body, status, text, want)
		}
	}
	url = start(t, &fake{err: errors.New("no worker")}, Options{}) + "/v1/responses"
	status, text := post(t, url, `{"input":"a b","stream":true}`)
	events := strings.Split(strings.TrimSpace(text), "\n\n")
	if last := events[len(events)-1]; status != http.StatusOK || !strings.HasPrefix(last, "event: error\ndata: {\"type\":\"error\"") || !strings.Contains(last, "no worker") {
		t.Errorf("status %d: %s", status, text)
	}
	if status, text := post(t, url, `{"input":"a b"}`); status != http.StatusInternalServerError || !strings.Contains(text, "no worker") {
		t.Errorf("status %d: %s", status, text)
	}
}

func TestParametersReachTheGenerator(t *testing.T) {
	f := &fake{got: make(chan Request, 2)}
	url := start(t, f, Options{})
	_, text := post(t, url+"/v1/chat/completions", `{"messages":[{"role":"system","content":"s"},{"role":"assistant","content":null,
		"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"r"}],"temperature":0.5,"top_p":0.25,"top_k":-1,"min_p":0.125,"presence_penalty":1,
		"frequency_penalty":-1,"repetition_penalty":1.5,"seed":-1,"n":2,"stop":"\n","stop_token_ids":[3],"logit_bias":{"7":-100},
		"logprobs":true,"top_logprobs":2,"max_completion_tokens":9e1,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}},
		"chat_template_kwargs":{"enable_thinking":false,"x":1}}`)
	r := <-f.got
	s := r.Sampling
	if s.Temperature != 0.5 || s.TopP != 0.25 || s.TopK != 0 || s.MinP != 0.125 || s.Presence != 1 || s.Frequency != -1 ||
		s.Repetition != 1.5 || s.Seed != 1<<64-1 || s.Bias[7] != -100 || !s.Logprobs || s.Top != 2 || s.Stop[0] != 3 {
		t.Errorf("sampling %+v; %s", s, text)
	}
	if r.Choices != 2 || r.Tokens != 90 || r.Stop[0] != "\n" || string(r.Schema) != `{"type":"object"}` || r.JSON ||
		r.Template.Thinking == nil || *r.Template.Thinking || string(r.Template.Extra["x"]) != "1" {
		t.Errorf("request %+v", r)
	}
	if m := r.Messages; len(m) != 3 || m[1].Reasoning != "hm" || m[1].ToolCalls[0].Name != "f" || m[2].ToolCallID != "c1" {
		t.Errorf("messages %+v", r.Messages)
	}
	body := `{"prompt":"x","temperature":1}`
	post(t, url+"/v1/completions", body)
	post(t, url+"/v1/completions", body)
	if a, b := <-f.got, <-f.got; a.Sampling.Seed == b.Sampling.Seed {
		t.Errorf("two requests without a seed both have %d", a.Sampling.Seed)
	}
}

func TestWhatIsToBeCalledReachesTheGenerator(t *testing.T) {
	f := &fake{got: make(chan Request, 1)}
	url := start(t, f, Options{})
	for more, want := range map[string]Calls{
		`"tool_choice":"auto"`:                                 {},
		`"parallel_tool_calls":true`:                           {},
		`"parallel_tool_calls":false`:                          {One: true},
		`"tool_choice":"required","parallel_tool_calls":false`: {Must: true, One: true},
		`"tool_choice":"required"`:                             {Must: true},
		`"tool_choice":{"type":"function","function":{"name":"time"}},"tools":[{"type":"function","function":{"name":"time"}}]`: {Must: true, Name: "time", One: true},
	} {
		status, text := post(t, url+"/v1/chat/completions", withTools+","+more+"}")
		if status != http.StatusOK {
			t.Errorf("%s: status %d: %s", more, status, text)
		} else if r := <-f.got; r.Calls != want {
			t.Errorf("%s: %+v, want %+v", more, r.Calls, want)
		}
	}
}

func TestStreamsShowThatTheyLive(t *testing.T) {
	f := &fake{say: "x", hold: make(chan struct{}), gone: make(chan struct{})}
	url := start(t, f, Options{Alive: time.Millisecond})
	res, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() && lines.Text() != ": waiting" {
	}
	close(f.hold)
	rest := ""
	for lines.Scan() {
		rest = lines.Text() + rest
	}
	if err := lines.Err(); err != nil || !strings.HasPrefix(rest, "data: [DONE]") {
		t.Errorf("%v: %s", err, rest)
	}
}

func TestModelsAndHealth(t *testing.T) {
	url := start(t, &fake{}, Options{})
	for path, want := range map[string]string{
		"/healthz":        "ok",
		"/v1/models":      `"data":[{"id":"tiny","object":"model"`,
		"/v1/models/tiny": `"owned_by":"kvasir"`,
		"/v1/models/gpt":  "model_not_found",
		"/v1/completions": "not answered here",
	} {
		res, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s answers %s, want %s", path, text, want)
		}
		if path == "/v1/completions" && (res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST") {
			t.Errorf("%s: status %d, Allow %q", path, res.StatusCode, res.Header.Get("Allow"))
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	f := &fake{hold: make(chan struct{}), gone: make(chan struct{})}
	url := start(t, f, Options{Requests: 1})
	res, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil { // it is being answered
		t.Fatal(err)
	}
	if status, text := post(t, url+"/v1/completions", `{"prompt":"b"}`); status != 429 || !strings.Contains(text, "rate_limit_exceeded") {
		t.Errorf("status %d: %s", status, text)
	}
	_ = res.Body.Close() // the client leaves
	<-f.gone
}

func TestErrorsOfTheGenerator(t *testing.T) {
	url := start(t, &fake{err: errors.New("no worker")}, Options{})
	status, text := post(t, url+"/v1/completions", `{"prompt":"a b"}`)
	if status != 500 || !strings.Contains(text, `"message":"no worker","type":"server_error"`) {
		t.Errorf("status %d: %s", status, text)
	}
	status, text = post(t, url+"/v1/completions", `{"prompt":"a b","stream":true}`)
	if status != 200 || strings.Contains(text, "[DONE]") || !strings.HasSuffix(strings.TrimSpace(text), `"code":null}}`) {
		t.Errorf("stream: status %d: %s", status, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"prompt":"x","max_tokens":3}`), uint8(plainText))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stop":null,"tool_choice":{"type":"function"}}`), uint8(chatText))
	f.Add([]byte(`{"input":[{"type":"message","role":"user","content":"x"}],"text":{"format":{"type":"json_object"}}}`), uint8(responseText))
	f.Add([]byte(`{"temperature":[],"prompt":{}}`), uint8(plainText))
	h := New(&fake{}, Options{Model: "tiny"})
	f.Fuzz(func(t *testing.T, body []byte, n uint8) {
		k := kind(n % 3)
		a, failed := h.parse(body, k, randomSeed)
		if failed == nil && (a.request.Tokens < 0 || len(a.requests) == 0 || len(a.requests)*a.request.Choices > maxPrompts ||
			k != plainText && len(a.requests[0].Messages) == 0 || k == responseText && a.request.Choices != 1) {
			t.Errorf("%q: %+v", body, a)
		}
	})
}

func TestLinesOfBatchesAreAnsweredAside(t *testing.T) {
	f := &fake{got: make(chan Request, 1)}
	h := New(f, Options{Model: "tiny", Requests: 1})
	h.places <- struct{}{} // full: lines do not count
	status, out := h.Answer(t.Context(), "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":"x"}]}`), Stamp{})
	if status != http.StatusOK || !strings.Contains(string(out), `"content":"user:x"`) || !(<-f.got).Batch {
		t.Errorf("status %d: %s", status, out)
	}
	for _, c := range []struct {
		path, body, want string
		status           int
	}{
		{"/v1/embeddings", `{}`, "not answered here", http.StatusNotFound},
		{"/v1/completions", `{"prompt":"x","stream":true}`, `"param":"stream"`, http.StatusBadRequest},
		{"/v1/completions", `{"prompt":"x","n":0}`, `"param":"n"`, http.StatusBadRequest},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"refused"}]}`, "not like this", http.StatusBadRequest},
	} {
		if status, out := h.Answer(t.Context(), c.path, []byte(c.body), Stamp{}); status != c.status || !strings.Contains(string(out), c.want) {
			t.Errorf("%s of %s: status %d, %s; want %d and %s", c.path, c.body, status, out, c.status, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.hold, f.gone = make(chan struct{}), make(chan struct{})
	if status, out := h.Answer(ctx, "/v1/completions", []byte(`{"prompt":"x"}`), Stamp{}); status != 0 || out != nil {
		t.Errorf("after the end of its context: %d, %s", status, out)
	}
}

func TestAnswersWithAStampAreTheSameBytes(t *testing.T) {
	f := &fake{say: calling, got: make(chan Request, 5)}
	h := New(f, Options{Model: "tiny"})
	body := []byte(strings.Replace(withTools, "{", `{"temperature":1,`, 1) + `}`)
	at := time.Unix(1_800_000_000, 0)
	_, one := h.Answer(t.Context(), "/v1/chat/completions", body, NewStamp(at, []byte("a"), []byte("b")))
	_, two := h.Answer(t.Context(), "/v1/chat/completions", body, NewStamp(at, []byte("a"), []byte("b")))
	_, other := h.Answer(t.Context(), "/v1/chat/completions", body, NewStamp(at, []byte("ab")))
	if string(one) != string(two) || string(one) == string(other) || !strings.Contains(string(one), `"created":1800000000`) {
		t.Errorf("%s\n%s\n%s", one, two, other)
	}
	if a, b, c := <-f.got, <-f.got, <-f.got; a.Sampling.Seed != b.Sampling.Seed || a.Sampling.Seed == c.Sampling.Seed {
		t.Errorf("seeds %d, %d and %d, want the first two alike", a.Sampling.Seed, b.Sampling.Seed, c.Sampling.Seed)
	}
	input := []byte(`{"input":"x"}`)
	_, one = h.Answer(t.Context(), "/v1/responses", input, NewStamp(at, []byte("a")))
	_, two = h.Answer(t.Context(), "/v1/responses", input, NewStamp(at, []byte("a")))
	if string(one) != string(two) || !strings.Contains(string(one), `"object":"response"`) || !strings.Contains(string(one), `"created_at":1800000000`) {
		t.Errorf("%s\n%s", one, two)
	}
	if p := h.Check("/v1/chat/completions", body); p != nil {
		t.Errorf("Check: %+v", p)
	}
	if p := h.Check("/v1/completions", []byte(`{"prompt":"x","n":0}`)); p == nil || p.Param != "n" {
		t.Errorf("Check: %+v, want what is wrong with n", p)
	}
}
