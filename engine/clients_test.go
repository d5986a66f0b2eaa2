package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"kvasir/engine/chat"
	"kvasir/engine/serve"
)

// calling is an answer with reasoning and two calls of tools.
const calling = `<think>what now</think>I look. <tool_call>
{"name": "weather", "arguments": {"city": "Ulm"}}
</tool_call> <tool_call>{"name": "time", "arguments": {}}</tool_call>`

// says is a generator that says one text, a word a piece, or the prompt where it has none.
type says struct {
	text string
	got  chan serve.Request // if set, gets every request
}

func (says) Reply(r serve.Request) (chat.ReplyOptions, error) {
	return chat.ReplyOptions{Tools: r.Template.Tools}, nil
}

func (f says) Generate(_ context.Context, r serve.Request, emit func(serve.Piece) error) (serve.Result, error) {
	if f.got != nil {
		f.got <- r
	}
	res := serve.Result{Prompt: 7}
	for i := range r.Choices {
		words := strings.SplitAfter(cmp.Or(f.text, r.Prompt), " ")
		for _, word := range words {
			p := serve.Piece{Choice: i, Text: word}
			if r.Sampling.Logprobs {
				p.Token = &serve.Logprob{Text: []byte(word), Logprob: -0.5, Top: []serve.Logprob{{Text: []byte("x"), Logprob: -1}}}
			}
			if err := emit(p); err != nil {
				return res, err
			}
		}
		end := serve.Outcome{Tokens: len(words)}
		res.Choices = append(res.Choices, end)
		if err := emit(serve.Piece{Choice: i, End: &end}); err != nil {
			return res, err
		}
	}
	return res, nil
}

// served is the address of a server before a generator.
func served(t *testing.T, f says) string {
	t.Helper()
	s := httptest.NewServer(serve.New(f, serve.Options{Model: "tiny"}))
	t.Cleanup(s.Close)
	return s.URL + "/v1"
}

// client is OpenAI's own, before a generator.
func client(t *testing.T, f says) openai.Client {
	t.Helper()
	return openai.NewClient(option.WithBaseURL(served(t, f)), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

// asking is a request for a call of a tool.
func asking() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "tiny",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be short"), openai.UserMessage("weather?")},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: "weather", Parameters: shared.FunctionParameters{"type": "object"},
		}), openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "time"})},
		Temperature: openai.Float(0.7), Seed: openai.Int(3), N: openai.Int(2), MaxCompletionTokens: openai.Int(50),
		Logprobs: openai.Bool(true), TopLogprobs: openai.Int(1),
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "x", Schema: map[string]any{"type": "object"}},
		}},
	}
}

func TestOpenAIsClientForGoIsUnderstood(t *testing.T) {
	f := says{calling, make(chan serve.Request, 10)}
	c := client(t, f)
	res, err := c.Chat.Completions.New(t.Context(), asking())
	if err != nil || len(res.Choices) != 2 || res.Usage.CompletionTokens == 0 {
		t.Fatalf("%v: %+v", err, res)
	}
	r := <-f.got
	if r.Sampling.Seed != 3 || r.Tokens != 50 || len(r.Template.Tools) != 2 || string(r.Schema) != `{"type":"object"}` || r.Messages[0].Role != "system" {
		t.Errorf("request %+v", r)
	}
	for _, ch := range res.Choices {
		calls := ch.Message.ToolCalls
		if ch.FinishReason != "tool_calls" || len(calls) != 2 || calls[0].Function.Arguments != `{"city": "Ulm"}` || len(ch.Logprobs.Content) == 0 {
			t.Errorf("choice %+v", ch)
		}
	}

	params := asking()
	params.N = openai.Int(1) // the accumulator knows one
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := c.Chat.Completions.NewStreaming(t.Context(), params)
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Errorf("chunk %+v does not fit those before it", s.Current())
		}
	}
	if err := s.Err(); err != nil || len(acc.Choices) != 1 || acc.Usage.CompletionTokens*2 != res.Usage.CompletionTokens {
		t.Fatalf("%v: %+v", err, acc)
	}
	if got, want := acc.Choices[0].Message, res.Choices[0].Message; got.Content != want.Content || len(got.ToolCalls) != 2 ||
		got.ToolCalls[1].Function.Name != "time" || acc.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("as a stream %+v, whole %+v", got, want)
	}
}

func TestOpenAIsClientForGoGetsCompletionsModelsAndErrors(t *testing.T) {
	c := client(t, says{})
	res, err := c.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "tiny", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a b", "c"}}, Logprobs: openai.Int(1),
	})
	if err != nil || len(res.Choices) != 2 || res.Choices[1].Text != "c" || len(res.Choices[0].Logprobs.Tokens) != 2 {
		t.Errorf("%v: %+v", err, res)
	}
	models, err := c.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "tiny" {
		t.Errorf("%v: %+v", err, models)
	}
	_, err = c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "tiny"})
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != http.StatusBadRequest || api.Param != "messages" {
		t.Errorf("%v, want a 400 that names messages", err)
	}
	params := asking()
	params.Model = "gpt-4"
	if _, err = c.Chat.Completions.New(t.Context(), params); !errors.As(err, &api) || api.StatusCode != http.StatusNotFound || api.Code != "model_not_found" {
		t.Errorf("%v, want a 404 that says which model there is", err)
	}
}

// TestOpenAIsClientForGoGetsResponses asks in plain text, whole and as a stream.
func TestOpenAIsClientForGoGetsResponses(t *testing.T) {
	f := says{text: calling, got: make(chan serve.Request, 10)}
	c := client(t, f)
	params := responses.ResponseNewParams{
		Model: "tiny", Instructions: openai.String("be short"), MaxOutputTokens: openai.Int(40), Temperature: openai.Float(0.5),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("weather?")},
		Text: responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigUnionParam{
			OfJSONSchema: &responses.ResponseFormatTextJSONSchemaConfigParam{Name: "x", Schema: map[string]any{"type": "object"}},
		}},
	}
	res, err := c.Responses.New(t.Context(), params)
	if err != nil || res.Status != "completed" || res.Usage.OutputTokens == 0 || res.Usage.TotalTokens != 7+res.Usage.OutputTokens {
		t.Fatalf("%v: %+v", err, res)
	}
	if len(res.Output) != 2 || res.Output[0].Type != "reasoning" || res.Output[0].Content[0].Text != "what now" ||
		!strings.HasPrefix(res.OutputText(), "I look. <tool_call>") { // there are no tools: it is text
		t.Errorf("output %s", res.RawJSON())
	}
	r := <-f.got
	if len(r.Messages) != 2 || r.Messages[0].Content != "be short" || r.Tokens != 40 || r.Sampling.Temperature != 0.5 || string(r.Schema) != `{"type":"object"}` {
		t.Errorf("request %+v", r)
	}
	s := c.Responses.NewStreaming(t.Context(), params)
	text, kinds, next := "", map[string]int{}, int64(0)
	var last responses.ResponseStreamEventUnion
	for s.Next() {
		last = s.Current()
		if kinds[last.Type]++; last.SequenceNumber != next {
			t.Errorf("event %s has number %d, want %d", last.Type, last.SequenceNumber, next)
		}
		if next++; last.Type == "response.output_text.delta" {
			text += last.Delta
		}
	}
	if err := s.Err(); err != nil || text != res.OutputText() || last.Type != "response.completed" || last.Response.OutputText() != text ||
		last.Response.Usage.OutputTokens != res.Usage.OutputTokens || kinds["response.output_item.done"] != 2 || kinds["response.created"] != 1 {
		t.Errorf("%v, %v, last %s: %q", err, kinds, last.Type, text)
	}
	params.Tools = []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{Name: "f", Parameters: map[string]any{"type": "object"}}}}
	var api *openai.Error
	if _, err = c.Responses.New(t.Context(), params); !errors.As(err, &api) || api.StatusCode != http.StatusBadRequest || api.Param != "tools" {
		t.Errorf("%v, want a 400 that names tools", err)
	}
}

// TestOpenAIsClientForJavaScriptIsUnderstood runs testdata/client.mjs with the npm package openai, which
// lies where KVASIR_OPENAI_JS says.
func TestOpenAIsClientForJavaScriptIsUnderstood(t *testing.T) {
	dir := os.Getenv("KVASIR_OPENAI_JS")
	node, err := exec.LookPath("node")
	switch {
	case dir == "":
		t.Skip("KVASIR_OPENAI_JS does not say where the npm package openai lies")
	case err != nil:
		t.Skip("node is not installed")
	}
	script, err := filepath.Abs("testdata/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), node, script, filepath.Join(dir, "index.mjs"), served(t, says{text: calling})).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "done" {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestRequestsOfOtherClientsAreUnderstood posts what other programs send, as they write it.
func TestRequestsOfOtherClientsAreUnderstood(t *testing.T) {
	f := says{calling, make(chan serve.Request, 10)}
	url := served(t, f)
	files, err := filepath.Glob("testdata/requests/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d requests, %v", len(files), err)
	}
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		path := "/completions"
		if strings.Contains(string(body), `"messages"`) {
			path = "/chat/completions"
		}
		res, err := http.Post(url+path, "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		status, text := res.StatusCode, string(answer)
		if status != 200 || !json.Valid([]byte(text)) && !strings.Contains(text, "[DONE]") {
			t.Errorf("%s: status %d: %s", name, status, text)
			continue
		}
		<-f.got
	}
}
