package chat

import (
	"math/rand/v2"
	"strings"
	"testing"
)

var replyTools = raw(`{"type":"function","function":{"name":"f","parameters":{"properties":{"text":{"type":"string"},` +
	`"n":{"type":"integer"},"x":{"anyOf":[{"type":"null"},{"type":"object"}]},"either":{"type":["string","null"]},"any":{}}}}}`)

// readReply pushes text cut into pieces of the given sizes, over and over, and joins what comes out:
// R[…] for reasoning, C[…] for content, name(arguments) for a call.
func readReply(o ReplyOptions, text string, sizes ...int) string {
	r := NewReply(o)
	var parts []Part
	for i := 0; text != ""; i++ {
		n := min(sizes[i%len(sizes)], len(text))
		parts = append(parts, r.Push(text[:n])...)
		text = text[n:]
	}
	parts = append(parts, r.Flush()...)
	var b strings.Builder
	open := ""
	for _, p := range parts {
		kind := "R"
		switch {
		case p.Call != nil:
			kind = ""
		case p.Content != "":
			kind = "C"
		}
		if kind != open && open != "" {
			b.WriteString("]")
		}
		if kind != open && kind != "" {
			b.WriteString(kind + "[")
		}
		if open = kind; p.Call != nil {
			b.WriteString(p.Call.Name + "(" + p.Call.Arguments + ")")
		}
		b.WriteString(p.Reasoning + p.Content)
	}
	if open != "" {
		b.WriteString("]")
	}
	return b.String()
}

var replies = []struct {
	name     string
	thinking bool
	text     string
	want     string
}{
	{"nothing", false, "", ""},
	{"an answer", false, "Hello,\n\nworld!\n", "C[Hello,\n\nworld!\n]"},
	{"reasoning", false, "<think>\nhm\n\nso\n</think>\n\nHi", "R[hm\n\nso]C[Hi]"},
	{"white space first", false, " \n<think>a</think>b", "R[a]C[b]"},
	{"no reasoning", false, "<think>\n\n</think>\n\nHi", "C[Hi]"},
	{"reasoning under way", true, "hm\n</think>\n\nHi", "R[hm]C[Hi]"},
	{"reasoning opened twice", true, "\n<think>\nhm\n</think>\n\nHi", "R[hm]C[Hi]"},
	{"reasoning cut short", true, "hm <b> so\n", "R[hm <b> so]"},
	{"reasoning cut in its mark", true, "hm\n</thi", "R[hm\n</thi]"},
	{"reasoning that mentions a call", true, "a <tool_call> b</think>c", "R[a <tool_call> b]C[c]"},
	{"reasoning too late", false, "a <think>b</think>", "C[a <think>b</think>]"},
	{"JSON", false, "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", `C[Let me see.]f({"a": 1})`},
	{"two calls", true, "x</think>\n\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":null}\n</tool_call>\n",
		`R[x]f({})g({})`},
	{"a mark within a string", false, `<tool_call>{"name":"f","arguments":{"a":"</tool_call>\"}{"}}</tool_call>`, `f({"a":"</tool_call>\"}{"})`},
	{"arguments within a string", false, `<tool_call>{"name":"f","arguments":"{\"a\":1}"}</tool_call>`, `f({"a":1})`},
	{"no closing mark", false, `<tool_call>{"name":"f"} </tool`, `f({})`},
	{"tags", false, "<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n<parameter=n>\n2\n</parameter>\n<parameter=x>\nNone\n</parameter>\n" +
		"<parameter=either>\nnull\n</parameter>\n<parameter=any>\n{}\n</parameter>\n</function>\n</tool_call>",
		`f({"text": "1", "n": 2, "x": null, "either": "null", "any": "{}"})`},
	{"tags without parameters", false, "a\n<tool_call>\n<function=g>\n</function>\n</tool_call>b", `C[a]g({})C[b]`},
	{"lines and tags in a value", false, "<tool_call><function=f><parameter=text>\na\n\n</parameter> </p> </function\n<b>\n\n</parameter>\n</function></tool_call>",
		`f({"text": "a\n\n</parameter> </p> </function\n<b>\n"})`},
	{"not what the schema says", false, "<tool_call><function=f><parameter=n>two</parameter><parameter=n> 3 </parameter><parameter=x>x</parameter></function></tool_call>",
		`f({"n": 3, "x": "x"})`},
	{"no call", false, "<tool_call> is a mark", "C[<tool_call> is a mark]"},
	{"a mark before a call", false, "\n<tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call>", "C[\n<tool_call>\n]f({})"},
	{"broken JSON", false, "<tool_call>\n{\"name\": \"f, \n}\n</tool_call>x", "C[<tool_call>\n{\"name\": \"f, \n}\n</tool_call>x]"},
	{"broken JSON before a call", false, "<tool_call>{]<tool_call>{\"name\":\"f\"}</tool_call>", "C[<tool_call>{]]f({})"},
	{"JSON without a name", false, `<tool_call>{"arguments":{}}</tool_call>`, `C[<tool_call>{"arguments":{}}</tool_call>]`},
	{"arguments that are none", false, `<tool_call>{"name":"f","arguments":[1]}</tool_call>`, `C[<tool_call>{"name":"f","arguments":[1]}</tool_call>]`},
	{"a call cut short", false, "a\n<tool_call>\n<function=f>\n<parameter=n>\n1", "C[a\n<tool_call>\n<function=f>\n<parameter=n>\n1]"},
	{"something after the object", false, `<tool_call>{"name":"f"} x</tool_call>`, `C[<tool_call>{"name":"f"} x</tool_call>]`},
	{"many line breaks", false, "a" + strings.Repeat("\n", 70) + `<tool_call>{"name":"f"}</tool_call>`, "C[a" + strings.Repeat("\n", 6) + "]f({})"},
	{"a long call", false, `<tool_call>{"name":"` + strings.Repeat("x", maxCall) + `"}</tool_call>`,
		`C[<tool_call>{"name":"` + strings.Repeat("x", maxCall) + `"}</tool_call>]`},
}

func TestRepliesAreSplit(t *testing.T) {
	for _, x := range replies {
		t.Run(x.name, func(t *testing.T) {
			for _, size := range []int{1 << 30, 1, 2, 3, 7} {
				got := readReply(ReplyOptions{Thinking: x.thinking, Tools: replyTools}, x.text, size)
				if len(got) > 2000 && got == x.want {
					continue
				}
				if got != x.want {
					t.Errorf("in pieces of %d:\n got %.2000s\nwant %.2000s", size, got, x.want)
				}
			}
		})
	}
}

func TestWithoutToolsNothingIsACall(t *testing.T) {
	const text = "<think>a</think>b\n<tool_call>{\"name\":\"f\"}</tool_call>\n"
	if got, want := readReply(ReplyOptions{}, text, 3), "R[a]C[b\n<tool_call>{\"name\":\"f\"}</tool_call>\n]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestContentIsNotHeldBack: what can be no mark comes at once.
func TestContentIsNotHeldBack(t *testing.T) {
	r := NewReply(ReplyOptions{Tools: replyTools})
	for _, x := range [][2]string{{"a", "a"}, {" b", " b"}, {" <", " "}, {"b>", "<b>"}, {"\n", ""}, {"c", "\nc"}} {
		got := ""
		for _, p := range r.Push(x[0]) {
			got += p.Content
		}
		if got != x[1] {
			t.Errorf("%q gives %q, want %q", x[0], got, x[1])
		}
	}
}

var replyPieces = strings.Split("<think>§</think>§<tool_call>§</tool_call>§<function=f>§</function>§<parameter=n>§<parameter=text>§</parameter>§"+
	"\n§\n\n§ §a§<§</§>§{§}§\"§\\§1§{\"name\":\"f\"}§{\"name\":\"f\",\"arguments\":{\"a\":[1]}}§<tool_§é", "§")

func checkReply(t *testing.T, thinking bool, text string, sizes ...int) {
	t.Helper()
	o := ReplyOptions{Thinking: thinking, Tools: replyTools}
	whole := readReply(o, text, len(text)+1)
	if got := readReply(o, text, sizes...); got != whole {
		t.Fatalf("%q in pieces of %v:\n got %q\nwant %q", text, sizes, got, whole)
	}
	r := NewReply(o)
	var said strings.Builder
	for _, p := range append(r.Push(text), r.Flush()...) {
		if p.Call != nil {
			return
		}
		said.WriteString(p.Reasoning + p.Content)
	}
	// Without a call, only marks of reasoning and white space may go.
	bare := strings.NewReplacer(" ", "", "\t", "", "\n", "", "\r", "", thinkOpen, "", thinkClose, "")
	if got, want := bare.Replace(said.String()), bare.Replace(text); got != want && bare.Replace(want) == want {
		t.Fatalf("%q: said %q, which lacks something", text, said.String())
	}
}

func TestPiecesMakeNoDifference(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for range 30_000 {
		var b strings.Builder
		for range rng.IntN(16) {
			b.WriteString(replyPieces[rng.IntN(len(replyPieces))])
		}
		checkReply(t, rng.IntN(2) == 0, b.String(), 1+rng.IntN(4), 1+rng.IntN(9))
	}
}

func FuzzReply(f *testing.F) {
	for _, x := range replies {
		if len(x.text) < 1000 {
			f.Add(x.thinking, x.text, 1, 5)
		}
	}
	f.Fuzz(func(t *testing.T, thinking bool, text string, a, b int) {
		checkReply(t, thinking, text, max(1, a), max(1, b))
	})
}
