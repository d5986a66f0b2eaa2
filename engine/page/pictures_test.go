package page

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
)

// picturesVariable is the address of a serving node of which the pictures in docs are taken.
const picturesVariable = "KVASIR_PICTURES"

// TestPicturesAreTaken takes the pictures in docs anew, of a node that somebody runs, as docs/page.md tells.
func TestPicturesAreTaken(t *testing.T) {
	url := os.Getenv(picturesVariable)
	if url == "" {
		t.Skip("no node to take pictures of: give its address in " + picturesVariable)
	}
	b := newTab(t)
	b.call("Emulation.setScrollbarsHidden", map[string]any{"hidden": true}, nil)
	b.view(1180, 620, "light")
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.await(`document.getElementById("workers")?.tBodies[0].rows.length > 0 && document.getElementById("rate").textContent !== "–"`)
	b.eval(`(() => { const p = document.getElementById("prompt"); p.value = "What is the capital of Poland?"; document.getElementById("send").click(); })()`)
	b.await(`document.getElementById("try-note").textContent.includes("tokens in")`)
	b.eval(`new Promise((done) => setTimeout(done, 20000))`) // the line of throughput grows
	b.eval(`document.activeElement.blur()`)
	for _, p := range []struct {
		name, scheme string
		width        int
	}{{"page-light", "light", 1180}, {"page-dark", "dark", 1180}, {"page-narrow", "dark", 360}} {
		b.view(p.width, 400, p.scheme)
		height, ok := b.eval(`document.documentElement.getBoundingClientRect().height`).(float64)
		if !ok {
			t.Fatal("the page has no height")
		}
		b.view(p.width, int(height), p.scheme)
		var picture struct{ Data string }
		b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &picture)
		data, err := base64.StdEncoding.DecodeString(picture.Data)
		if err == nil {
			err = os.WriteFile(filepath.Join("..", "..", "docs", p.name+".png"), data, 0o644) //nolint:gosec // it is for all to read
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.clean()
}
