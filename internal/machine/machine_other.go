//go:build !linux && !darwin && !windows

package machine

func cpuName() string { return "" }

func memory() (total, available uint64) { return 0, 0 }

func caches() []Cache { return []Cache{} }

func nodes() []Node { return []Node{} }
