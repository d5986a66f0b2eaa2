// Package chat turns a conversation into the text that a model was trained on, with the Jinja
// template that comes in the model's file.
//
// Gonja parses a template and walks through it. What an expression computes is this package's own
// work, for two reasons. Gonja's values follow Go where a template expects Python: an index of -1,
// text with more bytes than characters, None against undefined. And a template comes from outside,
// so that nothing that it asks for may cost more than it is allowed: New rewrites every operation
// of the parsed tree (compile.go) into a call of do (ops.go), which counts before it computes.
//
// The way back, from what the model says to reasoning, content and calls of tools, is Reply.
//
// Left out are tags, filters and tests that the templates of known models do without, and tuples,
// which are lists; each is an error that names it, never another text.
//
// What holds, whatever the template says:
//
//  1. It reaches no file, no clock but Options.Now, and no Go value: its values are nil, bool, int,
//     float64, literal, string, list, dict, namespace, macro and loop (value.go).
//  2. Output is at most MaxOutput bytes. Work and memory are bounded by a budget, in proportion to
//     the conversation (run.go). Nesting, macros in macros and the length of an expression have
//     limits (source.go).
//  3. The same conversation gives the same text. There is no random and no iteration over a Go map.
//  4. A control token that a message holds is named in Prompt.Plain, so that none is smuggled in.
//  5. A panic inside gonja becomes an error.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// ChatML is the template for a model whose file brings none.
const ChatML = `{% for message in messages %}` +
	`{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Limits.
const (
	MaxTemplate = 1 << 20  // bytes of a template
	MaxInput    = 16 << 20 // bytes of all messages, tools and variables together
	MaxOutput   = 16 << 20 // bytes that a template may write

	maxMessages = 1 << 14
)

var (
	// ErrTemplate is returned by New for a template that cannot be used.
	ErrTemplate = errors.New("chat: bad template")
	// ErrRender is returned by Render for a template that fails in the middle.
	ErrRender = errors.New("chat: template failed")
	// ErrRaised is returned by Render when the template itself refuses the conversation, and says
	// why.
	ErrRaised = errors.New("chat: the model's template refuses this conversation")
	// ErrInput is returned by Render for messages, tools or variables that are not what they should be.
	ErrInput = errors.New("chat: bad conversation")
	// ErrLimit is returned by New and Render for what is larger, deeper or longer than allowed.
	ErrLimit = errors.New("chat: over the limit")
)

// OptionError is an error of Render that is about one of the Options and no message.
type OptionError struct {
	Option string // Tools or Extra, as Options has it
	Err    error
}

// Error returns the reason.
func (e *OptionError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *OptionError) Unwrap() error { return e.Err }

// Template is a parsed template, for use by many goroutines at once.
type Template struct {
	root     *exec.Template
	bos, eos string
	thinks   bool // it knows <think>
	tagged   func() bool
	budget   int // fixedBudget; less in tests
}

// New parses jinja. bos and eos are the texts of these tokens; templates write them where they want
// them.
func New(jinja, bos, eos string) (t *Template, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("%w: %s", ErrTemplate, oneLine(fmt.Sprint(r)))
		}
	}()
	const name = "/template"
	if len(jinja) > MaxTemplate {
		return nil, fmt.Errorf("%w: a template of %d bytes, at most %d", ErrLimit, len(jinja), MaxTemplate)
	}
	source, err := prepare(jinja)
	if err != nil {
		return nil, err
	}
	words, err := readTokens(source)
	if err != nil {
		return nil, err
	}
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	c := &compiler{words: words}
	root, err := exec.NewTemplate(name, syntax(), loader, &exec.Environment{
		Context:           exec.NewContext(map[string]any{doName: do}),
		ControlStructures: c.structures(),
		Filters:           exec.NewFilterSet(map[string]exec.FilterFunction{}),
		Tests:             exec.NewTestSet(map[string]exec.TestFunction{}),
	})
	if err != nil {
		return nil, parseError(err)
	}
	if err := c.rewriteNodes(root.Root().Nodes); err != nil {
		return nil, parseError(err)
	}
	t = &Template{root: root, bos: bos, eos: eos, thinks: strings.Contains(jinja, thinkOpen), budget: fixedBudget}
	t.tagged = sync.OnceValue(t.writesTags)
	return t, nil
}

// syntax is how transformers sets Jinja up for chat templates, but for lstrip_blocks: see prepare.
func syntax() *config.Config {
	c := config.New()
	c.TrimBlocks = true
	return c
}

// Render returns the text of the conversation.
func (t *Template) Render(msgs []Message, o Options) (prompt Prompt, err error) {
	values, size, err := t.variables(msgs, &o)
	if err != nil {
		return Prompt{}, err
	}
	m := marks{controls: o.Controls}
	if values, err = m.mark(values); err != nil {
		return Prompt{}, err
	}
	r := &run{budget: t.budget + budgetPerMessage*len(msgs) + budgetPerByte*size, now: o.Now}
	vars := exec.NewContext(map[string]any{runName: r, "bos_token": t.bos, "eos_token": t.eos})
	for _, e := range values {
		vars.Set(e.key.(string), e.value)
	}
	defer func() {
		if p := recover(); p != nil {
			prompt, err = Prompt{}, fmt.Errorf("%w: %s", ErrRender, oneLine(fmt.Sprint(p)))
		}
	}()
	out := limitedWriter{r: r}
	err = t.root.Execute(&out, vars)
	switch {
	case r.failure != nil: // gonja takes a failed condition of a loop for false
		return Prompt{}, r.failure
	case err != nil:
		return Prompt{}, fmt.Errorf("%w: %s", ErrRender, oneLine(err.Error()))
	}
	prompt = m.remove(out.text.String())
	prompt.thinks = t.thinks
	return prompt, nil
}

// Tags reports whether calls of tools are written in tags, as Qwen3.5 does, and not in JSON: as the template
// writes one. A template that writes none says nothing, and JSON is what most models know.
func (t *Template) Tags() bool { return t.tagged() }

func (t *Template) writesTags() bool {
	tool := json.RawMessage(`{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}`)
	now := func() time.Time { return time.Unix(0, 0) }
	p, err := t.Render([]Message{
		{Role: "user", Content: "x"}, {Role: "assistant", ToolCalls: []ToolCall{{ID: "c", Name: "f", Arguments: `{"a":"x"}`}}},
		{Role: "tool", Content: "y", ToolCallID: "c"},
	}, Options{Tools: []json.RawMessage{tool}, Now: now})
	return err == nil && strings.Contains(p.Text, "<function=f>")
}

type limitedWriter struct {
	r    *run
	text strings.Builder
}

// Write implements io.Writer.
func (w *limitedWriter) Write(p []byte) (int, error) { return w.WriteString(string(p)) }

// WriteString implements io.StringWriter, which gonja asks for.
func (w *limitedWriter) WriteString(s string) (int, error) {
	if len(s) > MaxOutput-w.text.Len() {
		return 0, w.r.fail(0, fmt.Errorf("%w: the template writes more than %d bytes", ErrLimit, MaxOutput))
	}
	return w.text.WriteString(s)
}

// oneLine makes a message of gonja's, which may quote the template, fit for an error.
func oneLine(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
