//go:build purego || !(amd64 || arm64)

package variant

func ours(Variant) bool { return false }

// missing lists what v needs and this build lacks.
func missing(v Variant) []string {
	if v == Portable {
		return nil
	}
	return []string{"a build with assembly, for amd64 or arm64"}
}
