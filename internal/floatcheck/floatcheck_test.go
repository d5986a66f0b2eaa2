package floatcheck_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"kvasir/internal/floatcheck"
)

func TestFloatsOfTheTreeAreRoundedOneByOne(t *testing.T) {
	findings, err := floatcheck.Check(os.DirFS("../.."), floatcheck.Kvasir)
	for _, f := range findings {
		t.Error(f)
	}
	if err != nil {
		t.Error(err)
	}
}

var policy = floatcheck.Policy{
	Module:   "kvasir",
	Packages: []string{"kernels/...", "engine/model"},
	Math:     []string{"Sqrt", "Float32bits"},
	Builds: []floatcheck.Build{
		{GOOS: "linux", GOARCH: "amd64"},
		{GOOS: "linux", GOARCH: "arm64"},
		{GOOS: "linux", GOARCH: "amd64", Tags: []string{"purego"}},
	},
}

// check runs the check on a tree of one file in kernels/ref, and one that it imports.
func check(t *testing.T, src string) []string {
	t.Helper()
	return checkTree(t, map[string]string{
		"kernels/ref/ref.go":     "package ref\n\n" + src,
		"internal/other/open.go": "package other\n\ntype Float float32\n\nfunc Mul(x, y float32) float32 { return x * y }\n",
	})
}

func checkTree(t *testing.T, files map[string]string) []string {
	t.Helper()
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	findings, err := floatcheck.Check(tree, policy)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func TestCheckFindsWhatMayBeFused(t *testing.T) {
	const number = "type number interface{ ~int | ~float32 }\n"
	tests := []struct{ name, src, want string }{
		{"sum of a product", "func f(a, b, c float32) float32 { return a*b + c }",
			"kernels/ref/ref.go:3:43: float product a * b may be fused with a sum: write float32(a * b)"},
		{"product alone", "func f(a, b float64) float64 { t := a * b; return t }", "write float64(a * b)"},
		{"assignment", "func f(x, y float32) float32 { x *= y; return x }",
			"x *= y on floats may be fused with a sum: write x = float32(x * y)"},
		{"assignment of a sum", "func f(x, y float32) float32 { x *= y + 1; return x }", "write x = float32(x * (y + 1))"},
		{"assignment of a constant", "func f(x float32) float32 { x *= 2; return x }", "write x = float32(x * 2)"},
		{"assignment to an element", "func f(x []float32) { x[0] *= 3 }", "write x[0] = float32(x[0] * 3)"},
		{"negated", "func f(a, b float32) float32 { return -(a * b) }", "write float32(a * b)"},
		{"inside a sum inside a conversion", "func f(a, b, c float32) float32 { return float32(a*b + c) }", "write float32(a * b)"},
		{"one factor of a guarded product", "func f(a, b, c float32) float32 { return float32(a * b * c) }", "write float32(a * b)"},
		{"in a composite", "func f(a, b float32) [2]float32 { return [2]float32{float32(a * b), a * b} }", "write float32(a * b)"},
		{"argument", "func f(a, b float32) float32 { return g(a * b) }\n\nfunc g(x float32) float32 { return x }", "write float32(a * b)"},
		{"index", "func f(a, b float32, m map[float32]int) int { return m[a*b] }", "write float32(a * b)"},
		{"closure", "var f = func(a, b float32) float32 { return a * b }", "write float32(a * b)"},
		{"by a constant", "func f(a float32) float32 { return 2 * a }", "write float32(2 * a)"},
		{"to an integer", "func f(a, b float32) int32 { return int32(a * b) }", "write float32(a * b)"},
		{"to a wider float", "func f(a, b float32) float64 { return float64(a * b) }", "write float32(a * b)"},
		{"to a narrower float", "func f(a, b float64) float32 { return float32(a * b) }", "write float64(a * b)"},
		{"named type", "type scale float32\n\nfunc f(a, b scale) scale { return a * b }", "write scale(a * b)"},
		{"type of another package", "import \"kvasir/internal/other\"\n\nfunc f(a, b other.Float) other.Float { return a * b }", "a * b"},
		{"type parameter", number + "func f[T number](a, b T) T { return a * b }", "write T(a * b)"},
		{"type parameter, assigned", number + "func f[T number](a, b T) T { a *= b; return a }", "write a = T(a * b)"},
		{"type parameter to a float", number + "func f[T number](a, b T) float32 { return float32(a * b) }", "write T(a * b)"},
		{"type parameter of nested constraints", "type outer interface{ inner }\ntype inner interface{ float64 }\n" +
			"func f[T outer](a, b T) T { return a * b }", "write T(a * b)"},
		{"quotient", "func f(a, b float32) float32 { return a / b }", "float quotient a / b may be fused with a sum: write float32(a / b)"},
		{"quotient, assigned", "func f(a float32) float32 { a /= 4; return a }", "write a = float32(a / 4)"},
		{"complex", "func f(a, b complex64) complex64 { return complex64(a * b) }", "product a * b of complex numbers is fused inside"},
		{"complex, assigned", "func f(a, b complex128) complex128 { a *= b; return a }", "a *= b on complex numbers is fused inside"},
		{"FMA", "import \"math\"\n\nfunc f(a, b, c float64) float64 { return math.FMA(a, b, c) }", "math.FMA rounds once"},
		{"library function", "import \"math\"\n\nfunc f(a float64) float64 { return math.Exp(a) }",
			"math.Exp may differ between machines: use only Sqrt, Float32bits of package math"},
		{"library function as a value", "import m \"math\"\n\nvar f = m.Pow", "math.Pow may differ"},
		{"library function, dotted", "import . \"math\"\n\nvar f = Pow", "math.Pow may differ"},
		{"library function on complex numbers", "import \"math/cmplx\"\n\nvar f = cmplx.Exp", "cmplx.Exp is not part"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			findings := check(t, tt.src)
			if len(findings) != 1 || !strings.Contains(findings[0], tt.want) {
				t.Errorf("Check = %q, want one finding with %q", findings, tt.want)
			}
		})
	}
}

func TestCheckLeavesTheRestAlone(t *testing.T) {
	tests := []struct{ name, src string }{
		{"guarded", "func f(a, b, c float32) float32 { return float32(a*b) + c }"},
		{"guarded in parentheses", "func f(a, b, c float32) float32 { return float32((a * b)) - c }"},
		{"guarded twice", "func f(a, b, c float64) float64 { return float64(float64(a*b) * c) }"},
		{"guarded and negated", "func f(a, b float32) float32 { return -float32(a * b) }"},
		{"guarded, then wider", "func f(a, b float32) float64 { return float64(float32(a * b)) }"},
		{"guarded quotient", "func f(a, b float32) float32 { return float32(a/b) + 1 }"},
		{"quotient of a constant", "func f(a, b float32) float32 { return 1/a + b }"},
		{"guarded by a named type", "type scale float32\n\nfunc f(a, b scale) scale { return scale(a * b) }"},
		{"guarded by the type below", "type scale float32\n\nfunc f(a, b scale) float32 { return float32(a * b) }"},
		{"guarded by an alias", "type scale = float32\n\nfunc f(a, b float32) float32 { return scale(a * b) }"},
		{"guarded by a type in parentheses", "func f(a, b float32) float32 { return (float32)(a * b) }"},
		{"guarded by a type parameter", "func f[T ~float32 | ~float64](a, b T) T { return T(a*b) + a }"},
		{"type parameter of integers", "func f[T ~int8 | ~int16](a, b T) T { return a * b }"},
		{"constants", "import \"math\"\n\nconst third = 1.0 / 3\n\nfunc f(a float32) float32 { return a + 2*math.Pi*third }"},
		{"integers", "func f(a, b int32) float32 { a *= b; a /= 3; return float32(a*b) + float32(a/b) }"},
		{"pointers", "func f(a *float32) float32 { return *a }"},
		{"exact functions", "import \"math\"\n\nfunc f(a float64) uint32 { return math.Float32bits(float32(math.Sqrt(a))) + math.MaxInt8 }"},
		{"what an import does inside", "import \"kvasir/internal/other\"\n\nvar f = other.Mul"},
		{"import of a module", "import \"golang.org/x/sys/cpu\"\n\nfunc f() bool { return cpu.X86.HasAVX2 || cpu.ARM64.HasASIMD }"},
		{"imports of the standard library", "import (\n\t\"context\"\n\t\"errors\"\n\t\"fmt\"\n\t\"sync\"\n)\n\n" +
			"func f(ctx context.Context, mu *sync.Mutex) error { return fmt.Errorf(\"%w\", errors.Join(ctx.Err())) }"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if findings := check(t, tt.src); len(findings) != 0 {
				t.Errorf("Check = %q, want nothing", findings)
			}
		})
	}
}

func TestCheckLooksAtEveryBuild(t *testing.T) {
	const bad = "func f(a, b float32) float32 { return a * b }\n"
	tests := []struct {
		name  string
		files map[string]string
		want  []string // the findings contain these, in this order
	}{
		{"by file name", map[string]string{
			"kernels/ref/f_arm64.go": "package ref\n\n" + bad,
			"kernels/ref/f_amd64.go": "package ref\n\n" + bad,
		}, []string{"f_amd64.go:3:41: float product", "f_arm64.go:3:41: float product"}},
		{"by tag", map[string]string{
			"kernels/ref/f.go": "//go:build purego\n\npackage ref\n\n" + bad,
			"kernels/ref/g.go": "//go:build !purego && amd64\n\npackage ref\n\n" + bad,
		}, []string{"f.go:5:41: float product", "g.go:5:41: float product"}},
		{"in no build", map[string]string{
			"kernels/ref/f_s390x.go": "package ref\n\n" + bad,
			"kernels/ref/g.go":       "package ref\n",
		}, []string{"f_s390x.go:1:1: no build of the policy contains this file"}},
		{"not in the policy", map[string]string{
			"engine/engine.go":                      "package engine\n\n" + bad,
			"engine/modelling/f.go":                 "package modelling\n\n" + bad,
			"kernels/ref/f_test.go":                 "package ref\n\n" + bad,
			"kernels/ref/generate.go":               "//go:build ignore\n\npackage main\n\n" + bad,
			"kernels/ref/testdata/f.go":             "package ref\n\n" + bad,
			"kernels/ref/_old/f.go":                 "package ref\n\n" + bad,
			"kernels/ref/f.go":                      "package ref\n",
			"kernels/ref/unbuildable_arm64_test.go": "package ref\n\n" + bad,
		}, nil},
		{"of every package below", map[string]string{
			"kernels/kernels.go":    "package kernels\n\n" + bad,
			"kernels/cpu/x/f.go":    "package x\n\n" + bad,
			"engine/model/model.go": "package model\n\n" + bad,
			"engine/model/sub/s.go": "package sub\n\n" + bad,
		}, []string{"engine/model/model.go", "kernels/cpu/x/f.go", "kernels/kernels.go"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			findings := checkTree(t, tt.files)
			if len(findings) != len(tt.want) {
				t.Fatalf("Check = %q, want %d findings", findings, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(findings[i], want) {
					t.Errorf("finding %q, want %q in it", findings[i], want)
				}
			}
		})
	}
}

func TestCheckReturnsAnErrorForWhatDoesNotCompile(t *testing.T) {
	for name, src := range map[string]string{
		"syntax":         "package ref\n\nfunc f( {}",
		"type":           "package ref\n\nvar f float32 = \"x\"",
		"unknown import": "package ref\n\nimport _ \"kvasir/kernels/nowhere\"",
		"circle":         "package ref\n\nimport _ \"kvasir/kernels/ref\"",
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{"kernels/ref/f.go": {Data: []byte(src)}}
			if _, err := floatcheck.Check(tree, policy); err == nil || !strings.Contains(err.Error(), "kernels/ref") {
				t.Errorf("Check: error %v, want one that names kernels/ref", err)
			}
		})
	}
}
