package ws

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// What a foreign peer and we say to each other, in both roles: messages of these sizes, text and
// binary, whole and in fragments with pings between them, up to the limit and one byte beyond; and a
// close with a code and a reason from either side. Peers offer compression.
const interopLimit = 256 << 10

var sizes = []int{0, 1, 125, 126, 4096, 16022, 65535, 65536, interopLimit}

// interopServer is an echo server of ours. How each connection to it ended is sent on the channel.
func interopServer(t testing.TB) (addr string, ended <-chan error) {
	ends := make(chan error, 10)
	return listen(t, func(nc net.Conn) {
		c, _, err := Upgrade(nc, ServerOptions{Options: Options{Message: interopLimit}})
		if err != nil {
			ends <- err
			return
		}
		slab := make([]byte, interopLimit)
		for {
			op, n, err := c.ReadMessage(slab)
			if err == nil {
				err = c.WriteMessage(op, slab[:n])
			}
			if err != nil {
				_ = c.Close(StatusNormal, "")
				ends <- err
				return
			}
		}
	}), ends
}

// wantEnd checks that the peer has closed with code and reason, or, for 1009, that it was refused.
func wantEnd(t testing.TB, ended <-chan error, code StatusCode, reason string) {
	t.Helper()
	err := <-ended
	var closed *CloseError
	switch {
	case code == StatusTooBig && errors.Is(err, ErrTooBig):
	case !errors.As(err, &closed) || closed.Code != code || closed.Reason != reason:
		t.Errorf("our side saw %v, want close %d %q", err, code, reason)
	}
}

// converse is a client of ours at a foreign echo server, which closes with 1013 and "later" when it
// is told "bye".
func converse(t testing.TB, url string) {
	t.Helper()
	o := DialOptions{Options: Options{Message: interopLimit}}
	c, _, err := Dial(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	slab := make([]byte, interopLimit)
	for _, n := range sizes {
		p := bytes.Repeat([]byte("k"), n)
		for _, op := range []OpCode{Text, Binary} {
			if err := c.WriteMessage(op, p); err != nil {
				t.Fatal(err)
			}
			got, m, err := c.ReadMessage(slab)
			if err != nil || got != op || !bytes.Equal(slab[:m], p) {
				t.Fatalf("%d bytes of kind %v: got %d of %v, %v", n, op, m, got, err)
			}
		}
	}
	if err := c.WriteMessage(Text, []byte("bye")); err != nil {
		t.Fatal(err)
	}
	var closed *CloseError
	if _, _, err := c.ReadMessage(slab); !errors.As(err, &closed) || closed.Code != StatusTryLater || closed.Reason != "later" {
		t.Errorf("read: %v", err)
	}
	if err := c.Close(StatusNormal, ""); err != nil {
		t.Errorf("close: %v", err)
	}

	// The other way round: our Close is answered by theirs.
	c, _, err = Dial(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(StatusCode(4001), "döne"); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestCoderClientSpeaksToOurServer(t *testing.T) {
	addr, ended := interopServer(t)
	c, res, err := websocket.Dial(t.Context(), "ws://"+addr, &websocket.DialOptions{
		CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	if x := res.Header.Get("Sec-WebSocket-Extensions"); x != "" {
		t.Errorf("negotiated %s", x)
	}
	c.SetReadLimit(interopLimit)
	for _, n := range sizes {
		p := bytes.Repeat([]byte("k"), n)
		for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
			w, err := c.Writer(t.Context(), kind) // in fragments
			if err != nil {
				t.Fatal(err)
			}
			for b := range slices.Chunk(p, 100) {
				if _, err := w.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got, b, err := c.Read(t.Context())
			if err != nil || got != kind || !bytes.Equal(b, p) {
				t.Fatalf("%d bytes of kind %v: got %d of %v, %v", n, kind, len(b), got, err)
			}
		}
	}
	ctx := c.CloseRead(t.Context())
	if err := c.Ping(ctx); err != nil {
		t.Errorf("ping: %v", err)
	}
	if err := c.Close(websocket.StatusGoingAway, "done"); err != nil {
		t.Errorf("close: %v", err)
	}
	wantEnd(t, ended, StatusGoingAway, "done")

	c, _, err = websocket.Dial(t.Context(), "ws://"+addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Write(t.Context(), websocket.MessageBinary, make([]byte, interopLimit+1)) // may be cut
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("too much was answered with %v", err)
	}
	wantEnd(t, ended, StatusTooBig, "")
}

func TestOurClientSpeaksToCoderServer(t *testing.T) {
	closed := make(chan websocket.StatusCode, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Error(err)
			return
		}
		c.SetReadLimit(interopLimit)
		for {
			kind, p, err := c.Read(r.Context())
			switch {
			case err != nil:
				closed <- websocket.CloseStatus(err)
				return
			case string(p) == "bye":
				if err := c.Close(websocket.StatusTryAgainLater, "later"); err != nil {
					t.Errorf("their close: %v", err)
				}
				return
			}
			w, err := c.Writer(r.Context(), kind)
			if err != nil {
				t.Error(err)
				return
			}
			for b := range slices.Chunk(p, 1000) {
				if _, err := w.Write(b); err != nil {
					t.Error(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}))
	defer server.Close()
	converse(t, strings.Replace(server.URL, "http", "ws", 1))
	if code := <-closed; code != 4001 {
		t.Errorf("they saw close %d", code)
	}
}
