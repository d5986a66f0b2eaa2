package tokenizer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reference returns the path of llama.cpp's test data of that name, which is not part of the
// repository: KVASIR_ORACLE names the folder of the reference runs, and tokenizer is beside it.
func reference(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("KVASIR_ORACLE")
	if dir == "" {
		t.Skip("KVASIR_ORACLE is not set: llama.cpp's tokenizer test data is not part of the repository")
	}
	return filepath.Join(dir, "..", "tokenizer", name)
}

// samples reads the texts of a .inp file, and the ids of the .out file beside it.
func samples(t *testing.T, path string) (texts []string, ids [][]int32) {
	t.Helper()
	inp, err := os.ReadFile(path + ".inp")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(path + ".out")
	if err != nil {
		t.Fatal(err)
	}
	const separator = "\n__ggml_vocab_test__\n"
	texts = strings.Split(strings.TrimSuffix(string(inp), separator), separator)
	for _, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		var row []int32
		for _, f := range strings.Fields(line) {
			id, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			row = append(row, int32(id))
		}
		ids = append(ids, row)
	}
	if len(texts) != len(ids) {
		t.Fatalf("%s: %d texts, %d lines of ids", path, len(texts), len(ids))
	}
	return texts, ids
}

// TestGPT2EqualsReference is the merge loop on a real vocabulary of 50,257 tokens.
func TestGPT2EqualsReference(t *testing.T) {
	path := reference(t, "ggml-vocab-gpt-2.gguf")
	meta := metadata(t, path)
	v := Vocab{
		Pre: meta["tokenizer.ggml.pre"][0], Tokens: meta["tokenizer.ggml.tokens"], Merges: meta["tokenizer.ggml.merges"],
		EOS: 50256, EOT: -1, BOS: 50256, Pad: -1,
	}
	for _, s := range meta["tokenizer.ggml.token_type"] {
		x, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		v.Types = append(v.Types, int32(x))
	}
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	if tok.Size() != 50257 || !tok.IsEnd(50256) {
		t.Fatalf("%d tokens, end %v", tok.Size(), tok.IsEnd(50256))
	}
	texts, want := samples(t, path)
	for i, text := range texts {
		if got := encode(t, tok, text, false); !slices.Equal(got, want[i]) {
			t.Errorf("%q:\n got %v\nwant %v", text, got, want[i])
		}
		if got := tok.Decode(want[i]); got != text {
			t.Errorf("%v decoded to %q, want %q", want[i], got, text)
		}
	}
}

// TestReferenceTextsComeBack takes the texts that llama.cpp tests Qwen and Llama with. Their vocabularies
// are not here, so it holds the words against the expressions, and the round trip.
func TestReferenceTextsComeBack(t *testing.T) {
	for pre, name := range map[string]string{
		"qwen2": "ggml-vocab-qwen2.gguf", "qwen35": "ggml-vocab-qwen35.gguf", "llama-bpe": "ggml-vocab-llama-bpe.gguf",
	} {
		t.Run(pre, func(t *testing.T) {
			texts, _ := samples(t, strings.TrimSuffix(reference(t, name+".inp"), ".inp"))
			tok := tokenizer(t, "tiny", pre)
			twin := stages(expressions[pre])
			for _, text := range texts {
				if got, want := split(rules[pre].word, text), twin(text); !slices.Equal(got, want) {
					t.Errorf("%q:\n got %q\nwant %q", text, got, want)
				}
				if got := tok.Decode(encode(t, tok, text, true)); got != text {
					t.Errorf("%q came back as %q", text, got)
				}
			}
		})
	}
}

// metadata reads the strings and integers of a GGUF file's header, single values as lists of one.
func metadata(t *testing.T, path string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	take := func(n uint64) []byte {
		b := data[:n]
		data = data[n:]
		return b
	}
	integer := func(size uint64) uint64 {
		return binary.LittleEndian.Uint64(append(slices.Clone(take(size)), 0, 0, 0, 0, 0, 0, 0, 0))
	}
	sizes := map[uint64]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
	value := func(kind uint64) string {
		if kind == 8 {
			return string(take(integer(8)))
		}
		return fmt.Sprint(integer(sizes[kind]))
	}
	take(16) // magic, version, number of tensors
	out := map[string][]string{}
	for range integer(8) {
		key, kind, n := string(take(integer(8))), integer(4), uint64(1)
		if kind == 9 {
			kind, n = integer(4), integer(8)
		}
		for range n {
			out[key] = append(out[key], value(kind))
		}
	}
	return out
}
