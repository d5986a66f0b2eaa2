package serve

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Paths are those of requests that a batch may have.
var Paths = []string{plainText: "/v1/completions", chatText: "/v1/chat/completions", responseText: "/v1/responses"}

// Stamp is what tells an answer from others that say the same: a line of a batch has the same one whenever
// it is computed.
type Stamp struct {
	ID      string // 24 hexadecimal digits
	Created time.Time
}

// NewStamp makes a stamp of texts. The time is not part of its ID, and so of no seed: a batch that is begun
// anew draws the same.
func NewStamp(created time.Time, parts ...[]byte) Stamp {
	h := sha256.New()
	var n [8]byte
	put := func(v uint64) {
		binary.LittleEndian.PutUint64(n[:], v)
		h.Write(n[:])
	}
	for _, p := range parts {
		put(uint64(len(p)))
		h.Write(p)
	}
	return Stamp{hex.EncodeToString(h.Sum(nil)[:12]), created}
}

// part makes a stamp of another one and a name.
func (s Stamp) part(name string) Stamp { return NewStamp(s.Created, []byte(s.ID), []byte(name)) }

// call is the id of a call, number n of a choice.
func (s Stamp) call(choice, n int) string {
	return s.part("call " + strconv.Itoa(choice) + " " + strconv.Itoa(n)).ID
}

// seed is for drawing where the request has none.
func (s Stamp) seed() uint64 {
	b, err := hex.DecodeString(s.part("seed").ID)
	if err != nil {
		panic("BUG: " + err.Error()) // NewStamp has made it
	}
	return binary.LittleEndian.Uint64(b)
}

// Problem is what is wrong with a request.
type Problem struct {
	Param   string // empty: it is not one parameter
	Message string
}

// Check returns what is wrong with a request to path, or nil, without computing anything. What only the
// model can tell, such as the length of its prompt, is not looked at.
func (h *Handler) Check(path string, body []byte) *Problem {
	_, f := h.batchReply(path, body, Stamp{})
	if f == nil {
		return nil
	}
	return &Problem{f.Param, f.Message}
}

// batchReply reads a request of a batch.
func (h *Handler) batchReply(path string, body []byte, stamp Stamp) (*reply, *failure) {
	k := kind(slices.Index(Paths, path))
	if k < 0 {
		return nil, invalid(http.StatusNotFound, "", "POST %.100s is not answered here", path)
	}
	ask, f := h.parse(body, k, stamp.seed)
	if f != nil {
		return nil, f
	}
	if ask.stream {
		return nil, unsupported("stream", "stream: a batch has no streams: leave it out")
	}
	for i := range ask.requests {
		ask.requests[i].Batch = true
	}
	return &reply{h: h, kind: k, ask: ask, id: k.prefix() + stamp.ID, created: stamp.Created.Unix(), callID: stamp.call}, nil
}

// Answer answers a request of a batch job: one to POST at path, with the body given, that nobody waits for.
// It is not counted among Options.Requests, and gives way to those that are. The same request with the same
// stamp has the same answer, byte for byte. Its status is 0 when ctx has ended.
//
// What the answer takes counts among Options.Answers until ctx ends; where they are used up, the status is 429.
func (h *Handler) Answer(ctx context.Context, path string, body []byte, stamp Stamp) (status int, out []byte) {
	a, f := h.batchReply(path, body, stamp)
	var o any
	if f == nil {
		a.share = &share{held: &h.held, limit: h.o.Answers}
		context.AfterFunc(ctx, a.share.drop)
		if err := a.prepare(); err != nil {
			f = h.failed(ctx, a.kind, err)
		} else {
			o, f = a.whole(ctx)
		}
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil
	case f != nil:
		return f.status, encode(f.body())
	}
	return http.StatusOK, encode(o)
}

// share is what the answer to one line takes of the memory that all of them have.
type share struct {
	held  *atomic.Int64 // bytes of all
	limit int64

	mu   sync.Mutex
	n    int64
	over bool // nothing is held any more, nor will be
}

// take takes n bytes more, unless too many are held.
func (s *share) take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	if s.held.Add(int64(n)) > s.limit {
		s.held.Add(int64(-n))
		return false
	}
	s.n += int64(n)
	return true
}

func (s *share) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Add(-s.n)
	s.n, s.over = 0, true
}
