package variant

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseKnowsEveryName(t *testing.T) {
	for v := Portable; v < count; v++ {
		if got, err := Parse(v.String()); got != v || err != nil {
			t.Errorf("Parse(%q) = %v, %v", v.String(), got, err)
		}
	}
	for _, name := range []string{"AVX2", "sse", " avx2", "variant 99"} {
		if _, err := Parse(name); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "portable, neon") {
			t.Errorf("Parse(%q): %v", name, err)
		}
	}
}

func TestChooseTakesTheBestUnlessAsked(t *testing.T) {
	list := Available()
	if list[0] != Portable || !slices.IsSorted(list) {
		t.Fatalf("available: %v", list)
	}
	c, err := Choose("")
	if err != nil || c.Variant != list[len(list)-1] || c.Why == "" {
		t.Errorf("Choose of %v: %v, %v", list, c, err)
	}
	for v := Portable; v < count; v++ {
		c, err := Choose(v.String())
		if slices.Contains(list, v) {
			if err != nil || c.Variant != v {
				t.Errorf("Choose(%v) = %v, %v", v, c, err)
			}
		} else if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "needs") {
			t.Errorf("Choose(%v) = %v, %v: want what is missing", v, c, err)
		}
	}
	if _, err := Choose("bogus"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Choose of an unknown name: %v", err)
	}
}
