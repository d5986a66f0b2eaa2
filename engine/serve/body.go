package serve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

// freeBody is how many bytes of a request anybody may send while others send too much.
const freeBody = 64 << 10

// received is the body of a request, and what it takes of the memory that all of them have.
type received struct {
	text []byte
	all  *atomic.Int64 // bytes of all bodies beyond freeBody
	n    int64         // bytes of it that are this one's
}

// free gives the memory back. The text is not to be used any more.
func (b *received) free() {
	b.all.Add(-b.n)
	b.text, b.n = nil, 0
}

// receive reads the body of a request, for which Options.Body and Options.Bodies hold. It is to be freed also
// where it is refused.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request) (*received, *failure) {
	b := &received{all: &h.bodies}
	if f := plainBody(r); f != nil {
		return b, f
	}
	if r.ContentLength > h.o.Body {
		return b, tooBig(h.o.Body)
	}
	in := http.MaxBytesReader(w, r.Body, h.o.Body)
	b.text = make([]byte, 0, 512)
	if r.ContentLength > 0 {
		b.text = make([]byte, 0, min(r.ContentLength+1, freeBody)) // one more, for its end
	}
	for {
		if len(b.text) == cap(b.text) && !b.grow(h.o.Body, h.o.Bodies) {
			return b, h.full("others are sending too much; try again", 0)
		}
		n, err := in.Read(b.text[len(b.text):cap(b.text)])
		b.text = b.text[:len(b.text)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, badBody(err)
		}
	}
}

// grow doubles the room for the text, up to what one may have and a byte for its end, unless all bodies have
// more than they may by then.
func (b *received) grow(one, all int64) bool {
	size := min(2*int64(cap(b.text)), max(one, freeBody)+1)
	if more := size - freeBody - b.n; more > 0 {
		if b.all.Add(more) > all {
			b.all.Add(-more)
			return false
		}
		b.n += more
	}
	b.text = append(make([]byte, 0, size), b.text...)
	return true
}

// ReadObject reads the body of a request as a JSON object of at most so many bytes. Where it is none the request
// is refused, and ok is false.
func ReadObject(w http.ResponseWriter, r *http.Request, most int64) (fields map[string]json.RawMessage, ok bool) {
	f := plainBody(r)
	if f == nil {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
		if err != nil {
			f = badBody(err)
		} else {
			fields, f = object(body)
		}
	}
	if f != nil {
		refuse(w, f)
	}
	return fields, f == nil
}

// plainBody refuses a body that is packed.
func plainBody(r *http.Request) *failure {
	if c := r.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return invalid(http.StatusUnsupportedMediaType, "", "the request has the encoding %.40q; send it as it is", c)
	}
	return nil
}

// badBody is a request whose body could not be read to its end.
func badBody(err error) *failure {
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return tooBig(big.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return invalid(http.StatusRequestTimeout, "", "the request took too long to come")
	}
	return invalid(http.StatusBadRequest, "", "the request ends in the middle")
}

func tooBig(limit int64) *failure {
	return invalid(http.StatusRequestEntityTooLarge, "", "the request has more than %d bytes", limit)
}
