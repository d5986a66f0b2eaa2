package batches

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvasir/engine/serve"
)

// Handler answers requests about files and batches. It is an http.Handler.
type Handler struct {
	s      *Store
	mux    *http.ServeMux
	places chan struct{} // one a file that is taken, or checked
}

// Limits of files that come.
const (
	bodyTime = 30 * time.Minute // for one of MaxBytes
	partTime = 30 * time.Second // without a byte, and before bodyRate counts
	bodyRate = 8 << 10          // bytes a second at least
	places   = 8                // at a time
	maxName  = 1000
)

// NewHandler returns a handler for what is in s.
func NewHandler(s *Store) *Handler {
	h := &Handler{s: s, mux: http.NewServeMux(), places: make(chan struct{}, places)}
	h.mux.HandleFunc("POST /v1/files", h.limited(h.upload))
	h.mux.HandleFunc("GET /v1/files", h.listFiles)
	h.mux.HandleFunc("GET /v1/files/{id}", h.file)
	h.mux.HandleFunc("GET /v1/files/{id}/content", h.content)
	h.mux.HandleFunc("DELETE /v1/files/{id}", h.deleteFile)
	h.mux.HandleFunc("POST /v1/batches", h.limited(h.create))
	h.mux.HandleFunc("GET /v1/batches", h.list)
	h.mux.HandleFunc("GET /v1/batches/{id}", h.batch)
	h.mux.HandleFunc("POST /v1/batches/{id}/cancel", h.cancel)
	return h
}

// limited has a few requests answered at a time: each takes megabytes.
func (h *Handler) limited(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.places <- struct{}{}:
			defer func() { <-h.places }()
			next(w, r)
		default:
			serve.Refuse(w, http.StatusTooManyRequests, "", "too many files are being taken; try again")
		}
	}
}

// ServeHTTP is http.Handler's.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { serve.Route(h.mux, w, r) }

// plain is an error as clients read it, to whom this package says nothing.
func plain(err error) string { return strings.TrimPrefix(err.Error(), "batches: ") }

// fail answers with an error. One that is not of this package's kinds is the server's fault.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var big *http.MaxBytesError
	switch {
	case r.Context().Err() != nil: // nobody listens
	case errors.Is(err, ErrNotFound):
		serve.Refuse(w, http.StatusNotFound, "", plain(err))
	case errors.Is(err, ErrInUse), errors.Is(err, ErrEnded):
		serve.Refuse(w, http.StatusConflict, "", plain(err))
	case errors.As(err, &big):
		serve.Refuse(w, http.StatusRequestEntityTooLarge, "file", fmt.Sprintf("file: more than %d bytes", MaxBytes))
	case errors.Is(err, ErrTooBig):
		serve.Refuse(w, http.StatusRequestEntityTooLarge, "file", plain(err))
	case errors.Is(err, ErrFull):
		serve.Refuse(w, http.StatusTooManyRequests, "", plain(err))
	case errors.Is(err, os.ErrDeadlineExceeded):
		serve.Refuse(w, http.StatusRequestTimeout, "", "the request took too long to come")
	default:
		h.s.o.Log.Error("a request about batches failed", "path", r.URL.Path, "err", err)
		// What it says of folders and databases is for the log's readers.
		serve.Refuse(w, http.StatusInternalServerError, "", "the server cannot do that at present; its log says why")
	}
}

type fileObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Bytes   int64  `json:"bytes"`
	Created int64  `json:"created_at"`
	Name    string `json:"filename"`
	Purpose string `json:"purpose"`
	Status  string `json:"status"`
}

func (f File) object() fileObject {
	return fileObject{f.ID, "file", f.Bytes, f.Created.Unix(), f.Name, f.Purpose, "processed"}
}

// page is a list of objects, as OpenAI writes it.
type page[T any] struct {
	Object string `json:"object"`
	Data   []T    `json:"data"`
	First  string `json:"first_id,omitempty"`
	Last   string `json:"last_id,omitempty"`
	More   bool   `json:"has_more"`
}

func (h *Handler) listFiles(w http.ResponseWriter, r *http.Request) {
	limit, ok := listLimit(w, r, maxFiles, maxFiles)
	if !ok {
		return
	}
	q := r.URL.Query()
	order := q.Get("order")
	if order != "" && order != "asc" && order != "desc" {
		serve.Refuse(w, http.StatusBadRequest, "order", "order: want asc or desc")
		return
	}
	list, err := h.s.Files(r.Context())
	if err != nil {
		h.fail(w, r, err)
		return
	}
	if order == "asc" {
		slices.Reverse(list)
	}
	if after := q.Get("after"); after != "" {
		at := slices.IndexFunc(list, func(f File) bool { return f.ID == after })
		if at < 0 {
			serve.Refuse(w, http.StatusNotFound, "after", fmt.Sprintf("after: there is no file %.100q", after))
			return
		}
		list = list[at+1:]
	}
	if purpose := q.Get("purpose"); purpose != "" {
		list = slices.DeleteFunc(list, func(f File) bool { return f.Purpose != purpose })
	}
	p := page[fileObject]{Object: "list", Data: []fileObject{}, More: len(list) > limit}
	for _, f := range list[:min(len(list), limit)] {
		p.Data = append(p.Data, f.object())
	}
	if n := len(p.Data); n > 0 {
		p.First, p.Last = p.Data[0].ID, p.Data[n-1].ID
	}
	serve.WriteJSON(w, http.StatusOK, p)
}

// listLimit is the most entries of an answer, as the request has it.
func listLimit(w http.ResponseWriter, r *http.Request, usual, most int) (n int, ok bool) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return usual, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		serve.Refuse(w, http.StatusBadRequest, "limit", fmt.Sprintf("limit: want 1 to %d", most))
		return 0, false
	}
	return n, true
}

func (h *Handler) file(w http.ResponseWriter, r *http.Request) {
	f, err := h.s.File(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, f.object())
}

func (h *Handler) content(w http.ResponseWriter, r *http.Request) {
	f, err := h.s.Content(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil {
		h.fail(w, r, err)
		return
	}
	// Who gets a part of it is to know.
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	w.Header().Set("Content-Type", "application/jsonl")
	serve.Copy(w, f)
}

func (h *Handler) deleteFile(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := h.s.DeleteFile(r.Context(), id); err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, map[string]any{"id": id, "object": "file", "deleted": true})
}

type batchObject struct {
	ID         string            `json:"id"`
	Object     string            `json:"object"`
	Endpoint   string            `json:"endpoint"`
	Errors     *batchErrors      `json:"errors"`
	Input      string            `json:"input_file_id"`
	Window     string            `json:"completion_window"`
	Status     string            `json:"status"`
	Output     *string           `json:"output_file_id"`
	ErrorFile  *string           `json:"error_file_id"`
	Created    int64             `json:"created_at"`
	InProgress int64             `json:"in_progress_at"`
	Expires    int64             `json:"expires_at"`
	Completed  *int64            `json:"completed_at"`
	FailedAt   *int64            `json:"failed_at"`
	Expired    *int64            `json:"expired_at"`
	Cancelled  *int64            `json:"cancelled_at"`
	Counts     batchCounts       `json:"request_counts"`
	Metadata   map[string]string `json:"metadata"`
}

type batchErrors struct {
	Object string      `json:"object"`
	Data   []LineError `json:"data"`
}

type batchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

func (b *Batch) object() batchObject {
	o := batchObject{
		ID: b.ID, Object: "batch", Endpoint: b.Endpoint, Input: b.Input, Window: "24h", Status: b.Status,
		Created: b.Created.Unix(), InProgress: b.Created.Unix(), Expires: b.Expires.Unix(),
		Counts: batchCounts{b.Total, b.Completed, b.Failed}, Metadata: b.Metadata,
	}
	if len(b.Validation) > 0 {
		o.Errors = &batchErrors{"list", b.Validation}
	}
	if b.Output != "" {
		o.Output = &b.Output
	}
	if b.ErrorFile != "" {
		o.ErrorFile = &b.ErrorFile
	}
	if at := b.Ended.Unix(); b.Done() {
		switch b.Status {
		case Completed:
			o.Completed = &at
		case Failed:
			o.FailedAt = &at
		case Expired:
			o.Expired = &at
		case Cancelled:
			o.Cancelled = &at
		}
	}
	return o
}

func (h *Handler) create(w http.ResponseWriter, r *http.Request) {
	fields, ok := serve.ReadObject(w, r, 1<<20)
	if !ok {
		return
	}
	q, param, err := readWork(fields)
	if err != nil {
		serve.Refuse(w, http.StatusBadRequest, param, param+": "+err.Error())
		return
	}
	b, err := h.s.Create(r.Context(), q)
	if errors.Is(err, ErrNotFound) {
		serve.Refuse(w, http.StatusNotFound, "input_file_id", "input_file_id: "+plain(err))
		return
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, b.object())
}

// readWork reads what a batch is to do. With an error it names what is wrong.
func readWork(fields map[string]json.RawMessage) (q Work, param string, err error) {
	var window string
	for _, f := range []struct {
		name string
		to   *string
	}{{"input_file_id", &q.Input}, {"endpoint", &q.Endpoint}, {"completion_window", &window}} {
		if raw := fields[f.name]; raw != nil && json.Unmarshal(raw, f.to) != nil {
			return q, f.name, errors.New("want text")
		}
	}
	switch {
	case q.Input == "":
		return q, "input_file_id", errors.New("it is missing")
	case !slices.Contains(serve.Paths, q.Endpoint):
		return q, "endpoint", errors.New("want one of " + strings.Join(serve.Paths, ", "))
	case window != "24h":
		return q, "completion_window", errors.New("want 24h")
	}
	var texts map[string]*string // null is no text
	if raw := fields["metadata"]; raw != nil && json.Unmarshal(raw, &texts) != nil {
		return q, "metadata", errors.New("want an object of texts")
	}
	for k, v := range texts {
		if v == nil {
			return q, "metadata", errors.New("want an object of texts")
		}
		if q.Metadata == nil {
			q.Metadata = map[string]string{}
		}
		q.Metadata[k] = *v
	}
	return q, "metadata", serve.CheckMetadata(q.Metadata)
}

func (h *Handler) batch(w http.ResponseWriter, r *http.Request) {
	b, err := h.s.Batch(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, b.object())
}

// Batches of one answer.
const (
	usualBatches = 20
	mostBatches  = 100
)

func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	limit, ok := listLimit(w, r, usualBatches, mostBatches)
	if !ok {
		return
	}
	after := r.URL.Query().Get("after")
	if after != "" {
		if _, err := h.s.Batch(r.Context(), after); errors.Is(err, ErrNotFound) {
			serve.Refuse(w, http.StatusNotFound, "after", "after: "+plain(err))
			return
		}
	}
	list, err := h.s.Batches(r.Context(), after, limit+1)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	p := page[batchObject]{Object: "list", Data: []batchObject{}}
	if p.More = len(list) > limit; p.More {
		list = list[:limit]
	}
	for _, b := range list {
		p.Data = append(p.Data, b.object())
	}
	if n := len(list); n > 0 {
		p.First, p.Last = list[0].ID, list[n-1].ID
	}
	serve.WriteJSON(w, http.StatusOK, p)
}

func (h *Handler) cancel(w http.ResponseWriter, r *http.Request) {
	b, err := h.s.Cancel(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, b.object())
}
