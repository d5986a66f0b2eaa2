package chat

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func clock() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func readLines[T any](t testing.TB, file string) []T {
	t.Helper()
	var out []T
	lines := bufio.NewScanner(strings.NewReader(read(t, file)))
	for lines.Scan() {
		var x T
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			t.Fatalf("%s, line %d: %v", file, len(out)+1, err)
		}
		out = append(out, x)
	}
	return out
}

func render(jinja string, msgs []Message, o Options) (string, error) {
	t, err := New(jinja, "<bos>", "<eos>")
	if err != nil {
		return "", err
	}
	return t.text(msgs, o)
}

func (t *Template) text(msgs []Message, o Options) (string, error) {
	p, err := t.Render(msgs, o)
	return p.Text, err
}

// TestTemplatesEqualJinja holds rendering against Jinja 3.1.6, set up as transformers does, which
// wrote the texts in testdata.
func TestTemplatesEqualJinja(t *testing.T) {
	type sample struct {
		Template, Text string
		Fails          bool
	}
	for _, x := range []struct {
		file string
		msgs []Message
	}{
		{"jinja.jsonl", []Message{{Role: "system", Content: "You are é."}, {Role: "user", Content: "Hello, World"}, {Role: "assistant", Content: "x"}}},
		{"whitespace.jsonl", []Message{{Role: "system", Content: "S"}, {Role: "user", Content: "U"}}},
	} {
		t.Run(x.file, func(t *testing.T) {
			samples := readLines[sample](t, x.file)
			if len(samples) < 100 {
				t.Fatalf("only %d samples", len(samples))
			}
			for _, s := range samples {
				got, err := render(s.Template, x.msgs, Options{Now: clock})
				switch {
				case s.Fails && err == nil:
					t.Errorf("%q renders as %q, want an error", s.Template, got)
				case !s.Fails && err != nil:
					t.Errorf("%q: %v", s.Template, err)
				case got != s.Text:
					t.Errorf("%q:\n got %q\nwant %q", s.Template, got, s.Text)
				}
			}
		})
	}
}

// TestThinkingTemplate is a template of the size and the means of the large models'.
func TestThinkingTemplate(t *testing.T) {
	type sample struct {
		Messages [][2]string
		Generate bool
		Thinking *bool
		Text     string
		Fails    string
	}
	tpl, err := New(read(t, "thinking.jinja"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	samples := readLines[sample](t, "thinking.jsonl")
	if len(samples) != 71 {
		t.Fatalf("%d samples, want 71", len(samples))
	}
	for _, s := range samples {
		var msgs []Message
		for _, m := range s.Messages {
			msgs = append(msgs, Message{Role: m[0], Content: m[1]})
		}
		got, err := tpl.text(msgs, Options{Generate: s.Generate, Thinking: s.Thinking})
		if s.Fails != "" {
			want := "chat: the model's template refuses this conversation: " + s.Fails
			if !errors.Is(err, ErrRaised) || err.Error() != want {
				t.Errorf("%q: got %v, want %s", s.Messages, err, want)
			}
			continue
		}
		if err != nil || got != s.Text {
			t.Errorf("%q: %v\n got %q\nwant %q", s.Messages, err, got, s.Text)
		}
	}
}

// chatML is the dumb twin of the template of that name.
func chatML(msgs []Message, generate bool) string {
	var b strings.Builder
	for _, m := range msgs {
		b.WriteString("<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n")
	}
	if generate {
		b.WriteString("<|im_start|>assistant\n")
	}
	return b.String()
}

func TestChatMLTemplates(t *testing.T) {
	for name, jinja := range map[string]string{"ChatML": ChatML, "kvasir-tiny": read(t, "kvasir-tiny.jinja")} {
		t.Run(name, func(t *testing.T) {
			for _, x := range []struct {
				name string
				msgs []Message
			}{
				{"a question", []Message{{Role: "user", Content: "What is the capital of Japan?"}}},
				{"a system message", []Message{{Role: "system", Content: "You are a helpful assistant."}, {Role: "user", Content: "Who are you?"}}},
				{"nothing", nil},
				{"what looks like a template", []Message{{Role: "user", Content: "{{ 1 }}{% if %}{#"}, {Role: "assistant", Content: "<&>'\"\\"}}},
				{"odd characters", []Message{{Role: "user", Content: "\ufffd\x00\u2028\U0010ffff"}}},
			} {
				for _, generate := range []bool{true, false} {
					got, err := render(jinja, x.msgs, Options{Generate: generate})
					if want := chatML(x.msgs, generate); err != nil || got != want {
						t.Errorf("%s: %v\n got %q\nwant %q", x.name, err, got, want)
					}
				}
			}
		})
	}
}

func TestBadTemplatesAreNamed(t *testing.T) {
	const file = "asks for another file, and a model's template has none"
	for _, x := range []struct {
		name, jinja string
		kind        error
		want        string
	}{
		{"include", "{% include '/etc/passwd' %}", ErrTemplate, "chat: bad template: {% include %} " + file},
		{"import", "{% import 'x' as y %}", ErrTemplate, "chat: bad template: {% import %} " + file},
		{"from", "{% from 'x' import y %}", ErrTemplate, "chat: bad template: {% from %} " + file},
		{"extends", "{% extends 'x' %}", ErrTemplate, "chat: bad template: {% extends %} " + file},
		{"unknown tag", "a\n{% spam %}", ErrTemplate,
			`chat: bad template: ControlStructure 'spam' not found (or beginning not provided) (Line: 2 Col: 4, near "spam")`},
		{"tag not closed", "{% if 1 %}x", ErrTemplate,
			`chat: bad template: Unexpected EOF, expected tag elif or else or endif. (Line: 1 Col: 12, near "")`},
		{"comment not closed", "{# x", ErrTemplate, "chat: bad template: cannot read unclosed comment"},
		{"recursive loop", "{% for x in y recursive %}{% endfor %}", ErrTemplate,
			"chat: bad template: line 1: recursive loops are not supported"},
		{"macro with a star", "{% macro f(*a) %}{% endmacro %}", ErrTemplate,
			"chat: bad template: line 1: a macro with * or ** is not supported"},
		{"comparison of three", "\n{{ 1 < 2 < 3 }}", ErrTemplate,
			"chat: bad template: line 2: a comparison of more than two values is not supported"},
		{"set of two", "{% set a, b = 1, 2 %}", ErrTemplate,
			"chat: bad template: line 1: {% set %} needs a single name and ="},
		{"set of an item", "{% set a[0] = 1 %}", ErrTemplate,
			"chat: bad template: line 1: {% set %} takes a name or an attribute of a namespace"},
		{"set of nothing", "{% set a = %}", ErrTemplate, ""},
		{"calling an item", "{{ a[0]() }}", ErrTemplate, "chat: bad template: line 1: only names and methods can be called"},
		{"unknown filter", "\n\n{{ 'x'|pprint }}", ErrRender, "chat: template failed: line 3: the filter pprint is not supported"},
		{"unknown test", "{{ 'x' is odious }}", ErrRender, "chat: template failed: line 1: the test odious is not supported"},
		{"unknown function", "{{ lipsum() }}", ErrRender, "chat: template failed: line 1: there is no function lipsum"},
		{"unknown method", "{{ 'x'.format(1) }}", ErrRender, "chat: template failed: line 1: a string has no method format"},
		{"unknown operator", "{{ 2 ** 3 }}", ErrRender, "chat: template failed: line 1: the operator ** is not supported"},
		{"undefined value", "{{ a.b.c }}", ErrRender, "chat: template failed: line 1: b of an undefined value"},
		{"assignment to a message", "{% set messages.x = 1 %}", ErrRender,
			"chat: template failed: line 1: cannot set x of a list: only a namespace changes"},
		{"in the condition of a loop", "{% for x in [1] if x.y.z %}{% endfor %}", ErrRender,
			"chat: template failed: line 1: z of an undefined value"},
		{"date without a clock", "{{ strftime_now('%Y') }}", ErrRender,
			"chat: template failed: the template asks for the date, and Options.Now is not set"},
		{"raised", "{{ raise_exception('no\nway') }}", ErrRaised,
			"chat: the model's template refuses this conversation: no way"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, err := render(x.jinja, []Message{{Role: "user", Content: "hi"}}, Options{})
			if got != "" || !errors.Is(err, x.kind) || x.want != "" && err.Error() != x.want {
				t.Errorf("got %q, %v\nwant %s", got, err, x.want)
			}
		})
	}
}

func TestNothingOfGoIsWithinReach(t *testing.T) {
	for jinja, want := range map[string]string{
		"{{ self }}{{ gonja }}{{ caller }}":                           "",
		"{{ messages.Len }}{{ messages[0].Keys }}{{ ''.Interface }}":  "",
		"{% for m in messages %}{{ loop.recurseFn }}{% endfor %}":     "",
		"{{ (messages|list).__class__ }}{{ messages[0].__init__ }}":   "",
		"{% set ns = namespace(a=1) %}{{ ns.vars }}{{ ns.GetItem }}":  "",
		"{% set ns = namespace() %}{% set ns.ns = ns %}{{ [ns.ns] }}": "[<namespace>]",
	} {
		got, err := render(jinja, []Message{{Role: "user", Content: "hi"}}, Options{})
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", jinja, got, err, want)
		}
	}
}

func TestDateComesFromTheCaller(t *testing.T) {
	const jinja = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}"
	for _, x := range []struct {
		now  func() time.Time
		want string
	}{{clock, "29 Nov 2026"}, {nil, "26 Jul 2024"}} {
		if got, err := render(jinja, nil, Options{Now: x.now}); err != nil || got != x.want {
			t.Errorf("got %q, %v; want %q", got, err, x.want)
		}
	}
}

func TestPanicBecomesAnError(t *testing.T) {
	operations["boom"] = func(*operands) (any, error) { panic("a bug\nof gonja") }
	operations["name"], operations["boom"] = operations["boom"], operations["name"]
	defer func() {
		operations["name"] = operations["boom"]
		delete(operations, "boom")
	}()
	got, err := render("{{ x }}", nil, Options{})
	if got != "" || !errors.Is(err, ErrRender) || err.Error() != "chat: template failed: a bug of gonja" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestTemplateIsShared renders one template from many goroutines; the race detector watches.
func TestTemplateIsShared(t *testing.T) {
	tpl, err := New(read(t, "thinking.jinja"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	msgs := []Message{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "<think>\nx\n</think>\n\ny"}, {Role: "tool", Content: "z"}, {Role: "user", Content: "so?"}}
	want, err := tpl.text(msgs, Options{Generate: true})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			for range 20 {
				if got, err := tpl.text(msgs, Options{Generate: true}); err != nil || got != want {
					t.Errorf("got %q, %v; want %q", got, err, want)
				}
			}
		})
	}
	done.Wait()
}
