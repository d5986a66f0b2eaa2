package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// value is a JSON value with the order of its members.
type value struct {
	kind    string // object, array, string, number, boolean or null
	text    string // of a string, unquoted; of a number or a boolean, as written
	items   []*value
	members []member
}

type member struct {
	name  string
	value *value
}

// get is the member of a name, nil if there is none.
func (v *value) get(name string) *value {
	for _, m := range v.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func parseValue(source []byte) (*value, error) {
	if !utf8.Valid(source) {
		return nil, fmt.Errorf("%w: the schema is not valid UTF-8", ErrSyntax)
	}
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = fmt.Errorf("%w: the schema goes on after its end", ErrSyntax)
		}
	}
	return v, err
}

func readValue(d *json.Decoder, depth int) (*value, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("%w: a schema nested deeper than %d", ErrLimit, maxNesting)
	}
	token, err := d.Token()
	if err != nil {
		return nil, fmt.Errorf("%w: the schema is not JSON: %s", ErrSyntax, err.Error())
	}
	switch t := token.(type) {
	case string:
		return &value{kind: "string", text: t}, nil
	case json.Number:
		return &value{kind: "number", text: t.String()}, nil
	case bool:
		return &value{kind: "boolean", text: fmt.Sprint(t)}, nil
	case nil:
		return &value{kind: "null", text: "null"}, nil
	case json.Delim:
		if t == '{' {
			return readObject(d, depth)
		}
		return readArray(d, depth)
	}
	return nil, fmt.Errorf("%w: the schema is not JSON: unexpected %v", ErrSyntax, token)
}

func readObject(d *json.Decoder, depth int) (*value, error) {
	v := &value{kind: "object"}
	seen := make(map[string]bool)
	for d.More() {
		key, err := readValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		if key.kind != "string" {
			return nil, fmt.Errorf("%w: the schema is not JSON: a member without a name", ErrSyntax)
		}
		if seen[key.text] {
			return nil, fmt.Errorf("%w: an object of the schema has two members %q", ErrSyntax, key.text)
		}
		seen[key.text] = true
		item, err := readValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		v.members = append(v.members, member{key.text, item})
	}
	return v, closing(d)
}

func readArray(d *json.Decoder, depth int) (*value, error) {
	v := &value{kind: "array"}
	for d.More() {
		item, err := readValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
	}
	return v, closing(d)
}

// closing reads the bracket that ends what More has ended.
func closing(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("%w: the schema is not JSON: %s", ErrSyntax, err.Error())
	}
	return nil
}

// write is the one form in which a value of enum or const is generated: without blanks, members in
// the order of the schema, only what has to be escaped escaped.
func (v *value) write(b *strings.Builder) {
	switch v.kind {
	case "string":
		writeString(b, v.text)
	case "array":
		b.WriteByte('[')
		for i, item := range v.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.write(b)
		}
		b.WriteByte(']')
	case "object":
		b.WriteByte('{')
		for i, m := range v.members {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, m.name)
			b.WriteByte(':')
			m.value.write(b)
		}
		b.WriteByte('}')
	default:
		b.WriteString(v.text)
	}
}

func (v *value) String() string {
	var b strings.Builder
	v.write(&b)
	return b.String()
}

func quote(text string) string { return (&value{kind: "string", text: text}).String() }

func writeString(b *strings.Builder, text string) {
	b.WriteByte('"')
	for _, c := range text {
		b.WriteString(escaped(c))
	}
	b.WriteByte('"')
}

// escaped is a character as it stands in a JSON string.
func escaped(c rune) string {
	switch c {
	case '"', '\\':
		return "\\" + string(c)
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if c < 0x20 {
		return fmt.Sprintf(`\u%04x`, c)
	}
	return string(c)
}
