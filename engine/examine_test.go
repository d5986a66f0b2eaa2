package engine

import (
	"bytes"
	"strings"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
)

// A file that is too large to be loaded for a look is looked at without: what only loading shows stays
// unseen, and what metadata tell is told.
func TestExamineLoadsSmallFilesOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("models are written and read, by one goroutine")
	}
	whole, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(leaveOut string) *gguf.File {
		w := &gguf.Writer{}
		for _, kv := range whole.Meta {
			if kv.Key != leaveOut {
				w.Set(kv.Key, kv.Value)
			}
		}
		for _, x := range whole.Tensors {
			if x.Name != leaveOut {
				w.Add(x.Name, x.Format, x.Dims, gguf.Bytes(x.Data))
			}
		}
		var out bytes.Buffer
		if _, err := w.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse(out.Bytes(), "x.gguf")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, c := range []struct {
		leaveOut         string
		asSmall, asLarge string // what is said
	}{
		{"", "", ""},
		{"blk.1.ssm_a", `"blk.1.ssm_a": missing`, ""},
		{"tokenizer.ggml.tokens", "tokenizer.ggml.tokens", "tokenizer.ggml.tokens"},
		{"qwen35moe.expert_count", "expert_count", "expert_count"},
	} {
		f := rewrite(c.leaveOut)
		for most, want := range map[int64]string{loadMax: c.asSmall, f.Size - 1: c.asLarge} {
			x, err := examine(f, most)
			if want == "" && (err != nil || x.Layers != 4) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("without %q, at most %d bytes: %v, want %q", c.leaveOut, most, err, want)
			}
		}
	}
}
