package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"kvasir/engine/chat"
)

// response is OpenAI's object of that name, in its plain text form.
type response struct {
	ID           string             `json:"id"`
	Object       string             `json:"object"`
	Created      int64              `json:"created_at"`
	Status       string             `json:"status"`
	Background   bool               `json:"background"`
	Error        *struct{}          `json:"error"`
	Incomplete   *responseCut       `json:"incomplete_details"`
	Instructions *string            `json:"instructions"`
	Most         *int               `json:"max_output_tokens"`
	Metadata     json.RawMessage    `json:"metadata"`
	Model        string             `json:"model"`
	Output       []*responseItem    `json:"output"`
	Parallel     bool               `json:"parallel_tool_calls"`
	Previous     *string            `json:"previous_response_id"`
	Store        bool               `json:"store"`
	Temperature  float32            `json:"temperature"`
	Text         responseTextFormat `json:"text"`
	ToolChoice   string             `json:"tool_choice"`
	Tools        []struct{}         `json:"tools"`
	TopP         float32            `json:"top_p"`
	Truncation   string             `json:"truncation"`
	Usage        *responseUsage     `json:"usage"`
}

type responseCut struct {
	Reason string `json:"reason"`
}

type responseTextFormat struct {
	Format json.RawMessage `json:"format"`
}

// responseItem is a part of the output: what the model thought, or what it says.
type responseItem struct {
	ID      string          `json:"id"`
	Type    string          `json:"type"` // reasoning or message
	Status  string          `json:"status"`
	Role    string          `json:"role,omitempty"`
	Summary *[]struct{}     `json:"summary,omitempty"` // of reasoning: none
	Content []*responsePart `json:"content"`
}

type responsePart struct {
	Type        string      `json:"type"`
	Text        string      `json:"text"`
	Annotations *[]struct{} `json:"annotations,omitempty"` // of what is said: none
	Logprobs    *[]struct{} `json:"logprobs,omitempty"`
}

type responseUsage struct {
	Input  int `json:"input_tokens"`
	Cached struct {
		Tokens int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output  int `json:"output_tokens"`
	Thought struct {
		Tokens int `json:"reasoning_tokens"` // not counted apart
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// responseEvent is an event of a stream.
type responseEvent struct {
	Type     string        `json:"type"`
	Sequence int           `json:"sequence_number"`
	Response *response     `json:"response,omitempty"`
	ItemID   string        `json:"item_id,omitempty"`
	Output   *int          `json:"output_index,omitempty"`
	Content  *int          `json:"content_index,omitempty"`
	Item     *responseItem `json:"item,omitempty"`
	Part     *responsePart `json:"part,omitempty"`
	Delta    *string       `json:"delta,omitempty"`
	Text     *string       `json:"text,omitempty"`
	Logprobs *[]struct{}   `json:"logprobs,omitempty"`

	Message string  `json:"message,omitempty"` // of an error
	Code    string  `json:"code,omitempty"`
	Param   *string `json:"param,omitempty"`
}

const noTools = "responses are plain text here and call no tools: leave it out, or ask /v1/chat/completions"

// responseParams are those of /v1/responses.
var responseParams = map[string]param{
	"input":                responseInput,
	"instructions":         instructions,
	"max_output_tokens":    tokens,
	"text":                 textForm,
	"metadata":             metadata,
	"n":                    only("a response is one: leave it out", 1),
	"max_tokens":           only("it is called max_output_tokens here"),
	"top_logprobs":         only("responses have no log probabilities here: ask /v1/chat/completions", 0),
	"tools":                empty(noTools),
	"tool_choice":          only(noTools, "auto", "none"),
	"background":           only("this server answers at once: leave it out; /v1/batches has jobs that nobody waits for", false),
	"previous_response_id": empty("this server stores nothing: give the conversation in input"),
	"conversation":         empty("this server stores nothing: give the conversation in input"),
	"prompt":               empty("this server has no stored prompts: give input"),
	"truncation":           only("this server shortens no input: leave it out", "disabled"),
	"stream_options":       responseStreamOptions,
}

// metadata comes back as it was sent. null is no text.
func metadata(a *asked, raw json.RawMessage) error {
	var m map[string]*string
	if err := decode(raw, &m, "an object of texts"); err != nil {
		return err
	}
	a.metadata = raw
	texts := map[string]string{}
	for k, v := range m {
		if v == nil {
			return errors.New("want an object of texts")
		}
		texts[k] = *v
	}
	return CheckMetadata(texts)
}

// CheckMetadata holds metadata to OpenAI's limits.
func CheckMetadata(m map[string]string) error {
	err := errors.New("want 16 pairs at most, of 64 and 512 characters")
	if len(m) > 16 {
		return err
	}
	for k, v := range m {
		if utf8.RuneCountInString(k) > 64 || utf8.RuneCountInString(v) > 512 {
			return err
		}
	}
	return nil
}

// instructions come before the conversation.
func instructions(a *asked, raw json.RawMessage) error {
	var text string
	err := decode(raw, &text, "text")
	a.instructions = &text
	return err
}

func responseStreamOptions(a *asked, raw json.RawMessage) error {
	usage := a.usage // the last event of a response has it in any case
	err := streamOptions(a, raw)
	a.usage = usage
	return err
}

// responseInput takes a text, or messages.
func responseInput(a *asked, raw json.RawMessage) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		a.request.Messages = []chat.Message{{Role: "user", Content: text}}
		return nil
	}
	var items []struct {
		Type string `json:"type"`
		wireMessage
	}
	if err := decode(raw, &items, "text, or a list of messages"); err != nil {
		return err
	}
	if len(items) == 0 {
		return errors.New("want one message at least")
	}
	for i := range items {
		switch items[i].Type {
		case "", "message":
		case "reasoning": // what was thought before says nothing to the model now
			continue
		default:
			return fmt.Errorf("item %d: %w", i, &cannotError{fmt.Sprintf("type %.40q: responses are plain text here", items[i].Type)})
		}
		w := items[i].wireMessage
		if w.Role == "tool" {
			return fmt.Errorf("item %d: role %q, want system, developer, user or assistant", i, w.Role)
		}
		m, err := w.message()
		if err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
		a.request.Messages = append(a.request.Messages, m)
	}
	return nil
}

// textForm takes the form of the text.
func textForm(a *asked, raw json.RawMessage) error {
	var t struct {
		Format json.RawMessage `json:"format"`
	}
	var f struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
	if err := decode(raw, &t, "an object with a format"); err != nil || isNull(t.Format) {
		return err
	}
	if err := decode(t.Format, &f, "an object with a format that has a type"); err != nil {
		return err
	}
	a.format = t.Format
	return a.hold("format.", f.Type, f.Schema)
}

// newResponse is the object before there is any output.
func (a *reply) newResponse() *response {
	p := a.ask.request.Sampling
	r := &response{
		ID: a.id, Object: "response", Created: a.created, Status: "in_progress", Instructions: a.ask.instructions,
		Metadata: a.ask.metadata, Model: a.h.o.Model, Output: []*responseItem{}, Parallel: true, Temperature: p.Temperature,
		Text: responseTextFormat{a.ask.format}, ToolChoice: "auto", Tools: []struct{}{}, TopP: p.TopP, Truncation: "disabled",
	}
	if r.Metadata == nil {
		r.Metadata = json.RawMessage("{}")
	}
	if r.Text.Format == nil {
		r.Text.Format = json.RawMessage(`{"type":"text"}`)
	}
	if n := a.ask.request.Tokens; n > 0 {
		r.Most = &n
	}
	return r
}

// writing is a response that is being written.
type writing struct {
	*response
	say  func(*responseEvent) error // nil: it is no stream
	more func(text string)          // likewise: adds to the part that is being written
	seq  int
	text strings.Builder // of the item that is written
	id   func(kind string) string
}

func (a *reply) newWriting(say func(*responseEvent) error) *writing {
	return &writing{response: a.newResponse(), say: say, id: func(kind string) string { return kind + strings.TrimPrefix(a.id, responseText.prefix()) }}
}

func (w *writing) event(e responseEvent) error {
	if w.say == nil {
		return nil
	}
	e.Sequence = w.seq
	w.seq++
	return w.say(&e)
}

// begin says that the response has begun.
func (w *writing) begin() error {
	if err := w.event(responseEvent{Type: "response.created", Response: w.response}); err != nil {
		return err
	}
	return w.event(responseEvent{Type: "response.in_progress", Response: w.response})
}

// add takes what comes next. Thoughts and text that follow one another are items of their own.
func (w *writing) add(d delta) error {
	kind, text := "message", d.text
	if d.reasoning != "" {
		kind, text = "reasoning", d.reasoning
	}
	if text == "" {
		return nil
	}
	if item := w.last(); item == nil || item.Type != kind {
		if err := w.end("completed"); err != nil {
			return err
		}
		if err := w.open(kind); err != nil {
			return err
		}
	}
	w.text.WriteString(text)
	if w.more != nil {
		w.more(text)
		w.seq++
	}
	return nil
}

// last is the item that is being written; nil: none.
func (w *writing) last() *responseItem {
	if n := len(w.Output); n > 0 && w.Output[n-1].Status == "in_progress" {
		return w.Output[n-1]
	}
	return nil
}

// of sends an event about the part that is being written.
func (w *writing) of(e responseEvent) error {
	e.ItemID, e.Output, e.Content = w.last().ID, new(len(w.Output)-1), new(0)
	return w.event(e)
}

// open begins an item.
func (w *writing) open(kind string) error {
	item := &responseItem{ID: w.id("msg_"), Type: kind, Status: "in_progress", Role: "assistant", Content: []*responsePart{}}
	part := &responsePart{Type: "output_text", Annotations: &[]struct{}{}, Logprobs: &[]struct{}{}}
	if kind == "reasoning" {
		item.ID, item.Role, item.Summary = w.id("rs_"), "", &[]struct{}{}
		part = &responsePart{Type: "reasoning_text"}
	}
	w.Output = append(w.Output, item)
	if err := w.event(responseEvent{Type: "response.output_item.added", Output: new(len(w.Output) - 1), Item: item}); err != nil {
		return err
	}
	item.Content = append(item.Content, part)
	return w.of(responseEvent{Type: "response.content_part.added", Part: part})
}

// end ends the item that is being written, if there is one.
func (w *writing) end(status string) error {
	item := w.last()
	if item == nil {
		return nil
	}
	part := item.Content[0]
	part.Text = w.text.String()
	w.text.Reset()
	done := responseEvent{Type: "response." + part.Type + ".done", Text: &part.Text}
	if item.Type == "message" {
		done.Logprobs = &[]struct{}{}
	}
	if err := w.of(done); err != nil {
		return err
	}
	if err := w.of(responseEvent{Type: "response.content_part.done", Part: part}); err != nil {
		return err
	}
	item.Status = status
	return w.event(responseEvent{Type: "response.output_item.done", Output: new(len(w.Output) - 1), Item: item})
}

// finish ends the response. There is a message in any case.
func (w *writing) finish(res Result) error {
	w.Status = "completed"
	if len(res.Choices) > 0 && res.Choices[0].Length {
		w.Status, w.Incomplete = "incomplete", &responseCut{"max_output_tokens"}
	}
	if item := w.last(); item == nil || item.Type != "message" && w.Incomplete == nil {
		if err := w.end("completed"); err != nil {
			return err
		}
		if err := w.open("message"); err != nil {
			return err
		}
	}
	if err := w.end(w.Status); err != nil {
		return err
	}
	u := newUsage(res)
	w.Usage = &responseUsage{Input: u.Prompt, Output: u.Completion, Total: u.Total}
	return w.event(responseEvent{Type: "response." + w.Status, Response: w.response})
}

// failed is the last event of a stream that cannot go on.
func (w *writing) failed(f *failure) error {
	e := responseEvent{Type: "error", Message: f.Message, Code: f.Code}
	if e.Code == "" {
		e.Code = f.Kind
	}
	if f.Param != "" {
		e.Param = &f.Param
	}
	return w.event(e)
}
