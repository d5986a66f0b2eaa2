package gguf

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenReadsWhatParseReads(t *testing.T) {
	want := mustParse(t, readFile(t, tinyPath))
	f, err := Open(tinyPath)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != tinyPath || f.Size != want.Size || len(f.Meta) != len(want.Meta) || len(f.Tensors) != len(want.Tensors) {
		t.Errorf("%s: %d bytes, %d metadata, %d tensors", f.Name, f.Size, len(f.Meta), len(f.Tensors))
	}
	for i, tensor := range f.Tensors {
		if tensor.Name != want.Tensors[i].Name || !bytes.Equal(tensor.Data, want.Tensors[i].Data) {
			t.Errorf("tensor %d, %s, differs", i, tensor.Name)
		}
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if tokens[2047] != "<|im_end|>" { // a copy
		t.Errorf("after Close: %q", tokens[2047])
	}
	if _, err := f.Tensor("output.weight"); !errors.Is(err, ErrMissing) {
		t.Errorf("after Close: %v, want ErrMissing", err)
	}
}

func TestOpenRefusesWhatIsNotAModel(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, content, says string }{
		{"empty", "", "not a GGUF file: empty; give a .gguf file"},
		{"three bytes", "GGU", "not a GGUF file (a text file; starts with 47 47 55, want 47 47 55 46); give a .gguf file"},
		{"four bytes", "GGUF", "damaged or cut short: 4 bytes, and a header alone has 24; fetch the file again"},
		{"text", "Dear diary,\n", "not a GGUF file (a text file; starts with 44 65 61 72, want 47 47 55 46); give a .gguf file"},
		{"zip", "PK\x03\x04\x00\x00", "not a GGUF file (a zip archive, or a PyTorch checkpoint; starts with 50 4b 03 04, want 47 47 55 46); give a .gguf file"},
		{"pickle", "\x80\x02}q\x00", "not a GGUF file (a pickle, a PyTorch checkpoint; starts with 80 02 7d 71, want"},
		{"safetensors", "\x40\x01\x00\x00\x00\x00\x00\x00{\"__metadata__\":{}}", "not a GGUF file (a safetensors file; starts with 40 01 00 00, want"},
		{"old ggml", "tjgg\x03\x00\x00\x00", "not a GGUF file (an old ggml file; starts with 74 6a 67 67, want"},
		{"git lfs pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not a GGUF file (a Git LFS pointer: fetch the file that it stands for; starts with"},
		{"web page", "<!DOCTYPE html>", "not a GGUF file (a web page; starts with"},
		{"random", "\x00\x01\x02\xff\xfe", "not a GGUF file (starts with 00 01 02 ff, want 47 47 55 46); give a .gguf file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, c.name+".gguf")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path)
			if err == nil || !strings.HasPrefix(err.Error(), path+": "+c.says[:15]) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got  %v\nwant %s: %s", err, path, c.says)
			}
			if err != nil && strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("more than one line: %q", err)
			}
			if !errors.Is(err, ErrNotGGUF) && !errors.Is(err, ErrDamaged) {
				t.Errorf("no sentinel: %v", err)
			}
		})
	}
}

func TestOpenRefusesWhatIsNotARegularFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	if want := dir + ": not a GGUF file: a directory; give a .gguf file"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	missing := filepath.Join(dir, "none.gguf")
	_, err = Open(missing)
	if !errors.Is(err, fs.ErrNotExist) || strings.Count(err.Error(), missing) != 1 {
		t.Errorf("missing file: %v", err)
	}
	_, err = Open(os.DevNull)
	if err == nil || !errors.Is(err, ErrNotGGUF) {
		t.Errorf("device: %v", err)
	}
}
