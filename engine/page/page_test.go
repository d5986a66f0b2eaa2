package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is a status whose counters grow as time goes.
func sample(start time.Time) func(context.Context) (Status, error) {
	return func(context.Context) (Status, error) {
		ms := time.Since(start).Milliseconds()
		return Status{
			Model: "Qwen3-30B-A3B-Q4_K_M", Since: start.Add(-3 * time.Hour).UnixMilli(), Layers: 48, Experts: 128, Context: 32768,
			Requests: Requests{Running: 212, Waiting: 3}, Tokens: Tokens{Prompt: 100 * ms, Generated: 12_000_000 + ms*11/10}, Swarm: true,
			Workers: []Worker{
				{ID: "Cy0G30oO", Hub: "bdx4sbe5", Holds: "layers 0-23: experts 0-127", RTT: 13.2, Rate: 9100, Dispatches: 40_000 + ms/20,
					Rows: 2_000_000 + 5*ms, Wait: 1_900_000 + float64(2*ms), Pending: 41_250_000_000},
				{ID: "KzImeafy", Hub: "bdx4sbe5", Holds: "layers 24-47: experts 0-127", RTT: 41.7, Rate: 8700, Dispatches: 39_000 + ms/20,
					Rows: 1_900_000 + 5*ms, Wait: 2_600_000 + float64(3*ms), Failures: 2, Pending: 38_800_000_000, Settled: 12_000_000_000, Voided: 500_000_000, Unpaid: "nobody checks the work"},
				{ID: "<b>xss</b>", Hub: "bdx4sbe5", RTT: 88, Rate: 2353},
			},
			Batches: []Batch{
				{ID: "0d7b29", Endpoint: "/v1/chat/completions", Status: "in_progress", Total: 50_000, Completed: 18_240, Failed: 3},
				{ID: "91ce04", Endpoint: "/v1/completions", Status: "completed", Total: 600, Completed: 600},
			},
		}, nil
	}
}

const answer = "A hub brings workers and backbones together. It passes on what they say to each other, and cannot read it."

// server is the page with an endpoint that says answer, a word an event, behind a key if there is one.
func server(t *testing.T, key string, status func(context.Context) (Status, error)) string {
	t.Helper()
	h := New(status, nil)
	mux := http.NewServeMux()
	for _, p := range Patterns {
		mux.Handle(p, h)
	}
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !json.Valid(body) || !strings.Contains(string(body), `"stream":true`) {
			t.Errorf("request %s, %v", body, err)
		}
		if strings.Contains(string(body), "too much") {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"error":{"message":"too many requests wait; send it again later"}}`)
			return
		}
		_, _ = io.WriteString(w, ": waiting\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"What is a hub?\"}}]}\n\n")
		words := strings.SplitAfter(answer, " ")
		for _, word := range words {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", word)
			w.(http.Flusher).Flush()
		}
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", len(words))
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/page/")
		if key != "" && !open && r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"message":"this API key is not known here"}}`)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

func TestPageShowsHowTheNodeDoes(t *testing.T) {
	b := newTab(t)
	url := server(t, "", sample(time.Now()))
	b.view(1180, 800, "light")
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.await(`document.getElementById("workers")?.tBodies[0].rows.length === 3 && document.getElementById("rate").textContent !== "–"`)
	for id, want := range map[string]string{
		"state-text": "Live", "model": "Qwen3-30B-A3B-Q4_K_M", "running": "212", "waiting": "3", "count": "3",
	} {
		if got := b.eval(`document.getElementById("` + id + `").textContent`); got != want {
			t.Errorf("%s shows %v, want %s", id, got, want)
		}
	}
	text := b.eval(`document.querySelector("main").innerText`).(string)
	for _, want := range []string{
		"Cy0G30oO", "layers 24-47: experts 0-127", "13.2 ms", "41.25 KVR", "12 KVR settled", "<b>xss</b>", "nothing yet",
		"…0d7b29", "in progress · 18,243 of 50,000, 3 failed", "2 failed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		b.view(1180, 800, scheme)
		for _, selector := range []string{"h1", "#model", ".note", "th", "td small", "#send", "footer a", ".value small", ".empty", "textarea"} {
			if c := b.contrast(selector); c < 4.5 {
				t.Errorf("%s: %s has a contrast of %.2f, want 4.5", scheme, selector, c)
			}
		}
	}
	dark := b.eval(`getComputedStyle(document.body).backgroundColor`)
	b.view(360, 800, "light")
	if light := b.eval(`getComputedStyle(document.body).backgroundColor`); light == dark {
		t.Errorf("light and dark are both %v", light)
	}
	if wide := b.eval(`Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll("main *")].map((e) => e.getBoundingClientRect().right))`); wide.(float64) > 360 {
		t.Errorf("the page is %v wide on a window of 360", wide)
	}
	b.clean()
}

func TestPageStreamsAPromptByKeyboard(t *testing.T) {
	b := newTab(t)
	url := server(t, "", sample(time.Now()))
	b.view(1180, 800, "light")
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.await(`document.getElementById("state-text")?.textContent === "Live"`)
	var reached []string
	for range 8 {
		b.key("Tab", 9, false)
		reached = append(reached, b.eval(`document.activeElement.id || document.activeElement.className || document.activeElement.getAttribute("href") || "body"`).(string))
	}
	if got := strings.Join(reached, " "); !strings.HasPrefix(got, "skip prompt send ") || !strings.Contains(got, "/status.json") {
		t.Errorf("Tab reaches %s", got)
	}
	b.eval(`document.getElementById("prompt").focus()`)
	b.call("Input.insertText", map[string]any{"text": "What is a hub?"}, nil)
	b.key("Enter", 13, true)
	b.await(`document.getElementById("try-note").textContent.includes("tokens in")`)
	if got := b.eval(`document.getElementById("answer").textContent`); got != answer {
		t.Errorf("the answer is %q, want %q", got, answer)
	}
	if got := b.eval(`document.getElementById("thought-text").textContent`); got != "What is a hub?" {
		t.Errorf("the reasoning is %q", got)
	}
	if b.eval(`document.getElementById("answer").getAttribute("aria-busy") + document.getElementById("stop").hidden + document.getElementById("send").disabled`) != "falsetruefalse" {
		t.Error("the page still waits after the end")
	}
	b.clean()
	b.eval(`document.getElementById("prompt").value = "too much"`)
	b.eval(`document.getElementById("try").requestSubmit()`)
	b.await(`document.getElementById("try-note").textContent.includes("send it again later")`)
}

func TestPageAsksForAKey(t *testing.T) {
	b := newTab(t)
	url := server(t, "sesame", sample(time.Now()))
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.await(`document.getElementById("key-form")?.hidden === false`)
	enter := func(key string) {
		b.eval(fmt.Sprintf(`document.getElementById("key").value = %q; document.getElementById("key-form").requestSubmit()`, key))
	}
	enter("wrong")
	b.await(`document.getElementById("key-error").textContent === "this API key is not known here"`)
	enter("sesame")
	b.await(`document.getElementById("state-text").textContent === "Live" && document.getElementById("key-form").hidden`)
	b.eval(`document.getElementById("prompt").value = "x"; document.getElementById("try").requestSubmit()`)
	b.await(`document.getElementById("answer").textContent.startsWith("A hub")`)
	if b.eval(`sessionStorage.length + localStorage.length + document.cookie.length`) != 1.0 {
		t.Error("the key is kept in another place than the tab's storage")
	}
}

func TestAssetsAreOursAlone(t *testing.T) {
	url := server(t, "", sample(time.Now()))
	for _, name := range []string{"/", "/page/style.css", "/page/script.js", "/page/icon.svg"} {
		res, err := http.Get(url + name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		csp := res.Header.Get("Content-Security-Policy")
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || len(text) > 32<<10 {
			t.Errorf("%s: status %d, policy %q, %d bytes", name, res.StatusCode, csp, len(text))
		}
		for _, foreign := range regexp.MustCompile(`(?:https?:)?//[a-z][^\s"'<]*`).FindAllString(string(text), -1) {
			if !strings.Contains(foreign, "www.w3.org/2000/svg") {
				t.Errorf("%s fetches %s", name, foreign)
			}
		}
		if strings.Contains(string(text), "innerHTML") || strings.Contains(string(text), "style=") || strings.Contains(string(text), "onclick") {
			t.Errorf("%s has what its policy forbids, or markup of data", name)
		}
	}
	for _, name := range []string{"/page/none.js", "/page/..%2fpage.go", "/page/"} {
		res, err := http.Get(url + name)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close() // nothing is read
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestStatusIsMadeAFewTimesASecond(t *testing.T) {
	var made atomic.Int64
	now := time.Unix(1_800_000_000, 0)
	h := New(func(context.Context) (Status, error) {
		if made.Add(1) == 3 {
			return Status{}, errors.New("no")
		}
		return Status{Model: "tiny"}, nil
	}, func() time.Time { return now })
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status.json", nil))
		return w
	}
	for range 10 {
		if w := get(); !strings.Contains(w.Body.String(), `"workers":[],"batches":[]`) || !strings.Contains(w.Body.String(), `"time_ms":1800000000000`) {
			t.Fatalf("status %s", w.Body)
		}
	}
	now = now.Add(fresh)
	get()
	if made.Load() != 2 {
		t.Errorf("made %d times for 11 readers within two spans, want 2", made.Load())
	}
	now = now.Add(fresh)
	if w := get(); w.Code != http.StatusInternalServerError {
		t.Errorf("status %d where none can be made", w.Code)
	}
}
