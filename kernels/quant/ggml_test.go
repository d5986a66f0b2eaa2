package quant

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ggml reads the same floats from the same bytes, to the bit; testdata/ggml/README.md says how the
// files were made.
func TestDequantizeIsThatOfGGML(t *testing.T) {
	for _, f := range Supported() {
		if f.IsFloat() || f == MXFP4 { // exponents below 80 are zeros here alone
			continue
		}
		path := filepath.Join("testdata", "ggml", strings.ToLower(f.String()))
		src, err := os.ReadFile(path + ".blocks")
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(path + ".floats")
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 1024)
		if n, err := f.RowBytes(len(got)); err != nil || n != len(src) || len(want) != 4*len(got) {
			t.Fatalf("%s: %d bytes of blocks, %d of floats, want %d and %d (%v)", f, len(src), len(want), n, 4*len(got), err)
		}
		Dequantize(got, f, src)
		for i, v := range got {
			if w := math.Float32frombits(le.Uint32(want[4*i:])); math.Float32bits(v) != math.Float32bits(w) {
				t.Fatalf("%s value %d is %g, in ggml %g", f, i, v, w)
			}
		}
	}
}
