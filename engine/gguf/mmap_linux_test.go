package gguf

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestForgetGivesPagesBackAndLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("weights "), 1<<17) // 1 MiB
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // read-only
	data, unmap, err := mapFile(file, len(content))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmap(); err != nil {
			t.Error(err)
		}
	}()
	if !bytes.Equal(data, content) {
		t.Fatal("the mapping is not the file")
	}
	if kib := resident(t, path); kib < 1024 {
		t.Fatalf("%d KiB of the mapping are resident after reading it, want 1024", kib)
	}
	forget(data[100 : len(data)-100]) // not the pages at the ends
	if kib := resident(t, path); kib > 2*os.Getpagesize()/1024 {
		t.Errorf("%d KiB of the mapping are resident after forgetting it, want two pages", kib)
	}
	if !bytes.Equal(data, content) {
		t.Error("the mapping has changed")
	}
	forget(data[:10]) // less than a page
	forget(nil)
}

// resident returns how many KiB of a file's mapping are in memory for this process.
func resident(t *testing.T, path string) (kib int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	here := false
	for lines := bufio.NewScanner(bytes.NewReader(smaps)); lines.Scan(); {
		line := lines.Text()
		if strings.Contains(line, "-") && strings.Contains(line, " r") && !strings.HasPrefix(line, "VmFlags") {
			here = strings.HasSuffix(line, path)
		}
		if n := 0; here && strings.HasPrefix(line, "Rss:") {
			if _, err := fmt.Sscanf(line, "Rss: %d kB", &n); err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}
