package serve

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"kvasir/engine/chat"
)

// written is a connection that counts what is done with it.
type written struct {
	head            http.Header
	text            []byte
	writes, flushes int
	limits          int
}

func (w *written) Header() http.Header              { return w.head }
func (w *written) WriteHeader(int)                  {}
func (w *written) FlushError() error                { w.flushes++; return nil }
func (w *written) SetWriteDeadline(time.Time) error { w.limits++; return nil }
func (w *written) Write(p []byte) (int, error) {
	w.writes++
	w.text = append(w.text[:0], p...)
	return len(p), nil
}

// streaming is a stream of n choices to w.
func streaming(k kind, n int, w http.ResponseWriter) *stream {
	h := New(&fake{}, Options{Model: "a <model>"})
	a := &reply{h: h, w: w, kind: k, ask: &asked{}, id: newID(k), created: 123}
	for range n {
		c := &choiceState{}
		if k != plainText {
			c.split = chat.NewReply(chat.ReplyOptions{})
		}
		a.choices = append(a.choices, c)
	}
	a.ask.requests = make([]Request, 1)
	return a.newStream()
}

func FuzzTextChunksAreThoseOfJSON(f *testing.F) {
	for _, s := range []string{
		"", "plain", "a\"b\\c/", "\x00\x01\b\f\n\r\t\x1f\x7f", "<b>&amp;</b>", "grün 京 \U0001F600", "\u2027\u2028\u2029\u202a",
		"\xff", "a\xc3", "\xed\xa0\x80x", "\ufffd", "\xe2\x80", "x\xf0\x9f\x98",
	} {
		f.Add(s, 0)
	}
	f.Fuzz(func(t *testing.T, s string, index int) {
		for _, k := range []kind{plainText, chatText} {
			for _, d := range []delta{{text: s}, {reasoning: s}} {
				if k == plainText && d.reasoning != "" {
					continue
				}
				st := streaming(k, 1, &written{})
				c := choice{Index: index}
				switch {
				case k == plainText:
					c.Text = &d.text
				case d.reasoning != "":
					c.Delta = &turn{Reasoning: d.reasoning}
				default:
					c.Delta = &turn{Content: &d.text}
				}
				o, err := json.Marshal(st.object(true, c))
				if err != nil {
					t.Fatal(err)
				}
				got, want := string(appendText(nil, st.head, k, index, &d)), "data: "+string(o)+"\n\n"
				if got != want {
					t.Errorf("%s\nwant %s", got, want)
				}
			}
		}
	})
}

func FuzzDeltasOfResponsesAreThoseOfJSON(f *testing.F) {
	f.Add("grün <b>\u2028\xff", 7, 1, true)
	f.Add("", 0, 0, false)
	f.Fuzz(func(t *testing.T, text string, seq, items int, thought bool) {
		w := streaming(responseText, 1, &written{}).writing
		kind := "message"
		if thought {
			kind = "reasoning"
		}
		for range 1 + items&3 {
			if err := w.open(kind); err != nil {
				t.Fatal(err)
			}
		}
		w.seq = seq
		item := w.last()
		e := responseEvent{
			Type: "response." + item.Content[0].Type + ".delta", Sequence: seq, ItemID: item.ID,
			Output: new(len(w.Output) - 1), Content: new(0), Delta: &text,
		}
		if !thought {
			e.Logprobs = &[]struct{}{}
		}
		o, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		got, want := string(appendDelta(nil, w, text)), "event: "+e.Type+"\ndata: "+string(o)+"\n\n"
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	})
}

// TestTokenOfAStreamAllocatesNothing counts what a token costs from the generator to the connection. A thought
// is cut out of what is held back of it, which is the one allocation.
func TestTokenOfAStreamAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  kind
		begin string
		want  float64
	}{
		{"completion", plainText, "a", 0},
		{"chat", chatText, "a", 0},
		{"response", responseText, "a", 0},
		{"thought", chatText, "<think>a", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &written{head: http.Header{}}
			s := streaming(c.kind, 1, w)
			if _, err := s.piece(Piece{Text: c.begin}); err != nil {
				t.Fatal(err)
			}
			writes := w.writes
			got := testing.AllocsPerRun(200, func() {
				if _, err := s.piece(Piece{Text: " wörd\n"}); err != nil {
					t.Fatal(err)
				}
			})
			if got != c.want {
				t.Errorf("%v allocations a token, want %v", got, c.want)
			}
			// AllocsPerRun runs once more to warm up.
			if w.writes-writes != 201 || w.flushes != w.writes || w.limits != 1 {
				t.Errorf("%d writes, %d flushes, %d limits; want 201 writes, as many flushes, and 1", w.writes-writes, w.flushes, w.limits)
			}
		})
	}
}

func TestStepOfAStreamIsOneWrite(t *testing.T) {
	w := &written{head: http.Header{}}
	s := streaming(chatText, 3, w)
	for i := range 3 {
		if _, err := s.piece(Piece{Choice: i, Text: "x", More: i < 2}); err != nil {
			t.Fatal(err)
		}
	}
	if w.writes != 1 || w.flushes != 1 {
		t.Errorf("a token of three choices, with the head: %d writes, %d flushes", w.writes, w.flushes)
	}
	for i := range 3 {
		if _, err := s.piece(Piece{Choice: i, End: &Outcome{Tokens: 1}, More: true}); err != nil {
			t.Fatal(err)
		}
	}
	s.finish(Result{})
	if err := s.flush(); err != nil || w.writes != 2 {
		t.Errorf("the end of three choices: %v, %d writes", err, w.writes-1)
	}
	// What waits is bounded.
	for n := 0; n < 2*most; n += 100 {
		if _, err := s.piece(Piece{Text: string(make([]byte, 100)), More: true}); err != nil {
			t.Fatal(err)
		}
	}
	if w.writes < 3 || len(w.text) > 2*most {
		t.Errorf("%d writes, the last of %d bytes", w.writes, len(w.text))
	}
}

func BenchmarkTokenOfAStream(b *testing.B) {
	for _, k := range []kind{plainText, chatText, responseText} {
		b.Run(k.prefix(), func(b *testing.B) {
			s := streaming(k, 1, &discard{})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.piece(Piece{Text: " word"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// discard is a connection to nobody.
type discard struct{ written }

func (d *discard) Header() http.Header         { return http.Header{} }
func (d *discard) Write(p []byte) (int, error) { return io.Discard.Write(p) }
