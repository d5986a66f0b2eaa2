// Package cuda tells what graphics processors of NVIDIA there are. The driver's management library (NVML)
// is asked through go-nvml, which needs cgo and Linux; every other build answers ErrBuild.
//
// The library is opened at run time: a machine without a driver is no error of the program, and a driver
// that is older than go-nvml lacks functions. So nothing is called that was not looked up before: a call
// of a function that is not there ends the process. For the same reason the program must be linked so that
// functions are bound at their first call, as gcc does unless it is told otherwise: where a toolchain binds
// all at start (-z now), add -ldflags=-extldflags=-Wl,-z,lazy to the build, or build without cgo.
package cuda

import "errors"

// Device is a graphics processor. What the driver does not tell is empty or 0; NUMA has its own sign.
type Device struct {
	Name       string  `json:"name"`
	UUID       string  `json:"uuid,omitempty"`
	PCI        string  `json:"pci,omitempty"`               // as Linux names it: 0000:17:00.0
	Memory     uint64  `json:"memory,omitzero"`             // bytes
	NUMA       int     `json:"numa"`                        // node that it is attached to; -1: unknown
	PowerLimit float64 `json:"power_limit_watts,omitempty"` // what it is held to now
	Problem    string  `json:"problem,omitempty"`           // why it does not answer
}

// Reasons why no devices can be named; test with errors.Is.
var (
	// ErrBuild: this build cannot look for devices: it was made without cgo, or not for Linux.
	ErrBuild = errors.New("cuda: this build does not look for devices")
	// ErrNoDriver: there is no driver, or it is not loaded. Most machines are so.
	ErrNoDriver = errors.New("cuda: no NVIDIA driver found")
	// ErrMismatch: the driver that is loaded is of another version than its library.
	ErrMismatch = errors.New("cuda: the NVIDIA driver that is loaded and its library are of different versions")
)
