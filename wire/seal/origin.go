package seal

import (
	"context"
	"strings"
)

type originKey struct{}

// maxOrigin bounds the text of an origin, in bytes.
const maxOrigin = 64

// WithOrigin returns a context that says where a request comes from, such as an address. A Store may
// remember it, so that the owner of a token sees who has shown it.
func WithOrigin(ctx context.Context, from string) context.Context {
	return context.WithValue(ctx, originKey{}, from)
}

// Origin returns what WithOrigin has said, at most 64 letters, digits and .:%-_ of it, or "".
func Origin(ctx context.Context) string {
	from, _ := ctx.Value(originKey{}).(string)
	from = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune(".:%-_", r) {
			return r
		}
		return -1
	}, from[:min(len(from), 4*maxOrigin)])
	return from[:min(len(from), maxOrigin)]
}
