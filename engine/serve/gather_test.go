package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/engine/chat"
)

// steady has a token for each choice every step, and hands out those that are there as an engine does.
type steady struct {
	step          time.Duration
	tokens, every int // of a choice; choices
}

func (g *steady) Reply(Request) (chat.ReplyOptions, error) { return chat.ReplyOptions{}, nil }

func (g *steady) Generate(ctx context.Context, _ Request, emit func(Piece) error) (Result, error) {
	begun := time.Now()
	for i := range g.tokens {
		if wait := g.step*time.Duration(i+1) - time.Since(begun); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return Result{}, ctx.Err()
			}
		}
		for c := range g.every {
			more := c < g.every-1 || i == g.tokens-1 || time.Since(begun) >= g.step*time.Duration(i+2)
			if err := emit(Piece{Choice: c, Text: " " + strconv.Itoa(i), More: more}); err != nil {
				return Result{}, err
			}
		}
	}
	return Result{}, nil
}

// timed is an answer that notes when it was written to, and what of the first choice was the last then.
type timed struct {
	*httptest.ResponseRecorder
	begun time.Time
	at    []time.Duration
	last  []int
}

func (w *timed) SetWriteDeadline(time.Time) error { return nil }

func (w *timed) Write(p []byte) (int, error) {
	n := -1
	for event := range strings.SplitSeq(string(p), "\n\n") {
		if _, text, ok := strings.Cut(event, `"index":0,"text":" `); ok {
			n, _ = strconv.Atoi(text[:strings.IndexByte(text, '"')])
		}
	}
	if n >= 0 {
		w.at, w.last = append(w.at, time.Since(w.begun)), append(w.last, n)
	}
	return w.ResponseRecorder.Write(p)
}

// TestStreamGathersWhatComesFast counts writes, and how long a token waits for its own.
func TestStreamGathersWhatComesFast(t *testing.T) {
	const tokens, gather = 100, 25 * time.Millisecond
	for _, c := range []struct {
		name    string
		step    time.Duration
		choices int
		gather  time.Duration
		writes  int           // at most
		late    time.Duration // at most
	}{
		{"fast", 10 * time.Millisecond, 1, 0, 42, gather},
		{"faster", time.Millisecond, 1, 0, 6, gather},
		{"fast choices", 10 * time.Millisecond, 3, 0, 42, gather},
		{"slow", 40 * time.Millisecond, 1, 0, tokens, 0},
		{"slow choices", 40 * time.Millisecond, 3, 0, tokens, 0},
		{"not gathered", 10 * time.Millisecond, 1, -1, tokens, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := New(&steady{c.step, tokens, c.choices}, Options{Model: "m", Gather: c.gather})
				w := &timed{ResponseRecorder: httptest.NewRecorder(), begun: time.Now()}
				body := `{"prompt":"p","stream":true,"n":` + strconv.Itoa(c.choices) + `}`
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body)))
				if len(w.at) > c.writes {
					t.Errorf("%d writes, want %d at most", len(w.at), c.writes)
				}
				next := 0
				for i, at := range w.at {
					if late := at - c.step*time.Duration(next+1); late > c.late {
						t.Fatalf("token %d is written %v after it was chosen, want %v at most", next, late, c.late)
					}
					next = w.last[i] + 1
				}
				if next != tokens {
					t.Errorf("%d tokens were written, want %d", next, tokens)
				}
			})
		})
	}
}

// TestStreamThatGathersEndsWithItsClient has the client leave while tokens gather.
func TestStreamThatGathersEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(&steady{time.Millisecond, 1000, 1}, Options{Model: "m", Gather: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := &timed{ResponseRecorder: httptest.NewRecorder(), begun: time.Now()}
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"p","stream":true}`)))
		if took := time.Since(w.begun); took != time.Second {
			t.Errorf("it ended after %v, want a second", took)
		}
	})
}
