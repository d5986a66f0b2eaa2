//go:build !purego

package variant

import "golang.org/x/sys/cpu"

// ours reports whether v is written for processors of this kind.
func ours(v Variant) bool { return v >= NEON && v <= I8MM }

// missing lists what v needs and this processor lacks.
func missing(v Variant) []string {
	dot := feature{"SDOT", cpu.ARM64.HasASIMDDP}
	switch v {
	case Portable, NEON: // every arm64 processor has it
		return nil
	case DotProd:
		return lacking([]feature{dot})
	case I8MM:
		return lacking([]feature{dot, {"I8MM", cpu.ARM64.HasI8MM}})
	}
	return []string{"an amd64 processor"}
}
