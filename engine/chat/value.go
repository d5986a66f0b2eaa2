package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// The values of a template are nil (None), bool, int, float64, string, []any, and these. All but a
// namespace never change once made, so none can contain itself except through a namespace, which
// prints, compares and measures without a look inside.
type (
	// undefined is what a name or an attribute that is not there evaluates to. It is an empty slice
	// so that gonja, which evaluates and, or and if, takes it for false.
	undefined []struct{}

	// dict keeps its entries in order, as Python does; an empty one is false to gonja.
	dict []entry

	// entry has a key that is nil, bool, int, float64 or string.
	entry struct{ key, value any }

	// namespace is the only thing that an assignment inside of a loop can change.
	namespace struct{ vars map[string]any }

	// macro is a {% macro %}, ready to be called.
	macro struct {
		name string
		call exec.Macro
	}

	// literal is a whole number from JSON that an int does not hold. It can be printed and compared for
	// being the same.
	literal string

	// function is the name of one of functions.
	function string
)

func (d dict) get(key any) (any, bool) {
	for _, e := range d {
		if equal(e.key, key) {
			return e.value, true
		}
	}
	return nil, false
}

// plain takes gonja's wrapping off a value.
func plain(v any) any {
	for {
		w, ok := v.(*exec.Value)
		if !ok {
			return v
		}
		v = w.Interface()
	}
}

// kind is the name of a value's type in messages.
func kind(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case undefined:
		return "an undefined value"
	case bool:
		return "a boolean"
	case int, float64, literal:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	case dict:
		return "a mapping"
	case *namespace:
		return "a namespace"
	case macro:
		return "a macro"
	case function:
		return "a function"
	case exec.AttributeGetter:
		return "the loop"
	}
	return fmt.Sprintf("a %T", v)
}

func truth(v any) bool { return exec.AsValue(v).IsTrue() }

// number returns the value of a number; in Python a boolean is one.
func number(v any) (i int, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal compares like Python's ==.
func equal(a, b any) bool {
	if _, x, _, ok := number(a); ok {
		_, y, _, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		b, ok := b.(string)
		return ok && a == b
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case dict:
		b, ok := b.(dict)
		if !ok || len(a) != len(b) {
			return false
		}
		for _, e := range a {
			if v, ok := b.get(e.key); !ok || !equal(e.value, v) {
				return false
			}
		}
		return true
	case literal:
		b, ok := b.(literal)
		return ok && a == b
	case *namespace:
		b, ok := b.(*namespace)
		return ok && a == b
	}
	return false
}

// toString is Python's str.
func toString(v any) string {
	switch v := v.(type) {
	case undefined:
		return ""
	case string:
		return v
	}
	var b strings.Builder
	writeRepr(&b, v)
	return b.String()
}

// writeRepr is Python's repr.
func writeRepr(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		b.WriteString(strings.ToUpper(strconv.FormatBool(v)[:1]) + strconv.FormatBool(v)[1:])
	case int:
		b.WriteString(strconv.Itoa(v))
	case literal:
		b.WriteString(string(v))
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		writeQuoted(b, v)
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, x)
		}
		b.WriteByte(']')
	case dict:
		b.WriteByte('{')
		for i, e := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, e.key)
			b.WriteString(": ")
			writeRepr(b, e.value)
		}
		b.WriteByte('}')
	default:
		b.WriteString("<" + strings.TrimPrefix(strings.TrimPrefix(kind(v), "a "), "the ") + ">")
	}
}

func floatRepr(f float64) string {
	switch a := math.Abs(f); {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'f', -1, 64), "+"))
	case a != 0 && (a < 1e-4 || a >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// writeQuoted is Python's repr of a string.
func writeQuoted(b *strings.Builder, s string) {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
}

// jsonWriter is json.dumps with ensure_ascii=False, as transformers' tojson: keys in order, nothing
// escaped for HTML.
type jsonWriter struct {
	strings.Builder
	r      *run // pays for the indents
	indent int  // spaces a level, -1 for one line
}

func (w *jsonWriter) write(v any, level int) error {
	switch v := v.(type) {
	case nil:
		w.WriteString("null")
	case bool:
		w.WriteString(strconv.FormatBool(v))
	case int:
		w.WriteString(strconv.Itoa(v))
	case literal:
		w.WriteString(string(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%s is no JSON", floatRepr(v))
		}
		w.WriteString(floatRepr(v))
	case string:
		writeJSONString(&w.Builder, v)
	case []any:
		return w.writeAll('[', ']', len(v), level, func(i int) error { return w.write(v[i], level+1) })
	case dict:
		return w.writeAll('{', '}', len(v), level, func(i int) error {
			w.writeKey(v[i].key)
			w.WriteString(": ")
			return w.write(v[i].value, level+1)
		})
	default:
		return fmt.Errorf("%s is no JSON", kind(v))
	}
	return nil
}

// writeKey writes a mapping's key, which JSON wants to be a string.
func (w *jsonWriter) writeKey(key any) {
	switch key := key.(type) {
	case string:
		writeJSONString(&w.Builder, key)
	case nil:
		w.WriteString(`"null"`)
	case bool:
		w.WriteString(`"` + strconv.FormatBool(key) + `"`)
	default:
		w.WriteString(`"` + toString(key) + `"`)
	}
}

// writeAll writes n items between brackets.
func (w *jsonWriter) writeAll(open, end byte, n, level int, item func(i int) error) error {
	newline := func(level int) error {
		if w.indent < 0 {
			return nil
		}
		if err := w.r.spend(w.indent * level); err != nil {
			return err
		}
		w.WriteString("\n" + strings.Repeat(" ", w.indent*level))
		return nil
	}
	w.WriteByte(open)
	for i := range n {
		if i > 0 {
			w.WriteByte(',')
		}
		if i > 0 && w.indent < 0 {
			w.WriteByte(' ')
		}
		if err := newline(level + 1); err != nil {
			return err
		}
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := newline(level); err != nil {
			return err
		}
	}
	w.WriteByte(end)
	return nil
}

func writeJSONString(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ':
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}
