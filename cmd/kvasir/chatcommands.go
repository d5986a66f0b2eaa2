package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// chatCommand is something else than a turn that can be typed in a chat.
type chatCommand struct {
	usage, help string
	run         func(t *conversation, ctx context.Context, rest string) error
}

// chatCommands returns them in the order of their help.
func chatCommands() []chatCommand {
	return []chatCommand{
		{"/help", "list these commands", (*conversation).help},
		{"/clear", "forget the conversation; the system text stays", (*conversation).clear},
		{"/system TEXT", "tell the model so before the conversation; off: nothing", (*conversation).setSystem},
		{"/retry", "answer the last turn again", (*conversation).retry},
		{"/thinking on|off|auto", "have the model reason before it answers, or not", (*conversation).setThinking},
		{"/save FILE", "write the conversation as JSON messages", (*conversation).save},
		{"/stats", "tell how long and how fast it was", (*conversation).stats},
		{"/quit", "end; so do Ctrl-D, and Ctrl-C twice", nil},
	}
}

// asCommand splits a turn that is a command: a slash and a word of letters.
func asCommand(text string) (name, rest string, ok bool) {
	name, rest, _ = strings.Cut(strings.TrimSpace(text), " ")
	word, ok := strings.CutPrefix(name, "/")
	ok = ok && word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "" && strings.HasPrefix(text, "/")
	return name, strings.TrimSpace(rest), ok
}

// command runs a command.
func (t *conversation) command(ctx context.Context, name, rest string) (end bool, err error) {
	var names []string
	for _, c := range chatCommands() {
		own, _, takes := strings.Cut(c.usage, " ")
		names = append(names, own)
		switch {
		case own != name:
		case rest != "" && !takes:
			return false, fmt.Errorf("%s takes nothing behind it", name)
		case c.run == nil:
			return true, nil
		default:
			return false, c.run(t, ctx, rest)
		}
	}
	text := "there is no command " + name
	if near := nearest(name, names); near != "" {
		text += "; did you mean " + near + "?"
	}
	return false, errors.New(text + " (/help lists them; a turn may begin with a space)")
}

func (t *conversation) help(context.Context, string) error {
	var list table
	for _, c := range chatCommands() {
		list.add("  "+c.usage, c.help)
	}
	list.add(`  …\`, "a line that ends with a backslash goes on in the next")
	list.print(t.a.stderr)
	return nil
}

func (t *conversation) clear(context.Context, string) error {
	t.turns, t.used, t.tries = nil, 0, 0
	t.remark("The conversation is forgotten.")
	return nil
}

func (t *conversation) setSystem(_ context.Context, rest string) error {
	switch rest {
	case "":
		if t.system == "" {
			t.remark("There is no system text.")
		} else {
			t.remark("The system text is: " + t.system)
		}
	case "off":
		t.system = ""
		t.remark("There is no system text any more.")
	default:
		t.system = rest
		t.remark("From the next answer on the model is told so.")
	}
	return nil
}

func (t *conversation) retry(ctx context.Context, _ string) error {
	n := len(t.turns)
	if n < 2 {
		return errors.New("there is no answer yet")
	}
	if !t.c.chance() && !t.cut {
		t.remark("Without --temperature it will be the same answer.")
	}
	t.tries++
	return t.answer(ctx, slices.Clone(t.turns[:n-1]))
}

func (t *conversation) setThinking(_ context.Context, rest string) error {
	on := rest == "on"
	switch rest {
	case "on", "off":
		t.request.Template.Thinking = &on
	case "auto":
		t.request.Template.Thinking = nil
	default:
		return errors.New("want /thinking on, off, or auto, which leaves it to the model's template")
	}
	t.remark("Thinking is " + rest + ", if the model's template knows of it.")
	return nil
}

// savedMessage is a message as OpenAI's interface has it.
type savedMessage struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"`
}

func (t *conversation) save(_ context.Context, rest string) (err error) {
	if rest == "" {
		return errors.New("want /save FILE")
	}
	list := []savedMessage{}
	if t.system != "" {
		list = append(list, savedMessage{Role: "system", Content: t.system})
	}
	for _, m := range t.turns {
		list = append(list, savedMessage{m.Role, m.Content, m.Reasoning})
	}
	f, err := os.OpenFile(expandHome(rest), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already; take another name", rest)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e := json.NewEncoder(f)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(list); err != nil {
		return err
	}
	t.remark(plural(len(list), "message") + " in " + rest)
	return nil
}

func (t *conversation) stats(context.Context, string) error {
	list := table{}
	list.add("  model", t.e.Name())
	list.add("  conversation", plural(len(t.turns), "message")+", "+t.room())
	made := plural(t.total.answers, "answer") + ", " + plural(t.total.tokens, "token")
	if t.total.decoded > 0 && t.total.decode > 0 {
		made += fmt.Sprintf(" at %.1f tokens/s", perSecond(t.total.decoded, t.total.decode))
	}
	list.add("  made", made)
	list.add("  keys and values", string(t.c.KV))
	list.add("  states", joinWords(string(t.c.State), t.c.lossy()))
	list.add("  experts", joinWords(string(t.c.Experts), helped(t.b)))
	list.print(t.a.stderr)
	return nil
}
