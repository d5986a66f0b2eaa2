package engine_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine"
	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
)

func tinyModel(t *testing.T) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestInspectListsSlices(t *testing.T) {
	plain, err := engine.Inspect("")
	if err != nil {
		t.Fatal(err)
	}
	hashed, err := engine.InspectHashes(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	f := tinyModel(t)
	want, err := experts.Slices(f)
	if err != nil || len(plain.Slices.List) != len(want) || len(hashed.Slices.List) != len(want) {
		t.Fatalf("%d and %d slices, want %d (%v)", len(plain.Slices.List), len(hashed.Slices.List), len(want), err)
	}
	bytes := int64(0)
	for i, s := range want {
		h := s.Hash(f)
		got := hashed.Slices.List[i]
		if got.Layer != i || got.MTP != (i == 4) || got.Experts != 16 || got.Bytes != s.Bytes || got.Hash != hex.EncodeToString(h[:]) {
			t.Errorf("slice %d: %+v", i, got)
		}
		if plain.Slices.List[i].Hash != "" {
			t.Errorf("slice %d is hashed without being asked for", i)
		}
		bytes += got.Bytes
	}
	if bytes != hashed.Slices.Bytes {
		t.Errorf("%d bytes in all slices, want %d", bytes, hashed.Slices.Bytes)
	}
}

func TestInspectHashesEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := engine.InspectHashes(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

func TestInspectTellsOfMTPBlocks(t *testing.T) {
	info, err := engine.Inspect("")
	if err != nil {
		t.Fatal(err)
	}
	nextn, dense := 0, 0
	for _, x := range info.Tensors {
		if strings.HasPrefix(x.Name, "blk.4.") && x.Role != "routed experts" {
			dense++
			if x.Role != "mtp" {
				t.Errorf("%s is %s, want mtp", x.Name, x.Role)
			}
		} else if x.Role == "mtp" {
			t.Errorf("%s is not of an MTP block", x.Name)
		}
		if strings.Contains(x.Name, "nextn.") {
			nextn++
		}
	}
	if nextn == 0 || dense <= nextn {
		t.Errorf("%d nextn tensors, %d dense ones of the block", nextn, dense)
	}
}

func TestInspectPutsPartsTogether(t *testing.T) {
	paths, err := tinyModel(t).WriteParts(filepath.Join(t.TempDir(), "m"), 3)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := engine.InspectHashes(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	info, err := engine.InspectHashes(context.Background(), paths[2])
	if err != nil || !info.Runs {
		t.Fatalf("%v, %s", err, info.Problem)
	}
	size, tensors := int64(0), 0
	for i, f := range info.Files {
		if f.Name != paths[i] {
			t.Errorf("file %d is %s, want %s", i, f.Name, paths[i])
		}
		size, tensors = size+f.Bytes, tensors+f.Tensors
	}
	if len(info.Files) != 3 || size != info.Bytes || tensors != len(whole.Tensors) || info.Name != paths[0] {
		t.Errorf("%s: %d files of %d bytes and %d tensors", info.Name, len(info.Files), size, tensors)
	}
	for i, x := range info.Tensors {
		if x.Name != whole.Tensors[i].Name || x.File < 1 || x.File > 3 || whole.Tensors[i].File != 0 {
			t.Errorf("tensor %s is in file %d", x.Name, x.File)
		}
	}
	for i, s := range info.Slices.List {
		if s.Hash != whole.Slices.List[i].Hash {
			t.Errorf("slice %d has another hash in parts", i)
		}
	}
}

// changed is kvasir-tiny with some bytes replaced by as many others.
func changed(t *testing.T, old, by string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "changed.gguf")
	data := bytes.Replace(bytes.Clone(tiny.Model()), []byte(old), []byte(by), 1)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is not supported is named, with what is.
func TestInspectNamesWhatIsNotSupported(t *testing.T) {
	// A tensor's format stands behind its dimensions; IQ2_XS, number 17, in place of F32. Its name
	// and two dimensions come before.
	const name = "blk.0.ffn_gate_inp.weight"
	router := []byte(name + "\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00")
	for _, c := range []struct {
		name, path string
		says       []string
	}{
		{"architecture", changed(t, "qwen35moe", "qwen99moe"), []string{`architecture "qwen99moe"`, "qwen3moe", "qwen35moe"}},
		{"format", changed(t, string(router)+"\x00", string(router)+"\x11"), []string{name, "format IQ2_XS", "F32, F16, Q4_0, ", "IQ4_XS", "or MXFP4"}},
	} {
		info, err := engine.Inspect(c.path)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, says := range c.says {
			if info.Runs || !strings.Contains(info.Problem, says) {
				t.Errorf("%s: runs is %v, problem %q, want %q in it", c.name, info.Runs, info.Problem, says)
			}
		}
	}
}
