package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// answers are what the lines of a chat get, as objects.
func answers(t *testing.T, lines string, args ...string) (list []chatAnswer) {
	t.Helper()
	o := call{args: append([]string{"chat", "--json"}, args...), stdin: lines}.run(t)
	if o.status != statusDone {
		t.Fatalf("exit status %d, standard error %q", o.status, o.stderr)
	}
	for d := json.NewDecoder(strings.NewReader(o.stdout)); d.More(); {
		var a chatAnswer
		if err := d.Decode(&a); err != nil {
			t.Fatalf("standard output %q: %v", o.stdout, err)
		}
		list = append(list, a)
	}
	if n := strings.Count(o.stdout, "\n"); n != len(list) {
		t.Errorf("%d answers on %d lines", len(list), n)
	}
	return list
}

const (
	japan  = "What is the capital of Japan?"
	france = "What is the capital of France?"
)

func TestChatRemembersTheConversation(t *testing.T) {
	t.Parallel()
	list := answers(t, japan+"\n\n"+france+"\n/clear\n"+france)
	if len(list) != 3 {
		t.Fatalf("answers %+v, want three", list)
	}
	if list[0].Text != "The capital of Japan is Tokyo." || !strings.Contains(list[1].Text, "France is Paris") || list[1].Stop != "end" {
		t.Errorf("answers %+v", list)
	}
	if a := list[1]; a.PromptTokens <= list[0].PromptTokens+list[0].Tokens {
		t.Errorf("the second prompt has %d tokens, and does not hold the first turns", a.PromptTokens)
	}
	var alone runResult
	kvasir(t, "run", "--chat", "--json", france).wantDone(t).object(t, &alone)
	if a := list[2]; a.PromptTokens != alone.PromptTokens || a.Text != alone.Text {
		t.Errorf("after /clear: %+v; alone %+v", a, alone)
	}
}

func TestChatPrintsAnswersAloneInAPipe(t *testing.T) {
	t.Parallel()
	o := call{args: []string{"chat"}, stdin: japan + "\nWhat is \\\nthe capital of \\\nFrance?"}.run(t).wantDone(t)
	lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
	if len(lines) != 2 || lines[0] != "The capital of Japan is Tokyo." {
		t.Errorf("standard output %q", o.stdout)
	}
	list := answers(t, "a \\\nb\n")
	if two := answers(t, "a \n"); list[0].PromptTokens <= two[0].PromptTokens {
		t.Errorf("two lines have %d tokens, one has %d", list[0].PromptTokens, two[0].PromptTokens)
	}
	call{args: []string{"chat"}, stdin: ""}.run(t).wantDone(t)
	call{args: []string{"chat"}, stdin: "\n \n"}.run(t).wantDone(t)
}

func TestChatCommands(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "saved.json")
	o := call{args: []string{"chat"}, stdin: "/system You are a king.\n" + japan + "\n/retry\n/stats\n/help\n/thinking off\n/save " + file + "\n/quit\n" + france}.run(t)
	if o.status != statusDone || strings.Count(o.stdout, "\n") != 2 {
		t.Errorf("exit status %d, standard output %q; want two answers", o.status, o.stdout)
	}
	for _, want := range []string{
		"model            kvasir-tiny", "2 messages", "2 answers", "/retry", "Without --temperature it will be the same answer",
		"3 messages in " + file,
	} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("standard error lacks %q:\n%s", want, o.stderr)
		}
	}
	wantNarrow(t, strings.ReplaceAll(o.stderr, file, "FILE"))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var saved []savedMessage
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	answer := strings.SplitAfterN(o.stdout, "\n", 2)[0]
	want := []savedMessage{{Role: "system", Content: "You are a king."}, {Role: "user", Content: japan}, {Role: "assistant", Content: strings.TrimSuffix(answer, "\n")}}
	if fmt.Sprint(saved) != fmt.Sprint(want) {
		t.Errorf("saved %q, want %q", saved, want)
	}
	for _, c := range []struct{ line, want string }{
		{"/retri", "there is no command /retri; did you mean /retry?"},
		{"/foo", "there is no command /foo (/help lists them"},
		{"/retry", "there is no answer yet"},
		{"/clear now", "/clear takes nothing behind it"},
		{"/thinking maybe", "want /thinking on, off, or auto"},
		{"/save", "want /save FILE"},
		{"/save " + file, "is there already; take another name"},
		{"/save " + file + "/x", "not a directory"},
	} {
		call{args: []string{"chat"}, stdin: c.line + "\n"}.run(t).wantFailure(t, statusFailed, c.want)
	}
	// What only looks like a command is a turn.
	for _, line := range []string{"/usr/bin is what?", " /quit", "/"} {
		if list := answers(t, line+"\n"); len(list) != 1 {
			t.Errorf("%q gets answers %+v", line, list)
		}
	}
}

func TestChatRetriesWithAnotherSeed(t *testing.T) {
	t.Parallel()
	list := answers(t, "Tell me a story.\n/retry\n/retry\n", "--temperature", "2", "--tokens", "12")
	if len(list) != 3 || list[0].Text == list[1].Text || list[1].Text == list[2].Text {
		t.Errorf("answers %+v", list)
	}
	if list[0].PromptTokens != list[2].PromptTokens {
		t.Errorf("prompts of %d and %d tokens", list[0].PromptTokens, list[2].PromptTokens)
	}
}

func TestChatSystemTextStandsBefore(t *testing.T) {
	t.Parallel()
	without, with := answers(t, japan), answers(t, japan, "--system", "You are a king.")
	if typed := answers(t, "/system You are a king.\n"+japan); typed[0].PromptTokens != with[0].PromptTokens {
		t.Errorf("typed %+v, of the flag %+v", typed, with)
	}
	if off := answers(t, "/system off\n"+japan, "--system", "You are a king."); off[0].PromptTokens != without[0].PromptTokens {
		t.Errorf("taken back %+v, without %+v", off, without)
	}
	if with[0].PromptTokens <= without[0].PromptTokens {
		t.Errorf("with %+v, without %+v", with, without)
	}
}

func TestChatKeepsReasoningApart(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "r.gbnf", []byte(reasoned))
	o := call{args: []string{"chat", "--grammar", file}, stdin: "hi"}.run(t).wantDone(t)
	if o.stdout != "Paris \x1b[2J\n" {
		t.Errorf("standard output %q", o.stdout)
	}
	list := answers(t, "hi\nhi\n", "--grammar", file)
	if a := list[0]; a.Text != "Paris \x1b[2J" || a.Reasoning != "hm, what" {
		t.Errorf("answer %+v", a)
	}
	// The template of this model knows nothing of reasoning: it is not sent back.
	if grown := list[1].PromptTokens - list[0].PromptTokens; grown >= list[0].Tokens+list[0].PromptTokens {
		t.Errorf("the second prompt has %d tokens more than the first, the answer %d", grown, list[0].Tokens)
	}
}

func TestChatSaysWhenTheContextIsFull(t *testing.T) {
	t.Parallel()
	o := call{args: []string{"chat"}, stdin: strings.Repeat(japan+"\n", 100)}.run(t)
	if o.status != statusFailed || strings.Count(o.stdout, "\n") < 10 {
		t.Errorf("exit status %d after %q", o.status, o.stdout)
	}
	wantOneLine(t, o.stderr, "the conversation has", "room for 1024", "/clear")
	o = call{args: []string{"chat", "-v", "--bias", "2045=-100", "--bias", "2046=-100", "--bias", "2047=-100"}, stdin: "hi"}.run(t)
	if o.status != statusDone || !strings.Contains(o.stderr, "1 024 of 1 024 tokens of context · the context is full: /clear") {
		t.Errorf("exit status %d, standard error %q", o.status, o.stderr)
	}
	o = call{args: []string{"chat", "-v", "--tokens", "2"}, stdin: "hi"}.run(t)
	if !strings.Contains(o.stderr, "cut off by --tokens") {
		t.Errorf("standard error %q", o.stderr)
	}
}
