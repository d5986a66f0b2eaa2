package gguf

import "fmt"

// Has reports whether the file has metadata of that key.
func (f *File) Has(key string) bool {
	_, ok := f.keys[key]
	return ok
}

// Lookup returns the value of a metadata key.
func (f *File) Lookup(key string) (Value, bool) {
	i, ok := f.keys[key]
	if !ok {
		return Value{}, false
	}
	return f.Meta[i].Value, true
}

// The getters return a metadata value as a Go value of its own, with an error that wraps ErrMissing
// or ErrType and names the key, and, the second, the type found and the type wanted. Integers of any
// size are one type as long as the value fits, and so are the two floats. The Or variants return def
// where the key is missing; a value of the wrong type is an error still.

// Uint returns an integer that is not negative.
func (f *File) Uint(key string) (uint64, error) { return get(f, key, wantUint, Value.uint) }

// UintOr is Uint with a default.
func (f *File) UintOr(key string, def uint64) (uint64, error) {
	return getOr(f, key, def, wantUint, Value.uint)
}

// Int returns an integer.
func (f *File) Int(key string) (int64, error) { return get(f, key, wantInt, Value.int) }

// IntOr is Int with a default.
func (f *File) IntOr(key string, def int64) (int64, error) {
	return getOr(f, key, def, wantInt, Value.int)
}

// Float returns a float32 or float64.
func (f *File) Float(key string) (float64, error) { return get(f, key, wantFloat, Value.float) }

// FloatOr is Float with a default.
func (f *File) FloatOr(key string, def float64) (float64, error) {
	return getOr(f, key, def, wantFloat, Value.float)
}

// Bool returns a bool.
func (f *File) Bool(key string) (bool, error) { return get(f, key, wantBool, Value.bool) }

// BoolOr is Bool with a default.
func (f *File) BoolOr(key string, def bool) (bool, error) {
	return getOr(f, key, def, wantBool, Value.bool)
}

// String returns a string, which may be any bytes.
func (f *File) String(key string) (string, error) { return get(f, key, wantString, Value.string) }

// StringOr is String with a default.
func (f *File) StringOr(key, def string) (string, error) {
	return getOr(f, key, def, wantString, Value.string)
}

// Strings returns the elements of an array of strings.
func (f *File) Strings(key string) ([]string, error) {
	return get(f, key, "array of strings", Value.strings)
}

// Uints returns integers that are not negative. A single one counts as a list of one: files write
// what may differ from layer to layer either way.
func (f *File) Uints(key string) ([]uint64, error) {
	return get(f, key, "array of integers >= 0", list(Value.uint))
}

// Ints returns integers. A single one counts as a list of one.
func (f *File) Ints(key string) ([]int64, error) {
	return get(f, key, "array of integers", list(Value.int))
}

// Floats returns floats. A single one counts as a list of one.
func (f *File) Floats(key string) ([]float64, error) {
	return get(f, key, "array of floats", list(Value.float))
}

// Bools returns bools. A single one counts as a list of one.
func (f *File) Bools(key string) ([]bool, error) {
	return get(f, key, "array of bools", list(Value.bool))
}

const (
	wantUint   = "an integer >= 0"
	wantInt    = "an integer"
	wantFloat  = "a float"
	wantBool   = "a bool"
	wantString = "a string"
)

func get[T any](f *File, key, want string, decode func(Value) (T, bool)) (T, error) {
	var zero T
	v, ok := f.Lookup(key)
	if !ok {
		return zero, fmt.Errorf("metadata %s: %w; give a complete model file", quote(key), ErrMissing)
	}
	out, ok := decode(v)
	if !ok {
		return zero, fmt.Errorf("metadata %s: %w: %s %s, want %s; give a complete model file",
			quote(key), ErrType, v.TypeName(), v, want)
	}
	return out, nil
}

func getOr[T any](f *File, key string, def T, want string, decode func(Value) (T, bool)) (T, error) {
	if !f.Has(key) {
		return def, nil
	}
	return get(f, key, want, decode)
}

// list makes a decoder of arrays from one of scalars.
func list[T any](decode func(Value) (T, bool)) func(Value) ([]T, bool) {
	return func(v Value) ([]T, bool) {
		if v.typ != Array {
			x, ok := decode(v)
			return []T{x}, ok
		}
		if v.elem == String {
			return nil, false
		}
		out := make([]T, v.n)
		for i := range out {
			var ok bool
			if out[i], ok = decode(v.at(i)); !ok {
				return nil, false
			}
		}
		return out, true
	}
}

// Entry is one piece of metadata as text.
type Entry struct {
	Key   string `json:"key"`
	Type  string `json:"type"`
	Value string `json:"value"` // long strings and arrays shortened
}

// Describe returns the metadata as text for people, in the order of the file.
func (f *File) Describe() []Entry {
	out := make([]Entry, len(f.Meta))
	for i, kv := range f.Meta {
		out[i] = Entry{Key: kv.Key, Type: kv.Value.TypeName(), Value: kv.Value.String()}
	}
	return out
}
