package access

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// bench is a guard with three keys before a handler that writes what it is told.
type bench struct {
	t     *testing.T
	now   time.Time
	path  string
	list  List
	keys  map[string]string // texts by name
	log   bytes.Buffer
	guard *Guard
	seen  []string // owners that the handler saw
	from  string   // address of who asks
}

func newBench(t *testing.T, o Options) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Unix(1_000_000, 0), path: filepath.Join(t.TempDir(), "keys.json"), keys: map[string]string{}}
	for _, k := range []Key{
		{Name: "chat", Scopes: []Scope{Chat}, Limits: Limits{Requests: 3}},
		{Name: "batch", Scopes: []Scope{Batch}},
		{Name: "admin", Scopes: []Scope{Admin}},
	} {
		b.create(k)
	}
	b.save()
	o.Now, o.Log = func() time.Time { return b.now }, &b.log
	if o.Keys != "" {
		o.Keys = b.path
	}
	var err error
	if b.guard, err = New(o); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) create(k Key) Key {
	b.t.Helper()
	text, k, err := b.list.Create(k)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keys[k.Name] = text
	return k
}

func (b *bench) save() {
	b.t.Helper()
	if err := os.WriteFile(b.path, b.list.Text(), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.now = b.now.Add(reread)
	if err := os.Chtimes(b.path, b.now, b.now); err != nil { // file systems' clocks are coarse
		b.t.Fatal(err)
	}
}

// reply is what came back.
type reply struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

// do sends a request; header is Name: value.
func (b *bench) do(method, path string, headers ...string) reply {
	r := httptest.NewRequest(method, path, strings.NewReader("{}"))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	r.RemoteAddr = b.from
	w := httptest.NewRecorder()
	b.guard.Around(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := From(r.Context())
		id, _ := c.Owner()
		b.seen = append(b.seen, id)
		c.Prompt(5)
		b.now = b.now.Add(250 * time.Millisecond)
		c.Token()
		_, _ = io.WriteString(w, "done")
	})).ServeHTTP(w, r)
	return reply{w.Code, w.Header(), w.Body}
}

func (b *bench) with(key string) string { return "Authorization: Bearer " + b.keys[key] }

// wrong is what an error says.
func wrong(t *testing.T, r reply) (kind, code, message string) {
	t.Helper()
	var body struct {
		Error struct{ Type, Code, Message string } `json:"error"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return body.Error.Type, body.Error.Code, body.Error.Message
}

func TestScopesDecideWhatAKeyMay(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	for _, c := range []struct {
		method, path string
		keys         string // that may
	}{
		{"GET", "/healthz", "none chat batch admin"},
		{"GET", "/readyz", "none chat batch admin"},
		{"GET", "/", "none chat batch admin"},
		{"POST", "/", "chat batch admin"},
		{"GET", "/v1/models", "chat batch admin"},
		{"POST", "/v1/chat/completions", "chat admin"},
		{"POST", "/v1/completions", "chat admin"},
		{"POST", "/v1/responses", "chat admin"},
		{"POST", "/v1/whatever", "chat admin"},
		{"GET", "/v1/files", "batch admin"},
		{"GET", "/v1/files/file-1/content", "batch admin"},
		{"POST", "/v1/batches", "batch admin"},
		{"GET", "/v1/../metrics", "chat admin"},
		{"GET", "/metrics", "admin"},
		{"GET", "/debug/trace", "admin"},
		{"GET", "/status.json", "chat batch admin"},
	} {
		for _, key := range []string{"none", "chat", "batch", "admin"} {
			b.now = b.now.Add(time.Minute) // for the limits
			var headers []string
			if key != "none" {
				headers = append(headers, b.with(key))
			}
			r := b.do(c.method, c.path, headers...)
			want := http.StatusOK
			switch may := strings.Contains(c.keys, key); {
			case may:
			case key == "none":
				want = http.StatusUnauthorized
			default:
				want = http.StatusForbidden
			}
			if r.StatusCode != want {
				t.Errorf("%s %s with %s: status %d, want %d", c.method, c.path, key, r.StatusCode, want)
			}
		}
	}
}

// TestSchemeHasAnyCase holds to RFC 9110, section 11.1.
func TestSchemeHasAnyCase(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	for _, scheme := range []string{"Bearer", "bearer", "BEARER"} {
		if r := b.do("POST", "/v1/completions", "Authorization: "+scheme+" "+b.keys["chat"]); r.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", scheme, r.StatusCode)
		}
	}
}

func TestUnknownKeysAreRefusedInOpenAIsShape(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	good := b.keys["chat"]
	for name, header := range map[string]string{
		"none": "X: y", "basic": "Authorization: Basic abc", "empty": "Authorization: Bearer ", "no key": "Authorization: Bearer sk-x",
		"other secret": "Authorization: Bearer " + good[:len(good)-1] + "b", "other id": "Authorization: Bearer kv_aaaaaaaa" + good[11:],
	} {
		r := b.do("POST", "/v1/completions", header)
		kind, code, message := wrong(t, r)
		if r.StatusCode != http.StatusUnauthorized || kind != "invalid_request_error" || code != "invalid_api_key" || r.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: status %d, %s, %s", name, r.StatusCode, kind, code)
		}
		if strings.Contains(message, good[11:20]) {
			t.Errorf("%s: the message has the key: %s", name, message)
		}
	}
	if len(b.seen) != 0 {
		t.Errorf("the handler was asked by %q", b.seen)
	}
	r := b.do("GET", "/v1/files", b.with("chat"))
	if _, code, message := wrong(t, r); code != "insufficient_permissions" || !strings.Contains(message, "batch") {
		t.Errorf("%s: %s", code, message)
	}
}

func TestLimitsGet429AndATimeThatHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	for i := range 3 {
		if r := b.do("POST", "/v1/completions", b.with("chat")); r.StatusCode != http.StatusOK {
			t.Fatalf("request %d: status %d", i, r.StatusCode)
		}
	}
	r := b.do("POST", "/v1/completions", b.with("chat"))
	kind, code, _ := wrong(t, r)
	if r.StatusCode != http.StatusTooManyRequests || kind != "rate_limit_error" || code != "rate_limit_exceeded" || r.Header.Get("Retry-After") != "20" {
		t.Fatalf("status %d, %s, %s, Retry-After %q", r.StatusCode, kind, code, r.Header.Get("Retry-After"))
	}
	if r := b.do("POST", "/v1/completions", b.with("admin")); r.StatusCode != http.StatusOK {
		t.Errorf("another key gets status %d", r.StatusCode)
	}
	b.now = b.now.Add(20 * time.Second)
	if r := b.do("POST", "/v1/completions", b.with("chat")); r.StatusCode != http.StatusOK {
		t.Errorf("after that time status %d", r.StatusCode)
	}
}

// TestWorkLeftBehindIsChargedAndLeavesAHalf spends a key's tokens on work that nobody waits for.
func TestWorkLeftBehindIsChargedAndLeavesAHalf(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	k := b.create(Key{Name: "lines", Scopes: []Scope{Chat, Batch}, Limits: Limits{Tokens: 120}})
	b.save()
	spend := func(id string, n int) (wait time.Duration) {
		ctx, wait := b.guard.Behind(t.Context(), id)
		From(ctx).Prompt(n)
		return wait
	}
	if wait := spend(k.ID, 61); wait != 0 {
		t.Errorf("with nothing spent it waits %v", wait)
	}
	if wait := spend(k.ID, 0); wait != 500*time.Millisecond {
		t.Errorf("with 59 of 120 left it waits %v, want half a second", wait)
	}
	if r := b.do("POST", "/v1/completions", b.with("lines")); r.StatusCode != http.StatusOK {
		t.Errorf("who waits for an answer gets status %d while a half is left", r.StatusCode)
	}
	spend(k.ID, 54)
	if r := b.do("POST", "/v1/completions", b.with("lines")); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("who waits for an answer gets status %d when all is spent", r.StatusCode)
	}
	if wait := spend("none", 1000); wait != 0 {
		t.Errorf("what no key has left behind waits %v", wait)
	}
	if wait := spend(k.ID, 0); wait < 30*time.Second {
		t.Errorf("with nothing left it waits %v, want half a minute", wait)
	}
}

func TestKeysAreMadeAndRevokedWhileItRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	k := b.create(Key{Name: "new", Scopes: []Scope{Chat}})
	b.save()
	if r := b.do("GET", "/v1/models", b.with("new")); r.StatusCode != http.StatusOK || b.seen[0] != k.ID {
		t.Errorf("a new key gets status %d, owner %q", r.StatusCode, b.seen)
	}
	if err := b.list.Revoke(k.ID, b.now); err != nil {
		t.Fatal(err)
	}
	b.save()
	if r := b.do("GET", "/v1/models", b.with("new")); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a revoked key gets status %d", r.StatusCode)
	}
	if err := os.WriteFile(b.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(reread)
	if r := b.do("GET", "/v1/models", b.with("chat")); r.StatusCode != http.StatusOK {
		t.Errorf("with a broken file status %d: the keys before it do not hold any more", r.StatusCode)
	}
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(reread)
	if r := b.do("GET", "/v1/models", b.with("chat")); r.StatusCode != http.StatusUnauthorized || b.guard.Count() != 0 {
		t.Errorf("without a file status %d", r.StatusCode)
	}
	if err := os.WriteFile(b.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Keys: b.path}); err == nil {
		t.Error("it begins with a broken file")
	}
}

func TestOtherOriginsAskOnlyWhereTheyMay(t *testing.T) {
	t.Parallel()
	preflight := []string{"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, x-stainless-os"}
	b := newBench(t, Options{Keys: "yes", Origins: []string{"https://good.example"}})
	r := b.do("OPTIONS", "/v1/completions", append(preflight, "Origin: https://good.example")...)
	if r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Origin") != "https://good.example" ||
		r.Header.Get("Access-Control-Allow-Headers") != "authorization, x-stainless-os" || len(b.seen) != 0 {
		t.Errorf("preflight: status %d, %v", r.StatusCode, r.Header)
	}
	if r := b.do("POST", "/v1/completions", b.with("chat"), "Origin: https://good.example"); r.StatusCode != http.StatusOK ||
		r.Header.Get("Access-Control-Allow-Origin") != "https://good.example" || r.Header.Get("Vary") != "Origin" {
		t.Errorf("status %d, %v", r.StatusCode, r.Header)
	}
	if r := b.do("OPTIONS", "/v1/completions", append(preflight, "Origin: https://evil.example")...); r.StatusCode != http.StatusUnauthorized ||
		r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin: status %d, %v", r.StatusCode, r.Header)
	}

	b = newBench(t, Options{}) // no keys, no origins
	for origin, want := range map[string]int{"https://evil.example": http.StatusForbidden, "http://example.com": http.StatusOK, "": http.StatusOK} {
		r := b.do("POST", "/v1/completions", "Origin: "+origin) // the request's host is example.com
		if r.StatusCode != want || r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("from %q without keys: status %d, want %d", origin, r.StatusCode, want)
		}
	}
	b = newBench(t, Options{Origins: []string{"*"}})
	if r := b.do("POST", "/v1/completions", "Origin: https://any.example"); r.StatusCode != http.StatusOK || r.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("any origin: status %d", r.StatusCode)
	}
	for _, bad := range []string{"", "example.org", "https://a.example/", "ftp://a", "https://", "https://a b"} {
		if _, err := New(Options{Origins: []string{bad}}); err == nil {
			t.Errorf("origin %q is taken", bad)
		}
	}
}

// TestANameThatWasMadeToLeadHereIsRefused has a page elsewhere ask under its own name, which a browser takes for
// the server's.
func TestANameThatWasMadeToLeadHereIsRefused(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]int{
		"http://127.0.0.1:8080": 200, "http://[::1]:8080": 200, "http://localhost:8080": 200, "http://LOCALHOST": 200,
		"http://app.localhost": 200, "http://192.0.2.7": 200, "http://good.example:81": 200,
		"http://evil.example:8080": 403, "http://localhost.evil.example": 403, "http://127.0.0.1.evil.example": 403,
	} {
		b := newBench(t, Options{Near: true, Origins: []string{"http://good.example"}})
		if r := b.do("GET", host+"/status.json"); r.StatusCode != want {
			t.Errorf("%s: status %d, want %d", host, r.StatusCode, want)
		}
		if r := newBench(t, Options{}).do("GET", host+"/status.json"); r.StatusCode != http.StatusOK { // open to everybody
			t.Errorf("%s: status %d", host, r.StatusCode)
		}
		if r := newBench(t, Options{Near: true, Keys: "yes"}).do("GET", host+"/readyz"); r.StatusCode != http.StatusOK {
			t.Errorf("%s, with keys: status %d", host, r.StatusCode)
		}
	}
}

func TestWithoutKeysFaultsAreLookedForOnThisMachine(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]int{
		"127.0.0.1:1": 200, "[::1]:1": 200, "[::ffff:127.0.0.1]:1": 200, "192.0.2.1:1": 403, "[2001:db8::1]:1": 403, "": 403,
	} {
		b := newBench(t, Options{})
		for path, want := range map[string]int{"/debug/trace": want, "/metrics": 200, "/v1/models": 200} {
			b.from = from
			if r := b.do("GET", path); r.StatusCode != want {
				t.Errorf("%s from %q: status %d, want %d", path, from, r.StatusCode, want)
			}
		}
	}
}

func TestAccessLogSaysWhoAndHowMuchAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Keys: "yes"})
	r := b.do("POST", "/v1/completions?secret=1", b.with("chat"))
	b.do("GET", "/"+strings.Repeat("x", 1000)+"\xff", b.with("admin"))
	b.do("GET", "/v1/models")
	lines := strings.Split(strings.TrimSpace(b.log.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), b.log.String())
	}
	type entry struct {
		ID, Method, Path, Key string
		Status                int
		Prompt                int     `json:"prompt_tokens"`
		Tokens                int     `json:"tokens"`
		TTFT                  float64 `json:"ttft_ms"`
		Duration              float64 `json:"duration_ms"`
	}
	var e [3]entry
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &e[i]); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	if id, _, _ := split(b.keys["chat"]); e[0] != (entry{r.Header.Get("X-Request-Id"), "POST", "/v1/completions", id, 200, 5, 1, 250, 250}) {
		t.Errorf("%+v", e[0])
	}
	if len(e[1].Path) > 210 || e[2].Status != http.StatusUnauthorized || e[2].Key != "" {
		t.Errorf("%+v", e[1:])
	}
	for name, key := range b.keys {
		if _, secret, _ := split(key); strings.Contains(b.log.String(), secret) || strings.Contains(b.log.String(), "secret") {
			t.Errorf("the log has the key %s, or a query", name)
		}
	}
}
