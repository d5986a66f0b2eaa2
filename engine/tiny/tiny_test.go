package tiny

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// The references in testdata/ref, the profile and the tokens that other tests expect are those of
// these bytes.
const sum = "02de1233f77716e4062c14e5a8088c0bb83685523853e4962db1686da4b97ca3"

func TestModelIsTheOneThatTheReferencesAreFor(t *testing.T) {
	got := sha256.Sum256(Model())
	if hex.EncodeToString(got[:]) != sum {
		t.Errorf("SHA-256 %x, want %s", got, sum)
	}
}

func TestModelIsNotCopied(t *testing.T) {
	if unsafe.SliceData(Model()) != unsafe.StringData(model) {
		t.Error("Model returns a copy")
	}
	if n := testing.AllocsPerRun(10, func() { Model() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestProfileIsTheFileBesideTheModel(t *testing.T) {
	want, err := os.ReadFile(File + ".profile.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if got := Profile(); !bytes.Equal(got, want) || (got == nil) != (want == nil) {
		t.Errorf("profile %q, want %q", got, want)
	}
}

func TestCardIsBesideTheModel(t *testing.T) {
	if _, err := beside.ReadFile("CARD.md"); err != nil {
		t.Error(err)
	}
}

func TestEveryPromptHasItsReferences(t *testing.T) {
	raw, err := os.ReadFile("testdata/ref/prompts.json")
	if err != nil {
		t.Fatal(err)
	}
	var prompts map[string]struct {
		Text string
		IDs  []int32
	}
	if err := json.Unmarshal(raw, &prompts); err != nil {
		t.Fatal(err)
	}
	if len(prompts) != 5 {
		t.Errorf("%d prompts, want 5", len(prompts))
	}
	for name, p := range prompts {
		if p.Text == "" || len(p.IDs) == 0 {
			t.Errorf("%s: text %q, ids %v", name, p.Text, p.IDs)
		}
		for _, kind := range []string{"", "deq-"} {
			for _, ext := range []string{".npy", ".tokens"} {
				if _, err := os.Stat(filepath.Join("testdata/ref", "kvasir-tiny-q4_k_m-"+kind+name+ext)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
