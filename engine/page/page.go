// Package page is the page at /: how a serving node does, and a box to try a prompt. It is HTML, CSS and a
// little JavaScript, in the binary, and fetches nothing from elsewhere:
//
//	GET /              the page
//	GET /page/…        its style, its script, its icon
//	GET /status.json   what it shows (Status), for other programs too
//
// The page itself knows nothing and is open to everybody. Where API keys are asked for, it asks its reader
// for one, keeps it as long as the tab is open, and sends it with each request.
package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"path"
	"sync"
	"time"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and ask its own server, and nothing else; nobody may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// fresh is how old an answer may be: many readers cost no more than a few.
const fresh = 250 * time.Millisecond

// Status is what the page shows. Counters only grow, as long as the process lives: rates are a reader's to
// make, with Time.
type Status struct {
	Model    string   `json:"model"`
	Time     int64    `json:"time_ms"`  // now, in milliseconds since 1970
	Since    int64    `json:"since_ms"` // the start
	Layers   int      `json:"layers"`
	Experts  int      `json:"experts"` // a layer
	Context  int      `json:"context"` // tokens of a sequence
	Requests Requests `json:"requests"`
	Tokens   Tokens   `json:"tokens"`
	Swarm    bool     `json:"swarm"` // workers may join
	Workers  []Worker `json:"workers"`
	Batches  []Batch  `json:"batches"`
}

// Requests are those of now.
type Requests struct {
	Running int `json:"running"` // sequences
	Waiting int `json:"waiting"`
}

// Tokens are counted since the start.
type Tokens struct {
	Prompt    int64 `json:"prompt"`
	Generated int64 `json:"generated"`
}

// Worker is one that is there. Its counters are those of its session.
type Worker struct {
	ID         string  `json:"id"`  // first characters of its key
	Hub        string  `json:"hub"` // first characters of the hub's id by which it came
	Holds      string  `json:"holds"`
	RTT        float64 `json:"rtt_ms"` // least
	Rate       int     `json:"rate"`   // expert rows a second that it says it can compute
	Dispatches int64   `json:"dispatches"`
	Rows       int64   `json:"rows"`
	Picks      int64   `json:"picks"`
	Failures   int64   `json:"failures"`
	Wait       float64 `json:"wait_ms"` // from dispatch to answer, summed over dispatches
	Pending    int64   `json:"pending_nkvr"`
	Settled    int64   `json:"settled_nkvr"`
	Voided     int64   `json:"voided_nkvr"`      // was pending when a row was found wrong
	Idle       string  `json:"idle,omitempty"`   // why it has no work
	Unpaid     string  `json:"unpaid,omitempty"` // why what is pending does not settle
}

// Batch is a batch job that has not ended, or the last that have.
type Batch struct {
	ID        string `json:"id"` // the end of it
	Endpoint  string `json:"endpoint"`
	Status    string `json:"status"`
	Total     int    `json:"total"` // lines
	Completed int    `json:"completed"`
	Failed    int    `json:"failed"`
}

// Handler answers the paths of Patterns. It is an http.Handler.
type Handler struct {
	status func(context.Context) (Status, error)
	now    func() time.Time
	mux    *http.ServeMux

	mu   sync.Mutex // held while the status is made
	made time.Time
	text []byte
}

// Patterns are what a Handler answers, as http.ServeMux has them.
var Patterns = []string{"GET /{$}", "GET /page/{file}", "GET /status.json"}

// New returns a handler that shows what status says. now may be nil.
func New(status func(context.Context) (Status, error), now func() time.Time) *Handler {
	if now == nil {
		now = time.Now
	}
	h := &Handler{status: status, now: now, mux: http.NewServeMux()}
	h.mux.HandleFunc(Patterns[0], func(w http.ResponseWriter, r *http.Request) { file(w, r, "index.html") })
	h.mux.HandleFunc(Patterns[1], func(w http.ResponseWriter, r *http.Request) { file(w, r, r.PathValue("file")) })
	h.mux.HandleFunc(Patterns[2], h.tell)
	return h
}

// ServeHTTP is http.Handler's.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// file answers with an asset. A browser asks each time whether it has changed.
func file(w http.ResponseWriter, r *http.Request, name string) {
	data, err := assets.ReadFile("assets/" + path.Base(name))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	sum := sha256.Sum256(data)
	guard(w)
	w.Header().Set("Content-Type", kinds[path.Ext(name)])
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}

func guard(w http.ResponseWriter) {
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
}

// tell answers with the status.
func (h *Handler) tell(w http.ResponseWriter, r *http.Request) {
	text, err := h.fresh(r.Context())
	if err != nil {
		http.Error(w, "the status cannot be read", http.StatusInternalServerError)
		return
	}
	guard(w)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text) // whoever asked may have gone
}

func (h *Handler) fresh(ctx context.Context) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if h.text != nil && now.Sub(h.made) < fresh {
		return h.text, nil
	}
	s, err := h.status(ctx)
	if err != nil {
		return nil, err
	}
	s.Time = now.UnixMilli()
	if s.Workers == nil {
		s.Workers = []Worker{}
	}
	if s.Batches == nil {
		s.Batches = []Batch{}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	text = append(text, '\n')
	h.text, h.made = text, now
	return h.text, nil
}
