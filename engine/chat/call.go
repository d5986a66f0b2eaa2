package chat

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	maxCall = 1 << 20 // bytes of a call; what is longer is content
	maxName = 256     // bytes of the name of a function or a parameter
)

// callReader reads a call from behind <tool_call>, a byte at a time, and each byte once.
type callReader struct {
	at    int // in the text: the next byte
	phase callPhase
	from  int // where the tag, name, value or JSON under way begins
	end   int // of the value, if the right tag follows

	depth           int // of JSON
	quoted, escaped bool

	name, key string
	keys      []string
	values    map[string]string
	arguments string
}

type callPhase uint8

const (
	callBegins  callPhase = iota // white space before { or <function=
	callTag                      // <function=
	callJSON                     //
	callName                     // up to >
	callBody                     // white space before a tag of a parameter, or the end
	callBodyTag                  //
	callKey                      // up to >
	callValue                    // up to </parameter>, and the tag after it
	callNext                     // white space before that tag
	callNextTag                  //
	callEnds                     // white space before </tool_call>
	callEndTag                   //
)

const (
	tagFunction  = "<function="
	tagParameter = "<parameter="
	tagValueEnd  = "</parameter>"
	tagEnd       = "</function>"
)

// read goes on in text. It returns a call and where it ends; no call and the bytes that are none; or
// no call and 0, when it needs more.
func (c *callReader) read(text []byte, types schemaTypes) (*ToolCall, int) {
	for ; c.at < len(text); c.at++ {
		ok := c.at < maxCall && c.byte(text, types)
		if !ok {
			if c.phase == callTag || c.phase == callBodyTag || c.phase == callEndTag {
				return nil, c.from // the tag may be another call's
			}
			return nil, c.at
		}
		if c.phase == callEndTag && string(text[c.from:c.at+1]) == callClose {
			return &ToolCall{Name: c.name, Arguments: c.arguments}, c.at + 1
		}
	}
	return nil, 0
}

// atEnd returns the call that lacks only its closing mark.
func (c *callReader) atEnd() *ToolCall {
	if c.phase != callEnds && c.phase != callEndTag {
		return nil
	}
	return &ToolCall{Name: c.name, Arguments: c.arguments}
}

// byte takes the byte at c.at; false if there can be no call.
func (c *callReader) byte(text []byte, types schemaTypes) bool {
	b := text[c.at]
	space := strings.IndexByte(" \t\r\n", b) >= 0
	switch c.phase {
	case callBegins, callBody, callNext, callEnds:
		switch {
		case space:
		case b == '<':
			if c.phase != callNext {
				c.from = c.at
			}
			c.phase++ // to the tag
		case b == '{' && c.phase == callBegins:
			c.phase, c.from = callJSON, c.at
			return c.json(text)
		case c.phase == callNext:
			c.phase = callValue
		default:
			return false
		}
		return true
	case callTag, callBodyTag, callNextTag, callEndTag:
		return c.tag(text, types)
	case callJSON:
		return c.json(text)
	case callName, callKey:
		return c.readName(text)
	}
	if b == '>' && bytes.HasSuffix(text[c.from:c.at+1], []byte(tagValueEnd)) {
		c.end, c.phase = c.at+1-len(tagValueEnd), callNext
	}
	return true
}

// tag takes a byte of one of the tags that may stand here.
func (c *callReader) tag(text []byte, types schemaTypes) bool {
	start := c.from
	may := []string{tagParameter, tagEnd}
	switch c.phase {
	case callTag:
		may = []string{tagFunction}
	case callEndTag:
		may = []string{callClose}
	case callNextTag:
		start = c.tagStart(text)
	}
	got := string(text[start : c.at+1])
	for _, tag := range may {
		switch {
		case got == tag:
			c.enter(tag, text, types)
			return true
		case strings.HasPrefix(tag, got):
			return true
		}
	}
	if c.phase == callNextTag { // the value goes on
		c.phase = callValue
		return c.byte(text, types)
	}
	return false
}

// tagStart is where the tag after a value begins; from is still the value's.
func (c *callReader) tagStart(text []byte) int {
	return c.end + len(tagValueEnd) + bytes.IndexByte(text[c.end+len(tagValueEnd):], '<')
}

// enter goes on behind a tag.
func (c *callReader) enter(tag string, text []byte, types schemaTypes) {
	if c.phase == callNextTag {
		value := strings.TrimSuffix(strings.TrimPrefix(string(text[c.from:c.end]), "\n"), "\n")
		if _, twice := c.values[c.key]; !twice {
			c.keys = append(c.keys, c.key)
		}
		c.values[c.key] = types.value(c.name, c.key, value)
	}
	switch tag {
	case tagFunction:
		c.phase, c.values = callName, map[string]string{}
	case tagParameter:
		c.phase = callKey
	case tagEnd:
		c.phase, c.arguments = callEnds, joinArguments(c.keys, c.values)
	case callClose:
		return
	}
	c.from = c.at + 1
}

func (c *callReader) readName(text []byte) bool {
	if b := text[c.at]; b != '>' {
		return b >= ' ' && b != '<' && c.at-c.from < maxName
	}
	name := string(text[c.from:c.at])
	if c.phase == callName {
		c.name, c.phase = name, callBody
	} else {
		c.key, c.phase = name, callValue
	}
	c.from = c.at + 1
	return name != ""
}

// json takes a byte of an object, and reads the object at its end.
func (c *callReader) json(text []byte) bool {
	b := text[c.at]
	switch {
	case c.quoted && b < ' ':
		return false
	case c.escaped:
		c.escaped = false
	case c.quoted:
		c.escaped, c.quoted = b == '\\', b != '"'
	case b == '"':
		c.quoted = true
	case b == '{' || b == '[':
		c.depth++
	case b == '}' || b == ']':
		c.depth--
	}
	if c.depth > 0 {
		return true
	}
	c.phase = callEnds
	return c.readJSON(text[c.from : c.at+1])
}

func (c *callReader) readJSON(object []byte) bool {
	var f struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(object, &f) != nil || f.Name == "" {
		return false
	}
	c.name, c.arguments = f.Name, string(f.Arguments)
	if c.arguments == "" || c.arguments == "null" {
		c.arguments = "{}"
	}
	if c.arguments[0] == '"' { // JSON within a string, as OpenAI's API has it
		if json.Unmarshal(f.Arguments, &c.arguments) != nil || !json.Valid([]byte(c.arguments)) {
			return false
		}
		c.arguments = strings.TrimSpace(c.arguments)
	}
	return c.arguments[0] == '{'
}

func joinArguments(keys []string, values map[string]string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		writeJSONString(&b, key)
		b.WriteString(": " + values[key])
	}
	b.WriteByte('}')
	return b.String()
}

// schemaTypes has the parameters, by function and name, that are no text.
type schemaTypes map[[2]string]bool

func readTypes(tools []json.RawMessage) schemaTypes {
	types := schemaTypes{}
	for _, raw := range tools {
		var tool struct {
			Function struct {
				Name       string
				Parameters json.RawMessage
			}
		}
		var root any
		if json.Unmarshal(raw, &tool) != nil || json.Unmarshal(tool.Function.Parameters, &root) != nil {
			continue
		}
		r := reading{root}
		for key, property := range r.properties(root, 0) {
			types[[2]string{tool.Function.Name, key}] = !r.isText(property, 0)
		}
	}
	return types
}

// maxRefs is how many references and lists of schemas are followed one after another.
const maxRefs = 16

// reading is a schema that is asked what values may be.
type reading struct{ root any }

// properties are those of an object, and of what allOf and $ref put together to one.
func (r reading) properties(schema any, depth int) map[string]any {
	s, ok := schema.(map[string]any)
	if !ok || depth > maxRefs {
		return nil
	}
	all := map[string]any{}
	maps.Copy(all, r.properties(r.target(s), depth+1))
	list, _ := s["allOf"].([]any)
	for _, x := range list {
		maps.Copy(all, r.properties(x, depth+1))
	}
	own, _ := s["properties"].(map[string]any)
	maps.Copy(all, own)
	return all
}

// target is what $ref leads to, within the schema (RFC 6901).
func (r reading) target(s map[string]any) any {
	pointer, ok := s["$ref"].(string)
	if !ok || pointer != "#" && !strings.HasPrefix(pointer, "#/") {
		return nil
	}
	at := r.root
	for _, part := range strings.Split(pointer, "/")[1:] {
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch x := at.(type) {
		case map[string]any:
			at = x[name]
		case []any:
			n, err := strconv.Atoi(name)
			if err != nil || n < 0 || n >= len(x) {
				return nil
			}
			at = x[n]
		default:
			return nil
		}
	}
	return at
}

// about are keywords by what they say of a value.
var about = map[string]bool{
	"properties": false, "required": false, "additionalProperties": false, "items": false, "prefixItems": false,
	"minItems": false, "maxItems": false, "minimum": false, "maximum": false, "exclusiveMinimum": false,
	"exclusiveMaximum": false, "minLength": true, "maxLength": true, "pattern": true, "format": true,
}

// isText reports whether a value may be a string, or nothing is said of it. Whoever holds a model to a
// schema has to ask the same (grammar.FromCalls).
func (r reading) isText(schema any, depth int) bool {
	s, ok := schema.(map[string]any)
	if !ok || depth > maxRefs {
		return true
	}
	if _, ok := s["$ref"]; ok {
		return r.isText(r.target(s), depth+1)
	}
	isString := func(v any) bool { _, ok := v.(string); return ok }
	said, typed := s["type"]
	if list, ok := said.([]any); typed && said != "string" && (!ok || !slices.Contains(list, any("string"))) {
		return false
	}
	if v, ok := s["const"]; ok {
		return isString(v)
	}
	if list, ok := s["enum"].([]any); ok && len(list) > 0 {
		return slices.ContainsFunc(list, isString)
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := s[keyword].([]any); ok && len(list) > 0 {
			return slices.ContainsFunc(list, func(x any) bool { return r.isText(x, depth+1) })
		}
	}
	text, other := typed, false
	for name := range s {
		if ofText, ok := about[name]; ok {
			text, other = text || ofText, other || !ofText
		}
	}
	return text || !other
}

// value returns a parameter's text as JSON. A template prints True, False and None as Python does.
func (s schemaTypes) value(function, key, text string) string {
	if s[[2]string{function, key}] {
		x := strings.TrimSpace(text)
		if python, ok := map[string]string{"True": "true", "False": "false", "None": "null"}[x]; ok {
			return python
		}
		if json.Valid([]byte(x)) {
			return x
		}
	}
	var b strings.Builder
	writeJSONString(&b, text)
	return b.String()
}
