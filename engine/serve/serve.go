// Package serve answers OpenAI's HTTP interface:
//
//	POST /v1/completions        whole, or as server-sent events with "stream": true
//	POST /v1/chat/completions   likewise, with tools, reasoning and formats
//	POST /v1/responses          likewise, plain text: no tools, nothing stored
//	GET  /v1/models             the one model that is served
//	GET  /healthz               "ok"
//
// Parameters are OpenAI's, and some that other servers have added: top_k, min_p, repetition_penalty,
// stop_token_ids, chat_template_kwargs, reasoning_content. One that is not known is left alone; a known one
// with a value that cannot be followed is refused with OpenAI's error object, which names it. Where nothing
// is said of the temperature it is 0, and not 1 as at OpenAI: the likeliest token, the same text every time.
//
// A client that leaves ends its generation. Requests beyond Options.Requests get 429.
package serve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"kvasir/engine/chat"
	"kvasir/engine/sample"
)

// ErrRequest marks an error of Generate that the request is to blame for.
var ErrRequest = errors.New("serve: the request cannot be answered")

// ErrBusy marks an error of Generate for which the request may be sent again later.
var ErrBusy = errors.New("serve: too many requests")

// ParamError is an error of Generate that a parameter is to blame for.
type ParamError struct {
	Param string
	Code  string // OpenAI's word for it; empty: none
	Err   error
}

// Error returns the reason.
func (e *ParamError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ParamError) Unwrap() error { return e.Err }

// Request asks for continuations of Prompt, or for the next turn after Messages if there are any.
type Request struct {
	Prompt   string
	Messages []chat.Message
	Template chat.Options // of Messages: tools, thinking, variables

	Tokens   int // of each choice, at most; 0: as many as the model can
	Choices  int // 1 or more
	All      int // choices of this and the other prompts that were sent with it
	Sampling sample.Params
	Stop     []string
	Schema   []byte // JSON schema that the text keeps to
	JSON     bool   // it is any JSON object
	Calls    Calls  // of Template.Tools
	Batch    bool   // nobody waits for it: it gives way to those that somebody waits for
}

// Calls say what a text has to do with the tools that it may call.
type Calls struct {
	Must bool   // call one at least, and say nothing else
	Name string // with Must: this one, once
	One  bool   // not more than one
}

// Piece is a part of the text of a choice, whole characters.
type Piece struct {
	Choice int
	Text   string   // may be empty
	Token  *Logprob // the token, where log probabilities were asked for
	End    *Outcome // with the last piece of a choice
	// More: what follows is known already, or there is nothing. It is not waited for, and so what there is to
	// send of this piece may go with it.
	More bool
}

// Logprob is a token with its log probability.
type Logprob struct {
	Text    []byte // not always whole characters
	At      int    // characters of the choice before it
	Logprob float32
	Top     []Logprob // the likeliest ones in its place
}

// Outcome is how a choice ended.
type Outcome struct {
	Tokens int
	Length bool // by its length, and not by the model or a stop text
}

// Result is what came of a request.
type Result struct {
	Prompt  int // tokens
	Choices []Outcome
}

// A Generator makes text and hands it out in pieces. It is safe for concurrent use, and ends when its
// context ends or emit fails. Result holds what was made before an error.
type Generator interface {
	Generate(ctx context.Context, r Request, emit func(Piece) error) (Result, error)
	// Reply says how an answer to r.Messages is split into reasoning, content and calls.
	Reply(r Request) (chat.ReplyOptions, error)
}

// Options are for New.
type Options struct {
	Model    string        // its name
	Requests int           // that are answered at a time; 64
	Body     int64         // bytes of a request; 4 MiB
	Bodies   int64         // bytes of all requests that are being sent, but for the first 64 KiB of each; 256 MiB
	Answer   int           // bytes of an answer that is no stream, about; 16 MiB
	Answers  int64         // bytes of all answers to lines of batches, about; 256 MiB, and twice Answer at least
	Write    time.Duration // how long a client may take nothing of a stream; 30 s
	Alive    time.Duration // between signs of life on a stream that has nothing to say; 15 s
	// Gather is between the writes of a stream whose tokens come faster than that; 25 ms. Less than 0: each is
	// sent at once.
	Gather time.Duration
	// Retry says how long who is refused because of Requests, or by ErrBusy, should wait; nil: a second.
	Retry func() time.Duration
	// Free is told that a request was answered that counted among Requests; may be nil.
	Free func()
	Now  func() time.Time
	Log  *slog.Logger // nil: none
}

// Handler answers requests. It is an http.Handler.
type Handler struct {
	g      Generator
	o      Options
	since  time.Time
	places chan struct{} // one a request that is answered
	mux    *http.ServeMux
	front  http.Handler // the handler itself, or what was put before it
	held   atomic.Int64 // bytes of answers to lines of batches
	bodies atomic.Int64 // bytes of requests that are being sent, but for the first of each
}

// complete puts defaults where nothing is said.
func (o *Options) complete() {
	if o.Requests <= 0 {
		o.Requests = 64
	}
	if o.Body <= 0 {
		o.Body = 4 << 20
	}
	if o.Bodies <= 0 {
		o.Bodies = 256 << 20
	}
	o.Bodies = max(o.Bodies, 2*o.Body)
	if o.Answer <= 0 {
		o.Answer = 16 << 20
	}
	if o.Answers <= 0 {
		o.Answers = 256 << 20
	}
	o.Answers = max(o.Answers, 2*int64(o.Answer))
	if o.Write <= 0 {
		o.Write = 30 * time.Second
	}
	if o.Alive <= 0 {
		o.Alive = 15 * time.Second
	}
	if o.Gather == 0 {
		o.Gather = 25 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// New returns a handler for what g generates.
func New(g Generator, o Options) *Handler {
	o.complete()
	h := &Handler{g: g, o: o, since: o.Now(), places: make(chan struct{}, o.Requests), mux: http.NewServeMux()}
	h.front = h
	h.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // whoever asked may have gone
	})
	h.mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, modelList{"list", []modelObject{h.model()}})
	})
	h.mux.HandleFunc("GET /v1/models/{id...}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != o.Model {
			refuse(w, h.noModel(r.PathValue("id")))
			return
		}
		answer(w, http.StatusOK, h.model())
	})
	h.mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { h.complete(w, r, plainText) })
	h.mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { h.complete(w, r, chatText) })
	h.mux.HandleFunc("POST /v1/responses", func(w http.ResponseWriter, r *http.Request) { h.complete(w, r, responseText) })
	return h
}

// Handle has other answer what comes to paths that begin with prefix, such as /v1/files. It is to be called
// before the first request.
func (h *Handler) Handle(prefix string, other http.Handler) {
	h.mux.Handle(prefix, other)
	h.mux.Handle(prefix+"/", other)
}

// Mount has other answer what fits one of some patterns of http.ServeMux. It is to be called before the first
// request.
func (h *Handler) Mount(other http.Handler, patterns ...string) {
	for _, p := range patterns {
		h.mux.Handle(p, other)
	}
}

// ServeHTTP is http.Handler's.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { Route(h.mux, w, r) }

// Route has mux answer a request, or refuses it as OpenAI does: with 405 and what is allowed where the path is
// answered to other methods, else with 404.
func Route(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	if _, pattern := mux.Handler(r); pattern != "" {
		mux.ServeHTTP(w, r)
		return
	}
	var allowed []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	status := http.StatusNotFound
	if len(allowed) > 0 {
		status = http.StatusMethodNotAllowed
		w.Header().Set("Allow", strings.Join(allowed, ", "))
	}
	refuse(w, invalid(status, "", "%s %s is not answered here", r.Method, r.URL.Path))
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func (h *Handler) model() modelObject {
	return modelObject{h.o.Model, "model", h.since.Unix(), "kvasir"}
}

// kind is which of the endpoints a request came to.
type kind int

const (
	plainText kind = iota
	chatText
	responseText
)

// complete answers a request for text.
func (h *Handler) complete(w http.ResponseWriter, r *http.Request, k kind) {
	const crowd = "too many requests are being answered; try again"
	if len(h.places) == cap(h.places) {
		refuse(w, h.full(crowd, 0))
		return
	}
	// A place is taken by who has said what he wants: those who say it slowly keep nobody out.
	body, f := h.receive(w, r)
	defer body.free()
	if f != nil {
		refuse(w, f)
		return
	}
	select {
	case h.places <- struct{}{}:
		defer h.leave()
	default:
		refuse(w, h.full(crowd, 0))
		return
	}
	a, f := h.newReply(r.Context(), body.text, k)
	body.free()
	switch {
	case a == nil:
	case a.ask.stream:
		a.w = w
		a.events(r.Context())
		return
	default:
		var o any
		if o, f = a.whole(r.Context()); f == nil && r.Context().Err() == nil {
			answer(w, http.StatusOK, o)
		}
	}
	if f != nil {
		refuse(w, f)
	}
}

// Busy is how many requests are being answered that count among Options.Requests.
func (h *Handler) Busy() int { return len(h.places) }

// leave gives a place back.
func (h *Handler) leave() {
	<-h.places
	if h.o.Free != nil {
		h.o.Free()
	}
}

// newReply reads a request. It returns nil and why it is refused, or nil twice where ctx has ended.
func (h *Handler) newReply(ctx context.Context, body []byte, k kind) (*reply, *failure) {
	ask, f := h.parse(body, k, randomSeed)
	if f != nil {
		return nil, f
	}
	a := &reply{h: h, kind: k, ask: ask, id: newID(k), created: h.o.Now().Unix(), callID: func(int, int) string { return randomID() }}
	if err := a.prepare(); err != nil {
		return nil, h.failed(ctx, k, err)
	}
	return a, nil
}

func newID(k kind) string { return k.prefix() + randomID() }

func (k kind) prefix() string {
	return [...]string{plainText: "cmpl-", chatText: "chatcmpl-", responseText: "resp_"}[k]
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return hex.EncodeToString(b[:])
}

// WriteJSON answers with v. Whoever asked may have gone.
func WriteJSON(w http.ResponseWriter, status int, v any) { answer(w, status, v) }

// answer writes v as JSON. Whoever asked may have gone.
func answer(w http.ResponseWriter, status int, v any) {
	text := append(encode(v), '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	Copy(w, bytes.NewReader(text))
}

// Copy writes the body of an answer. Whoever asked may have gone, and one who takes nothing of it for a
// while is let go: else he would hold the place of his request for ever.
func Copy(w http.ResponseWriter, r io.Reader) {
	const step = 64 << 10
	out := http.NewResponseController(w)
	for {
		_ = out.SetWriteDeadline(time.Now().Add(copyTime)) // who cannot is no connection
		if _, err := io.CopyN(w, r, step); err != nil {
			break // also at the end
		}
	}
	_ = out.Flush()
	_ = out.SetWriteDeadline(time.Time{}) // the connection may carry more requests
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error()) // only types of this package come here
	}
	return b
}
