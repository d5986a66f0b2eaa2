// Package gguf reads and writes GGUF model files, versions 2 and 3, little-endian:
//
//	magic     4  "GGUF"
//	version   4  2 or 3
//	tensors   8  how many
//	metadata  8  how many
//	metadata, each: key (string), type 4, value
//	tensors, each: name (string), dimensions 4, dimension 8 each, format 4, offset 8
//	padding to the alignment (metadata general.alignment, else 32)
//	data, each tensor at its offset from here, a multiple of the alignment
//
// A string is its length in 8 bytes and then its bytes. An array is the type of its elements in 4
// bytes, their number in 8, and the elements.
//
// Files come from strangers. Every count, length and offset is checked against the bytes that are
// left before it is used and before anything is allocated. What a reader allocates for a file, the
// lists of its metadata included, stays below the size of the file plus 64 MiB: values and tensors
// are views of the file, and the limits below bound what stands beside them.
package gguf

import (
	"errors"
	"fmt"
	"strings"

	"kvasir/kernels/quant"
)

// Errors of this package; test with errors.Is. Those of Open and Parse begin with the name of the file;
// those of File's methods name the key or the tensor, and leave the file to the caller.
var (
	// ErrNotGGUF says that the file is something else.
	ErrNotGGUF = errors.New("not a GGUF file")
	// ErrDamaged says that the file breaks the rules of GGUF, most often because it was cut short.
	ErrDamaged = errors.New("damaged or cut short")
	// ErrUnsupported says that the file may be whole and this package still cannot use it.
	ErrUnsupported = errors.New("not supported")
	// ErrMissing says that the file has no metadata key or tensor of that name.
	ErrMissing = errors.New("missing")
	// ErrType says that a metadata value is of another type than the one asked for.
	ErrType = errors.New("wrong type")
)

// Limits. A file beyond one of them is refused; real models stay well below all of them.
const (
	MaxMetadata  = 1 << 16   // metadata values in a file
	MaxTensors   = 1 << 16   // tensors in a file
	MaxArray     = 1 << 20   // elements of an array; large vocabularies have 262,144 tokens
	MaxKey       = 1<<16 - 1 // bytes of a metadata key, from the GGUF specification
	MaxName      = 64        // bytes of a tensor's name, from the GGUF specification
	MaxDims      = 4         // dimensions of a tensor
	MaxAlignment = 1 << 20   // bytes
)

const (
	magic            = "GGUF"
	headerSize       = 24
	minAlignment     = 8
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// File is a parsed model file.
//
// Invariants, established by Parse:
//
//  1. Keys and tensor names are unique, of legal length, and printable; no tensor name has a slash.
//  2. Every tensor has 1 to MaxDims dimensions, none of them 0, whose rows are whole blocks of its
//     format; their product fits an int.
//  3. Data of every tensor is exactly its bytes, within the file, aligned, and shared with no other
//     tensor.
//
// A File does not change until Close, and may be used by several goroutines until then.
type File struct {
	Name       string // for messages
	Version    uint32
	Alignment  uint64    // of tensor data, in bytes
	Size       int64     // of the file, in bytes
	DataOffset int64     // where tensor data begins, in bytes from the start of the file
	Meta       []KV      // in the order of the file
	Tensors    []*Tensor // in the order of the file

	keys    map[string]int     // index in Meta
	tensors map[string]*Tensor // by name
	unmap   func() error       // nil when Parse was given the bytes
}

// KV is one piece of metadata.
type KV struct {
	Key   string
	Value Value
}

// Tensor is one tensor of a file: views of its bytes, and how to read them.
type Tensor struct {
	Name   string
	Format quant.Format
	Dims   []int  // values a row, rows, and further dimensions, as ggml orders them
	Offset uint64 // from File.DataOffset, in bytes
	Data   []byte // read-only, valid until the file is closed
}

// Values is the number of values in the tensor.
func (t *Tensor) Values() int {
	n := 1
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Shape is the dimensions as text: "[256 512 16]".
func (t *Tensor) Shape() string { return fmt.Sprint(t.Dims) }

// Tensor returns the tensor of that name. One that is missing, or in a format that cannot be computed
// with, is an error.
func (f *File) Tensor(name string) (*Tensor, error) {
	t := f.tensors[name]
	if t == nil {
		return nil, fmt.Errorf("tensor %s: %w; give a complete model file", quote(name), ErrMissing)
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	return t, nil
}

// HasTensor reports whether the file has a tensor of that name, in whatever format.
func (f *File) HasTensor(name string) bool { return f.tensors[name] != nil }

// Check returns an error, wrapping ErrUnsupported, if the file cannot be computed with as a whole:
// it is one part of a split model, or has a tensor in a format that is not supported. Parse accepts
// such files so that they can be looked at.
func (f *File) Check() error {
	parts, err := f.UintOr("split.count", 1)
	if err != nil {
		return err
	}
	if parts > 1 {
		return fmt.Errorf("%w: one of %d parts of a split model; join them first, with llama-gguf-split --merge",
			ErrUnsupported, parts)
	}
	for _, t := range f.Tensors {
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tensor) check() error {
	if t.Format.Supported() {
		return nil
	}
	return fmt.Errorf("%w: tensor %s has format %s; give the model in %s",
		ErrUnsupported, quote(t.Name), t.Format, supportedFormats())
}

// Close gives the file's memory back. Tensor data and Values taken from the file must not be used
// any more; strings and lists that the getters returned are copies and stay good.
func (f *File) Close() error {
	unmap := f.unmap
	f.Meta, f.Tensors, f.keys, f.tensors, f.unmap = nil, nil, nil, nil, nil
	if unmap == nil {
		return nil
	}
	if err := unmap(); err != nil {
		return fmt.Errorf("unmap the file: %w", err)
	}
	return nil
}

// Forget gives back the memory behind data, which is a tensor's or a part of one, and is not needed for
// now: reading it again reads the file again. It does nothing where the file is not mapped.
func (f *File) Forget(data []byte) {
	if f.unmap != nil {
		forget(data)
	}
}

// supportedFormats is "F32, F16 or Q8_0", for messages.
func supportedFormats() string {
	var names []string
	for _, f := range quant.Supported() {
		names = append(names, f.String())
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
