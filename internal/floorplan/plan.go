package floorplan

// Plan is the policy that Check holds a tree of source files to.
type Plan struct {
	Module  string   // module path, the first element of every import of our own
	Top     []string // top-level folders; those whose names start with a dot are not looked at
	Ignored []string // top-level folders that git ignores
	Doc     string   // file that names every package

	// Floors lists every package there may be, from the top floor down. A package imports packages of
	// lower floors only. Packages may be listed before they are written.
	Floors []Floor
	// Edges are the imports allowed within one floor, "from -> to". They never form a circle.
	Edges []string
	// Helpers are packages for tests: test files on every floor may import them.
	Helpers []string
	// Alone are packages that import nothing of Kvasir and that nothing imports: they are tests.
	Alone []string

	Barred []Rule
}

// Floor is the packages that stand on one level.
type Floor struct {
	Level    int
	Packages []string
}

// Rule bars an import, with what is below it.
type Rule struct {
	Import string
	Use    string   // what to do instead; ends the message
	Only   []string // packages that may import it all the same, with what is below them
	Tests  bool     // test files may import it
	Tag    string   // where it is allowed, the file must not build without this tag
}

// Kvasir is the plan of this repository. ARCHITECTURE.md tells it in words.
var Kvasir = Plan{
	Module:  "kvasir",
	Top:     []string{"engine", "batcher", "wire", "kernels", "bench", "cmd", "internal", "docs"},
	Ignored: []string{"bin"},
	Doc:     "ARCHITECTURE.md",
	Floors: []Floor{
		{9, []string{"cmd/kvasir", "cmd/kvasir-bench"}},
		{8, []string{"bench", "bench/wan", "bench/pages"}},
		{7, []string{"engine"}},
		{6, []string{
			"engine/gguf", "engine/tokenizer", "engine/chat", "engine/tiny", "engine/model",
			"engine/schedule", "engine/sample", "engine/grammar", "engine/synth", "engine/experts", "engine/worker",
			"engine/serve", "engine/batches", "engine/ledger", "engine/audit", "engine/slices",
			"engine/page", "engine/access", "engine/metrics",
		}},
		{5, []string{"batcher", "batcher/place"}},
		{4, []string{"wire/link", "wire/relay"}},
		{3, []string{"wire", "wire/ws", "wire/seal", "kernels/kerneltest", "kernels/cpu", "kernels/cuda"}},
		{2, []string{"kernels/matmul", "kernels/matmul/asm", "kernels/vector"}},
		{1, []string{"kernels/ref"}},
		{0, []string{"internal/moe", "internal/slab", "internal/invariants", "internal/machine", "internal/pgtest", "internal/acmetest", "internal/baddisk", "kernels/quant", "kernels/variant"}},
	},
	Edges: []string{
		"engine/model -> engine/gguf",
		"engine/experts -> engine/gguf",
		"engine/schedule -> engine/model",
		"engine/synth -> engine/gguf",
		"engine/worker -> engine/gguf",
		"engine/worker -> engine/experts",
		"engine/worker -> engine/slices",
		"engine/slices -> engine/gguf",
		"engine/slices -> engine/experts",
		"internal/moe -> internal/slab",
		"batcher -> batcher/place",
		"engine/serve -> engine/chat",
		"engine/batches -> engine/serve",
		"engine/serve -> engine/sample",
		"engine/access -> engine/serve",
		"engine/metrics -> engine/model",
		"engine/metrics -> engine/schedule",
		"bench -> bench/wan", // a scenario puts its workers far away
		"bench/pages -> bench",
	},
	Helpers: []string{"kernels/kerneltest", "bench/wan", "internal/pgtest", "internal/acmetest", "internal/baddisk"},
	Alone:   []string{"internal/floorplan", "internal/floatcheck"},
	Barred: []Rule{
		{Import: "C", Tag: "cgo", Only: []string{"kernels/cuda"},
			Use: "the product builds with CGO_ENABLED=0: a file with cgo stands in kernels/cuda, under //go:build cgo, beside a stub"},
		{Import: "github.com/NVIDIA/go-nvml", Tag: "cgo", Only: []string{"kernels/cuda"},
			Use: "it needs cgo: it stands in kernels/cuda, under //go:build cgo && linux, beside a stub"},
		{Import: "github.com/ebitengine/purego", Only: []string{"kernels/cuda"},
			Use: "it binds Linux builds to glibc: only kernels/cuda loads libraries"},
		{Import: "github.com/gobwas/ws", Only: []string{"wire/ws", "bench"},
			Use: "import kvasir/wire/ws, which keeps the rules of RFC 6455"},
		{Import: "github.com/gobwas/ws/wsutil", Only: []string{"bench"}, // what package ws is measured against
			Use: "it answers pings from the reader and races the writer: use kvasir/wire/ws"},
		{Import: "github.com/alecthomas/kong", Only: []string{"cmd"},
			Use: "flags are parsed in cmd only: take a struct of options"},
		{Import: "flag", Only: []string{"cmd"}, Tests: true,
			Use: "flags are parsed in cmd only: take a struct of options"},
		{Import: "testing", Only: []string{"kernels/kerneltest"}, Tests: true,
			Use: "move what needs it into a _test.go file, or into kernels/kerneltest"},
		{Import: "unsafe", Tests: true,
			// Slabs; calls of the system that golang.org/x/sys does not wrap; bytes of an embedded string; SQLite's VFS.
			Only: []string{"internal/moe", "internal/slab", "kernels", "engine/gguf", "engine/tiny", "bench/wan", "internal/machine",
				"internal/baddisk"},
			Use: "do without, or list the package under this rule with the reason in a comment"},
		{Import: "math/rand", Use: "use math/rand/v2 with a seed that the test prints"},
		{Import: "math/cmplx", Use: "complex numbers are not part of the arithmetic"},
		{Import: "io/ioutil", Use: "use io and os"},
		{Import: "log", Use: "use log/slog"},
		{Import: "github.com/sirupsen/logrus", Use: "use log/slog"},
		{Import: "github.com/pkg/errors", Use: "use errors and fmt.Errorf with %w"},
		{Import: "net/http/pprof", Use: "it registers on the default mux: use runtime/pprof on a handler of your own"},
		{Import: "expvar", Use: "it registers on the default mux: use the metrics registry"},
	},
}
