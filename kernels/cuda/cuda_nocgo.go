//go:build !cgo || !linux

package cuda

// Devices would list the devices, in a build with cgo on Linux.
func Devices() ([]Device, error) { return nil, ErrBuild }
