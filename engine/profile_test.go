package engine

import "testing"

func TestProfileStandsBesideTheFirstPart(t *testing.T) {
	for path, want := range map[string]string{
		"m.gguf":                       "m.gguf.profile.json",
		"d/m-00003-of-00012.gguf":      "d/m-00001-of-00012.gguf.profile.json",
		"d/m-00001-of-00012.gguf":      "d/m-00001-of-00012.gguf.profile.json",
		"m-3-of-12.gguf":               "m-3-of-12.gguf.profile.json",
		"d-00003-of-00012.gguf/m.gguf": "d-00003-of-00012.gguf/m.gguf.profile.json",
	} {
		if got := profilePath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
