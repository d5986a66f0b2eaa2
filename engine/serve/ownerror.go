package serve

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ownHead stands in answers that net/http gives of its own accord, and in no others.
const ownHead = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// ownError turns what net/http writes about a request that no handler hears of into OpenAI's shape, which
// clients read; nil: it is something else.
func ownError(p []byte) []byte {
	line, text, ok := bytes.Cut(p[:min(len(p), 1024)], []byte(ownHead))
	if !ok || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || bytes.Contains(line, []byte("\r")) {
		return nil
	}
	code, _, _ := bytes.Cut(line[len("HTTP/1.1 "):], []byte(" "))
	status, err := strconv.Atoi(string(code))
	if err != nil || status < http.StatusBadRequest {
		return nil
	}
	why := "the request is not HTTP as it should be"
	rest := strings.TrimPrefix(string(text), fmt.Sprintf("%d %s", status, http.StatusText(status)))
	if rest = strings.TrimPrefix(rest, ": "); rest != "" {
		why += ": " + rest
	}
	if status == http.StatusRequestHeaderFieldsTooLarge {
		why = fmt.Sprintf("the head of the request has more than %d bytes", headBytes)
	}
	return ownAnswer(status, why)
}

// ownAnswer is an answer to a request that no handler hears of, after which the connection is closed.
func ownAnswer(status int, why string) []byte {
	f := invalid(status, "", "%s", why)
	if status >= http.StatusInternalServerError {
		f.Kind = "server_error"
	}
	body := append(encode(f.body()), '\n')
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(body), body)
}
