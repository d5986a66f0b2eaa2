package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Function is one that a text may call.
type Function struct {
	Name       string
	Parameters []byte // JSON schema of its arguments, an object; nil: it has none
	Any        bool   // any arguments may be given: Parameters is not looked at
}

// Thought is what a model may write before its answer: up to </think>.
type Thought uint8

// The ways that an answer begins.
const (
	NoThought   Thought = iota // at once
	MayThink                   // with <think>, or at once
	OpenThought                // in the middle of a thought
)

// Calls are what a text is held to that calls functions.
type Calls struct {
	Functions []Function
	Least     int  // calls; 0: or text without any, or text before them
	Most      int  // 0: any number
	Tags      bool // they are written as Qwen3.5 does; else in JSON, as Qwen3 and Hermes do
	Thought   Thought
}

// The marks around thoughts and calls.
const (
	thinkOpen    = "<think>"
	thinkClose   = "</think>"
	callOpen     = "<tool_call>"
	callClose    = "</tool_call>"
	functionOpen = "<function="
	keyOpen      = "<parameter="
	valueClose   = "</parameter>"
	functionEnd  = "</function>"
)

// FromCalls compiles what a model writes when it calls functions, to be read by chat.Reply. Arguments are
// valid by the schema of their function, as FromSchema has it. In tags, a string stands as it is: one
// with a pattern or a length has no < but where its pattern says so.
func FromCalls(c Calls) (*Grammar, error) {
	size := 0
	for _, f := range c.Functions {
		size += len(f.Parameters)
	}
	if size > MaxSource {
		return nil, fmt.Errorf("%w: schemas of %d bytes together, more than %d", ErrLimit, size, MaxSource)
	}
	p := newPieces()
	var called []*expr
	var rules []*rule
	for _, f := range c.Functions {
		s := &schemaCompiler{pieces: p, refs: make(map[string]*rule)}
		compiled := s.jsonCall
		if c.Tags {
			compiled = s.tagCall
		}
		e, err := compiled(f)
		if err == nil {
			err = s.finish()
		}
		if err != nil {
			return nil, fmt.Errorf("function %s: %w", f.Name, err)
		}
		called, rules = append(called, e), append(rules, s.rules...)
	}
	one := &rule{name: "call", body: p.wrapped(c.Tags, alt(called...))}
	root := &rule{name: "root", body: c.around(call(one))}
	g, err := build(append(append([]*rule{root, one}, rules...), p.order...))
	if errors.Is(err, ErrSyntax) {
		return nil, fmt.Errorf("%w: %s", ErrSchema, strings.TrimPrefix(err.Error(), ErrSyntax.Error()+": rule "))
	}
	return g, err
}

// around is the text with so many calls as there are to be.
func (c *Calls) around(one *expr) *expr {
	most := int32(noMax)
	if c.Most > 0 {
		most = int32(c.Most) - 1
	}
	calls := seq(one, repeat(seq(opt(literal("\n")), one), int32(max(c.Least-1, 0)), most))
	if c.Least == 0 {
		calls = alt(without(callOpen), seq(until(callOpen), calls))
	}
	return c.Thought.before(calls)
}

// before is e behind a thought, and the line breaks that follow one.
func (t Thought) before(e *expr) *expr {
	thought := seq(until(thinkClose), literal(thinkClose), repeat(literal("\n"), 0, 2))
	switch t {
	case OpenThought:
		return seq(thought, e)
	case MayThink:
		return seq(opt(seq(literal(thinkOpen), thought)), e)
	}
	return e
}

// wrapped is a call with its marks.
func (p *pieces) wrapped(tags bool, inner *expr) *expr {
	if tags {
		return seq(literal(callOpen+"\n"+functionOpen), inner, literal(functionEnd+"\n"+callClose))
	}
	return seq(literal(callOpen), p.blank(), literal("{"), p.blank(), literal(`"name"`), p.colon(), inner,
		p.blank(), literal("}"), p.blank(), literal(callClose))
}

// jsonCall is a call from its name to the end of its arguments.
func (c *schemaCompiler) jsonCall(f Function) (*expr, error) {
	arguments := c.object()
	if !f.Any {
		var err error
		if arguments, err = c.arguments(f.Parameters); err != nil {
			return nil, err
		}
	}
	return seq(literal(quote(f.Name)), c.comma(), literal(`"arguments"`), c.colon(), arguments), nil
}

// arguments is an object by the schema of a function's parameters.
func (c *schemaCompiler) arguments(schema []byte) (*expr, error) {
	if schema == nil {
		return c.members(nil, nil), nil
	}
	var err error
	if c.root, err = parseValue(schema); err != nil {
		return nil, err
	}
	if c.root.get("$ref") != nil {
		return c.ref("#", "#")
	}
	return c.schema(c.root, "#", []string{"object"})
}

// tagCall is a call from its name to the end of its parameters. Those that are no properties have a name
// without blanks and signs of tags.
func (c *schemaCompiler) tagCall(f Function) (*expr, error) {
	name := literal(f.Name + ">\n")
	extra := seq(literal(keyOpen), repeat(runeSet{{'!', '!'}, {'#', ';'}, {'?', '~'}}.expr(), 1, 64), literal(">\n"),
		until(valueClose), literal(valueClose+"\n"))
	if f.Any {
		return seq(name, star(extra)), nil
	}
	if f.Parameters == nil {
		return name, nil
	}
	var err error
	if c.root, err = parseValue(f.Parameters); err != nil {
		return nil, err
	}
	shape, err := c.shapeOf(c.root)
	if err != nil {
		return nil, err
	}
	rest := exprEmpty
	if len(shape.props) == 0 && shape.extra == nil {
		rest = star(extra)
	}
	for _, r := range shape.required {
		if !shape.has(r) {
			return nil, refuse("#", "%q is required, but no property", r)
		}
	}
	for _, p := range slices.Backward(shape.props) {
		if strings.ContainsAny(p.name, "<>") || strings.ContainsFunc(p.name, func(r rune) bool { return r < ' ' }) || p.name == "" {
			return nil, refuse(p.path, "the name cannot be written in a tag")
		}
		value, err := c.tagValue(p)
		if err != nil {
			return nil, err
		}
		one := seq(literal(keyOpen+p.name+">\n"), value, literal(valueClose+"\n"))
		if !slices.Contains(shape.required, p.name) {
			one = opt(one)
		}
		rest = seq(one, rest)
	}
	return seq(name, rest), nil
}

// shapeOf reads the parameters of a function, that are to be written one by one.
func (c *schemaCompiler) shapeOf(v *value) (*shape, error) {
	var parts []*shape
	free := !slices.ContainsFunc(v.members, func(m member) bool { return !skipped(m.name) })
	if v.kind == "object" && free {
		return &shape{}, nil
	}
	if err := c.gather(v, "#", &parts, 0); err != nil {
		return nil, err
	}
	return mergeShapes(parts)
}

// tagValue is a value with the line break after it: in JSON, or as it is where it is a string.
func (c *schemaCompiler) tagValue(p property) (*expr, error) {
	if !c.isText(p.schema, 0) {
		e, err := c.schema(p.schema, p.path, nil)
		return seq(e, literal("\n")), err
	}
	return c.bare(p.schema, p.path, 0)
}

// maxRefs is how many references are followed one after another.
const maxRefs = 16

// isText reports whether a value may be a string. chat.Reply asks the same of a schema when it reads.
func (c *schemaCompiler) isText(v *value, depth int) bool {
	if v.kind != "object" || depth > maxRefs {
		return true
	}
	if at := v.get("$ref"); at != nil {
		target, err := c.resolve(at.text, "#")
		return err != nil || c.isText(target, depth+1)
	}
	isString := func(t *value) bool { return t.text == "string" }
	if at := v.get("type"); at != nil && !isString(at) && !slices.ContainsFunc(at.items, isString) {
		return false
	}
	if v.get("const") != nil || v.get("enum") != nil {
		list, err := constantsOf(v, "#")
		return err != nil || slices.ContainsFunc(list, func(x *value) bool { return x.kind == "string" })
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		if list := v.get(keyword); list != nil && len(list.items) > 0 {
			return slices.ContainsFunc(list.items, func(x *value) bool { return c.isText(x, depth+1) })
		}
	}
	if v.get("type") != nil {
		return true
	}
	about := func(kind string) bool {
		return slices.ContainsFunc(v.members, func(m member) bool { return slices.Contains(keywords[kind], m.name) })
	}
	return about("string") || !about("object") && !about("array") && !about("number")
}

// bare is a string as it stands between tags.
func (c *schemaCompiler) bare(v *value, path string, depth int) (*expr, error) {
	any := until(valueClose)
	if v.kind == "boolean" && v.text == "true" {
		return any, nil
	}
	if v.kind != "object" || depth > maxRefs {
		return nil, refuse(path, "it cannot be written in a tag")
	}
	if at := v.get("$ref"); at != nil {
		target, err := c.resolve(at.text, path)
		if err != nil {
			return nil, err
		}
		return c.bare(target, at.text, depth+1)
	}
	if err := known(v, path); err != nil {
		return nil, err
	}
	if v.get("const") != nil || v.get("enum") != nil {
		return c.bareConstants(v, path)
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		if list := v.get(keyword); list != nil {
			return c.bareBranches(v, list, down(path, keyword), depth)
		}
	}
	if !slices.ContainsFunc(v.members, func(m member) bool { return slices.Contains(keywords["string"], m.name) }) {
		return any, nil
	}
	if at := v.get("pattern"); at != nil && strings.Contains(at.text, "</") {
		return nil, refuse(path, `"pattern" %q: </ cannot be written in a tag`, at.text)
	}
	c.raw = true
	defer func() { c.raw = false }()
	e, err := c.stringOf(v, path)
	return seq(e, literal("\n")), err
}

func (c *schemaCompiler) bareConstants(v *value, path string) (*expr, error) {
	values, err := constantsOf(v, path)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, x := range values {
		if x.kind == "string" && !strings.Contains(x.text, valueClose) {
			list = append(list, x.text)
		}
	}
	if len(list) == 0 {
		return nil, refuse(path, "no value is left that can be written in a tag")
	}
	return seq(texts(list), literal("\n")), nil
}

// bareBranches is anyOf and oneOf, and allOf of one schema.
func (c *schemaCompiler) bareBranches(v, list *value, path string, depth int) (*expr, error) {
	for _, m := range v.members {
		if m.value != list && m.name != "type" && !skipped(m.name) {
			return nil, refuse(path, "keyword %q beside it is not supported", m.name)
		}
	}
	switch {
	case list.kind != "array" || len(list.items) == 0:
		return nil, refuse(path, "it is a list of schemas, and not empty")
	case strings.HasSuffix(path, "allOf") && len(list.items) > 1:
		return nil, refuse(path, "it is supported for objects only")
	case strings.HasSuffix(path, "oneOf"):
		if err := c.apart(list.items, path); err != nil {
			return nil, err
		}
	}
	var alts []*expr
	for _, x := range list.items {
		if !c.isText(x, depth+1) {
			continue
		}
		e, err := c.bare(x, path, depth+1)
		if err != nil {
			return nil, err
		}
		alts = append(alts, e)
	}
	return alt(alts...), nil
}

// until is any text before the first mark, which is to follow.
func until(mark string) *expr {
	m := newMarked(mark)
	return seq(m.before, star(m.partial)) // as in the first three bytes of "<</</think>"
}

// without is any text in which the mark does not stand.
func without(mark string) *expr {
	m := newMarked(mark)
	return seq(m.before, opt(seq(star(m.partial), literal(mark[:1]), m.tail)))
}

// marked is what text around a mark is made of.
type marked struct {
	before  *expr // text after which the mark, or a beginning of it, may stand
	partial *expr // a beginning of the mark that is followed by another one
	tail    *expr // what may follow the mark's first character at the end of a text without it
}

func newMarked(mark string) marked {
	first := rune(mark[0])
	if strings.ContainsRune(mark[1:], first) {
		panic("BUG: the mark " + mark + " holds its first character twice")
	}
	var back, again, tail *expr // behind i characters of the mark
	for i := len(mark) - 1; i > 0; i-- {
		c := rune(mark[i])
		next := literal(mark[i : i+1])
		other := newRuneSet(runeRange{first, first}, runeRange{c, c}).not().expr()
		if i == len(mark)-1 {
			back, again, tail = other, exprEmpty, exprEmpty
			continue
		}
		back, again, tail = alt(other, seq(next, back)), opt(seq(next, again)), opt(seq(next, tail))
	}
	partial := seq(literal(mark[:1]), again)
	plain := newRuneSet(runeRange{first, first}).not().expr()
	return marked{
		before:  star(alt(plain, seq(star(partial), literal(mark[:1]), back))),
		partial: partial,
		tail:    tail,
	}
}
