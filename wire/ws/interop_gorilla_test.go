package ws

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// gorillaSend writes p in fragments of about 1,000 bytes, with pings between them.
func gorillaSend(c *websocket.Conn, kind int, p []byte) error {
	w, err := c.NextWriter(kind)
	if err != nil {
		return err
	}
	for b := range slices.Chunk(p, 4000) {
		if _, err := w.Write(b); err != nil {
			return err
		}
		if err := c.WriteControl(websocket.PingMessage, []byte("between"), time.Now().Add(time.Minute)); err != nil {
			return err
		}
	}
	return w.Close()
}

func gorillaDial(t testing.TB, addr string) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{EnableCompression: true, WriteBufferSize: 1000}
	c, res, err := d.DialContext(t.Context(), "ws://"+addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if x := res.Header.Get("Sec-WebSocket-Extensions"); x != "" {
		t.Errorf("negotiated %s", x)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestGorillaClientSpeaksToOurServer(t *testing.T) {
	addr, ended := interopServer(t)
	c := gorillaDial(t, addr)
	pongs := map[string]int{}
	c.SetPongHandler(func(p string) error { pongs[p]++; return nil })
	for _, n := range sizes {
		p := bytes.Repeat([]byte("k"), n)
		for _, kind := range []int{websocket.TextMessage, websocket.BinaryMessage} {
			for _, send := range []func() error{
				func() error { return gorillaSend(c, kind, p) },
				func() error { return c.WriteMessage(kind, p) },
			} {
				if err := send(); err != nil {
					t.Fatal(err)
				}
				got, b, err := c.ReadMessage()
				if err != nil || got != kind || !bytes.Equal(b, p) {
					t.Fatalf("%d bytes of kind %v: got %d of %v, %v", n, kind, len(b), got, err)
				}
			}
		}
	}
	soon := time.Now().Add(time.Minute)
	bye := websocket.FormatCloseMessage(4001, "döne")
	if err := errors.Join(c.WriteControl(websocket.PingMessage, []byte("last"), soon),
		c.WriteControl(websocket.CloseMessage, bye, soon)); err != nil {
		t.Fatal(err)
	}
	var closed *websocket.CloseError
	if _, _, err := c.ReadMessage(); !errors.As(err, &closed) || closed.Code != 4001 {
		t.Errorf("our answer to their close: %v", err)
	}
	if pongs["between"] == 0 || pongs["last"] != 1 || len(pongs) != 2 {
		t.Errorf("pongs: %v", pongs)
	}
	wantEnd(t, ended, 4001, "döne")

	c = gorillaDial(t, addr)
	_ = c.WriteMessage(websocket.BinaryMessage, make([]byte, interopLimit+1)) // may be cut
	if _, _, err := c.ReadMessage(); !errors.As(err, &closed) || closed.Code != websocket.CloseMessageTooBig {
		t.Errorf("too much was answered with %v", err)
	}
	_ = c.Close()
	wantEnd(t, ended, StatusTooBig, "")
}

func TestOurClientSpeaksToGorillaServer(t *testing.T) {
	ended := make(chan error, 2)
	pongs := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := websocket.Upgrader{EnableCompression: true, WriteBufferSize: 1000}
		c, err := u.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close() //nolint:errcheck // of a test
		c.SetPongHandler(func(p string) error { pongs <- p; return nil })
		for {
			kind, p, err := c.ReadMessage()
			if string(p) == "bye" {
				bye := websocket.FormatCloseMessage(websocket.CloseTryAgainLater, "later")
				if err := c.WriteControl(websocket.CloseMessage, bye, time.Now().Add(time.Minute)); err != nil {
					t.Error(err)
				}
				_, _, err = c.ReadMessage()
			} else if err == nil {
				err = gorillaSend(c, kind, p)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}))
	defer server.Close()
	converse(t, strings.Replace(server.URL, "http", "ws", 1))
	seen := map[int]bool{} // in any order
	for range 2 {
		var closed *websocket.CloseError
		if err := <-ended; !errors.As(err, &closed) {
			t.Errorf("they saw %v", err)
		} else {
			seen[closed.Code] = true
		}
	}
	if !seen[websocket.CloseTryAgainLater] || !seen[4001] {
		t.Errorf("they saw %v", seen)
	}
	if len(pongs) == 0 || <-pongs != "between" {
		t.Error("no pong for their pings")
	}
}
