// Package floatcheck holds code to the rule that makes its results the same on every machine: each
// floating-point product is rounded by itself.
//
// The Go compiler may fuse a product with a sum, x*y + z, into one operation that rounds once. It does
// so on arm64 and with GOAMD64=v3, across statements and through inlined calls, and not on amd64 v1. An
// explicit conversion forbids it. So in the packages of the policy:
//
//  1. A float product stands directly inside a conversion to its own type, float32(x*y). So does a
//     quotient: the compiler turns a division by a power of two, also one that it learns by inlining,
//     into a product; only 1/x, the quotient of a constant, is free. So are constant expressions.
//  2. x *= y and x /= y on floats have no place for the conversion and are refused; so are products and
//     quotients of complex numbers, which are fused inside.
//  3. Of package math only what is exact or correctly rounded everywhere is used; the policy lists it.
//
// Test files are exempt, and files that go generate runs (//go:build ignore). Check type-checks from
// source, for each build of the policy; a file that none of these builds contains is a finding, since
// nobody has looked at it.
package floatcheck

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Policy says which packages are checked, as which builds, and what they may use.
type Policy struct {
	Module   string
	Packages []string // folders; "kernels/..." is kernels and all below it. They need not exist yet
	Math     []string // functions of package math that may be used, besides its constants
	Builds   []Build
}

// Build is one way in which the go command would compile the packages.
type Build struct {
	GOOS, GOARCH string
	Tags         []string
}

// Kvasir is the policy of this repository: the packages whose floats reach a logit.
var Kvasir = Policy{
	Module: "kvasir",
	Packages: []string{
		"kernels/...", "internal/moe", "engine/model", "engine/experts", "engine/schedule", "engine/sample",
	},
	Math: []string{
		"Abs", "Floor", "RoundToEven", "Sqrt",
		"Float32bits", "Float32frombits", "Float64bits", "Float64frombits",
		"Inf", "IsInf", "IsNaN", "NaN",
	},
	Builds: []Build{
		{GOOS: "linux", GOARCH: "amd64"},
		{GOOS: "linux", GOARCH: "amd64", Tags: []string{"purego"}},
		{GOOS: "linux", GOARCH: "arm64"},
		{GOOS: "linux", GOARCH: "amd64", Tags: []string{"cgo", "cuda"}},
		{GOOS: "darwin", GOARCH: "arm64"},
		{GOOS: "windows", GOARCH: "amd64"},
	},
}

// cgo reports whether files with cgo are part of the build.
func (b Build) cgo() bool { return slices.Contains(b.Tags, "cgo") }

// Check returns what in the packages of tree breaks the policy, a line each, sorted by place. The error
// is about packages that cannot be read, parsed or type-checked; the findings are then of the others.
func Check(tree fs.FS, p Policy) ([]string, error) {
	dirs, err := packageDirs(tree, p)
	if err != nil {
		return nil, err
	}
	c := checker{policy: p, found: map[finding]bool{}, seen: map[string]bool{}}
	machines := map[string]*others{}
	var faults []error
	for _, b := range p.Builds {
		machine := fmt.Sprint(b.GOOS, b.GOARCH, b.cgo())
		if machines[machine] == nil {
			machines[machine] = newOthers(b)
		}
		l := newLoader(tree, p.Module, b, machines[machine])
		if fresh, err := c.markSeen(l, dirs); err != nil {
			return nil, err
		} else if !fresh {
			continue // the same files mean the same
		}
		for _, dir := range dirs {
			pkg, err := l.load(dir)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s for %s: %w", dir, b, err))
				continue
			}
			for _, f := range pkg.files {
				c.checkFile(l.fset, pkg.info, f)
			}
		}
	}
	faults = append(faults, c.checkUnseen(tree, dirs))
	return c.sorted(), errors.Join(faults...)
}

// String returns the build as it is written in messages: linux/amd64+purego.
func (b Build) String() string {
	return strings.Join(append([]string{b.GOOS + "/" + b.GOARCH}, b.Tags...), "+")
}

// packageDirs lists the folders of tree that the policy covers and that hold Go files.
func packageDirs(tree fs.FS, p Policy) ([]string, error) {
	covered := func(dir string) bool {
		return slices.ContainsFunc(p.Packages, func(pattern string) bool {
			root, below := strings.CutSuffix(pattern, "/...")
			return dir == root || below && strings.HasPrefix(dir, root+"/")
		})
	}
	var dirs []string
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		dir := path.Dir(name)
		if path.Ext(base) == ".go" && covered(dir) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	slices.Sort(dirs)
	return dirs, err
}

// A finding is the place and the message. One that several builds share is told once.
type finding struct {
	file         string
	line, column int
	message      string
}

type checker struct {
	policy Policy
	found  map[finding]bool
	seen   map[string]bool // files that a build contained
}

func (c *checker) report(pos token.Position, format string, args ...any) {
	c.found[finding{pos.Filename, pos.Line, pos.Column, fmt.Sprintf(format, args...)}] = true
}

func (c *checker) sorted() []string {
	all := make([]finding, 0, len(c.found))
	for f := range c.found {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.file, b.file), a.line-b.line, a.column-b.column, strings.Compare(a.message, b.message))
	})
	lines := make([]string, len(all))
	for i, f := range all {
		lines[i] = fmt.Sprintf("%s:%d:%d: %s", f.file, f.line, f.column, f.message)
	}
	return lines
}

// markSeen marks the files of dirs that l's build contains, and reports whether there is one that no
// build before it did.
func (c *checker) markSeen(l *loader, dirs []string) (fresh bool, err error) {
	for _, dir := range dirs {
		names, err := l.files(dir)
		if err != nil {
			return false, err
		}
		for _, name := range names {
			fresh = fresh || !c.seen[name]
			c.seen[name] = true
		}
	}
	return fresh, nil
}

// checkUnseen reports the files of dirs that no build contained.
func (c *checker) checkUnseen(tree fs.FS, dirs []string) error {
	for _, dir := range dirs {
		entries, err := fs.ReadDir(tree, dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			if e.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || c.seen[name] {
				continue
			}
			generator, err := ignored(tree, name)
			if err != nil {
				return err
			}
			if !generator {
				c.report(token.Position{Filename: name, Line: 1, Column: 1},
					"no build of the policy contains this file, so nobody looks at its floats: "+
						"add its build to the policy in internal/floatcheck")
			}
		}
	}
	return nil
}

// checkFile walks one file of a type-checked package.
func (c *checker) checkFile(fset *token.FileSet, info *types.Info, f *ast.File) {
	guarded := map[ast.Expr]bool{} // products and quotients that stand in a conversion to their type
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			// Inspect comes to a conversion before it comes to what stands in it.
			if fun := info.Types[n.Fun]; fun.IsType() && len(n.Args) == 1 {
				arg := ast.Unparen(n.Args[0])
				if sameFloat(fun.Type, info.TypeOf(arg)) {
					guarded[arg] = true
				}
			}
		case *ast.BinaryExpr:
			if n.Op == token.MUL || n.Op == token.QUO {
				// A quotient of a constant is never turned into a product: were the divisor constant
				// too, all of it would be.
				if n.Op == token.MUL || info.Types[n.X].Value == nil {
					c.checkProduct(fset.Position(n.OpPos), info.Types[n], n, guarded[n])
				}
			}
		case *ast.AssignStmt:
			if n.Tok == token.MUL_ASSIGN || n.Tok == token.QUO_ASSIGN {
				c.checkAssign(fset.Position(n.TokPos), info.TypeOf(n.Lhs[0]), n)
			}
		case *ast.Ident:
			if fn, ok := info.Uses[n].(*types.Func); ok && fn.Pkg() != nil {
				c.checkFunc(fset.Position(n.Pos()), fn)
			}
		}
		return true
	})
}

func (c *checker) checkProduct(pos token.Position, tv types.TypeAndValue, e *ast.BinaryExpr, guarded bool) {
	if tv.Value != nil {
		return // a constant
	}
	what := "product"
	if e.Op == token.QUO {
		what = "quotient"
	}
	expr := types.ExprString(e)
	switch kindOf(tv.Type) {
	case complexes:
		c.report(pos, "%s %s of complex numbers is fused inside: write it out in floats", what, expr)
	case floats:
		if !guarded {
			name := types.TypeString(tv.Type, func(*types.Package) string { return "" })
			c.report(pos, "float %s %s may be fused with a sum: write %s(%s)", what, expr, name, expr)
		}
	}
}

func (c *checker) checkAssign(pos token.Position, t types.Type, s *ast.AssignStmt) {
	lhs, rhs := types.ExprString(s.Lhs[0]), types.ExprString(s.Rhs[0])
	op := strings.TrimSuffix(s.Tok.String(), "=")
	switch kindOf(t) {
	case complexes:
		c.report(pos, "%s %s %s on complex numbers is fused inside: write it out in floats", lhs, s.Tok, rhs)
	case floats:
		name := types.TypeString(t, func(*types.Package) string { return "" })
		if _, compound := ast.Unparen(s.Rhs[0]).(*ast.BinaryExpr); compound {
			rhs = "(" + rhs + ")"
		}
		c.report(pos, "%s %s %s on floats may be fused with a sum: write %s = %s(%s %s %s)",
			lhs, s.Tok, rhs, lhs, name, lhs, op, rhs)
	}
}

func (c *checker) checkFunc(pos token.Position, fn *types.Func) {
	switch name := fn.Name(); {
	case fn.Pkg().Path() == "math/cmplx":
		c.report(pos, "cmplx.%s is not part of the arithmetic: write it out in floats", name)
	case fn.Pkg().Path() != "math" || slices.Contains(c.policy.Math, name):
	case name == "FMA":
		c.report(pos, "math.FMA rounds once where the arithmetic rounds twice: write float32(x*y) + z")
	default:
		c.report(pos, "math.%s may differ between machines: use only %s of package math, or kernels/ref",
			name, strings.Join(c.policy.Math, ", "))
	}
}

type kind int

const (
	neither kind = iota
	floats
	complexes
)

// kindOf tells whether values of t are, or with type parameters can be, floats or complex numbers.
func kindOf(t types.Type) kind {
	if p, ok := types.Unalias(t).(*types.TypeParam); ok {
		return kindOfUnion(p.Constraint())
	}
	b, ok := t.Underlying().(*types.Basic)
	switch {
	case ok && b.Info()&types.IsFloat != 0:
		return floats
	case ok && b.Info()&types.IsComplex != 0:
		return complexes
	}
	return neither
}

// kindOfUnion looks through a constraint: its embedded interfaces and the terms of its unions. It takes
// the worst, although an intersection could leave it out.
func kindOfUnion(t types.Type) kind {
	worst := neither
	switch t := t.Underlying().(type) {
	case *types.Interface:
		for i := range t.NumEmbeddeds() {
			worst = max(worst, kindOfUnion(t.EmbeddedType(i)))
		}
	case *types.Union:
		for i := range t.Len() {
			worst = max(worst, kindOfUnion(t.Term(i).Type()))
		}
	default:
		return kindOf(t)
	}
	return worst
}

// sameFloat reports whether a conversion from one type to the other keeps the float format, so that it
// only rounds.
func sameFloat(to, from types.Type) bool {
	if to == nil || from == nil {
		return false
	}
	if types.Identical(to, from) {
		return true
	}
	_, generic1 := types.Unalias(to).(*types.TypeParam)
	_, generic2 := types.Unalias(from).(*types.TypeParam)
	return !generic1 && !generic2 && types.Identical(to.Underlying(), from.Underlying())
}
