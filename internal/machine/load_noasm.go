//go:build purego || !(amd64 || arm64)

package machine

func load(p []byte) uint64 { return loadPortable(p) }
