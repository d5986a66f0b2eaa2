package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// The metadata by which a part says what it is.
const (
	splitNo      = "split.no" // from 0
	splitCount   = "split.count"
	splitTensors = "split.tensors.count" // in all parts
)

// keepTogether is what to do about ErrParts.
const keepTogether = "; keep all parts of one model in one folder, under their own names"

// split is what a file says about the model that it is a part of.
type split struct {
	no, count, tensors int // no: from 0
}

// split reads it. A file that says nothing is the only part.
func (f *File) split() (split, error) {
	whole := split{count: 1, tensors: len(f.Tensors)}
	if !f.Has(splitCount) {
		return whole, nil
	}
	count, err := f.splitNumber(splitCount, MaxParts)
	if err != nil || count <= 1 {
		return whole, err
	}
	no, err := f.splitNumber(splitNo, count-1)
	if err != nil {
		return whole, err
	}
	tensors, err := f.splitNumber(splitTensors, MaxTensors)
	return split{no: no, count: count, tensors: tensors}, err
}

// splitNumber reads one number of a part.
func (f *File) splitNumber(key string, most int) (int, error) {
	v, ok := f.Lookup(key)
	if !ok {
		return 0, fmt.Errorf("metadata %s is missing in a part of a split model", key)
	}
	n, ok := v.uint()
	if !ok || n > uint64(most) {
		return 0, fmt.Errorf("metadata %s is %s %s, want an integer from 0 to %d", key, v.TypeName(), v, most)
	}
	return int(n), nil
}

// partSuffix is how the name of a part ends. Writers count from 1, with five digits.
var partSuffix = regexp.MustCompile(`-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// PartName is the path of one part of a split model, no from 1: "dir/model-00001-of-00003.gguf" for the
// prefix "dir/model".
func PartName(prefix string, no, count int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, no, count)
}

// openParts returns f, or closes it; if it is a part of a split model, with all other parts, which open
// opens. Where these are follows from the name of f alone: nothing that a file holds becomes a path.
func openParts(f *File, open func(name string) (*File, error)) (*File, error) {
	s, err := f.split()
	if err != nil {
		return nil, closed(fmt.Errorf("%s: %w: %w"+fetchAgain, f.Name, ErrDamaged, err), f)
	}
	if s.count == 1 {
		return f, nil
	}
	prefix, err := s.prefix(f.Name)
	if err != nil {
		return nil, closed(err, f)
	}
	parts := make([]*File, s.count)
	parts[s.no] = f
	for i := range parts {
		if i == s.no {
			continue
		}
		name := PartName(prefix, i+1, s.count)
		if parts[i], err = open(name); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s is missing in %s, part %d of %d: %w"+keepTogether,
					filepath.Base(name), folder(name), i+1, s.count, os.ErrNotExist)
			}
			return nil, closed(err, parts...)
		}
	}
	whole, err := join(parts)
	if err != nil {
		return nil, closed(err, parts...)
	}
	return whole, nil
}

// folder is where path is, in full if that can be told.
func folder(path string) string {
	dir := filepath.Dir(path)
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// closed closes files and returns err, with what went wrong in that.
func closed(err error, files ...*File) error {
	for _, f := range files {
		if f == nil {
			continue
		}
		if cerr := f.Close(); cerr != nil {
			err = fmt.Errorf("%w; %w", err, cerr)
		}
	}
	return err
}

// prefix is what the names of all parts begin with. The name of this one must be that of the part that
// it is.
func (s *split) prefix(path string) (string, error) {
	m := partSuffix.FindStringSubmatchIndex(path)
	if m == nil {
		return "", fmt.Errorf("%s: %w: part %d of %d, whose name does not tell the names of the others; name it %s",
			path, ErrParts, s.no+1, s.count, filepath.Base(PartName("NAME", s.no+1, s.count)))
	}
	no, _ := strconv.Atoi(path[m[2]:m[3]]) // five digits
	count, _ := strconv.Atoi(path[m[4]:m[5]])
	if no != s.no+1 || count != s.count {
		return "", fmt.Errorf("%s: %w: it is named part %d of %d and holds part %d of %d"+keepTogether,
			path, ErrParts, no, count, s.no+1, s.count)
	}
	return path[:m[0]], nil
}

// join makes one file of all parts of a model, in order. The parts are the caller's no more, unless there
// is an error.
func join(parts []*File) (*File, error) {
	first := parts[0]
	whole, err := first.split()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w"+fetchAgain, first.Name, ErrDamaged, err)
	}
	whole.no = 0
	f := *first
	f.Parts, f.Tensors, f.unmap, f.Size = nil, nil, nil, 0
	f.tensors = make(map[string]*Tensor, whole.tensors)
	for i, p := range parts {
		if err := p.belongs(first, whole, i); err != nil {
			return nil, fmt.Errorf("%s: %w: %w"+keepTogether, p.Name, ErrParts, err)
		}
		for _, t := range p.Tensors {
			if twin := f.tensors[t.Name]; twin != nil {
				return nil, fmt.Errorf("%s: %w: tensor %s is in %s too"+keepTogether,
					p.Name, ErrParts, quote(t.Name), parts[twin.Part].Name)
			}
			t.Part = i
			f.tensors[t.Name] = t
		}
		f.Tensors = append(f.Tensors, p.Tensors...)
		f.Parts = append(f.Parts, p.Parts...)
		f.unmap = append(f.unmap, p.unmap...)
		f.Size += p.Size
	}
	if len(f.Tensors) != whole.tensors {
		return nil, fmt.Errorf("%s: %w: %d tensors in all parts, %d in the model"+keepTogether,
			first.Name, ErrParts, len(f.Tensors), whole.tensors)
	}
	return &f, nil
}

// belongs returns an error unless f is part i of the model whose first part is first. Whatever metadata
// it repeats must be the model's, but for the alignment, which is the file's own.
func (f *File) belongs(first *File, whole split, i int) error {
	whole.no = i
	s, err := f.split()
	switch {
	case err != nil:
		return err
	case s.count != whole.count || s.tensors != whole.tensors:
		return fmt.Errorf("of a model of %d parts with %d tensors; %s is of one of %d parts with %d",
			s.count, s.tensors, first.Name, whole.count, whole.tensors)
	case s.no != whole.no:
		return fmt.Errorf("it holds part %d, want part %d of %d", s.no+1, i+1, whole.count)
	}
	for _, kv := range f.Meta {
		v, ok := first.Lookup(kv.Key)
		if !ok || kv.Key == splitNo || kv.Key == alignmentKey {
			continue
		}
		if v.typ != kv.Value.typ || v.elem != kv.Value.elem || v.n != kv.Value.n || !bytes.Equal(v.raw, kv.Value.raw) {
			return fmt.Errorf("its metadata %s is %s, in %s it is %s", quote(kv.Key), kv.Value, first.Name, v)
		}
	}
	return nil
}

// WriteParts writes f as the count parts of a split model, to PartName(prefix, 1, count) and so on: tensors
// in their order, about as many bytes in each part, and metadata in the first. It returns the paths.
func (f *File) WriteParts(prefix string, count int) ([]string, error) {
	if count < 1 || count > MaxParts {
		return nil, fmt.Errorf("%w: %d parts, want 1 to %d", ErrUnsupported, count, MaxParts)
	}
	total, done := uint64(1), uint64(0)
	for _, t := range f.Tensors {
		total += uint64(len(t.Data))
	}
	var paths []string
	rest := f.Tensors
	for i := range count {
		w := &Writer{Version: f.Version}
		w.setPart(f, i, count)
		for len(rest) > 0 && (i == count-1 || done < total/uint64(count)*uint64(i+1)) {
			t := rest[0]
			w.Add(t.Name, t.Format, t.Dims, Bytes(t.Data))
			done += uint64(len(t.Data))
			rest = rest[1:]
		}
		path := PartName(prefix, i+1, count)
		if err := w.create(path); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// setPart sets the metadata of part i of f.
func (w *Writer) setPart(f *File, i, count int) {
	if i == 0 {
		for _, kv := range f.Meta {
			if kv.Key != splitNo && kv.Key != splitCount && kv.Key != splitTensors {
				w.Set(kv.Key, kv.Value)
			}
		}
	}
	w.Set(splitNo, uint16(i))
	w.Set(splitCount, uint16(count))
	w.Set(splitTensors, int32(len(f.Tensors)))
}

// create writes the file to a new one at path.
func (w *Writer) create(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("write a part: %w", err)
	}
	_, err = w.WriteTo(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
