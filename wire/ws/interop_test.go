package ws

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

var sizes = []int{0, 1, 125, 126, 4096, 16022, 65535, 65536, 200_000}

// A foreign client and our server, then a foreign server and our client, with compression offered.
func TestCoderClientSpeaksToOurServer(t *testing.T) {
	served := make(chan error, 1)
	addr := listen(t, func(nc net.Conn) {
		c, _, err := Upgrade(nc, ServerOptions{Options: Options{Message: 1 << 20}})
		if err != nil {
			served <- err
			return
		}
		slab := make([]byte, 1<<20)
		for {
			op, n, err := c.ReadMessage(slab)
			if err == nil {
				err = c.WriteMessage(op, slab[:n])
			}
			if err != nil {
				_ = c.Close(StatusNormal, "")
				served <- err
				return
			}
		}
	})
	c, res, err := websocket.Dial(t.Context(), "ws://"+addr, &websocket.DialOptions{
		CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	if x := res.Header.Get("Sec-WebSocket-Extensions"); x != "" {
		t.Errorf("negotiated %s", x)
	}
	c.SetReadLimit(1 << 20)
	for _, n := range sizes {
		p := bytes.Repeat([]byte("k"), n)
		for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
			w, err := c.Writer(t.Context(), kind) // in fragments
			if err != nil {
				t.Fatal(err)
			}
			for b := range bytes.SplitAfterSeq(p, []byte("kkkkkkkkkkkkkkkkkkkkkkkkk")) {
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
	var closed *CloseError
	if err := <-served; !errors.As(err, &closed) || closed.Code != StatusGoingAway || closed.Reason != "done" {
		t.Errorf("our server saw %v", err)
	}
}

func TestOurClientSpeaksToCoderServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Error(err)
			return
		}
		c.SetReadLimit(1 << 20)
		for {
			kind, p, err := c.Read(r.Context())
			if err == nil && string(p) == "bye" {
				err = c.Close(websocket.StatusTryAgainLater, "later")
				if err != nil {
					t.Errorf("their close: %v", err)
				}
				return
			}
			if err == nil {
				err = c.Write(r.Context(), kind, p)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}))
	defer server.Close()
	c, _, err := Dial(t.Context(), strings.Replace(server.URL, "http", "ws", 1), DialOptions{Options: Options{Message: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	slab := make([]byte, 1<<20)
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
	if _, _, err := c.ReadMessage(slab); !errors.As(err, &closed) || closed.Code != StatusTryLater {
		t.Errorf("read: %v", err)
	}
	if err := c.Close(StatusNormal, ""); err != nil {
		t.Errorf("close: %v", err)
	}
}

// Our Close is answered by theirs.
func TestCoderServerAnswersOurClose(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, _, err = c.Read(r.Context())
		if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Errorf("they saw %v", err)
		}
	}))
	defer server.Close()
	c, _, err := Dial(t.Context(), strings.Replace(server.URL, "http", "ws", 1), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(StatusNormal, "bye"); err != nil {
		t.Errorf("close: %v", err)
	}
}
