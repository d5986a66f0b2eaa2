package serve

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"time"
)

// How much of a request that was refused is still read, so that its sender comes to read the refusal: a
// connection that is closed with something unread is reset, and the answer on it lost.
const (
	lingerBytes = 4 << 20
	lingerTime  = 2 * time.Second
)

// lingering is a listener whose connections read on for a while once they are closed for writing.
type lingering struct{ net.Listener }

// Accept is net.Listener's.
func (l lingering) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return lingerer{c}, nil
}

type lingerer struct{ net.Conn }

// Read is net.Conn's. Who speaks HTTP where TLS is spoken is told so, and not just cut off.
func (c lingerer) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	var other tls.RecordHeaderError
	if errors.As(err, &other) && other.Conn != nil && looksLikeHTTP(other.RecordHeader) {
		_, _ = other.Conn.Write(ownAnswer(http.StatusBadRequest, "this port speaks TLS: ask it with https://")) // it is cut in any case
	}
	return n, err
}

// looksLikeHTTP reports whether the first bytes of a connection are those of a request.
func looksLikeHTTP(head [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET"}, string(head[:]))
}

// Write is net.Conn's.
func (c lingerer) Write(p []byte) (int, error) {
	own := ownError(p)
	if own == nil {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(own); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite is called by net/http when it will not read the rest of a request.
func (c lingerer) CloseWrite() (err error) {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		err = half.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(lingerTime)) // whoever has none is no connection
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)  // it ends by one of its limits
	return err
}
