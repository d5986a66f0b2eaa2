package slices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
)

// site is a web server with model files.
type site struct {
	t                            testing.TB
	files                        map[string][]byte // by path
	requests, bytes, connections atomic.Int64

	mu   sync.Mutex
	tags map[string]string // by path; under mu
	puts int               // under mu
	// before may answer a request itself, and says whether it did; under mu
	before func(w http.ResponseWriter, r *http.Request) bool
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	s.mu.Lock()
	data, ok := s.files[r.URL.Path]
	tag := s.tags[r.URL.Path]
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if tag != "" {
		w.Header().Set("ETag", tag)
	}
	http.ServeContent(counting{w, s}, r, "", time.Time{}, bytes.NewReader(data))
}

type counting struct {
	http.ResponseWriter
	s *site
}

func (c counting) Write(b []byte) (int, error) {
	c.s.bytes.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

// put puts a file onto the site.
func (s *site) put(path string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		s.files, s.tags = map[string][]byte{}, map[string]string{}
	}
	s.files[path] = data
	s.puts++
	s.tags[path] = fmt.Sprintf("%q", fmt.Sprint("v", s.puts))
}

// answer sets before.
func (s *site) answer(before func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// start starts the server; with TLS if told.
func (s *site) start(secure bool) *httptest.Server {
	server := httptest.NewUnstartedServer(s)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	s.t.Cleanup(server.Close)
	return server
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// remote opens an address with the server's client, and does not wait between tries.
func remote(t testing.TB, server *httptest.Server, path string, waits *[]time.Duration) (*Remote, error) {
	t.Helper()
	r := &Remote{tensors: map[string]remoteTensor{}, stall: stall, wait: func(ctx context.Context, d time.Duration) error {
		if waits != nil {
			*waits = append(*waits, d)
		}
		return ctx.Err()
	}}
	r.setClient(server.Client())
	t.Cleanup(server.Client().CloseIdleConnections)
	if err := r.read(context.Background(), server.URL+path); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func opened(t testing.TB, server *httptest.Server, path string) *Remote {
	t.Helper()
	r, err := remote(t, server, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A slice whose weights came from a web server is that of the backbone, byte for byte, and nothing but its
// head is asked of the backbone.
func TestURLGivesTheBytesOfTheSlice(t *testing.T) {
	list := append([]kind{smallKind, largeKind}, kinds...)
	path := write(t, list...)
	f := open(t, path)
	prefix := filepath.Join(t.TempDir(), "split")
	parts, err := f.WriteParts(prefix, 3)
	if err != nil {
		t.Fatal(err)
	}
	s := source(t, f, len(list))
	web := &site{t: t}
	web.put("/m/model.gguf", readFile(t, path))
	for _, p := range parts {
		web.put("/m/"+filepath.Base(p), readFile(t, p))
	}
	for _, c := range []struct {
		name   string
		secure bool
	}{{"model.gguf", false}, {"model.gguf?download=true#x", true}, {filepath.Base(parts[1]), true}} {
		server := web.start(c.secure)
		r := opened(t, server, "/m/"+c.name)
		for layer, k := range list {
			x := offered(t, s, layer, 1, k.experts-1)
			want := bundleOf(t, s, x)
			head := &reader{bundle: want}
			web.requests.Store(0)
			web.bytes.Store(0)
			b := get(t, cache(t, t.TempDir(), 0), x, head.read, GetOptions{Weights: r})
			if !bytes.Equal(b.mapping.Bytes(), want) {
				t.Errorf("%s: layer %d: other bytes", c.name, layer)
			}
			if n := head.bytes.Load(); n > b.head.length+600 {
				t.Errorf("%s: layer %d: %d bytes from the backbone, the head has %d", c.name, layer, n, b.head.length)
			}
			if n := web.bytes.Load(); n > b.Bytes() {
				t.Errorf("%s: layer %d: %d bytes from the server, the slice has %d", c.name, layer, n, b.Bytes())
			}
			if n := web.requests.Load(); n > b.Bytes()>>20+6 {
				t.Errorf("%s: layer %d: %d requests for %d bytes", c.name, layer, n, b.Bytes())
			}
			load(t, []*Bundle{b}, experts.Options{}, nil)
		}
	}
}

// What is complete is not fetched again, from a web server neither.
func TestURLGoesOnAfterABreak(t *testing.T) {
	path := write(t, largeKind)
	s := source(t, open(t, path), 1)
	x := offered(t, s, 0, 0, 5)
	want := bundleOf(t, s, x)
	web := &site{t: t}
	web.put("/model.gguf", readFile(t, path))
	server := web.start(false)
	r := opened(t, server, "/model.gguf")
	c := cache(t, t.TempDir(), 0)
	defer func() {
		if n := web.connections.Load(); n > 1+DefaultWindow {
			t.Errorf("%d connections for %d requests", n, web.requests.Load())
		}
	}()
	limited := &breaking{Weights: r, left: 5}
	if _, err := c.Get(context.Background(), x, s.Read, GetOptions{Weights: limited, Window: 1}); !errors.Is(err, errBreak) {
		t.Fatal(err)
	}
	web.bytes.Store(0)
	b := get(t, c, x, s.Read, GetOptions{Weights: r})
	if !bytes.Equal(b.mapping.Bytes(), want) {
		t.Error("other bytes")
	}
	if n := web.bytes.Load(); n > b.Bytes()*3/5 {
		t.Errorf("%d of %d bytes were fetched after the break", n, b.Bytes())
	}
}

// breaking is Weights that break.
type breaking struct {
	Weights
	left int
}

func (b *breaking) ReadExperts(ctx context.Context, at Span, dst []byte) error {
	if b.left--; b.left < 0 {
		return errBreak
	}
	return b.Weights.ReadExperts(ctx, at, dst)
}

// Weights of another model are found, whatever is other in them.
func TestURLFindsOtherWeights(t *testing.T) {
	path := write(t, smallKind)
	s := source(t, open(t, path), 1)
	x := offered(t, s, 0, 0, 9)
	web := &site{t: t}
	changed := readFile(t, path)
	changed[len(changed)-1] ^= 1 // the last expert
	web.put("/changed.gguf", changed)
	k := smallKind
	k.format = k.down
	web.put("/format.gguf", readFile(t, write(t, k)))
	k = smallKind
	k.experts = 5
	web.put("/few.gguf", readFile(t, write(t, k)))
	web.put("/none.gguf", readFile(t, write(t, kind{k.format, k.down, 256, 256, 9, true})))
	server := web.start(false)
	for _, c := range []struct {
		name, says string
		err        error
	}{
		{"changed", "by the web server: expert 8 of layer 0", ErrLiar},
		{"format", "on the server, want Q4_K[256 256]", ErrOther},
		{"few", "has 5 experts on the server", ErrOther},
		{"none", "has no tensor blk.0.ffn_gate_exps.weight", ErrOther},
	} {
		r := opened(t, server, "/"+c.name+".gguf")
		_, err := cache(t, t.TempDir(), 0).Get(context.Background(), x, s.Read, GetOptions{Weights: r, Window: 1}) // in order
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %s", c.name, err, c.says)
		}
	}
}

func TestURLRefuses(t *testing.T) {
	good := readFile(t, write(t, smallKind))
	answer := func(status int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			return true
		}
	}
	for _, c := range []struct {
		name, says string
		err        error
		before     func(http.ResponseWriter, *http.Request) bool
		requests   int64
	}{
		{"no ranges", "another address", ErrNoRanges, func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(good) // the client hangs up
			return true
		}, 1},
		{"compressed", "gzip", ErrNoRanges, answer(206, "Content-Range", "bytes 0-0/900", "Content-Encoding", "gzip"), 1},
		{"another range", "it answers", ErrNoRanges, answer(206, "Content-Range", "bytes 5-5/900"), 1},
		{"no range", "it answers", ErrNoRanges, answer(206), 1},
		{"several ranges", "it answers", ErrNoRanges, answer(206, "Content-Type", "multipart/byteranges; boundary=x"), 1},
		{"no size", "it answers", ErrNoRanges, answer(206, "Content-Range", "bytes 0-0/*"), 1},
		{"a size below the range", "it answers", ErrNoRanges, answer(206, "Content-Range", "bytes 0-0/0"), 1},
		{"a range backwards", "it answers", ErrNoRanges, answer(206, "Content-Range", "bytes 0--5/9"), 1},
		{"missing", "404 Not Found; look at the address", nil, answer(404), 1},
		{"forbidden", "403 Forbidden", nil, answer(403), 1},
		{"empty", "416", nil, answer(416, "Content-Range", "bytes */0"), 1},
		{"busy for ever", "503", nil, answer(503), tries},
		{"too many", "429", nil, answer(429, "Retry-After", "1"), tries},
		{"a page", "a web page", gguf.ErrNotGGUF, func(w http.ResponseWriter, r *http.Request) bool {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("<!DOCTYPE html><html>"+strings.Repeat("x", 100)))
			return true
		}, 2},
		{"round and round", "redirected: more than 10 times", nil, func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/model.gguf", http.StatusFound)
			return true
		}, redirects},
		{"to http", "redirected from https to http", nil, func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://"+r.Host+"/model.gguf", http.StatusFound)
			return true
		}, 1},
	} {
		web := &site{t: t, before: c.before}
		server := web.start(true)
		_, err := remote(t, server, "/model.gguf?secret=hunter2", nil)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %s", c.name, err, c.says)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error tells a secret, or has two lines: %v", c.name, err)
		}
		if n := web.requests.Load(); n != c.requests {
			t.Errorf("%s: %d requests, want %d", c.name, n, c.requests)
		}
	}
	for _, address := range []string{"", "model.gguf", "ftp://h/m.gguf", "file:///m.gguf", "https://", "https://h", "http://u:p@h:x/%zz"} {
		if _, err := OpenURL(context.Background(), address, nil); !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A server that stumbles is asked again, for what is missing, and not at once.
func TestURLTriesAgain(t *testing.T) {
	path := write(t, smallKind)
	s := source(t, open(t, path), 1)
	x := offered(t, s, 0, 0, 9)
	web := &site{t: t}
	web.put("/model.gguf", readFile(t, path))
	var n atomic.Int64
	web.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch n.Add(1) % 5 {
		case 0:
			w.WriteHeader(http.StatusBadGateway)
		case 1:
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			panic(http.ErrAbortHandler) // the connection breaks
		case 3: // half of what was asked for
			cut := &half{ResponseWriter: w}
			http.ServeContent(cut, r, "", time.Time{}, bytes.NewReader(web.files["/model.gguf"]))
			panic(http.ErrAbortHandler)
		default:
			return false
		}
		return true
	}
	server := web.start(false)
	var waits []time.Duration
	r, err := remote(t, server, "/model.gguf", &waits)
	if err != nil {
		t.Fatal(err)
	}
	b := get(t, cache(t, t.TempDir(), 0), x, s.Read, GetOptions{Weights: r, Window: 1})
	if !bytes.Equal(b.mapping.Bytes(), bundleOf(t, s, x)) {
		t.Error("other bytes")
	}
	asked := false
	for i, d := range waits {
		if d < firstWait/2 || d > longest {
			t.Errorf("wait %d is %v", i, d)
		}
		asked = asked || d == 7*time.Second
	}
	if len(waits) < 4 || !asked {
		t.Errorf("waits: %v", waits)
	}
}

// half writes half of what it is given, once.
type half struct {
	http.ResponseWriter
	done bool
}

func (h *half) Write(b []byte) (int, error) {
	if h.done {
		return len(b), nil
	}
	h.done = true
	_, err := h.ResponseWriter.Write(b[:len(b)/2])
	_ = http.NewResponseController(h.ResponseWriter).Flush() // it is on its way
	return len(b), err
}

// A file that changes between two requests is noticed, by its tag, its size, or the server's word.
func TestURLNoticesAChange(t *testing.T) {
	path := write(t, smallKind)
	s := source(t, open(t, path), 1)
	x := offered(t, s, 0, 0, 9)
	good := readFile(t, path)
	deaf := func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("If-Range"); return false }
	for name, change := range map[string]func(w *site){
		"another tag":  func(w *site) { w.put("/model.gguf", good) },
		"another size": func(w *site) { w.put("/model.gguf", append(bytes.Clone(good), make([]byte, 64)...)) },
		"cut":          func(w *site) { w.put("/model.gguf", good[:len(good)/4]) },
		"size alone": func(w *site) {
			w.put("/model.gguf", append(bytes.Clone(good), 0))
			w.mu.Lock()
			w.tags["/model.gguf"] = ""
			w.mu.Unlock()
			w.answer(deaf)
		},
		"a server that does not know If-Range": func(w *site) {
			w.put("/model.gguf", good)
			w.answer(deaf)
		},
	} {
		web := &site{t: t}
		web.put("/model.gguf", good)
		server := web.start(false)
		r := opened(t, server, "/model.gguf")
		change(web)
		_, err := cache(t, t.TempDir(), 0).Get(context.Background(), x, s.Read, GetOptions{Weights: r})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that falls silent is given up; so is one whose silence the caller does not want to hear.
func TestURLGivesUpSilence(t *testing.T) {
	path := write(t, smallKind)
	web := &site{t: t}
	web.put("/model.gguf", readFile(t, path))
	server := web.start(false)
	r := opened(t, server, "/model.gguf")
	web.answer(func(_ http.ResponseWriter, q *http.Request) bool {
		<-q.Context().Done() // the client has hung up
		return true
	})
	r.stall = 10 * time.Millisecond
	shape := experts.Tensor{Name: "ffn_down_exps.weight", Format: smallKind.down, In: 256, Out: 256}
	err := r.ReadExperts(context.Background(), Span{Tensor: shape}, make([]byte, 100))
	if !errors.Is(err, errStalled) {
		t.Error(err)
	}
	r.stall = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	web.answer(func(_ http.ResponseWriter, q *http.Request) bool {
		cancel()
		<-q.Context().Done()
		return true
	})
	if err := r.ReadExperts(ctx, Span{Tensor: shape}, make([]byte, 100)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Parts of a split model are looked for beside the one that was given, and nowhere else.
func TestURLRefusesPartsThatDoNotBelongTogether(t *testing.T) {
	f := open(t, write(t, smallKind))
	paths, err := f.WriteParts(filepath.Join(t.TempDir(), "m"), 2)
	if err != nil {
		t.Fatal(err)
	}
	web := &site{t: t}
	web.put("/m-00001-of-00002.gguf", readFile(t, paths[0]))
	web.put("/other.gguf", readFile(t, paths[0]))
	server := web.start(false)
	if _, err := remote(t, server, "/m-00001-of-00002.gguf", nil); err == nil || !strings.Contains(err.Error(), "m-00002-of-00002.gguf: the server answers 404") {
		t.Error(err)
	}
	if _, err := remote(t, server, "/other.gguf", nil); !errors.Is(err, gguf.ErrParts) {
		t.Error(err)
	}
}
