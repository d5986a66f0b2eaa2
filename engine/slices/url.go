package slices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"kvasir/engine/gguf"
	"kvasir/wire"
)

// Errors of weights on a web server.
var (
	// ErrNoRanges: the server sends whole files only.
	ErrNoRanges = errors.New("slices: the server does not serve ranges of the file; give another address, " +
		"or fetch from the backbone")
	// ErrChanged: the file on the server is not the one that was opened.
	ErrChanged = errors.New("slices: the file on the server has changed; begin again")
	// ErrAddress: what was given is no address of a file on a web server.
	ErrAddress = errors.New("slices: give the address of a .gguf file: https://HOST/PATH/NAME.gguf")
)

// How a Remote deals with servers.
const (
	tries     = 6                      // of a request
	firstWait = 500 * time.Millisecond // before the second of them; twice as long each time
	longest   = 30 * time.Second       // wait between two tries, whatever the server says
	stall     = 30 * time.Second       // without a byte, after which a request is given up
	redirects = 10
)

// errRedirect: an address leads to where this package does not go.
var errRedirect = errors.New("redirected")

// Remote is a model file on a web server, or all parts of one, of which single ranges are read. It is safe
// for concurrent use. What is read is not trusted: Cache.Get compares it with what the backbone says.
type Remote struct {
	client *http.Client
	own    *http.Transport // nil: the client was given
	parts  []*webFile

	tensors map[string]remoteTensor

	wait  func(ctx context.Context, d time.Duration) error // between tries
	stall time.Duration                                    // after which a silent server is given up
}

// remoteTensor is where the experts' bytes of a tensor stand.
type remoteTensor struct {
	part    *webFile
	tensor  *gguf.Tensor
	offset  int64 // of the first expert, in the file
	experts int
}

// webFile is one file.
type webFile struct {
	r    *Remote
	url  *url.URL
	size int64

	mu  sync.Mutex
	tag string // of the file's content: an ETag or a time, for If-Range; empty: the server says none
}

// OpenURL reads the head of a GGUF file on a web server, http or https; of a split model the heads of all
// parts, whichever of them address is. client may be nil. Requests that fail for a moment are repeated.
func OpenURL(ctx context.Context, address string, client *http.Client) (*Remote, error) {
	r := &Remote{tensors: map[string]remoteTensor{}, wait: sleep, stall: stall}
	r.setClient(client)
	if err := r.read(ctx, address); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// read reads the heads.
func (r *Remote) read(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path == "" {
		return ErrAddress // url.Parse repeats the address, which may hold a password
	}
	u.Fragment = ""
	f, err := gguf.ReadHead(u.Path, func(path string) (io.ReaderAt, int64, error) { return r.open(ctx, u, path) })
	if err != nil {
		return fmt.Errorf("%s: %w", u.Host, err)
	}
	byName := map[string]*webFile{}
	for _, w := range r.parts {
		byName[w.url.Path] = w
	}
	for _, t := range f.Tensors {
		if len(t.Dims) != 3 || !strings.Contains(t.Name, "_exps.") {
			continue
		}
		p := f.Parts[t.Part]
		r.tensors[t.Name] = remoteTensor{byName[p.Name], t, p.DataOffset + int64(t.Offset), t.Dims[2]}
	}
	return nil
}

// setClient makes a client that never turns from https to http.
func (r *Remote) setClient(given *http.Client) {
	c := http.Client{}
	if given != nil {
		c = *given
	} else {
		r.own = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: stall,
			IdleConnTimeout:       time.Minute,
			MaxIdleConnsPerHost:   wire.MaxFetches,
			ForceAttemptHTTP2:     true,
		}
		c.Transport = r.own
	}
	before := c.CheckRedirect
	c.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= redirects:
			return fmt.Errorf("%w: more than %d times", errRedirect, redirects)
		case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
			return fmt.Errorf("%w from https to %s", errRedirect, next.URL.Scheme)
		case before != nil:
			return before(next, via)
		}
		return nil
	}
	r.client = &c
}

// Close lets go of connections, if no client was given.
func (r *Remote) Close() {
	if r.own != nil {
		r.own.CloseIdleConnections()
	}
}

// open begins with one file beside u.
func (r *Remote) open(ctx context.Context, u *url.URL, path string) (io.ReaderAt, int64, error) {
	v := *u
	v.Path, v.RawPath = path, ""
	w := &webFile{r: r, url: &v, size: -1}
	// The size, and whether there are ranges, come with the first byte.
	if err := w.readAt(ctx, make([]byte, 1), 0); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	r.parts = append(r.parts, w)
	return webReader{ctx, w}, w.size, nil
}

// webReader is a webFile as an io.ReaderAt.
type webReader struct {
	ctx context.Context
	w   *webFile
}

func (r webReader) ReadAt(p []byte, off int64) (int, error) {
	if err := r.w.readAt(r.ctx, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadExperts implements Weights.
func (r *Remote) ReadExperts(ctx context.Context, at Span, dst []byte) error {
	full := fmt.Sprintf("blk.%d.%s", at.Layer, at.Tensor.Name)
	t, ok := r.tensors[full]
	if !ok {
		return fmt.Errorf("%w: the file on the server has no tensor %s", ErrOther, full)
	}
	x, want := t.tensor, at.Tensor
	if x.Format != want.Format || x.Dims[0] != want.In || x.Dims[1] != want.Out {
		return fmt.Errorf("%w: %s is %s%s on the server, want %s[%d %d] an expert", ErrOther,
			full, x.Format, x.Shape(), want.Format, want.In, want.Out)
	}
	off := int64(at.Expert)*(x.Bytes()/int64(t.experts)) + at.Off
	if off < 0 || off > x.Bytes()-int64(len(dst)) {
		return fmt.Errorf("%w: %s has %d experts on the server", ErrOther, full, t.experts)
	}
	if err := t.part.readAt(ctx, dst, t.offset+off); err != nil {
		return fmt.Errorf("%s%s: %w", t.part.url.Host, t.part.url.Path, err) // no password, no signed query
	}
	return nil
}

// readAt fills dst with the bytes of a range, in several requests if need be.
func (w *webFile) readAt(ctx context.Context, dst []byte, off int64) error {
	wait := firstWait
	for try := 1; ; try++ {
		n, err := w.once(ctx, dst, off)
		if n > 0 {
			dst, off = dst[n:], off+int64(n)
			try, wait = 1, firstWait // it goes on
		}
		if len(dst) == 0 {
			return nil
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		if c := context.Cause(ctx); c != nil {
			return c
		}
		var again *retry
		if errors.As(err, &again); again == nil || try >= tries {
			return err
		}
		if err := w.r.wait(ctx, max(jitter(wait), min(again.after, longest))); err != nil {
			return err
		}
		wait = min(2*wait, longest)
	}
}
