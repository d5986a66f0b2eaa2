package floatcheck

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A loaded is one type-checked package of the module.
type loaded struct {
	types *types.Package
	files []*ast.File
	info  *types.Info
}

// loader type-checks the packages of the module in tree, as one build would compile them. Packages from
// elsewhere come from others.
type loader struct {
	tree   fs.FS
	module string
	build  Build
	ctx    build.Context
	fset   *token.FileSet
	done   map[string]*loaded // by folder; nil while it is being loaded
	others *others
}

func newLoader(tree fs.FS, module string, b Build, o *others) *loader {
	l := &loader{tree: tree, module: module, build: b, fset: token.NewFileSet(), done: map[string]*loaded{}, others: o}
	l.ctx = build.Default
	l.ctx.GOOS, l.ctx.GOARCH, l.ctx.BuildTags = b.GOOS, b.GOARCH, b.Tags
	l.ctx.CgoEnabled = b.cgo()
	l.ctx.JoinPath = path.Join
	l.ctx.OpenFile = func(name string) (io.ReadCloser, error) { return tree.Open(name) }
	return l
}

// load parses and type-checks the package in a folder, without its tests.
func (l *loader) load(dir string) (*loaded, error) {
	if p, ok := l.done[dir]; ok {
		if p == nil {
			return nil, fmt.Errorf("%s imports itself in a circle, or has an error of its own", dir)
		}
		return p, nil
	}
	l.done[dir] = nil
	names, err := l.files(dir)
	if err != nil {
		return nil, err
	}
	p := &loaded{info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Uses:  map[*ast.Ident]types.Object{},
		Defs:  map[*ast.Ident]types.Object{},
	}}
	for _, name := range names {
		f, err := parse(l.tree, l.fset, name)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, f)
	}
	conf := types.Config{
		Importer:    l,
		FakeImportC: true,
		Sizes:       types.SizesFor("gc", l.build.GOARCH),
	}
	p.types, err = conf.Check(l.module+"/"+dir, l.fset, p.files, p.info)
	if err != nil {
		return nil, err
	}
	l.done[dir] = p
	return p, nil
}

// files lists the files of a folder that the build contains, without its tests.
func (l *loader) files(dir string) ([]string, error) {
	entries, err := fs.ReadDir(l.tree, dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		match, err := l.ctx.MatchFile(dir, name)
		if err != nil {
			return nil, err
		}
		if match {
			names = append(names, path.Join(dir, name))
		}
	}
	return names, nil
}

// Import returns the package of an import path; it makes loader a types.Importer.
func (l *loader) Import(importPath string) (*types.Package, error) {
	if dir, ok := strings.CutPrefix(importPath, l.module+"/"); ok {
		p, err := l.load(dir)
		if err != nil {
			return nil, err
		}
		return p.types, nil
	}
	return l.others.ImportFrom(importPath, "", 0)
}

func parse(tree fs.FS, fset *token.FileSet, name string) (*ast.File, error) {
	src, err := fs.ReadFile(tree, name)
	if err != nil {
		return nil, err
	}
	return parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
}

// ignored reports whether a file is built only on request, by the tag ignore.
func ignored(tree fs.FS, name string) (bool, error) {
	f, err := parse(tree, token.NewFileSet(), name)
	if err != nil {
		return false, err
	}
	for _, group := range f.Comments {
		for _, line := range group.List {
			if line.Pos() > f.Package || !constraint.IsGoBuild(line.Text) {
				continue
			}
			when, err := constraint.Parse(line.Text)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			return !when.Eval(func(tag string) bool { return tag != "ignore" }), nil
		}
	}
	return false, nil
}

// others type-checks the packages that are not ours, the standard library and modules from the cache,
// from source and without their function bodies, as one machine builds them without tags: what they
// declare for our packages does not depend on those. Some modules are nothing without cgo.
type others struct {
	ctx  build.Context
	fset *token.FileSet
	done map[string]*types.Package // by folder
}

func newOthers(b Build) *others {
	o := &others{ctx: build.Default, fset: token.NewFileSet(), done: map[string]*types.Package{}}
	o.ctx.GOOS, o.ctx.GOARCH, o.ctx.CgoEnabled = b.GOOS, b.GOARCH, b.cgo()
	return o
}

// Import makes others a types.Importer.
func (o *others) Import(importPath string) (*types.Package, error) {
	return o.ImportFrom(importPath, "", 0)
}

// ImportFrom returns the package that an import path means in a folder.
func (o *others) ImportFrom(importPath, dir string, _ types.ImportMode) (*types.Package, error) {
	if importPath == "unsafe" {
		return types.Unsafe, nil
	}
	if dir == "" {
		dir = "." // go/build asks the go command for modules only if it knows from where
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	found, err := o.ctx.Import(importPath, dir, 0)
	if err != nil {
		return nil, err
	}
	if p, ok := o.done[found.Dir]; ok {
		if p == nil {
			return nil, fmt.Errorf("%s imports itself in a circle", importPath)
		}
		return p, nil
	}
	o.done[found.Dir] = nil
	names := slices.Concat(found.GoFiles, found.CgoFiles)
	files := make([]*ast.File, 0, len(names))
	for _, name := range names {
		f, err := parser.ParseFile(o.fset, filepath.Join(found.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf := types.Config{
		Importer:         o,
		FakeImportC:      true,
		IgnoreFuncBodies: true,
		Sizes:            types.SizesFor("gc", o.ctx.GOARCH),
		Error:            func(error) {}, // go on: a package that compiles declares enough
	}
	p, err := conf.Check(found.ImportPath, o.fset, files, nil)
	if p == nil {
		return nil, err
	}
	o.done[found.Dir] = p
	return p, nil
}
