package seal

import (
	"strings"
	"testing"
)

func TestOriginIsOneShortWord(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.7":               "192.0.2.7",
		"fe80::1%eth0":            "fe80::1%eth0",
		"":                        "",
		"a b\n\x1b[31mc\u00fc":    "ab31mc",
		strings.Repeat("x", 1000): strings.Repeat("x", maxOrigin),
	} {
		if got := Origin(WithOrigin(t.Context(), from)); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
	if got := Origin(t.Context()); got != "" {
		t.Errorf("not said: %q", got)
	}
}
