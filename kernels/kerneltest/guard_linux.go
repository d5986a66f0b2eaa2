package kerneltest

import (
	"fmt"
	"os"
	"syscall"
)

// mapPages gives r n bytes between two pages without any right, touching the upper one if atEnd,
// else the lower one.
func (r *region) mapPages(n int, atEnd bool) error {
	page := os.Getpagesize()
	size := (n + page - 1) / page * page
	pages, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map %d bytes between guard pages: %w", n, err)
	}
	r.pages = pages
	for _, guard := range [][]byte{pages[:page], pages[page+size:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			return fmt.Errorf("protect a guard page: %w", err)
		}
	}
	inner := pages[page : page+size]
	if atEnd {
		r.around[0], r.data = inner[:size-n], inner[size-n:size:size]
	} else {
		r.data, r.around[1] = inner[:n:n], inner[n:]
	}
	return nil
}

// freeze makes the region's pages read-only. Its canaries stay as they are.
func (r *region) freeze() error {
	page := os.Getpagesize()
	if r.pages == nil || len(r.pages) == 2*page {
		return nil
	}
	if err := syscall.Mprotect(r.pages[page:len(r.pages)-page], syscall.PROT_READ); err != nil {
		return fmt.Errorf("make pages read-only: %w", err)
	}
	return nil
}

func (r *region) release() error {
	if r.pages == nil {
		return nil
	}
	if err := syscall.Munmap(r.pages); err != nil {
		return fmt.Errorf("unmap guarded memory: %w", err)
	}
	r.pages, r.data, r.around = nil, nil, [2][]byte{}
	return nil
}
