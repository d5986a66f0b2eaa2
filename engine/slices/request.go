package slices

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// retry is an error that another try may mend.
type retry struct {
	err   error
	after time.Duration // that the server asks for
}

func (r *retry) Error() string { return r.err.Error() }
func (r *retry) Unwrap() error { return r.err }

// errStalled: a server has sent nothing for too long.
var errStalled = errors.New("the server has sent nothing for too long")

// once asks for a range and returns how much of it has come.
func (w *webFile) once(ctx context.Context, dst []byte, off int64) (n int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(w.r.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url.String(), http.NoBody)
	if err != nil {
		return 0, err
	}
	q.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+int64(len(dst))-1))
	q.Header.Set("Accept-Encoding", "identity") // ranges of what is compressed are of no use
	w.mu.Lock()
	tag := w.tag
	w.mu.Unlock()
	if tag != "" {
		q.Header.Set("If-Range", tag)
	}
	a, err := w.r.client.Do(q)
	if err != nil {
		return 0, broken(ctx, err)
	}
	defer a.Body.Close() //nolint:errcheck // what matters was read
	end, err := w.check(a, off, int64(len(dst)), tag)
	if err != nil {
		return 0, err
	}
	dst = dst[:min(int64(len(dst)), end-off)]
	for n < len(dst) {
		var m int
		m, err = a.Body.Read(dst[n:])
		if n += m; m > 0 {
			watch.Reset(w.r.stall)
		}
		if err != nil {
			break
		}
	}
	if n == len(dst) {
		return n, nil
	}
	return n, broken(ctx, err)
}

// broken is an error of a connection: worth another try, but for what will be the same then.
func broken(ctx context.Context, err error) error {
	var certificate *tls.CertificateVerificationError
	var dns *net.DNSError
	lasting := errors.Is(err, errRedirect) || errors.As(err, &certificate) || errors.As(err, &dns) && dns.IsNotFound
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // without the address, which may be signed
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		err = errStalled
	}
	if err == io.EOF { //nolint:errorlint // of a body, which is never wrapped
		err = io.ErrUnexpectedEOF
	}
	if lasting {
		return err
	}
	return &retry{err: err}
}

// check looks at the head of an answer to a request for n bytes from off on, and returns where the bytes
// that follow end.
func (w *webFile) check(a *http.Response, off, n int64, tag string) (end int64, err error) {
	switch s := a.StatusCode; {
	case s == http.StatusPartialContent:
	case s == http.StatusOK && tag == "": // else it says so by sending all of it, see If-Range
		return 0, ErrNoRanges
	case s == http.StatusOK, s == http.StatusPreconditionFailed, s == http.StatusRequestedRangeNotSatisfiable:
		if w.size < 0 {
			return 0, fmt.Errorf("the server answers %s", a.Status)
		}
		return 0, ErrChanged
	case s == http.StatusTooManyRequests, s == http.StatusRequestTimeout, s >= 500:
		return 0, &retry{fmt.Errorf("the server answers %s", a.Status), retryAfter(a.Header.Get("Retry-After"))}
	case s == http.StatusNotFound, s == http.StatusGone:
		return 0, fmt.Errorf("the server answers %s; look at the address", a.Status)
	default:
		return 0, fmt.Errorf("the server answers %s", a.Status)
	}
	if e := a.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return 0, fmt.Errorf("%w (it sends them as %q)", ErrNoRanges, e)
	}
	first, last, size, ok := contentRange(a.Header.Get("Content-Range"))
	if !ok || first != off || last >= off+n || last < first || last >= size {
		return 0, fmt.Errorf("%w (it answers bytes %d-%d with %q)", ErrNoRanges, off, off+n-1, a.Header.Get("Content-Range"))
	}
	return last + 1, w.note(a.Header, size)
}

// note remembers, of the first answer, which file it is; another one later is ErrChanged.
func (w *webFile) note(h http.Header, size int64) error {
	tag := h.Get("ETag")
	if strings.HasPrefix(tag, "W/") {
		tag = "" // says that the file means the same, not that it has the same bytes
	}
	if tag == "" {
		tag = h.Get("Last-Modified")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size < 0 {
		w.size, w.tag = size, tag
		return nil
	}
	if w.size != size || w.tag != "" && tag != "" && w.tag != tag {
		return ErrChanged
	}
	return nil
}

// contentRange reads "bytes 0-9/100".
func contentRange(s string) (first, last, size int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, total, slash := strings.Cut(s, "/")
	lo, hi, dash := strings.Cut(span, "-")
	if !ok || !slash || !dash {
		return 0, 0, 0, false
	}
	var n [3]int64
	for i, text := range []string{lo, hi, total} {
		v, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			return 0, 0, 0, false
		}
		n[i] = int64(v)
	}
	return n[0], n[1], n[2], true
}

// retryAfter reads seconds; a date counts as nothing, and the wait is our own then.
func retryAfter(s string) time.Duration {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// jitter is between half of d and d, so that workers that failed together do not come back together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// sleep waits, or returns why ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
