package gguf

import (
	"bufio"
	"fmt"
)

// Layout is where everything stands in the file that a Writer would write, for those who write the data of
// several tensors at once. Every byte that is neither head nor data is 0.
type Layout struct {
	Head    []byte  // from the beginning of the file
	Tensors []Place // in the order of the file
	Size    int64   // of the file
}

// Place is where the data of a tensor stands.
type Place struct {
	Name         string
	Offset, Size int64 // bytes, from the beginning of the file
}

// Layout returns the layout of the file that WriteTo would write. It calls no tensor's data, which may be
// nil then.
func (w *Writer) Layout() (*Layout, error) {
	if w.err != nil {
		return nil, w.err
	}
	if w.Version == 0 {
		w.Version = 3
	}
	if w.Version != 2 && w.Version != 3 {
		return nil, fmt.Errorf("%w: write GGUF version %d, want 2 or 3", ErrUnsupported, w.Version)
	}
	alignment := w.alignment
	if alignment == 0 {
		alignment = defaultAlignment
	}
	l := &Layout{}
	head := headWriter{&l.Head}
	o := &output{w: bufio.NewWriter(head)}
	o.header(w, alignment)
	if o.err == nil {
		o.err = o.w.Flush()
	}
	if o.err != nil {
		return nil, o.err
	}
	l.Size = o.n
	start := alignUp(uint64(o.n), alignment)
	for i := range w.tensors {
		t := &w.tensors[i]
		p := Place{Name: t.name, Offset: int64(start + t.offset), Size: int64(t.size)}
		l.Tensors = append(l.Tensors, p)
		l.Size = int64(alignUp(uint64(p.Offset+p.Size), alignment))
	}
	return l, nil
}

// headWriter appends.
type headWriter struct{ to *[]byte }

func (h headWriter) Write(p []byte) (int, error) {
	*h.to = append(*h.to, p...)
	return len(p), nil
}
