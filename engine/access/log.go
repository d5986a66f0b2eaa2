package access

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// answer knows the status that was sent.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader is http.ResponseWriter's.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write is http.ResponseWriter's.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what is below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// newLog returns a logger whose lines are the attributes and the time.
func newLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return a
	}}))
}

// statusGone is written where the client left before there was an answer.
const statusGone = 499

// Bounds of what a stranger can put into the log.
const (
	longestMethod = 20
	longestPath   = 200
)

func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// note writes the line of a request. Neither its query nor its body nor its key is in it.
func (g *Guard) note(r *http.Request, c *Call, out *answer) {
	status := out.status
	if status == 0 {
		if status = http.StatusOK; r.Context().Err() != nil {
			status = statusGone
		}
	}
	list := []slog.Attr{
		slog.String("id", c.ID), slog.String("method", cut(r.Method, longestMethod)),
		slog.String("path", cut(r.URL.Path, longestPath)), slog.Int("status", status),
	}
	if c.key != nil {
		list = append(list, slog.String("key", c.key.ID))
	}
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	if n := c.prompt.Load(); n > 0 {
		list = append(list, slog.Int64("prompt_tokens", n), slog.Int64("tokens", c.answer.Load()))
	}
	if d := c.first.Load(); d > 0 {
		list = append(list, slog.Float64("ttft_ms", milliseconds(time.Duration(d))))
	}
	list = append(list, slog.Float64("duration_ms", milliseconds(g.o.Now().Sub(c.begun))))
	g.log.LogAttrs(r.Context(), slog.LevelInfo, "", list...)
}
