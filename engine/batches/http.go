package batches

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
	partTime = 30 * time.Second // without a byte
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

// body is that of a request which may take long, as long as it goes on.
type body struct {
	io.Reader
	out   *http.ResponseController
	until time.Time
}

// Read is io.Reader's.
func (b *body) Read(p []byte) (int, error) {
	limit := time.Now().Add(partTime)
	if limit.After(b.until) {
		limit = b.until
	}
	_ = b.out.SetReadDeadline(limit) // who cannot is no connection
	return b.Reader.Read(p)
}

// ServeHTTP is http.Handler's.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { serve.Route(h.mux, w, r) }

// fail answers with an error. One that is not of this package's kinds is the server's fault.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var big *http.MaxBytesError
	switch {
	case r.Context().Err() != nil: // nobody listens
	case errors.Is(err, ErrNotFound):
		serve.Refuse(w, http.StatusNotFound, "", err.Error())
	case errors.Is(err, ErrInUse), errors.Is(err, ErrEnded):
		serve.Refuse(w, http.StatusConflict, "", err.Error())
	case errors.Is(err, ErrTooBig), errors.As(err, &big):
		serve.Refuse(w, http.StatusRequestEntityTooLarge, "file", err.Error())
	case errors.Is(err, ErrFull):
		serve.Refuse(w, http.StatusTooManyRequests, "", err.Error())
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

// upload takes a form with the fields purpose and file, in any order.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		serve.Refuse(w, http.StatusBadRequest, "", "want a form, multipart/form-data, with file and purpose")
		return
	}
	all := &body{http.MaxBytesReader(w, r.Body, MaxBytes+1<<20), http.NewResponseController(w), time.Now().Add(bodyTime)}
	form := multipart.NewReader(all, params["boundary"])
	var f File
	purpose, kept := "", false
	defer func() {
		if f.ID != "" && !kept {
			_ = h.s.DeleteFile(context.WithoutCancel(r.Context()), f.ID) // the client has been told more
		}
	}()
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			h.badForm(w, r, err)
			return
		}
		switch part.FormName() {
		case "purpose":
			text, err := io.ReadAll(io.LimitReader(part, 64))
			if err != nil {
				h.badForm(w, r, err)
				return
			}
			purpose = string(text)
		case "file":
			if f.ID != "" {
				serve.Refuse(w, http.StatusBadRequest, "file", "file: one at a time")
				return
			}
			if len(part.FileName()) > maxName {
				serve.Refuse(w, http.StatusBadRequest, "file", "file: its name has more than 1000 bytes")
				return
			}
			if f, err = h.s.AddFile(r.Context(), part.FileName(), "batch", part); err != nil {
				h.badForm(w, r, err)
				return
			}
		}
	}
	switch {
	case f.ID == "":
		serve.Refuse(w, http.StatusBadRequest, "file", "file is missing")
		return
	case purpose != "batch":
		serve.Refuse(w, http.StatusBadRequest, "purpose", "purpose: want batch, the only one that is served")
		return
	}
	kept = true
	serve.WriteJSON(w, http.StatusOK, f.object())
}

// badForm answers a form that could not be read to its end, or kept.
func (h *Handler) badForm(w http.ResponseWriter, r *http.Request, err error) {
	var big *http.MaxBytesError
	if errors.Is(err, ErrTooBig) || errors.As(err, &big) {
		h.fail(w, r, err)
		return
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, multipart.ErrMessageTooLarge) || errors.Is(err, io.EOF) {
		serve.Refuse(w, http.StatusBadRequest, "", "the form ends in the middle")
		return
	}
	h.fail(w, r, err)
}

func (h *Handler) listFiles(w http.ResponseWriter, r *http.Request) {
	list, err := h.s.Files(r.Context())
	if err != nil {
		h.fail(w, r, err)
		return
	}
	p := page[fileObject]{Object: "list", Data: []fileObject{}}
	for _, f := range list {
		p.Data = append(p.Data, f.object())
	}
	serve.WriteJSON(w, http.StatusOK, p)
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
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		h.badForm(w, r, err)
		return
	}
	var q struct {
		Input    string            `json:"input_file_id"`
		Endpoint string            `json:"endpoint"`
		Window   string            `json:"completion_window"`
		Metadata map[string]string `json:"metadata"`
	}
	if json.Unmarshal(body, &q) != nil {
		serve.Refuse(w, http.StatusBadRequest, "", "the request is not a JSON object with input_file_id, endpoint and completion_window")
		return
	}
	switch {
	case !slices.Contains(serve.Paths, q.Endpoint):
		serve.Refuse(w, http.StatusBadRequest, "endpoint", "endpoint: want one of "+strings.Join(serve.Paths, ", "))
		return
	case q.Window != "24h":
		serve.Refuse(w, http.StatusBadRequest, "completion_window", "completion_window: want 24h")
		return
	case tooMuch(q.Metadata):
		serve.Refuse(w, http.StatusBadRequest, "metadata", "metadata: want 16 pairs at most, of 64 and 512 characters")
		return
	}
	b, err := h.s.Create(r.Context(), Work{Input: q.Input, Endpoint: q.Endpoint, Metadata: q.Metadata})
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, b.object())
}

// tooMuch reports whether metadata is beyond OpenAI's limits.
func tooMuch(metadata map[string]string) bool {
	for k, v := range metadata {
		if utf8.RuneCountInString(k) > 64 || utf8.RuneCountInString(v) > 512 {
			return true
		}
	}
	return len(metadata) > 16
}

func (h *Handler) batch(w http.ResponseWriter, r *http.Request) {
	b, err := h.s.Batch(r.Context(), r.PathValue("id"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	serve.WriteJSON(w, http.StatusOK, b.object())
}

// listLimit is the most batches of one answer.
const listLimit = 100

func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	limit := 20
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > listLimit {
			serve.Refuse(w, http.StatusBadRequest, "limit", "limit: want 1 to 100")
			return
		}
		limit = n
	}
	list, err := h.s.Batches(r.Context(), r.URL.Query().Get("after"), limit+1)
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
