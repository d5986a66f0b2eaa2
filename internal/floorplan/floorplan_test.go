package floorplan_test

import (
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"kvasir/internal/floorplan"
)

func TestTreeStandsAsPlanned(t *testing.T) {
	findings, err := floorplan.Check(os.DirFS("../.."), floorplan.Kvasir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
}

// plan is a small house: cmd/door over engine and its two rooms, over ground.
var plan = floorplan.Plan{
	Module:  "kvasir",
	Top:     []string{"engine", "cmd", "internal"},
	Ignored: []string{"bin"},
	Doc:     "ARCHITECTURE.md",
	Floors: []floorplan.Floor{
		{Level: 3, Packages: []string{"cmd/door"}},
		{Level: 2, Packages: []string{"engine", "engine/probe"}},
		{Level: 1, Packages: []string{"engine/room", "engine/hall"}},
		{Level: 0, Packages: []string{"internal/ground"}},
	},
	Edges:   []string{"engine/hall -> engine/room"},
	Helpers: []string{"engine/probe"},
	Alone:   []string{"internal/watch"},
	Barred: []floorplan.Rule{
		{Import: "C", Tag: "cgo", Use: "write Go", Only: []string{"engine/room"}},
		{Import: "log", Use: "use log/slog"},
		{Import: "math/rand", Use: "use math/rand/v2"},
		{Import: "testing", Use: "move it", Tests: true},
		{Import: "example.org/ws", Use: "use the hall", Only: []string{"engine/hall"}},
		{Import: "example.org/ws/util", Use: "do without"},
	},
}

// house returns a tree that the plan is content with, with changes: files to add, replace, or, where
// the text is empty, remove.
func house(changes map[string]string) fstest.MapFS {
	files := map[string]string{
		"ARCHITECTURE.md": "`cmd/door` `engine` `engine/probe` `engine/room` `engine/hall` `internal/ground` `internal/watch`",
		"bin/tool":        "built",
		".github/ci.yml":  "",
		"cmd/door/main.go": "// Command door opens.\npackage main\n\n" +
			"import _ \"kvasir/engine\"\n",
		"engine/engine.go": "// Package engine runs.\npackage engine\n\n" +
			"import (\n\t_ \"log/slog\"\n\t_ \"math/rand/v2\"\n\n\t_ \"kvasir/engine/hall\"\n\t_ \"kvasir/internal/ground\"\n)\n",
		"engine/probe/probe.go": "// Package probe helps tests.\npackage probe\n",
		"engine/room/room.go":   "// Package room is one.\npackage room\n",
		"engine/room/room_test.go": "package room_test\n\n" +
			"import (\n\t_ \"testing\"\n\n\t_ \"kvasir/engine/hall\"\n\t_ \"kvasir/engine/probe\"\n\t_ \"kvasir/engine/room\"\n)\n",
		"engine/room/c.go": "//go:build linux && (cgo || !cgo) && cgo\n\npackage room\n\nimport \"C\"\n",
		"engine/hall/hall.go": "// Package hall is another.\npackage hall\n\n" +
			"import (\n\t_ \"example.org/ws\"\n\t_ \"example.org/ws/frame\"\n\n\t_ \"kvasir/engine/room\"\n)\n",
		"engine/hall/testdata/x.go":  "not Go at all",
		"engine/hall/_gen/x.go":      "nor this",
		"internal/ground/ground.go":  "// Package ground is below all.\npackage ground\n",
		"internal/watch/watch.go":    "// Package watch looks on.\npackage watch\n",
		"internal/tools/go.mod":      "module kvasir/internal/tools\n",
		"internal/tools/x/main.go":   "package main\n\nimport _ \"log\"\n",
		"internal/watch/w_test.go":   "package watch_test\n\nimport _ \"kvasir/internal/watch\"\n",
		"internal/ground/ground2.go": "package ground\n",
	}
	maps.Copy(files, changes)
	tree := fstest.MapFS{}
	for name, text := range files {
		if text != "" || name == ".github/ci.yml" {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return tree
}

func TestCheckLeavesAGoodHouseAlone(t *testing.T) {
	findings, err := floorplan.Check(house(nil), plan)
	if err != nil || len(findings) != 0 {
		t.Errorf("Check = %q, %v, want nothing", findings, err)
	}
}

func TestCheckFindsWhatIsOutOfPlace(t *testing.T) {
	tests := []struct {
		name    string
		changes map[string]string
		want    string // the one finding begins with this
		do      string // and says this
	}{
		{"import upwards", map[string]string{
			"internal/ground/up.go": "package ground\n\nimport _ \"kvasir/engine\"\n",
		}, "internal/ground/up.go: floor 0 imports engine upwards, on floor 2", "declare an interface here"},
		{"import sideways", map[string]string{
			"engine/room/side.go": "package room\n\nimport _ \"kvasir/engine/hall\"\n",
		}, "engine/room/side.go: floor 1 imports engine/hall sideways", "list the edge \"engine/room -> engine/hall\""},
		{"package nobody listed", map[string]string{
			"engine/attic/attic.go": "// Package attic is new.\npackage attic\n",
			"ARCHITECTURE.md": "`cmd/door` `engine` `engine/probe` `engine/room` `engine/hall` `internal/ground` " +
				"`internal/watch` `engine/attic`",
		}, "engine/attic: no floor lists this package", "add it to the plan in internal/floorplan/plan.go"},
		{"import of a package nobody listed", map[string]string{
			"engine/x.go": "package engine\n\nimport _ \"kvasir/engine/attic\"\n",
		}, "engine/x.go: imports engine/attic, which no floor lists", "add it to the plan"},
		{"test imports upwards", map[string]string{
			"engine/room/up_test.go": "package room\n\nimport _ \"kvasir/cmd/door\"\n",
		}, "engine/room/up_test.go: floor 1 imports cmd/door upwards", "declare an interface"},
		{"test helper in product code", map[string]string{
			"engine/room/up.go": "package room\n\nimport _ \"kvasir/engine/probe\"\n",
		}, "engine/room/up.go: floor 1 imports engine/probe upwards", "declare an interface"},
		{"import of a test of the tree", map[string]string{
			"engine/x.go": "package engine\n\nimport _ \"kvasir/internal/watch\"\n",
		}, "engine/x.go: imports internal/watch, which is a test of the tree", "nothing imports it"},
		{"test of the tree imports", map[string]string{
			"internal/watch/x.go": "package watch\n\nimport _ \"kvasir/internal/ground\"\n",
		}, "internal/watch/x.go: imports internal/ground", "imports nothing of Kvasir"},
		{"top-level folder", map[string]string{
			"pkg/README": "x",
		}, "pkg: top-level folders are given", "move it into one of them"},
		{"barred import", map[string]string{
			"engine/x.go": "package engine\n\nimport _ \"log\"\n",
		}, "engine/x.go: import of log is barred", "use log/slog"},
		{"barred import in a test", map[string]string{
			"engine/x_test.go": "package engine\n\nimport _ \"math/rand\"\n",
		}, "engine/x_test.go: import of math/rand is barred", "use math/rand/v2"},
		{"import barred but in tests", map[string]string{
			"engine/x.go": "package engine\n\nimport _ \"testing\"\n",
		}, "engine/x.go: import of testing is barred", "move it"},
		{"import barred but elsewhere", map[string]string{
			"engine/x.go": "package engine\n\nimport _ \"example.org/ws/frame\"\n",
		}, "engine/x.go: import of example.org/ws/frame is barred", "use the hall"},
		{"longest rule decides", map[string]string{
			"engine/hall/x.go": "package hall\n\nimport _ \"example.org/ws/util\"\n",
		}, "engine/hall/x.go: import of example.org/ws/util is barred", "do without"},
		{"cgo without the tag", map[string]string{
			"engine/room/c2.go": "//go:build linux || cgo\n\npackage room\n\nimport \"C\"\n",
		}, "engine/room/c2.go: import of C in a file that builds without the tag cgo", "write Go"},
		{"cgo without any tag", map[string]string{
			"engine/room/c2.go": "package room\n\nimport \"C\"\n",
		}, "engine/room/c2.go: import of C in a file that builds without the tag cgo", "write Go"},
		{"dot import", map[string]string{
			"engine/x.go": "package engine\n\nimport . \"strings\"\n",
		}, "engine/x.go: dot import of strings", "import it by its name"},
		{"name is not the folder's", map[string]string{
			"engine/room/room.go": "// Package room is one.\npackage chamber\n",
		}, "engine/room/room.go: package chamber in folder room", "give both the same name"},
		{"no package comment", map[string]string{
			"engine/room/room.go": "// Package room is one.\n\npackage room\n",
		}, "engine/room: no package comment", "starts with \"Package room \""},
		{"two package comments", map[string]string{
			"engine/room/x.go": "// Package room is two.\npackage room\n",
		}, "engine/room: 2 package comments (engine/room/room.go, engine/room/x.go)", "keep one"},
		{"package comment starts otherwise", map[string]string{
			"engine/room/room.go": "// Here is a room.\npackage room\n",
		}, "engine/room/room.go: the package comment starts otherwise", "\"Package room \""},
		{"command comment starts otherwise", map[string]string{
			"cmd/door/main.go": "// Package main opens.\npackage main\n",
		}, "cmd/door/main.go: the package comment starts otherwise", "\"Command door \""},
		{"not in the architecture", map[string]string{
			"ARCHITECTURE.md": "`cmd/door` `engine` `engine/probe` `engine/rooms` `engine/hall` `internal/ground` `internal/watch`",
		}, "engine/room: not named in ARCHITECTURE.md", "add `engine/room`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			findings, err := floorplan.Check(house(tt.changes), plan)
			if err != nil {
				t.Fatal(err)
			}
			if len(findings) != 1 || !strings.HasPrefix(findings[0], tt.want) || !strings.Contains(findings[0], tt.do) {
				t.Errorf("Check = %q, want one finding that begins %q and says %q", findings, tt.want, tt.do)
			}
		})
	}
}

func TestCheckFindsFaultsOfThePlan(t *testing.T) {
	tests := []struct {
		name   string
		change func(p *floorplan.Plan)
		want   string
	}{
		{"circle", func(p *floorplan.Plan) {
			p.Edges = append(p.Edges, "engine/room -> engine/hall")
		}, "is part of a circle"},
		{"edge to itself", func(p *floorplan.Plan) {
			p.Edges = []string{"engine/hall -> engine/room", "engine/room -> engine/room"}
		},
			"\"engine/room -> engine/room\" is part of a circle"},
		{"edge between floors", func(p *floorplan.Plan) { p.Edges = append(p.Edges, "engine -> engine/room") },
			"joins floors 2 and 1"},
		{"edge of nobody", func(p *floorplan.Plan) { p.Edges = append(p.Edges, "engine/room->engine/hall") },
			"names a package that is on no floor"},
		{"package twice", func(p *floorplan.Plan) {
			p.Floors = append(p.Floors, floorplan.Floor{Level: 4, Packages: []string{"engine"}})
		}, "engine is listed twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := plan
			p.Edges = append([]string(nil), plan.Edges...)
			p.Floors = append([]floorplan.Floor(nil), plan.Floors...)
			tt.change(&p)
			findings, err := floorplan.Check(house(nil), p)
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(findings, "\n"); !strings.Contains(all, tt.want) {
				t.Errorf("Check = %q, want a finding with %q", findings, tt.want)
			}
		})
	}
}

func TestCheckReturnsAnErrorForFilesItCannotRead(t *testing.T) {
	for name, change := range map[string]map[string]string{
		"not Go":         {"engine/x.go": "package"},
		"bad constraint": {"engine/x.go": "//go:build (\n\npackage engine\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := floorplan.Check(house(change), plan)
			if err == nil || !strings.Contains(err.Error(), "engine/x.go") {
				t.Errorf("Check: error %v, want one that names engine/x.go", err)
			}
		})
	}
}
