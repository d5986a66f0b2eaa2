//go:build !purego

package variant

import "golang.org/x/sys/cpu"

// ours reports whether v is written for processors of this kind.
func ours(v Variant) bool { return v >= AVX2 }

// missing lists what v needs and this processor lacks.
func missing(v Variant) []string {
	var need []feature
	switch v {
	case Portable:
	case AVX2:
		need = avx2
	case AVXVNNI:
		need = append(need, avx2...)
		need = append(need, feature{"AVX-VNNI", cpu.X86.HasAVXVNNI})
	case AVX512VNNI:
		need = append(need, avx2...)
		need = append(need, avx512...)
	default:
		return []string{"an arm64 processor"}
	}
	return lacking(need)
}

var avx2 = []feature{{"AVX2", cpu.X86.HasAVX2}, {"F16C", cpu.X86.HasF16C}}

var avx512 = []feature{
	{"AVX-512F", cpu.X86.HasAVX512F},
	{"AVX-512BW", cpu.X86.HasAVX512BW},
	{"AVX-512DQ", cpu.X86.HasAVX512DQ},
	{"AVX-512VL", cpu.X86.HasAVX512VL},
	{"AVX-512 VNNI", cpu.X86.HasAVX512VNNI},
}
