//go:build !unix

package worker

import "errors"

// ErrNoNice: this system has no such thing.
var ErrNoNice = errors.New("worker: this system has no nice; use --max-cpu instead")

// Nice lowers this process's claim on the processors; here it cannot.
func Nice(int) error { return ErrNoNice }
