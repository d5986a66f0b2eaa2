package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxSpelled is how many characters the keys have together that additional ones must not equal.
const maxSpelled = 1 << 14

// shape is what the keywords about objects say, of one schema or of several merged by allOf.
type shape struct {
	props    []property
	required []string
	extra    *value // additionalProperties; nil when it is not set
	path     string // of extra
}

type property struct {
	name   string
	schema *value
	path   string
}

func (s *shape) has(name string) bool {
	return slices.ContainsFunc(s.props, func(p property) bool { return p.name == name })
}

// readShape reads the keywords about objects.
func readShape(v *value, path string) (*shape, error) {
	s := &shape{extra: v.get("additionalProperties"), path: down(path, "additionalProperties")}
	if props := v.get("properties"); props != nil {
		if props.kind != "object" {
			return nil, refuse(path, `"properties" is an object, not %s`, props.kind)
		}
		for _, m := range props.members {
			s.props = append(s.props, property{m.name, m.value, down(down(path, "properties"), m.name)})
		}
	}
	if required := v.get("required"); required != nil {
		if required.kind != "array" {
			return nil, refuse(path, `"required" is a list of names, not %s`, required.kind)
		}
		for _, item := range required.items {
			if item.kind != "string" {
				return nil, refuse(path, `"required" is a list of names: %s is none`, item)
			}
			s.required = append(s.required, item.text)
		}
	}
	return s, nil
}

func (s *shape) closed() bool {
	return s.extra != nil && s.extra.kind == "boolean" && s.extra.text == "false"
}

func (c *schemaCompiler) objectOf(v *value, path string) (*expr, error) {
	s, err := readShape(v, path)
	if err != nil {
		return nil, err
	}
	return c.shaped(s, path)
}

// shaped compiles an object.
func (c *schemaCompiler) shaped(s *shape, path string) (*expr, error) {
	var extra *expr // the schema of additional properties
	var err error
	switch {
	case s.closed() || s.extra == nil && len(s.props) > 0:
	case s.extra == nil:
		extra = c.value()
	default:
		if extra, err = c.schema(s.extra, s.path, nil); err != nil {
			return nil, err
		}
	}
	must := make(map[string]bool)
	for _, name := range s.required {
		must[name] = true
	}
	var pairs []pair
	var names []string
	for _, prop := range s.props {
		e, err := c.schema(prop.schema, prop.path, nil)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair{prop.name, e, must[prop.name]})
		names = append(names, prop.name)
		delete(must, prop.name)
	}
	for _, name := range s.required { // without a schema of their own
		if !must[name] {
			continue
		}
		delete(must, name)
		e := extra
		if s.closed() {
			return nil, refuse(path, "%q is required, but no property: additionalProperties forbids it", name)
		}
		if e == nil {
			e = c.value()
		}
		pairs = append(pairs, pair{name, e, true})
		names = append(names, name)
	}
	if extra == nil {
		return c.members(pairs, nil), nil
	}
	if len(pairs) == 0 {
		return c.members(nil, seq(c.text(), c.colon(), extra)), nil
	}
	for _, name := range names {
		c.spelled += utf8.RuneCountInString(name)
	}
	if c.spelled > maxSpelled {
		return nil, fmt.Errorf("%w: the names of properties beside additionalProperties have more than %d characters",
			ErrLimit, maxSpelled)
	}
	return c.members(pairs, seq(c.otherKey(names), c.colon(), extra)), nil
}

// merged compiles allOf: of one schema, or of objects.
func (c *schemaCompiler) merged(v *value, path string, types []string) (*expr, error) {
	list := v.get("allOf")
	if list.kind != "array" || len(list.items) == 0 {
		return nil, refuse(path, `"allOf" is a list of schemas, and not empty`)
	}
	alone := true
	for _, m := range v.members {
		alone = alone && (m.name == "allOf" || m.name == "type" || skipped(m.name))
	}
	if len(list.items) == 1 && alone {
		return c.schema(list.items[0], down(down(path, "allOf"), "0"), types)
	}
	if types != nil && !slices.Contains(types, "object") {
		return nil, refuse(path, `"allOf" is supported for objects only`)
	}
	var parts []*shape
	if err := c.gather(v, path, &parts, 0); err != nil {
		return nil, err
	}
	s, err := mergeShapes(parts)
	if err != nil {
		return nil, err
	}
	return c.shaped(s, path)
}

// gather collects the shapes of a schema and of its allOf.
func (c *schemaCompiler) gather(v *value, path string, parts *[]*shape, depth int) error {
	if depth > maxNesting || len(*parts) > maxNesting {
		return fmt.Errorf("%w: %q of more than %d schemas", ErrLimit, "allOf", maxNesting)
	}
	if v.kind != "object" {
		return refuse(path, `"allOf" is supported for objects only`)
	}
	if at := v.get("$ref"); at != nil && at.kind == "string" {
		for _, m := range v.members {
			if m.name != "$ref" && !skipped(m.name) {
				return refuse(path, `keyword %q beside "$ref" is not supported`, m.name)
			}
		}
		target, err := c.resolve(at.text, path)
		if err != nil {
			return err
		}
		return c.gather(target, at.text, parts, depth+1)
	}
	if err := known(v, path); err != nil {
		return err
	}
	isObject := false
	for _, m := range v.members {
		switch {
		case m.name == "allOf" || skipped(m.name):
		case slices.Contains(keywords["object"], m.name):
			isObject = true
		case m.name == "type" && m.value.kind == "string" && m.value.text == "object":
			isObject = true
		default:
			return refuse(path, `keyword %q is not supported in "allOf"`, m.name)
		}
	}
	list := v.get("allOf")
	if !isObject && list == nil {
		return refuse(path, `"allOf" is supported for objects only`)
	}
	// Own properties come after those of what the schema builds upon.
	if list != nil {
		if list.kind != "array" {
			return refuse(path, `"allOf" is a list of schemas, and not empty`)
		}
		for i, item := range list.items {
			if err := c.gather(item, down(down(path, "allOf"), strconv.Itoa(i)), parts, depth+1); err != nil {
				return err
			}
		}
	}
	s, err := readShape(v, path)
	if err == nil {
		*parts = append(*parts, s)
	}
	return err
}

// mergeShapes is the shape of objects that are valid by all parts.
func mergeShapes(parts []*shape) (*shape, error) {
	out := &shape{}
	index := make(map[string]*value)
	for _, part := range parts {
		for _, p := range part.props {
			if known := index[p.name]; known == nil {
				index[p.name] = p.schema
				out.props = append(out.props, p)
			} else if known.String() != p.schema.String() {
				return nil, refuse(p.path, `the property has another schema elsewhere in "allOf"`)
			}
		}
		out.required = append(out.required, part.required...)
		if part.extra == nil || part.extra.kind == "boolean" && part.extra.text == "true" {
			continue
		}
		if !part.closed() {
			return nil, refuse(part.path, `a schema for additional properties is not supported in "allOf"`)
		}
		out.extra, out.path = part.extra, part.path
	}
	for _, part := range parts {
		for _, p := range out.props {
			if part.closed() && !part.has(p.name) {
				return nil, refuse(part.path, `false forbids the property %q of another schema in "allOf"`, p.name)
			}
		}
	}
	return out, nil
}
