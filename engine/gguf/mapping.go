package gguf

import (
	"fmt"
	"runtime"
	"sync"
)

// Mapping is a file in memory, read-only. It must keep its size while it is mapped. The memory goes back
// with Close, or when nothing refers to the Mapping any more: who keeps its bytes keeps it.
type Mapping struct {
	data    []byte
	once    sync.Once
	unmap   func() error
	cleanup runtime.Cleanup
}

// Map maps a regular file that is not empty.
func Map(path string) (*Mapping, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read-only, and the mapping outlives it
	if size == 0 {
		return nil, fmt.Errorf("%s: empty", path)
	}
	data, unmap, err := mapFile(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes into memory: %w", path, size, err)
	}
	m := &Mapping{data: data, unmap: unmap}
	m.cleanup = runtime.AddCleanup(m, func(u func() error) { _ = u() }, unmap) // nobody is there to be told
	return m, nil
}

// Bytes are those of the file.
func (m *Mapping) Bytes() []byte { return m.data }

// Forget gives back the memory behind a part of Bytes that is not needed for now: reading it again reads
// the file again.
func (m *Mapping) Forget(part []byte) { forget(part) }

// Close gives all memory back. Bytes must not be touched any more. A second Close does nothing.
func (m *Mapping) Close() (err error) {
	m.once.Do(func() {
		m.cleanup.Stop()
		m.data = nil
		err = m.unmap()
	})
	return err
}
