package ws

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxTries is how many requests one connection may send until one is accepted: the first, the
// answer to a challenge, and one more.
const maxTries = 3

// Request is an upgrade request, as far as it has been read.
type Request struct {
	*http.Request        // Body is nil
	Head          []byte // the head as it came, blank line included
	Rest          []byte // what had been read beyond it
}

// ReadRequest reads the head of an HTTP/1.1 request from nc. rest is what has been read from nc
// before. The caller sets the deadline. It allocates at most a few times limit, 0 for DefaultHead.
func ReadRequest(nc net.Conn, rest []byte, limit int) (*Request, error) {
	if limit <= 0 {
		limit = DefaultHead
	}
	head, after, err := readHead(nc, rest, limit)
	if err != nil {
		return nil, err
	}
	req, err := parseRequest(head)
	if err != nil {
		return nil, err
	}
	if a := nc.RemoteAddr(); a != nil {
		req.RemoteAddr = a.String()
	}
	return &Request{Request: req, Head: head, Rest: after}, nil
}

// Refusal is an answer other than 101. As an error, its text is the answer's body.
type Refusal struct {
	Status int         // 400 to 599
	Header http.Header // further headers, may be nil
	Reason string      // one line for the peer
	Again  bool        // keep the connection for another try, as after a challenge
}

// Error returns the status and the reason.
func (r *Refusal) Error() string {
	return fmt.Sprintf("ws: refused with %d %s: %s", r.Status, http.StatusText(r.Status), r.Reason)
}

// Unwrap makes a refusal an ErrHandshake.
func (r *Refusal) Unwrap() error { return ErrHandshake }

// check returns a *Refusal unless r asks to switch to protocol.
func (r *Request) check(protocol string) error {
	bad := func(status int, reason string) error { return &Refusal{Status: status, Reason: reason} }
	switch {
	case r.Method != http.MethodGet:
		return bad(http.StatusMethodNotAllowed, "an upgrade is a GET")
	case r.ProtoMajor != 1 || r.ProtoMinor != 1:
		return bad(http.StatusHTTPVersionNotSupported, "an upgrade is HTTP/1.1")
	case r.Host == "":
		return bad(http.StatusBadRequest, "header Host is missing")
	case !hasToken(r.Header, "Connection", "upgrade") || !hasToken(r.Header, "Upgrade", protocol):
		return bad(http.StatusUpgradeRequired, "this is an endpoint for Upgrade: "+protocol)
	}
	if protocol != WebSocket {
		return nil
	}
	versions, keys := r.Header.Values("Sec-Websocket-Version"), r.Header.Values("Sec-Websocket-Key")
	if len(versions) != 1 || versions[0] != "13" {
		return bad(http.StatusUpgradeRequired, "Sec-WebSocket-Version is not 13")
	}
	if len(keys) != 1 {
		return bad(http.StatusBadRequest, "Sec-WebSocket-Key is not there once")
	}
	if raw, err := base64.StdEncoding.DecodeString(keys[0]); err != nil || len(raw) != 16 {
		return bad(http.StatusBadRequest, "Sec-WebSocket-Key is not 16 bytes in base64")
	}
	return nil
}

// WebSocket is the protocol of RFC 6455 in an Upgrade header.
const WebSocket = "websocket"

// Switch answers req with 101 and header, and nothing else: what follows on nc, beginning with
// req.Rest, is protocol. A request that asks for anything else is answered with a *Refusal, which
// is the error then.
func Switch(nc net.Conn, req *Request, protocol string, header http.Header) error {
	if err := req.check(protocol); err != nil {
		return Refuse(nc, err)
	}
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: " + protocol + "\r\nConnection: Upgrade\r\n")
	if protocol == WebSocket {
		head.WriteString("Sec-WebSocket-Accept: " + acceptKey(req.Header.Get("Sec-Websocket-Key")) + "\r\n")
	}
	if err := appendHeader(&head, header); err != nil {
		return fmt.Errorf("answer an upgrade: %w", err)
	}
	_, err := nc.Write(head.Bytes())
	return err
}

// Refuse answers a request with the *Refusal in err, with 400 for another ErrHandshake, 431 for
// ErrTooBig, and with 500 and no reason for any other error. It returns err. The caller closes nc,
// unless Again is set.
func Refuse(nc net.Conn, err error) error {
	r := &Refusal{Status: http.StatusInternalServerError, Reason: "internal error"}
	switch {
	case errors.As(err, &r):
	case errors.Is(err, ErrHandshake):
		r = &Refusal{Status: http.StatusBadRequest, Reason: oneLine(err.Error())}
	case errors.Is(err, ErrTooBig):
		r = &Refusal{Status: http.StatusRequestHeaderFieldsTooLarge, Reason: oneLine(err.Error())}
	}
	body := r.Reason + "\n"
	var head bytes.Buffer
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n", r.Status, http.StatusText(r.Status))
	head.WriteString("Content-Type: text/plain; charset=utf-8\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n")
	switch {
	case r.Status == http.StatusUpgradeRequired: // RFC 6455, 4.4: say what would do
		head.WriteString("Upgrade: " + WebSocket + "\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n")
	case r.Status == http.StatusMethodNotAllowed:
		head.WriteString("Allow: GET\r\nConnection: close\r\n")
	case !r.Again:
		head.WriteString("Connection: close\r\n")
	}
	if err := appendHeader(&head, r.Header); err != nil {
		return fmt.Errorf("refuse an upgrade: %w", err)
	}
	head.WriteString(body)
	// The peer may be gone; what counts is why it was refused.
	_, _ = nc.Write(head.Bytes())
	return err
}

// ServerOptions are for Upgrade. The zero value accepts every request.
type ServerOptions struct {
	Options
	Head      int           // bytes of a request's head; DefaultHead
	Handshake time.Duration // for the handshake in all; DefaultHandshake
	// Admit decides on a request and returns headers for the answer. An error is answered as by
	// Refuse. After a *Refusal with Again, the next request on the connection is read; there are
	// three at most.
	Admit func(*Request) (http.Header, error)
}

// Upgrade is the server's side of the handshake on nc. When it returns an error, the peer has been
// told and the caller closes nc.
func Upgrade(nc net.Conn, o ServerOptions) (*Conn, *Request, error) {
	if o.Handshake <= 0 {
		o.Handshake = DefaultHandshake
	}
	if err := nc.SetDeadline(time.Now().Add(o.Handshake)); err != nil {
		return nil, nil, err
	}
	var rest []byte
	for try := 1; ; try++ {
		req, err := ReadRequest(nc, rest, o.Head)
		if err != nil {
			if errors.Is(err, ErrHandshake) || errors.Is(err, ErrTooBig) {
				err = Refuse(nc, err)
			}
			return nil, nil, err
		}
		var header http.Header
		if err = req.check(WebSocket); err == nil && o.Admit != nil {
			header, err = o.Admit(req)
		}
		if err == nil {
			if err := Switch(nc, req, WebSocket, header); err != nil {
				return nil, req, err
			}
			return New(nc, Server, req.Rest, o.Options), req, nil
		}
		var r *Refusal
		again := errors.As(err, &r) && r.Again && try < maxTries
		if err := Refuse(nc, err); !again {
			return nil, req, err
		}
		rest = req.Rest
	}
}
