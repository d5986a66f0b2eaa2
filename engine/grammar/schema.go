package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// FromSchema compiles a JSON Schema, as OpenAI's structured outputs use them, to a grammar of JSON
// texts. Every text that it matches is valid by the schema. It may match fewer:
//
//   - Members come in the order of properties, then any others.
//   - An object with properties has no others unless additionalProperties says so.
//   - Values of enum and const are written in one way; for blanks and the length of numbers see
//     pieces. Keys of additional properties have no escapes.
//   - A schema without type is held to the types that its keywords are about.
//   - Dates have no 29 February, and other formats are as narrow as formats says.
//
// Supported: type, properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, enum, const, anyOf, oneOf (of branches that a type or a constant member tells apart),
// allOf (of objects), $ref within the schema, $defs, definitions, minLength, maxLength, pattern (see
// regex), format, minimum, maximum, exclusiveMinimum, exclusiveMaximum. Annotations, and names that
// begin with x-, say nothing about the value and are skipped. All else is refused, with the keyword
// and its path.
func FromSchema(schema []byte) (*Grammar, error) { return AfterThought(NoThought, schema) }

// AfterThought is FromSchema of what follows the thought that a model may write, or has begun.
func AfterThought(t Thought, schema []byte) (*Grammar, error) {
	if len(schema) > MaxSource {
		return nil, fmt.Errorf("%w: a schema of %d bytes, more than %d", ErrLimit, len(schema), MaxSource)
	}
	v, err := parseValue(schema)
	if err != nil {
		return nil, err
	}
	c := &schemaCompiler{root: v, pieces: newPieces(), refs: make(map[string]*rule)}
	if _, err := c.ref("#", "#"); err != nil {
		return nil, err
	}
	if err := c.finish(); err != nil {
		return nil, err
	}
	rules := c.rules
	if t != NoThought {
		rules = append([]*rule{{name: "root", body: t.before(call(rules[0]))}}, rules...)
	}
	g, err := build(append(rules, c.pieces.order...))
	if errors.Is(err, ErrSyntax) {
		what := strings.TrimPrefix(err.Error(), ErrSyntax.Error()+": rule ")
		return nil, fmt.Errorf("%w: %s", ErrSchema, what)
	}
	return g, err
}

// finish makes the rules of what was referred to.
func (c *schemaCompiler) finish() (err error) {
	for len(c.pending) > 0 {
		next := c.pending[0]
		c.pending = c.pending[1:]
		if next.rule.body, err = c.schema(next.value, next.rule.name, nil); err != nil {
			return err
		}
	}
	return nil
}

type schemaCompiler struct {
	*pieces
	raw     bool // strings stand as they are, without quotes and escapes, and end before a tag
	root    *value
	refs    map[string]*rule // by pointer
	rules   []*rule
	pending []reference
	spelled int // characters of keys that additional ones must not equal
}

// reference is a schema that a rule is to be made of. The rule is named by its path.
type reference struct {
	rule  *rule
	value *value
}

var annotations = []string{
	"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
	"$comment", "$schema", "$defs", "definitions",
}

// keywords by the type of value that they are about.
var keywords = map[string][]string{
	"object": {"properties", "required", "additionalProperties"},
	"array":  {"items", "prefixItems", "minItems", "maxItems"},
	"string": {"minLength", "maxLength", "pattern", "format"},
	"number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}

var allTypes = []string{"object", "array", "string", "number", "boolean", "null"}

// refuse is the error for what stands at a path.
func refuse(path, format string, args ...any) error {
	if strings.ContainsFunc(path, func(c rune) bool { return !strconv.IsPrint(c) }) {
		path = strconv.Quote(path)
	}
	return fmt.Errorf("%w: %s: %s", ErrSchema, path, fmt.Sprintf(format, args...))
}

// down is the path of a member.
func down(path, name string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// schema compiles a schema. types, if not nil, are those that the schemas around it allow.
func (c *schemaCompiler) schema(v *value, path string, types []string) (*expr, error) {
	switch {
	case v.kind == "boolean" && v.text == "true":
		v = &value{kind: "object"}
	case v.kind == "boolean":
		return nil, refuse(path, "no value is valid by the schema false")
	case v.kind != "object":
		return nil, refuse(path, "a schema is an object or a boolean, not %s", v.kind)
	}
	if err := known(v, path); err != nil {
		return nil, err
	}
	if at := v.get("type"); at != nil {
		own, err := readTypes(at, down(path, "type"))
		if err != nil {
			return nil, err
		}
		if types = meet(types, own); len(types) == 0 {
			return nil, refuse(path, "no type is left: those around it allow none of these")
		}
	}
	for _, lead := range []struct {
		keyword string
		beside  []string
		compile func(*value, string, []string) (*expr, error)
	}{
		{"$ref", nil, c.reference},
		{"const", []string{"type"}, c.constants},
		{"enum", []string{"type"}, c.constants},
		{"anyOf", []string{"type"}, c.branches},
		{"oneOf", []string{"type"}, c.branches},
		{"allOf", []string{"type", "properties", "required", "additionalProperties"}, c.merged},
	} {
		if v.get(lead.keyword) == nil {
			continue
		}
		for _, m := range v.members {
			if m.name != lead.keyword && !skipped(m.name) && !slices.Contains(lead.beside, m.name) {
				return nil, refuse(path, "keyword %q beside %q is not supported", m.name, lead.keyword)
			}
		}
		return lead.compile(v, path, types)
	}
	return c.typed(v, path, types)
}

func skipped(keyword string) bool {
	return slices.Contains(annotations, keyword) || strings.HasPrefix(keyword, "x-")
}

// known refuses keywords that are not supported.
func known(v *value, path string) error {
	for _, m := range v.members {
		switch m.name {
		case "type", "$ref", "const", "enum", "anyOf", "oneOf", "allOf":
			continue
		case "$id":
			if path == "#" {
				continue
			}
		case "uniqueItems":
			if m.value.kind == "boolean" && m.value.text == "false" {
				continue
			}
		}
		about := false
		for _, list := range keywords {
			about = about || slices.Contains(list, m.name)
		}
		if !about && !skipped(m.name) {
			return refuse(path, "keyword %q is not supported", m.name)
		}
	}
	return nil
}

// readTypes reads type. Where both number and integer are listed, number says all.
func readTypes(v *value, path string) ([]string, error) {
	list := []*value{v}
	if v.kind == "array" {
		list = v.items
	}
	var out []string
	for _, item := range list {
		if item.kind != "string" || (item.text != "integer" && !slices.Contains(allTypes, item.text)) {
			return nil, refuse(path, "%s is no type", item)
		}
		out = append(out, item.text)
	}
	if len(out) == 0 {
		return nil, refuse(path, "the list of types is empty")
	}
	return out, nil
}

// meet is the types of a that b allows too; nil stands for all.
func meet(a, b []string) []string {
	if a == nil {
		return b
	}
	out := []string{}
	for _, t := range a {
		switch {
		case slices.Contains(b, t):
			out = append(out, t)
		case t == "number" && slices.Contains(b, "integer"):
			out = append(out, "integer")
		case t == "integer" && slices.Contains(b, "number"):
			out = append(out, t)
		}
	}
	return out
}

// typed compiles a schema of keywords that are about types.
func (c *schemaCompiler) typed(v *value, path string, types []string) (*expr, error) {
	if types == nil {
		for _, t := range allTypes {
			if slices.ContainsFunc(v.members, func(m member) bool { return slices.Contains(keywords[t], m.name) }) {
				types = append(types, t)
			}
		}
		if types == nil {
			return c.value(), nil
		}
	}
	var alts []*expr
	for i, t := range types {
		if slices.Contains(types[:i], t) || t == "integer" && slices.Contains(types, "number") {
			continue
		}
		var e *expr
		var err error
		switch t {
		case "object":
			e, err = c.objectOf(v, path)
		case "array":
			e, err = c.arrayOf(v, path)
		case "string":
			e, err = c.stringOf(v, path)
		case "number", "integer":
			e, err = c.numberOf(v, path, t == "integer")
		case "boolean":
			e = alt(literal("true"), literal("false"))
		case "null":
			e = literal("null")
		}
		if err != nil {
			return nil, err
		}
		alts = append(alts, e)
	}
	return alt(alts...), nil
}

// reference compiles $ref.
func (c *schemaCompiler) reference(v *value, path string, types []string) (*expr, error) {
	if types != nil {
		return nil, refuse(path, `keyword "$ref" is not supported where "type" is set around it`)
	}
	at := v.get("$ref")
	if at.kind != "string" {
		return nil, refuse(path, `"$ref" is a string, not %s`, at.kind)
	}
	return c.ref(at.text, path)
}

// ref calls the rule of the schema that a pointer leads to.
func (c *schemaCompiler) ref(pointer, path string) (*expr, error) {
	r := c.refs[pointer]
	if r == nil {
		target, err := c.resolve(pointer, path)
		if err != nil {
			return nil, err
		}
		if len(c.rules) >= maxRules {
			return nil, fmt.Errorf("%w: more than %d references in a schema", ErrLimit, maxRules)
		}
		r = &rule{name: pointer}
		c.refs[pointer] = r
		c.rules = append(c.rules, r)
		c.pending = append(c.pending, reference{r, target})
	}
	return call(r), nil
}

// resolve follows a JSON pointer (RFC 6901) in a fragment.
func (c *schemaCompiler) resolve(pointer, path string) (*value, error) {
	if pointer != "#" && !strings.HasPrefix(pointer, "#/") {
		return nil, refuse(path, `"$ref" is supported within the schema only, as #/$defs/name, not %q`, pointer)
	}
	at := c.root
	for i, part := range strings.Split(pointer, "/") {
		if i == 0 {
			continue
		}
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		var next *value
		switch at.kind {
		case "object":
			next = at.get(name)
		case "array":
			if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < len(at.items) {
				next = at.items[n]
			}
		}
		if next == nil {
			return nil, refuse(path, `"$ref" leads nowhere: the schema has no %q`, pointer)
		}
		at = next
	}
	return at, nil
}

// constants compiles enum and const. Values of other types than the schema allows are left out.
func (c *schemaCompiler) constants(v *value, path string, types []string) (*expr, error) {
	values, err := constantsOf(v, path)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, item := range values {
		if types == nil || item.isOneOf(types) {
			list = append(list, item.String())
		}
	}
	if len(list) == 0 {
		return nil, refuse(path, "no value is left: none listed is of an allowed type")
	}
	return texts(list), nil
}

// constantsOf is the values that a schema with enum or const lists.
func constantsOf(v *value, path string) ([]*value, error) {
	if v.get("const") != nil {
		return []*value{v.get("const")}, nil
	}
	list := v.get("enum")
	if list.kind != "array" || len(list.items) == 0 {
		return nil, refuse(path, `"enum" is a list of values, and not empty`)
	}
	return list.items, nil
}

// isOneOf reports whether a value is of one of some types.
func (v *value) isOneOf(types []string) bool {
	return slices.Contains(types, v.kind) ||
		v.kind == "number" && slices.Contains(types, "integer") && isInteger(v.text)
}

// isInteger reports whether a number of JSON has no fraction, however it is written. It says no for
// powers of ten beyond the range of an int.
func isInteger(text string) bool {
	mantissa, power := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.Atoi(text[i+1:])
		if err != nil {
			return false
		}
		mantissa, power = text[:i], n
	}
	whole, frac, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	digits := strings.TrimRight(whole+frac, "0") // what counts, times ten to the power below
	return strings.Trim(digits, "0") == "" || power+len(whole) >= len(digits)
}

// branches compiles anyOf and oneOf.
func (c *schemaCompiler) branches(v *value, path string, types []string) (*expr, error) {
	keyword := "anyOf"
	if v.get(keyword) == nil {
		keyword = "oneOf"
	}
	list := v.get(keyword)
	if list.kind != "array" || len(list.items) == 0 {
		return nil, refuse(path, "%q is a list of schemas, and not empty", keyword)
	}
	if keyword == "oneOf" {
		if err := c.apart(list.items, path); err != nil {
			return nil, err
		}
	}
	var alts []*expr
	for i, item := range list.items {
		e, err := c.schema(item, down(down(path, keyword), strconv.Itoa(i)), types)
		if err != nil {
			return nil, err
		}
		alts = append(alts, e)
	}
	return alt(alts...), nil
}
