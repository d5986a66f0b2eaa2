//go:build !unix

package relay

// canWait: readable works here. Elsewhere reads wait, with their buffers.
const canWait = false

func readable(uintptr) bool { return true }
