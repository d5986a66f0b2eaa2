package seal

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Join is all that a worker needs to know: kvasir://HOST/TOKEN#ROOT. HOST is a name or an address,
// with :PORT where that is not 443.
type Join struct {
	Host  string
	Token Token
	Root  PublicKey
}

const (
	joinScheme  = "kvasir://"
	joinCommand = "kvasir worker "
	maxHost     = 253 + 6 // longest name in DNS, and a port
	maxJoin     = 1 << 10
)

// URL returns the address. Whoever reads it can join.
func (j Join) URL() string { return joinScheme + j.Host + "/" + j.Token.Text() + "#" + j.Root.String() }

// Line returns the command that a friend runs.
func (j Join) Line() string { return joinCommand + j.URL() }

// ParseJoin parses what URL or Line returned, as it comes out of a mail: with space or quotes
// around. It checks that the root has signed the token, so a character that is wrong anywhere in
// the two is found here.
func ParseJoin(text string) (Join, error) {
	bad := func(format string, a ...any) (Join, error) {
		for i, x := range a {
			if err, ok := x.(error); ok {
				a[i] = plain{err}
			}
		}
		return Join{}, fmt.Errorf("%w: "+format, append([]any{ErrBadJoin}, a...)...)
	}
	if len(text) > maxJoin {
		return bad("%d characters, at most %d", len(text), maxJoin)
	}
	text = strings.Trim(text, " \t\r\n'\"`<>")
	if rest, ok := strings.CutPrefix(text, joinCommand); ok {
		text = strings.TrimLeft(rest, " '\"")
	}
	rest, ok := strings.CutPrefix(text, joinScheme)
	if !ok {
		return bad("it does not begin with %s", joinScheme)
	}
	host, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return bad("the / and the token are missing, want kvasir://HOST/TOKEN#ROOT")
	}
	token, root, ok := strings.Cut(rest, "#")
	if !ok {
		return bad("the # and the root key are missing, want kvasir://HOST/TOKEN#ROOT")
	}
	j := Join{Host: host}
	if err := checkHost(host); err != nil {
		return bad("host: %w", err)
	}
	var err error
	if j.Token, err = ParseToken(token); err != nil {
		return bad("%w", err)
	}
	if j.Root, err = ParsePublicKey(root); err != nil {
		return bad("root: %w", err)
	}
	if err := j.Token.Verify(j.Root); err != nil {
		return bad("%w; a character of the token is wrong, or it is of another swarm", err)
	}
	return j, nil
}

// plain is an error of this package within another one: the name of the package is said once.
type plain struct{ error }

func (p plain) Error() string { return strings.TrimPrefix(p.error.Error(), "seal: ") }

func (p plain) Unwrap() error { return p.error }

// checkHost returns an error unless s is NAME, IPv4 or [IPv6], with or without :PORT.
func checkHost(s string) error {
	if len(s) > maxHost {
		return fmt.Errorf("%d characters, at most %d", len(s), maxHost)
	}
	host := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		port := s[i+1:]
		host = s[:i]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
			return fmt.Errorf("port %.8q, want a number from 1 to 65535", port)
		}
	}
	if in, ok := strings.CutPrefix(host, "["); ok {
		in, ok = strings.CutSuffix(in, "]")
		if a, err := netip.ParseAddr(in); !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return errors.New("what is in brackets is not an IPv6 address")
		}
		return nil
	}
	if host == "" {
		return errors.New("it is missing")
	}
	for _, label := range strings.Split(strings.TrimSuffix(host, "."), ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%.80q is not a name or an address", host)
		}
		for i := range len(label) {
			c := label[i]
			if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
				return fmt.Errorf("%.80q is not a name or an address (IPv6 goes in brackets, other letters as xn--)", host)
			}
		}
	}
	return nil
}
