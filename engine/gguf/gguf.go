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
// A large model may be split into parts, each a file like this with some of the tensors, named
// NAME-00001-of-00003.gguf and so on. The first has the metadata of the model, and each says by
// split.no, split.count and split.tensors.count what it is a part of. Open takes any of them for the
// whole.
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
	// ErrParts says that the parts of a split model do not belong together.
	ErrParts = errors.New("not the parts of one model")
)

// Limits. A file beyond one of them is refused; real models stay well below all of them.
const (
	MaxMetadata  = 1 << 16   // metadata values in a file, or in all parts of one
	MaxTensors   = 1 << 16   // tensors in a file, or in all parts of one
	MaxParts     = 1 << 10   // files that a model is split into
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

// File is a parsed model: one file, or all parts of a split one.
//
// Invariants, established by Parse, and by join for the parts of a split model:
//
//  1. Keys and tensor names are unique, of legal length, and printable; no tensor name has a slash.
//  2. Every tensor has 1 to MaxDims dimensions, none of them 0, whose rows are whole blocks of its
//     format; their product fits an int.
//  3. Data of every tensor is exactly its bytes, within its part, aligned there, and shared with no
//     other tensor.
//  4. Parts are all parts of a split model, in order, each once; there is one of a file that is whole,
//     and of a part that was parsed by itself.
//
// A File does not change until Close, and may be used by several goroutines until then.
type File struct {
	Name       string // of the first part, for messages
	Version    uint32
	Alignment  uint64    // of tensor data in the first part, in bytes
	Size       int64     // of all parts, in bytes
	DataOffset int64     // where tensor data begins in the first part, in bytes from its start
	Meta       []KV      // in the order of the file; the first part's
	Tensors    []*Tensor // in the order of the file, part after part
	Parts      []Part

	keys    map[string]int     // index in Meta
	tensors map[string]*Tensor // by name
	unmap   []func() error     // none when Parse was given the bytes
}

// Part is one file of a model.
type Part struct {
	Name       string
	Size       int64 // in bytes
	DataOffset int64 // where tensor data begins, in bytes from the start of the file
	Tensors    int
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
	Part   int    // index in File.Parts
	Offset uint64 // from that part's DataOffset, in bytes
	Data   []byte // read-only, valid until the file is closed; nil where ReadHead has read the file

	size uint64 // bytes
}

// Bytes is the size of the tensor's data.
func (t *Tensor) Bytes() int64 { return int64(t.size) }

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
// it is one part of a split model and was not opened with the others, or has a tensor in a format that
// is not supported. Parse accepts such files so that they can be looked at.
func (f *File) Check() error {
	s, err := f.split()
	if err != nil {
		return fmt.Errorf("%w"+fetchAgain, err)
	}
	if s.count != len(f.Parts) {
		return fmt.Errorf("%w: part %d of %d of a split model, by itself; give one that stands beside the others",
			ErrUnsupported, s.no+1, s.count)
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
	var errs []error
	for _, u := range unmap {
		if err := u(); err != nil {
			errs = append(errs, fmt.Errorf("unmap the file: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Forget gives back the memory behind data, which is a tensor's or a part of one, and is not needed for
// now: reading it again reads the file again. It does nothing where the file is not mapped.
func (f *File) Forget(data []byte) {
	if len(f.unmap) > 0 {
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
