package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Type is the type of a metadata value, as numbered in the file.
type Type uint32

// The types of metadata.
const (
	Uint8 Type = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var typeNames = [...]string{
	"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
	"uint64", "int64", "float64",
}

// String is the type's name, "uint32".
func (t Type) String() string {
	if int64(t) < int64(len(typeNames)) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// size is the bytes of a value of a type of fixed size, else 0.
func (t Type) size() uint64 {
	switch t {
	case Uint8, Int8, Bool:
		return 1
	case Uint16, Int16:
		return 2
	case Uint32, Int32, Float32:
		return 4
	case Uint64, Int64, Float64:
		return 8
	}
	return 0
}

// Value is a metadata value: a view of its bytes in the file.
type Value struct {
	typ, elem Type   // elem: of the elements of an Array
	n         int    // elements of an Array
	raw       []byte // a scalar, the bytes of a string, or the elements as in the file
}

// NewValue makes a value of a Go value: a bool, a string, a number of a sized type, or a slice of
// these.
func NewValue(v any) (Value, error) {
	switch v := v.(type) {
	case Value:
		return v, nil
	case string:
		return Value{typ: String, raw: []byte(v)}, nil
	case []string:
		out := Value{typ: Array, elem: String, n: len(v)}
		for _, s := range v {
			out.raw = binary.LittleEndian.AppendUint64(out.raw, uint64(len(s)))
			out.raw = append(out.raw, s...)
		}
		return out, out.checkLen()
	}
	rt := reflect.TypeOf(v)
	var out Value
	ok := false
	if rt != nil && rt.Kind() == reflect.Slice {
		out.typ, out.n = Array, reflect.ValueOf(v).Len()
		out.elem, ok = kinds[rt.Elem().Kind()]
	} else if rt != nil {
		out.typ, ok = kinds[rt.Kind()]
	}
	if !ok {
		return Value{}, fmt.Errorf("%w: a %T cannot be metadata", ErrType, v)
	}
	var err error
	out.raw, err = binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		return Value{}, fmt.Errorf("encode a %T: %w", v, err)
	}
	return out, out.checkLen()
}

var kinds = map[reflect.Kind]Type{
	reflect.Uint8: Uint8, reflect.Int8: Int8, reflect.Uint16: Uint16, reflect.Int16: Int16,
	reflect.Uint32: Uint32, reflect.Int32: Int32, reflect.Uint64: Uint64, reflect.Int64: Int64,
	reflect.Float32: Float32, reflect.Float64: Float64, reflect.Bool: Bool,
}

func (v Value) checkLen() error {
	if v.n > MaxArray {
		return fmt.Errorf("%w: array of %d elements, at most %d", ErrUnsupported, v.n, MaxArray)
	}
	return nil
}

// Type is the type of the value.
func (v Value) Type() Type { return v.typ }

// Len is the number of elements of an array, and 0 for anything else.
func (v Value) Len() int { return v.n }

// TypeName is the type as text: "uint32", "array of string".
func (v Value) TypeName() string {
	if v.typ == Array {
		return "array of " + v.elem.String()
	}
	return v.typ.String()
}

// at is element i of an array of numbers or bools.
func (v Value) at(i int) Value {
	size := int(v.elem.size())
	return Value{typ: v.elem, raw: v.raw[i*size : (i+1)*size]}
}

// bits is the bytes of a scalar as an unsigned number.
func (v Value) bits() uint64 {
	var b [8]byte
	copy(b[:], v.raw)
	return binary.LittleEndian.Uint64(b[:])
}

func (v Value) int() (int64, bool) {
	switch x := v.bits(); v.typ {
	case Uint8, Uint16, Uint32:
		return int64(x), true
	case Uint64:
		return int64(x), x <= math.MaxInt64
	case Int8:
		return int64(int8(x)), true
	case Int16:
		return int64(int16(x)), true
	case Int32:
		return int64(int32(x)), true
	case Int64:
		return int64(x), true
	}
	return 0, false
}

func (v Value) uint() (uint64, bool) {
	if v.typ == Uint64 {
		return v.bits(), true
	}
	n, ok := v.int()
	return uint64(n), ok && n >= 0
}

func (v Value) float() (float64, bool) {
	switch v.typ {
	case Float32:
		return float64(math.Float32frombits(uint32(v.bits()))), true
	case Float64:
		return math.Float64frombits(v.bits()), true
	}
	return 0, false
}

func (v Value) bool() (bool, bool) { return v.bits() == 1, v.typ == Bool }

func (v Value) string() (string, bool) { return string(v.raw), v.typ == String }

// strings is the elements of an array of strings, all in one allocation.
func (v Value) strings() ([]string, bool) {
	if v.typ != Array || v.elem != String {
		return nil, false
	}
	var all strings.Builder
	all.Grow(len(v.raw) - 8*v.n)
	out := make([]string, v.n)
	for i, raw := 0, v.raw; i < v.n; i++ {
		end := 8 + int(binary.LittleEndian.Uint64(raw))
		start := all.Len()
		all.Write(raw[8:end])
		out[i] = all.String()[start:]
		raw = raw[end:]
	}
	return out, true
}

const (
	showString = 60 // bytes of a string that String shows
	showArray  = 8  // elements of an array that String shows
)

// String is the value as text for people: long strings are cut, and arrays of strings or of many
// elements are counted: "[2048 strings]".
func (v Value) String() string {
	switch v.typ {
	case String:
		return showText(v.raw)
	case Array:
		if v.elem == String || v.n > showArray {
			return fmt.Sprintf("[%d %ss]", v.n, v.elem)
		}
		var b strings.Builder
		for i := range v.n {
			b.WriteByte(' ')
			b.WriteString(v.at(i).String())
		}
		return "[" + strings.TrimPrefix(b.String(), " ") + "]"
	case Bool:
		b, _ := v.bool()
		return strconv.FormatBool(b)
	case Float32:
		f, _ := v.float()
		return strconv.FormatFloat(f, 'g', -1, 32)
	case Float64:
		f, _ := v.float()
		return strconv.FormatFloat(f, 'g', -1, 64)
	case Uint64:
		return strconv.FormatUint(v.bits(), 10)
	}
	n, _ := v.int()
	return strconv.FormatInt(n, 10)
}

// showText escapes what a terminal would obey, and leaves other text as it is.
func showText(raw []byte) string {
	s := strconv.Quote(string(raw[:min(len(raw), showString)]))
	s = strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`)
	if len(raw) > showString {
		s += fmt.Sprintf("… (%d bytes)", len(raw))
	}
	return s
}
