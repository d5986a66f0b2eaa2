// Package floorplan holds the picture of the house to the files: which packages there are, on which
// floor each stands, and what may import what.
//
// The policy is data (Kvasir, in plan.go); Check walks a tree of source files, parses them itself and
// returns one line for each thing that is out of place, each with what to do about it. It does not ask
// the go command: the answer of a test that does is kept in the test cache when an import changes.
//
// What is held:
//
//  1. Top-level folders are those of the plan.
//  2. Every package is listed on a floor and imports packages of lower floors only, or along a listed
//     edge within its floor. Edges form no circle.
//  3. Test files may also import packages of their own floor, and the test helpers.
//  4. Barred imports stay out, and no import is a dot import.
//  5. A package's name is its folder's, one file carries the package comment, and the comment starts
//     with "Package x " ("Command x " in cmd).
//  6. ARCHITECTURE.md names every package.
package floorplan

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Check returns what in tree breaks the plan, a line each, in the order of the tree. The error is about
// files that cannot be read or parsed.
func Check(tree fs.FS, p Plan) ([]string, error) {
	c := &checker{plan: p, level: map[string]int{}}
	c.readPlan()
	if err := c.checkTop(tree); err != nil {
		return nil, err
	}
	pkgs, err := load(tree)
	if err != nil {
		return nil, err
	}
	doc, err := fs.ReadFile(tree, p.Doc)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, pkg := range pkgs {
		c.checkPackage(pkg)
		if !strings.Contains(string(doc), "`"+pkg.dir+"`") {
			c.reportf("%s: not named in %s: add `%s` with what it is for", pkg.dir, p.Doc, pkg.dir)
		}
	}
	return c.findings, nil
}

// pkg is the Go files of one folder, whatever their build constraints.
type pkg struct {
	dir   string // slash-separated, from the root of the module
	files []file
}

type file struct {
	name string
	test bool
	ast  *ast.File
	when constraint.Expr // nil: always
}

type checker struct {
	plan     Plan
	level    map[string]int // floor of each package
	alone    map[string]bool
	edges    map[string][]string
	findings []string
}

func (c *checker) reportf(format string, args ...any) {
	c.findings = append(c.findings, fmt.Sprintf(format, args...))
}

// readPlan indexes the plan, and reports what is wrong with the plan itself.
func (c *checker) readPlan() {
	c.alone, c.edges = map[string]bool{}, map[string][]string{}
	for _, f := range c.plan.Floors {
		for _, p := range f.Packages {
			if _, twice := c.level[p]; twice {
				c.reportf("plan: %s is listed twice: keep one", p)
			}
			c.level[p] = f.Level
		}
	}
	for _, p := range c.plan.Alone {
		c.alone[p] = true
	}
	for _, e := range c.plan.Edges {
		from, to, _ := strings.Cut(e, " -> ")
		lf, okFrom := c.level[from]
		lt, okTo := c.level[to]
		switch {
		case !okFrom || !okTo:
			c.reportf("plan: edge %q names a package that is on no floor: write \"from -> to\" of listed packages", e)
		case lf != lt:
			c.reportf("plan: edge %q joins floors %d and %d: edges are for one floor, remove it", e, lf, lt)
		}
		c.edges[from] = append(c.edges[from], to)
	}
	for _, e := range c.plan.Edges {
		from, to, _ := strings.Cut(e, " -> ")
		if c.reaches(to, from, map[string]bool{}) {
			c.reportf("plan: edge %q is part of a circle: move what both need to a lower floor", e)
		}
	}
}

// reaches reports whether edges lead from one package to another.
func (c *checker) reaches(from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for _, next := range c.edges[from] {
		if !seen[next] && c.reaches(next, to, seen) {
			return true
		}
	}
	return false
}

func (c *checker) checkTop(tree fs.FS) error {
	entries, err := fs.ReadDir(tree, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		known := slices.Contains(c.plan.Top, e.Name()) || slices.Contains(c.plan.Ignored, e.Name())
		if e.IsDir() && !known && !strings.HasPrefix(e.Name(), ".") {
			c.reportf("%s: top-level folders are given (%s): move it into one of them",
				e.Name(), strings.Join(c.plan.Top, " "))
		}
	}
	return nil
}

// load parses every Go file of the module in tree, as far as the imports, the package clause and the
// comments need it. Folders that the go command skips, and nested modules, are skipped.
func load(tree fs.FS) ([]pkg, error) {
	var pkgs []pkg
	fset := token.NewFileSet()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, dir := d.Name(), path.Dir(name)
		if d.IsDir() {
			_, nested := fs.Stat(tree, path.Join(name, "go.mod"))
			if name != "." && (base == "testdata" || strings.HasPrefix(base, ".") ||
				strings.HasPrefix(base, "_") || nested == nil) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(base) != ".go" || strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".") {
			return nil
		}
		f, err := parseFile(tree, fset, name)
		if err != nil {
			return err
		}
		if n := len(pkgs); n == 0 || pkgs[n-1].dir != dir {
			pkgs = append(pkgs, pkg{dir: dir})
		}
		last := &pkgs[len(pkgs)-1]
		last.files = append(last.files, f)
		return nil
	})
	return merge(pkgs), err
}

// merge joins packages of one folder: a walk comes back to a folder after its subfolders.
func merge(pkgs []pkg) []pkg {
	slices.SortStableFunc(pkgs, func(a, b pkg) int { return strings.Compare(a.dir, b.dir) })
	var out []pkg
	for _, p := range pkgs {
		if n := len(out); n > 0 && out[n-1].dir == p.dir {
			out[n-1].files = append(out[n-1].files, p.files...)
			continue
		}
		out = append(out, p)
	}
	return out
}

func parseFile(tree fs.FS, fset *token.FileSet, name string) (file, error) {
	src, err := fs.ReadFile(tree, name)
	if err != nil {
		return file{}, err
	}
	syntax, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.ImportsOnly)
	if err != nil {
		return file{}, err
	}
	f := file{name: name, test: strings.HasSuffix(name, "_test.go"), ast: syntax}
	for _, group := range syntax.Comments {
		for _, line := range group.List {
			if line.Pos() > syntax.Package || !constraint.IsGoBuild(line.Text) {
				continue
			}
			if f.when, err = constraint.Parse(line.Text); err != nil {
				return file{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return f, nil
}

func (c *checker) checkPackage(p pkg) {
	_, listed := c.level[p.dir]
	if !listed && !c.alone[p.dir] {
		c.reportf("%s: no floor lists this package: add it to the plan in internal/floorplan/plan.go, "+
			"on the lowest floor that its imports allow, and to %s", p.dir, c.plan.Doc)
	}
	c.checkClause(p)
	for _, f := range p.files {
		for _, spec := range f.ast.Imports {
			target, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue // the parser has refused it already
			}
			if spec.Name != nil && spec.Name.Name == "." {
				c.reportf("%s: dot import of %s: import it by its name", f.name, target)
			}
			c.checkBarred(p, f, target)
			if own, ok := strings.CutPrefix(target, c.plan.Module+"/"); ok && listed {
				c.checkFloor(p, f, own)
			} else if ok && c.alone[p.dir] && !f.test {
				c.reportf("%s: imports %s: %s is a test of the tree and imports nothing of Kvasir", f.name, own, p.dir)
			}
		}
	}
}

// checkClause holds the package's name and comment.
func (c *checker) checkClause(p pkg) {
	want, word := path.Base(p.dir), "Package"
	if strings.HasPrefix(p.dir, "cmd/") {
		word = "Command"
	}
	var commented []string
	for _, f := range p.files {
		name := f.ast.Name.Name
		if f.test {
			name = strings.TrimSuffix(name, "_test")
		}
		if word == "Command" && name == "main" {
			name = want
		}
		if name != want {
			c.reportf("%s: package %s in folder %s: give both the same name", f.name, name, want)
		}
		if f.test || f.ast.Doc == nil {
			continue
		}
		commented = append(commented, f.name)
		if !strings.HasPrefix(f.ast.Doc.Text(), word+" "+want+" ") {
			c.reportf("%s: the package comment starts otherwise: start it with \"%s %s \"", f.name, word, want)
		}
	}
	switch {
	case len(commented) > 1:
		c.reportf("%s: %d package comments (%s): keep one", p.dir, len(commented), strings.Join(commented, ", "))
	case len(commented) == 0 && !onlyTests(p):
		c.reportf("%s: no package comment: write one that starts with \"%s %s \", with no blank line "+
			"between it and the package clause", p.dir, word, want)
	}
}

func onlyTests(p pkg) bool {
	return !slices.ContainsFunc(p.files, func(f file) bool { return !f.test })
}

// checkFloor holds one import of our own against the floors.
func (c *checker) checkFloor(p pkg, f file, to string) {
	if to == p.dir {
		return // an external test of the package
	}
	from := c.level[p.dir]
	level, listed := c.level[to]
	switch {
	case c.alone[to]:
		c.reportf("%s: imports %s, which is a test of the tree: nothing imports it", f.name, to)
	case !listed:
		c.reportf("%s: imports %s, which no floor lists: add it to the plan in internal/floorplan/plan.go", f.name, to)
	case level < from,
		f.test && level == from,
		f.test && slices.Contains(c.plan.Helpers, to),
		!f.test && slices.Contains(c.edges[p.dir], to):
	case level == from:
		c.reportf("%s: floor %d imports %s sideways, on the same floor: move what both need to a lower floor, "+
			"pass it in as an interface, or list the edge \"%s -> %s\" with a reason in docs/decisions",
			f.name, from, to, p.dir, to)
	default:
		c.reportf("%s: floor %d imports %s upwards, on floor %d: declare an interface here and let a higher "+
			"floor pass it in", f.name, from, to, level)
	}
}

func (c *checker) checkBarred(p pkg, f file, target string) {
	rule, ok := c.ruleFor(target)
	if !ok || rule.Tests && f.test {
		return
	}
	switch allowed := slices.ContainsFunc(rule.Only, func(dir string) bool { return within(p.dir, dir) }); {
	case !allowed:
		c.reportf("%s: import of %s is barred: %s", f.name, target, rule.Use)
	case rule.Tag != "" && !needs(f.when, rule.Tag):
		c.reportf("%s: import of %s in a file that builds without the tag %s: %s", f.name, target, rule.Tag, rule.Use)
	}
}

// ruleFor returns the longest rule that covers an import path. A rule on a package of the standard
// library covers that package alone: "log" does not bar "log/slog".
func (c *checker) ruleFor(target string) (Rule, bool) {
	var best Rule
	for _, r := range c.plan.Barred {
		std := !strings.Contains(r.Import, ".")
		if (target == r.Import || !std && within(target, r.Import)) && len(r.Import) > len(best.Import) {
			best = r
		}
	}
	return best, best.Import != ""
}

// within reports whether a path is root or below it.
func within(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// needs reports whether a file under this constraint never builds without the tag: there is no choice
// of the other tags that lets it.
func needs(when constraint.Expr, tag string) bool {
	if when == nil {
		return false
	}
	tags := tagsOf(when)
	slices.Sort(tags)
	tags = slices.Compact(tags)
	for choice := range 1 << min(len(tags), 12) {
		if when.Eval(func(t string) bool { return t != tag && choice>>slices.Index(tags, t)&1 == 1 }) {
			return false
		}
	}
	return true
}

// tagsOf lists the tags of a constraint, a tag as often as it stands there.
func tagsOf(e constraint.Expr) []string {
	switch e := e.(type) {
	case *constraint.TagExpr:
		return []string{e.Tag}
	case *constraint.NotExpr:
		return tagsOf(e.X)
	case *constraint.AndExpr:
		return append(tagsOf(e.X), tagsOf(e.Y)...)
	case *constraint.OrExpr:
		return append(tagsOf(e.X), tagsOf(e.Y)...)
	}
	return nil
}
