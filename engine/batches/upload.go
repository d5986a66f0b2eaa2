package batches

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"kvasir/engine/serve"
)

// body is that of a request which may take long, as long as it goes on: who sends a byte now and then would keep
// others out.
type body struct {
	io.Reader
	out   *http.ResponseController
	begun time.Time
	n     int64 // bytes so far
}

func newBody(from io.Reader, w http.ResponseWriter) *body {
	return &body{Reader: from, out: http.NewResponseController(w), begun: time.Now()}
}

// Read is io.Reader's.
func (b *body) Read(p []byte) (int, error) {
	limit := b.begun.Add(min(partTime+time.Duration(b.n)*time.Second/bodyRate, bodyTime))
	if next := time.Now().Add(partTime); next.Before(limit) {
		limit = next
	}
	_ = b.out.SetReadDeadline(limit) // who cannot is no connection
	n, err := b.Reader.Read(p)
	b.n += int64(n)
	return n, err
}

// upload takes a form with the fields purpose and file, in any order.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		serve.Refuse(w, http.StatusBadRequest, "", "want a form, multipart/form-data, with file and purpose")
		return
	}
	if r.ContentLength > MaxBytes+1<<20 {
		h.fail(w, r, &http.MaxBytesError{Limit: MaxBytes})
		return
	}
	all := newBody(http.MaxBytesReader(w, r.Body, MaxBytes+1<<20), w)
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
			h.badPart(w, r, err)
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
			if f, err = h.s.AddFile(r.Context(), printable(part.FileName()), "batch", part); err != nil {
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

// printable is a name without what no database, and no screen, should have.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(name, string(utf8.RuneError)))
}

// badPart answers a form whose next part could not be found: it ends, or is none.
func (h *Handler) badPart(w http.ResponseWriter, r *http.Request, err error) {
	var big *http.MaxBytesError
	if errors.As(err, &big) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		h.badForm(w, r, err)
		return
	}
	serve.Refuse(w, http.StatusBadRequest, "", "the form is not as it should be: "+err.Error())
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
