package chat

import (
	"errors"
	"strings"
	"testing"
)

// TestGreedyTemplatesAreStopped has what a hostile file may bring. Each would take gigabytes,
// hours, or the process: a stack that overflows cannot be recovered from.
func TestGreedyTemplatesAreStopped(t *testing.T) {
	doubling := func(start, step, end string) string {
		return "{% set ns = namespace(s=" + start + ") %}{% for i in range(60) %}{% set ns.s = " + step +
			" %}{% endfor %}" + end
	}
	const work = "chat: over the limit: the template works for longer than these messages can need"
	for _, x := range []struct{ name, jinja, want string }{
		{"long range", "{% for i in range(1000000000) %}{% endfor %}", work},
		{"loops in loops", "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", work},
		{"doubled string", doubling("'x'", "ns.s ~ ns.s", "{{ ns.s|length }}"), work},
		{"doubled list", doubling("[1]", "ns.s + ns.s", "{{ ns.s|length }}"), work},
		{"list of itself, printed", doubling("[1]", "[ns.s, ns.s]", "{{ ns.s }}"), work},
		{"list of itself, compared", doubling("[1]", "[ns.s, ns.s]", "{{ ns.s == ns.s }}"), work},
		{"list of itself, as JSON", doubling("[1]", "[ns.s, ns.s]", "{{ ns.s|tojson(indent=16) }}"), work},
		{"list of itself, searched", doubling("[1]", "[ns.s, ns.s]", "{{ 1 in ns.s }}"), work},
		{"mapping of itself", doubling("{'a': 1}", "{'a': ns.s, 'b': ns.s}", "{{ ns.s|string }}"), work},
		{"replaced", "{{ ('x' * 9000000)|replace('x', 'y' * 9000000) }}", work},
		{"replaced by a method", "{{ ('x' * 9000000).replace('', 'y' * 9000000) }}", work},
		{"joined", "{{ ('x' * 100000)|list|join('y' * 1000000) }}", work},
		{"indented", "{{ ('\n' * 1000000)|indent(1000) }}", work},
		{"unique", "{{ range(20000)|unique|list }}", work},
		{"searched again and again", "{% set l = range(9000)|list %}{% for i in l if i in l %}{% endfor %}", work},
		{"macros by the tree", "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}", work},
		{"repeated", "{{ 'x' * 1000000000 }}", "chat: over the limit: a string repeated 1000000000 times"},
		{"much text", "{% for i in range(9999) %}" + strings.Repeat("y", 9999) + "{% endfor %}", ""},
		{"much text in a variable", "{% set x %}{% for i in range(999) %}" + strings.Repeat("y", 99999) + "{% endfor %}{% endset %}", work},
		{"deep JSON", "{% set ns = namespace(s=[]) %}{% for i in range(500) %}{% set ns.s = [ns.s] %}{% endfor %}" +
			"{% set x = ns.s|tojson(indent=16) %}", work},
		{"endless macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
			"chat: over the limit: the template has more than 64 macro calls within one another"},
		{"deep brackets", "{{ " + strings.Repeat("(", 100_000), ""},
		{"deep brackets in a tag", "{% if " + strings.Repeat("[", 65), ""},
		{"long expression", "{{ " + strings.Repeat("1+", 100_000) + "1 }}", ""},
		{"long chain of conditions", "{{ " + strings.Repeat("a if b else ", 400) + "1 }}",
			"chat: over the limit: line 1 of the template has more than 64 open brackets"},
		{"deep blocks", strings.Repeat("{% if 1 %}", 65) + strings.Repeat("{% endif %}", 65),
			"chat: over the limit: the template has more than 64 blocks within one another"},
		{"large template", strings.Repeat(" ", MaxTemplate+1),
			"chat: over the limit: a template of 1048577 bytes, at most 1048576"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got := ""
			tpl, err := New(x.jinja, "", "")
			if err == nil {
				tpl.budget /= 16
				got, err = tpl.text([]Message{{Role: "user", Content: "hi"}}, Options{})
			}
			if !errors.Is(err, ErrLimit) || x.want != "" && err.Error() != x.want {
				t.Errorf("got %d bytes, %v; want %s", len(got), err, x.want)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 400) {
				t.Errorf("not one line: %q", err)
			}
		})
	}
}

func TestLongConversationsFit(t *testing.T) {
	tpl, err := New(read(t, "thinking.jinja"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	many := make([]Message, 500)
	for i := range many {
		many[i] = Message{Role: "user", Content: "hi"}
	}
	if _, err := tpl.text(many, Options{}); err != nil {
		t.Errorf("%d short messages: %v", len(many), err)
	}
	long := []Message{{Role: "user", Content: strings.Repeat("0123456789abcdef", 1<<17)}}
	if got, err := tpl.text(long, Options{}); err != nil || len(got) < 2<<20 {
		t.Errorf("2 MiB: %d bytes, %v", len(got), err)
	}
}

func TestInputAndOutputAreBounded(t *testing.T) {
	for _, x := range []struct {
		name, jinja string
		msgs        []Message
		want        string
	}{
		{"many messages", "", make([]Message, maxMessages+1), "chat: over the limit: 16385 messages, at most 16384"},
		{"long message", "", []Message{{Role: "user", Content: strings.Repeat("x", MaxInput)}},
			"chat: over the limit: 16777220 bytes of messages, at most 16777216"},
		{"long output", "{{ messages[0].content }}{{ messages[0].content }}",
			[]Message{{Role: "user", Content: strings.Repeat("x", MaxOutput/2+1)}},
			"chat: over the limit: the template writes more than 16777216 bytes"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, err := render(x.jinja, x.msgs, Options{})
			if got != "" || !errors.Is(err, ErrLimit) || err.Error() != x.want {
				t.Errorf("got %d bytes, %v; want %s", len(got), err, x.want)
			}
		})
	}
}
