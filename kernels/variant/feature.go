//go:build !purego && (amd64 || arm64)

package variant

// feature is an instruction set extension, and whether the processor and the system offer it.
type feature struct {
	name string
	has  bool
}

func lacking(need []feature) []string {
	var list []string
	for _, f := range need {
		if !f.has {
			list = append(list, f.name)
		}
	}
	return list
}
