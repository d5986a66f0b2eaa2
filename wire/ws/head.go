package ws

import (
	"bufio"
	"bytes"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it, and no secret hangs on it
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// readHead reads the head of an HTTP message, blank line included, and what has come beyond it.
// rest is what has been read from r before. limit bounds the head; at most that much again lies
// beyond it.
func readHead(r io.Reader, rest []byte, limit int) (head, after []byte, err error) {
	buf := rest
	for seen := 0; ; {
		if i := bytes.Index(buf[seen:], []byte("\r\n\r\n")); i >= 0 {
			n := seen + i + 4
			if n > limit {
				break
			}
			return buf[:n:n], buf[n:], checkLines(buf[:n])
		}
		if len(buf) >= limit {
			break
		}
		if err := checkStart(buf); err != nil {
			return nil, nil, err
		}
		seen = max(0, len(buf)-3)
		if cap(buf)-len(buf) < 512 {
			buf = append(make([]byte, 0, min(2*cap(buf)+2048, limit+512)), buf...)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil && n == 0 {
			return nil, nil, headError(err, len(buf))
		}
	}
	return nil, nil, fmt.Errorf("%w: head of the handshake, limit %d bytes", ErrTooBig, limit)
}

func headError(err error, got int) error {
	switch {
	case isTimeout(err):
		return fmt.Errorf("%w: head of the handshake is not complete in time (%d bytes came)", ErrSilent, got)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w in the handshake, after %d bytes", ErrCut, got)
	}
	return fmt.Errorf("%w in the handshake: %w", ErrCut, err)
}

// checkStart tells what cannot become HTTP early, so that it is cut at once and named.
func checkStart(b []byte) error {
	switch {
	case len(b) == 0 || b[0] >= 'A' && b[0] <= 'Z':
		return nil
	case b[0] == 0x15 || b[0] == 0x16:
		return fmt.Errorf("%w: the other side speaks TLS here, this side does not", ErrHandshake)
	}
	return fmt.Errorf("%w: not HTTP: begins with %.8q", ErrHandshake, b)
}

func checkLines(head []byte) error {
	if err := checkStart(head); err != nil {
		return err
	}
	if n := bytes.Count(head, []byte("\n")) - 2; n > maxHeadLines {
		return fmt.Errorf("%w: %d header lines in the handshake, limit %d", ErrTooBig, n, maxHeadLines)
	}
	for i, b := range head {
		switch {
		case b == '\r' && head[i+1] == '\n', b == '\n' && i > 0 && head[i-1] == '\r', b == '\t':
		case b < ' ' || b == 0x7f:
			// A line that others end elsewhere, they read as another request.
			return fmt.Errorf("%w: byte %#02x in the head", ErrHandshake, b)
		}
	}
	return nil
}

// parseRequest parses the head of a request, and refuses one that has a body.
func parseRequest(head []byte) (*http.Request, error) {
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrHandshake, oneLine(err.Error())) // it may quote the head
	}
	if req.ContentLength != 0 { // -1 where it is chunked
		return nil, fmt.Errorf("%w: request with a body", ErrHandshake)
	}
	for line := range bytes.Lines(head) {
		if line[0] == ' ' || line[0] == '\t' {
			return nil, fmt.Errorf("%w: header over several lines", ErrHandshake)
		}
	}
	for name := range req.Header {
		if strings.ContainsFunc(name, notToken) { // net/http lets spaces pass here, and refuses them in its server
			return nil, fmt.Errorf("%w: header name %.40q", ErrHandshake, name)
		}
	}
	req.Body = nil
	return req, nil
}

// notToken reports whether r may not be in a header's name (RFC 9110, 5.6.2).
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

// answer is the head of a response, without the body.
type answer struct {
	status int
	line   string // the status in words
	header http.Header
	http11 bool
	length int64 // of the body; -1: unknown
	last   bool  // the connection ends with it
}

// parseResponse parses the head of a response to a request of the given method.
func parseResponse(head []byte, method string) (answer, error) {
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: method})
	if err != nil {
		return answer{}, fmt.Errorf("%w: %s", ErrHandshake, oneLine(err.Error())) // it may quote the head
	}
	_ = res.Body.Close() // it has only what head has
	return answer{
		status: res.StatusCode, line: oneLine(res.Status), header: res.Header,
		http11: res.ProtoMajor == 1 && res.ProtoMinor == 1, length: res.ContentLength, last: res.Close,
	}, nil
}

// hasToken reports whether a header, a list of tokens, holds one, in any case.
func hasToken(h http.Header, name, token string) bool {
	return slices.ContainsFunc(h.Values(name), func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(t string) bool {
			return strings.EqualFold(strings.TrimSpace(t), token)
		})
	})
}

// acceptKey is the answer to Sec-WebSocket-Key (RFC 6455, 4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Headers that the handshake itself writes.
var reserved = []string{
	"Host", "Connection", "Upgrade", "Content-Length", "Transfer-Encoding", "Sec-Websocket-Key",
	"Sec-Websocket-Version", "Sec-Websocket-Accept", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol",
}

// appendHeader appends the lines of h, and the blank line, to a head that lacks them.
func appendHeader(head *bytes.Buffer, h http.Header) error {
	for name := range h {
		if slices.Contains(reserved, http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("header %s is the handshake's own", name)
		}
	}
	if err := h.Write(head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	return nil
}

// oneLine makes s, which a stranger wrote, fit to print: one line, printable, at most 200 bytes.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	s = strings.TrimSpace(strings.ToValidUTF8(s, "?"))
	for len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}
