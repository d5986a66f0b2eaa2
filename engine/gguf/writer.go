package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"kvasir/kernels/quant"
)

// Writer collects metadata and tensors in the order in which the file is to have them, and then
// writes the file in one pass, without ever holding the data of a tensor. What Parse would refuse is
// refused here: Set and Add keep the first error, and WriteTo returns it.
type Writer struct {
	Version uint32 // 2 or 3; 0 means 3

	alignment uint64 // 0 until set by general.alignment
	meta      []KV
	tensors   []outTensor
	keys      map[string]bool
	names     map[string]bool
	total     uint64 // at least the size of the data, with any padding
	err       error
}

type outTensor struct {
	name   string
	format quant.Format
	dims   []int
	size   uint64
	offset uint64
	data   func(io.Writer) error
}

// Set adds metadata: a Value, a bool, a string, a number of a sized type, or a slice of these. The
// key general.alignment also sets the alignment, which is 32 without it.
func (w *Writer) Set(key string, value any) {
	if w.err == nil {
		w.err = w.set(key, value)
	}
}

func (w *Writer) set(key string, value any) error {
	v, err := NewValue(value)
	if err == nil {
		err = checkNew(key, MaxKey, w.keys)
	}
	if err == nil && len(w.meta) == MaxMetadata {
		err = fmt.Errorf("one more than %d", MaxMetadata)
	}
	if err == nil && key == alignmentKey {
		if v.typ != Uint32 {
			err = fmt.Errorf("is %s, want uint32", v.TypeName())
		} else {
			w.alignment = v.bits()
			err = checkAlignment(w.alignment)
		}
	}
	if err != nil {
		return fmt.Errorf("write metadata %s: %w", quote(key), err)
	}
	if w.keys == nil {
		w.keys = make(map[string]bool)
	}
	w.keys[key] = true
	w.meta = append(w.meta, KV{Key: key, Value: v})
	return nil
}

// Add adds a tensor. WriteTo calls data, which must write exactly the tensor's bytes.
func (w *Writer) Add(name string, f quant.Format, dims []int, data func(io.Writer) error) {
	if w.err == nil {
		w.err = w.add(name, f, dims, data)
	}
}

func (w *Writer) add(name string, f quant.Format, dims []int, data func(io.Writer) error) error {
	err := checkNew(name, MaxName, w.names)
	if err == nil {
		err = checkTensorName(name)
	}
	if err == nil && len(w.tensors) == MaxTensors {
		err = fmt.Errorf("one more than %d", MaxTensors)
	}
	if values, _ := block(f); err == nil && values == 0 {
		err = fmt.Errorf("%w: format number %d is unknown", ErrUnsupported, uint32(f))
	}
	wide := make([]uint64, len(dims))
	for i, d := range dims {
		wide[i] = uint64(max(d, 0)) // a negative one is refused as 0 is
	}
	if err == nil {
		err = checkDims(wide)
	}
	var size uint64
	if err == nil {
		size, err = tensorBytes(f, dims)
	}
	if err == nil && (size > math.MaxInt64 || w.total+size+MaxAlignment > math.MaxInt64) {
		err = errors.New("the file would be too large")
	}
	if err != nil {
		return fmt.Errorf("write tensor %s: %w", quote(name), err)
	}
	if w.names == nil {
		w.names = make(map[string]bool)
	}
	w.names[name] = true
	w.total += size + MaxAlignment
	w.tensors = append(w.tensors, outTensor{name: name, format: f, dims: dims, size: size, data: data})
	return nil
}

func checkNew(name string, limit int, have map[string]bool) error {
	if len(name) < 1 || len(name) > limit {
		return fmt.Errorf("name of %d bytes, want 1 to %d", len(name), limit)
	}
	if have[name] {
		return errors.New("appears twice")
	}
	return checkName(name)
}

// Bytes is the data of a tensor that is in memory, for Add.
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// WriteTo writes the file and returns its size. It may be called again.
func (w *Writer) WriteTo(out io.Writer) (int64, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.Version == 0 {
		w.Version = 3
	}
	if w.Version != 2 && w.Version != 3 {
		return 0, fmt.Errorf("%w: write GGUF version %d, want 2 or 3", ErrUnsupported, w.Version)
	}
	alignment := w.alignment
	if alignment == 0 {
		alignment = defaultAlignment
	}
	o := &output{w: bufio.NewWriterSize(out, 1<<16)}
	o.header(w, alignment)
	start := alignUp(uint64(o.n), alignment)
	for i := range w.tensors {
		t := &w.tensors[i]
		o.pad(start + t.offset)
		if err := o.tensor(t); err != nil {
			return o.n, fmt.Errorf("write tensor %s: %w", quote(t.name), err)
		}
	}
	if len(w.tensors) > 0 {
		o.pad(alignUp(uint64(o.n), alignment))
	}
	if o.err == nil {
		o.err = o.w.Flush()
	}
	return o.n, o.err
}

// output counts what is written and keeps the first error.
type output struct {
	w   *bufio.Writer
	n   int64
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	o.n += int64(n)
	o.err = err
	return n, err
}

func (o *output) header(w *Writer, alignment uint64) {
	b := []byte(magic)
	b = binary.LittleEndian.AppendUint32(b, w.Version)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(w.meta)))
	o.Write(b) //nolint:errcheck // kept in o.err
	for _, kv := range w.meta {
		b = appendString(b[:0], kv.Key)
		v := kv.Value
		b = binary.LittleEndian.AppendUint32(b, uint32(v.typ))
		switch v.typ {
		case String:
			b = binary.LittleEndian.AppendUint64(b, uint64(len(v.raw)))
		case Array:
			b = binary.LittleEndian.AppendUint32(b, uint32(v.elem))
			b = binary.LittleEndian.AppendUint64(b, uint64(v.n))
		}
		o.Write(append(b, v.raw...)) //nolint:errcheck // kept in o.err
	}
	offset := uint64(0)
	for i := range w.tensors {
		t := &w.tensors[i]
		t.offset = offset
		offset = alignUp(offset+t.size, alignment)
		b = appendString(b[:0], t.name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.dims)))
		for _, d := range t.dims {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(t.format))
		b = binary.LittleEndian.AppendUint64(b, t.offset)
		o.Write(b) //nolint:errcheck // kept in o.err
	}
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// pad writes zeros up to byte end of the file.
func (o *output) pad(end uint64) {
	if n := int64(end) - o.n; n > 0 {
		io.Copy(o, io.LimitReader(zeros{}, n)) //nolint:errcheck // kept in o.err
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// tensor writes the data of a tensor, which must have its size.
func (o *output) tensor(t *outTensor) error {
	before := o.n
	if err := t.data(o); err != nil {
		return err
	}
	if n := uint64(o.n - before); o.err == nil && n != t.size {
		return fmt.Errorf("%d bytes written, want %d", n, t.size)
	}
	return o.err
}
