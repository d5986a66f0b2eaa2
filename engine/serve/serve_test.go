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
)

// fake says back what it was asked, a word a piece.
type fake struct {
	hold chan struct{} // if set, Generate waits for it, or for the end of its context
	gone chan struct{} // if set, closed when a context has ended
	err  error         // after the first piece
}

func (f *fake) Generate(ctx context.Context, r Request, emit func(string) error) (Result, error) {
	if r.Prompt == "bad" {
		return Result{}, fmt.Errorf("%w: the prompt is bad", ErrRequest)
	}
	text := r.Prompt
	for _, m := range r.Messages {
		text += m.Role + ":" + m.Content + " "
	}
	res := Result{Prompt: 7}
	for _, word := range strings.SplitAfter(strings.TrimSpace(text), " ") {
		if r.Tokens > 0 && res.Tokens == r.Tokens {
			res.Length = true
			return res, nil
		}
		if err := emit(word); err != nil {
			return res, err
		}
		res.Tokens++
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
		{"temperature", "completions", p(`"temperature":0.7`), 400, "temperature", "greedy"},
		{"temperature of OpenAI's default", "completions", p(`"temperature":1`), 400, "temperature", "greedy"},
		{"top_p", "chat/completions", m(`"top_p":0.9`), 400, "top_p", "greedy"},
		{"two choices", "completions", p(`"n":2`), 400, "n", "one choice"},
		{"stop sequences", "completions", p(`"stop":["\n"]`), 400, "stop", "stop sequences"},
		{"penalty", "completions", p(`"presence_penalty":0.5`), 400, "presence_penalty", "penalties"},
		{"bias", "completions", p(`"logit_bias":{"5":1}`), 400, "logit_bias", "biases"},
		{"log probabilities", "completions", p(`"logprobs":3`), 400, "logprobs", "log prob"},
		{"tools", "chat/completions", m(`"tools":[{"type":"function"}]`), 400, "tools", "tools"},
		{"objects", "chat/completions", m(`"response_format":{"type":"json_object"}`), 400, "response_format", "text"},
		{"two prompts", "completions", `{"prompt":["a","b"]}`, 400, "prompt", "one prompt"},
		{"prompt of tokens", "completions", `{"prompt":[1,2]}`, 400, "prompt", "want text"},
		{"unknown parameter", "completions", p(`"temprature":0`), 400, "temprature", "unrecognized"},
		{"parameter of the other", "completions", p(`"messages":[]`), 400, "messages", "unrecognized"},
		{"no prompt", "completions", `{}`, 400, "prompt", "missing"},
		{"null prompt", "completions", `{"prompt":null}`, 400, "prompt", "missing"},
		{"no messages", "chat/completions", `{}`, 400, "messages", "missing"},
		{"empty messages", "chat/completions", `{"messages":[]}`, 400, "messages", "one message"},
		{"unknown role", "chat/completions", `{"messages":[{"role":"tool","content":"x"}]}`, 400, "messages", "role"},
		{"message without content", "chat/completions", `{"messages":[{"role":"user"}]}`, 400, "messages", "content"},
		{"picture", "chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages", "reads text"},
		{"no tokens", "completions", p(`"max_tokens":0`), 400, "max_tokens", "1 or more"},
		{"half a token", "completions", p(`"max_tokens":1.5`), 400, "max_tokens", "1 or more"},
		{"stream in words", "completions", p(`"stream":"yes"`), 400, "stream", "true or false"},
		{"options without a stream", "completions", p(`"stream_options":{"include_usage":true}`), 400, "stream_options", "streams"},
		{"another model", "completions", p(`"model":"gpt-4"`), 404, "model", "gpt-4"},
		{"not JSON", "completions", `{"prompt":`, 400, "", "JSON"},
		{"not an object", "completions", `[]`, 400, "", "JSON"},
		{"null", "completions", `null`, 400, "", "JSON"},
		{"not UTF-8", "completions", "{\"prompt\":\"\xff\"}", 400, "", "UTF-8"},
		{"too long", "completions", p(`"user":"` + strings.Repeat("x", 5000) + `"`), 413, "", "4096"},
		{"for the generator", "completions", `{"prompt":"bad"}`, 400, "", "the prompt is bad"},
		{"for the generator, as a stream", "completions", `{"prompt":"bad","stream":true}`, 400, "", "the prompt is bad"},
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
	f.Add([]byte(`{"prompt":"x","max_tokens":3}`), false)
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stop":null}`), true)
	f.Add([]byte(`{"temperature":[],"prompt":{}}`), false)
	h := New(&fake{}, Options{Model: "tiny"})
	f.Fuzz(func(t *testing.T, body []byte, isChat bool) {
		k := plain
		if isChat {
			k = chat
		}
		a, failed := h.parse(body, k)
		if failed == nil && (a.request.Tokens < 0 || isChat && len(a.request.Messages) == 0) {
			t.Errorf("%q: %+v", body, a)
		}
	})
}
