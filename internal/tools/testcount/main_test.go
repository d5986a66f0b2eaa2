package main

import (
	"strings"
	"testing"
)

func TestReportCountsAndTells(t *testing.T) {
	tests := []struct {
		name                    string
		events                  string
		passed, failed, skipped int
		want                    []string // in the output, in this order
	}{
		{"all pass", `{"Action":"run","Package":"k/a","Test":"TestX"}
{"Action":"output","Package":"k/a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"pass","Package":"k/a","Test":"TestX/sub","Elapsed":0}
{"Action":"pass","Package":"k/a","Test":"TestX","Elapsed":0.1}
{"Action":"output","Package":"k/a","Output":"ok  \tk/a\t(cached)\n"}
{"Action":"pass","Package":"k/a","Elapsed":0.2}
`, 2, 0, 0, []string{"ok    k/a (0.2 s, cached)"}},
		{"one fails", `{"Action":"output","Package":"k/a","Test":"TestX","Output":"    x_test.go:3: want 4\n"}
{"Action":"fail","Package":"k/a","Test":"TestX","Elapsed":0.1}
{"Action":"fail","Package":"k/a","Elapsed":0.2}
`, 0, 1, 0, []string{"--- FAIL k/a TestX", "want 4", "FAIL  k/a"}},
		{"skip with a reason", `{"Action":"output","Package":"k/a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"k/a","Test":"TestX","Output":"    x_test.go:3: no such folder: set KVASIR_ORACLE\n"}
{"Action":"output","Package":"k/a","Test":"TestX","Output":"--- SKIP: TestX (0.00s)\n"}
{"Action":"skip","Package":"k/a","Test":"TestX","Elapsed":0}
{"Action":"pass","Package":"k/a","Elapsed":0.2}
`, 0, 0, 1, []string{"skip  k/a TestX: no such folder: set KVASIR_ORACLE", "ok    k/a"}},
		{"does not build", `{"ImportPath":"k/a","Action":"build-output","Output":"a.go:1:1: expected package\n"}
{"ImportPath":"k/a","Action":"build-fail"}
{"Action":"output","Package":"k/a","Output":"FAIL\tk/a [build failed]\n"}
{"Action":"fail","Package":"k/a","Elapsed":0,"FailedBuild":"k/a"}
`, 0, 1, 0, []string{"expected package", "FAIL\tk/a [build failed]", "FAIL  k/a"}},
		{"no test files", `{"Action":"output","Package":"k/a","Output":"?   \tk/a\t[no test files]\n"}
{"Action":"skip","Package":"k/a","Elapsed":0}
`, 0, 0, 0, nil},
		{"not an event", "go: cannot find main module\n{broken\n", 0, 0, 0, []string{"go: cannot find main module", "{broken"}},
		{"no newline at the end", `{"Action":"pass","Package":"k/a","Test":"TestX"}`, 1, 0, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tt.events)); err != nil {
				t.Fatal(err)
			}
			if r.passed != tt.passed || r.failed != tt.failed || r.skipped != tt.skipped {
				t.Errorf("%d passed, %d failed, %d skipped, want %d, %d, %d",
					r.passed, r.failed, r.skipped, tt.passed, tt.failed, tt.skipped)
			}
			rest := out.String()
			for _, want := range tt.want {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("output %q, want %q in it, in order", out.String(), want)
				}
				rest = after
			}
			if len(tt.want) == 0 && rest != "" {
				t.Errorf("output %q, want none", rest)
			}
		})
	}
}
