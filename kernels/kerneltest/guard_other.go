//go:build !linux

package kerneltest

func (r *region) mapPages(int, bool) error { return errNoGuards }

func (r *region) freeze() error { return nil }

func (r *region) release() error { return nil }
