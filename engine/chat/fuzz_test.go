package chat

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzTemplate renders whatever comes: no panic, no endless loop, one line for an error, and the
// same again.
func FuzzTemplate(f *testing.F) {
	f.Add(ChatML, "hi")
	f.Add(read(f, "thinking.jinja"), "<think>\na\n</think>\n\nb")
	type sample struct{ Template string }
	for _, file := range []string{"jinja.jsonl", "whitespace.jsonl"} {
		for _, s := range readLines[sample](f, file) {
			f.Add(s.Template, "Hello, World")
		}
	}
	f.Fuzz(func(t *testing.T, jinja, content string) {
		tpl, err := New(jinja, "<bos>", "<eos>")
		if err != nil {
			checkError(t, err)
			return
		}
		msgs := []Message{{Role: "system", Content: content}, {Role: "user", Content: "U"}}
		text, err := tpl.text(msgs, Options{Generate: true, Now: clock})
		if err != nil {
			checkError(t, err)
		}
		again, errAgain := tpl.text(msgs, Options{Generate: true, Now: clock})
		if again != text || (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Fatalf("%q rendered as %q, %v and as %q, %v", jinja, text, err, again, errAgain)
		}
	})
}

func checkError(t *testing.T, err error) {
	t.Helper()
	for _, kind := range []error{ErrTemplate, ErrRender, ErrRaised, ErrInput, ErrLimit} {
		if errors.Is(err, kind) {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("not one line: %q", err)
			}
			return
		}
	}
	t.Fatalf("an error of no kind: %v", err)
}

func FuzzMessages(f *testing.F) {
	f.Add("user", "hi", "assistant", "<|im_end|>")
	f.Add("", "{{ x }}", "{%", "\xff")
	tpl, err := New(ChatML, "", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, role1, content1, role2, content2 string) {
		msgs := []Message{{Role: role1, Content: content1}, {Role: role2, Content: content2}}
		for _, generate := range []bool{true, false} {
			got, err := tpl.text(msgs, Options{Generate: generate})
			bad := !isRole(role1) || !isRole(role2) || !utf8.ValidString(content1+content2)
			if bad && errors.Is(err, ErrInput) && got == "" {
				continue
			}
			if want := chatML(msgs, generate); bad || err != nil || got != want {
				t.Fatalf("%q: %v\n got %q\nwant %q", msgs, err, got, want)
			}
		}
	})
}
