package chat

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	builtin "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// compiler turns what gonja's parser makes into what this package runs: every operation becomes a
// call of do, and every loop, macro and piece of text counts.
type compiler struct {
	words  []*tokens.Token // of the template, in order
	blocks int             // open, one in another
}

// structures returns the tags that a template may use. Those for files are there to be refused.
func (c *compiler) structures() *exec.ControlStructureSet {
	tags := map[string]parser.ControlStructureParser{
		"if":         c.nested(c.parseIf),
		"for":        c.nested(c.parseFor),
		"macro":      c.nested(c.parseMacro),
		"set":        c.nested(c.parseSet),
		"generation": c.nested(c.parseGeneration),
	}
	for _, name := range []string{"break", "continue"} {
		tags[name], _ = builtin.All.Get(name)
	}
	for _, name := range []string{"include", "import", "from", "extends"} {
		tags[name] = func(*parser.Parser, *parser.Parser) (nodes.ControlStructure, error) {
			return nil, fmt.Errorf("%w: {%% %s %%} asks for another file, and a model's template has none", ErrTemplate, name)
		}
	}
	return exec.NewControlStructureSet(tags)
}

func (c *compiler) nested(parse parser.ControlStructureParser) parser.ControlStructureParser {
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		c.blocks++
		defer func() { c.blocks-- }()
		if c.blocks > maxBlocks {
			return nil, fmt.Errorf("%w: the template has more than %d blocks within one another", ErrLimit, maxBlocks)
		}
		return parse(p, args)
	}
}

func (c *compiler) parseIf(p, args *parser.Parser) (nodes.ControlStructure, error) {
	parse, _ := builtin.All.Get("if")
	s, err := parse(p, args)
	if err != nil {
		return nil, err
	}
	x := s.(*builtin.IfControlStructure)
	for i := range x.Conditions {
		if x.Conditions[i], err = c.rewrite(x.Conditions[i]); err != nil {
			return nil, err
		}
	}
	for _, w := range x.Wrappers {
		if err := c.rewriteNodes(w.Nodes); err != nil {
			return nil, err
		}
	}
	return x, nil
}

func (c *compiler) parseFor(p, args *parser.Parser) (nodes.ControlStructure, error) {
	at := args.Current()
	parse, _ := builtin.All.Get("for")
	s, err := parse(p, args)
	if err != nil {
		return nil, err
	}
	x := s.(*builtin.ForControlStructure)
	if x.Recursive {
		return nil, fmt.Errorf("%w: line %d: recursive loops are not supported", ErrTemplate, at.Line)
	}
	over, err := c.rewrite(x.ObjectEvaluator)
	if err != nil {
		return nil, err
	}
	x.ObjectEvaluator = call("iterate", at, over, &nodes.Bool{Location: at, Val: x.Value != ""})
	if x.IfCondition, err = c.rewrite(x.IfCondition); err != nil {
		return nil, err
	}
	if err := c.rewriteNodes(x.BodyWrapper.Nodes); err != nil {
		return nil, err
	}
	x.BodyWrapper.Nodes = append([]nodes.Node{block(&text{at: at})}, x.BodyWrapper.Nodes...)
	if x.EmptyWrapper != nil {
		err = c.rewriteNodes(x.EmptyWrapper.Nodes)
	}
	return x, err
}

func (c *compiler) parseMacro(p, args *parser.Parser) (nodes.ControlStructure, error) {
	parse, _ := builtin.All.Get("macro")
	s, err := parse(p, args)
	if err != nil {
		return nil, err
	}
	x := s.(*builtin.MacroControlStructure)
	if x.VarArgsName != "" || x.KwArgsName != "" {
		return nil, fmt.Errorf("%w: line %d: a macro with * or ** is not supported", ErrTemplate, x.Location.Line)
	}
	for _, arg := range x.Kwargs {
		if none, ok := arg.Value.(*nodes.None); ok && isParameter(none) {
			arg.Value = call("undefined", none.Location)
			continue
		}
		if arg.Value, err = c.rewrite(arg.Value); err != nil {
			return nil, err
		}
	}
	return &macroBlock{x.Macro}, c.rewriteNodes(x.Wrapper.Nodes)
}

// isParameter tells a parameter without a default, for which gonja puts None at the parameter's
// place, from one whose default is None.
func isParameter(n *nodes.None) bool {
	return n.Location.Val != "None" && n.Location.Val != "nil"
}

// parseGeneration reads {% generation %}, which marks what a model is trained on and renders as its
// content.
func (c *compiler) parseGeneration(p, _ *parser.Parser) (nodes.ControlStructure, error) {
	at := p.Current()
	w, _, err := p.WrapUntil("endgeneration")
	if err != nil {
		return nil, err
	}
	return &generation{at, w}, c.rewriteNodes(w.Nodes)
}

func (c *compiler) parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	s := &set{at: args.Current()}
	target, err := args.ParseVariableOrLiteral()
	if err != nil {
		return nil, err
	}
	switch n := target.(type) {
	case *nodes.Name:
		s.name = n.Name.Val
	case *nodes.GetAttribute:
		s.name = n.Attribute
		if s.on, err = c.rewrite(n.Node); err != nil {
			return nil, err
		}
	}
	if s.name == "" {
		return nil, fmt.Errorf("%w: line %d: {%% set %%} takes a name or an attribute of a namespace", ErrTemplate, s.at.Line)
	}
	if args.Match(tokens.Assign) == nil {
		if !args.End() {
			return nil, fmt.Errorf("%w: line %d: {%% set %%} needs a single name and =", ErrTemplate, s.at.Line)
		}
		if s.body, _, err = p.WrapUntil("endset"); err != nil {
			return nil, err
		}
		return s, c.rewriteNodes(s.body.Nodes)
	}
	value, err := args.ParseExpression()
	if err != nil {
		return nil, err
	}
	if value == nil || !args.End() {
		return nil, fmt.Errorf("%w: line %d: {%% set %%} takes one value", ErrTemplate, s.at.Line)
	}
	s.value, err = c.rewrite(value)
	return s, err
}

// rewriteNodes rewrites what is between tags, in place.
func (c *compiler) rewriteNodes(list []nodes.Node) error {
	for i, n := range list {
		switch n := n.(type) {
		case *nodes.Data:
			list[i] = block(&text{at: n.Data, data: n})
		case *nodes.Output:
			if n.Condition != nil {
				return fmt.Errorf("%w: line %d: a condition where prepare leaves none", ErrTemplate, n.Start.Line)
			}
			value, err := c.rewrite(n.Expression)
			if err != nil {
				return err
			}
			n.Expression = call("print", n.Start, value)
		}
	}
	return nil
}

// rewrite turns an expression into calls of do. What gonja still evaluates is literals, and, and
// or.
func (c *compiler) rewrite(n nodes.Expression) (nodes.Expression, error) {
	switch n := n.(type) {
	case nil:
		return nil, nil
	case *nodes.String, *nodes.Integer, *nodes.Float, *nodes.Bool, *nodes.None:
		return n, nil
	case *nodes.Name:
		return call("name", n.Name, &nodes.String{Location: n.Name, Val: n.Name.Val}), nil
	case *nodes.List:
		return c.operation("list", n.Location, n.Val...)
	case *nodes.Tuple:
		return c.operation("list", n.Location, n.Val...)
	case *nodes.Dict:
		var parts []nodes.Expression
		for _, p := range n.Pairs {
			parts = append(parts, p.Key, p.Value)
		}
		return c.operation("dict", n.Token, parts...)
	case *nodes.GetItem:
		return c.operation("item", n.Location, n.Node, n.Arg)
	case *nodes.GetAttribute:
		if n.Attribute == "" {
			return c.operation("item", n.Location, n.Node, &nodes.Integer{Location: n.Location, Val: n.Index})
		}
		return c.operation("attribute", n.Location, n.Node, &nodes.String{Location: n.Location, Val: n.Attribute})
	case *nodes.GetSlice:
		parts := []nodes.Expression{n.Node, n.Start, n.End, n.Step}
		for i := range parts {
			if parts[i] == nil {
				parts[i] = &nodes.None{Location: n.Location}
			}
		}
		return c.operation("slice", n.Location, parts...)
	case *nodes.Negation:
		if t, ok := n.Term.(*nodes.TestExpression); ok && n.Operator.Pos > t.Position().Pos {
			return c.rewriteTest(t, n.Operator) // x is not test
		}
		return c.operation("not", n.Operator, n.Term)
	case *nodes.UnaryExpression:
		return c.operation("unary"+n.Operator.Val, n.Operator, n.Term)
	case *nodes.BinaryExpression:
		return c.rewriteBinary(n)
	case *nodes.Call:
		return c.rewriteCall(n)
	case *nodes.FilteredExpression:
		return c.rewriteFiltered(n)
	case *nodes.TestExpression:
		return c.rewriteTest(n, nil)
	}
	return nil, fmt.Errorf("%w: an expression is missing, or it is one that chat templates do not have (%T)", ErrTemplate, n)
}

func (c *compiler) rewriteFiltered(n *nodes.FilteredExpression) (nodes.Expression, error) {
	x, err := c.rewrite(n.Expression)
	for _, f := range n.Filters {
		if err != nil {
			return nil, err
		}
		x, err = c.named("filter", x, *f)
	}
	return x, err
}

// rewriteTest rewrites x is test and, with not, x is not test.
func (c *compiler) rewriteTest(n *nodes.TestExpression, not *tokens.Token) (nodes.Expression, error) {
	if b, ok := n.Expression.(*nodes.BinaryExpression); ok && !c.enclosed(b.Operator.Token, n.Test.Token) {
		if n.Test.Name != "in" {
			// Gonja reads x + y is test as (x + y) is test.
			n.Expression = b.Right
			b.Right = n
			if not != nil {
				b.Right = &nodes.Negation{Term: n, Operator: not}
			}
			return c.rewrite(b)
		}
		if isComparison(b) {
			return nil, chained(n.Test.Token)
		}
	}
	x, err := c.rewrite(n.Expression)
	if err != nil {
		return nil, err
	}
	x, err = c.named("test", x, nodes.FilterCall(*n.Test))
	if err != nil || not == nil {
		return x, err
	}
	return call("not", not, x), nil
}

// enclosed reports whether a bracket that was opened before the word from is closed before the word
// to.
func (c *compiler) enclosed(from, to *tokens.Token) bool {
	at, _ := slices.BinarySearchFunc(c.words, from.Pos, func(t *tokens.Token, pos int) int { return t.Pos - pos })
	depth := 0
	for _, t := range c.words[at:] {
		depth += nesting(t)
		if depth < 0 || t.Pos >= to.Pos {
			break
		}
	}
	return depth < 0
}

func chained(at *tokens.Token) error {
	return fmt.Errorf("%w: line %d: a comparison of more than two values is not supported", ErrTemplate, at.Line)
}

func (c *compiler) rewriteBinary(n *nodes.BinaryExpression) (nodes.Expression, error) {
	if b, ok := n.Left.(*nodes.BinaryExpression); ok && isComparison(n) && isComparison(b) &&
		!c.enclosed(b.Operator.Token, n.Operator.Token) {
		return nil, chained(n.Operator.Token)
	}
	left, err := c.rewrite(n.Left)
	if err != nil {
		return nil, err
	}
	right, err := c.rewrite(n.Right)
	if err != nil {
		return nil, err
	}
	if left == nil || right == nil {
		return nil, fmt.Errorf("%w: line %d: %s lacks an operand", ErrTemplate, n.Operator.Token.Line, n.Operator.Token.Val)
	}
	if n.Operator.Token.Type == tokens.And || n.Operator.Token.Type == tokens.Or {
		n.Left, n.Right = left, right
		return n, nil
	}
	return call(strings.TrimSpace(n.Operator.Token.Val), n.Operator.Token, left, right), nil
}

func isComparison(n *nodes.BinaryExpression) bool {
	switch n.Operator.Token.Type {
	case tokens.Equals, tokens.Ne, tokens.LowerThan, tokens.LowerThanOrEqual,
		tokens.GreaterThan, tokens.GreaterThanOrEqual:
		return true
	}
	return false
}

// rewriteCall tells a function or macro, x(), from a method, x.y().
func (c *compiler) rewriteCall(n *nodes.Call) (nodes.Expression, error) {
	switch f := n.Func.(type) {
	case *nodes.Name:
		return c.named("call", &nodes.None{Location: n.Location},
			nodes.FilterCall{Token: n.Location, Name: f.Name.Val, Args: n.Args, Kwargs: n.Kwargs})
	case *nodes.GetAttribute:
		if f.Attribute == "" {
			break
		}
		x, err := c.rewrite(f.Node)
		if err != nil {
			return nil, err
		}
		return c.named("method", x,
			nodes.FilterCall{Token: n.Location, Name: f.Attribute, Args: n.Args, Kwargs: n.Kwargs})
	}
	return nil, fmt.Errorf("%w: line %d: only names and methods can be called", ErrTemplate, n.Location.Line)
}

// operation is a call of do with the operands rewritten.
func (c *compiler) operation(op string, at *tokens.Token, operands ...nodes.Expression) (nodes.Expression, error) {
	out := make([]nodes.Expression, len(operands))
	for i, x := range operands {
		var err error
		if out[i], err = c.rewrite(x); err != nil {
			return nil, err
		}
		if out[i] == nil {
			return nil, fmt.Errorf("%w: line %d: an expression is missing", ErrTemplate, at.Line)
		}
	}
	return call(op, at, out...), nil
}

// named is a call of do for what has a name and arguments: a filter, a test, a function, a method.
// Keyword arguments travel as one dict, sorted, because gonja would evaluate them in any order.
func (c *compiler) named(op string, on nodes.Expression, f nodes.FilterCall) (nodes.Expression, error) {
	if on == nil {
		return nil, fmt.Errorf("%w: line %d: %s %s lacks its operand", ErrTemplate, f.Token.Line, op, f.Name)
	}
	var pairs []nodes.Expression
	for _, key := range slices.Sorted(maps.Keys(f.Kwargs)) {
		pairs = append(pairs, &nodes.String{Location: f.Token, Val: key}, f.Kwargs[key])
	}
	keywords, err := c.operation("dict", f.Token, pairs...)
	if err != nil {
		return nil, err
	}
	x, err := c.operation(op, f.Token, f.Args...)
	if err != nil {
		return nil, err
	}
	n := x.(*nodes.Call)
	n.Args = slices.Insert(n.Args, 2, on, nodes.Expression(&nodes.String{Location: f.Token, Val: f.Name}), keywords)
	return n, nil
}

// call is the node of do(line, op, operands...).
func call(op string, at *tokens.Token, operands ...nodes.Expression) *nodes.Call {
	return &nodes.Call{
		Location: at,
		Func:     &nodes.Name{Name: &tokens.Token{Type: tokens.Name, Val: doName, Line: at.Line, Col: at.Col}},
		Args: append([]nodes.Expression{
			&nodes.Integer{Location: at, Val: at.Line},
			&nodes.String{Location: at, Val: op},
		}, operands...),
		Kwargs: map[string]nodes.Expression{},
	}
}

func block(s nodes.ControlStructure) *nodes.ControlStructureBlock {
	return &nodes.ControlStructureBlock{Location: s.Position(), ControlStructure: s}
}
