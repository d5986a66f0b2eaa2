package asm_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"kvasir/kernels/matmul/asm"
)

var update = flag.Bool("update", false, "write the assembly anew")

func TestAssemblyIsWhatTheGeneratorWrites(t *testing.T) {
	for name, want := range asm.Files() {
		name = filepath.Join("..", name)
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from what kernels/matmul/asm writes: run go test ./kernels/matmul/asm -update", name)
		}
	}
}
