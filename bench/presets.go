package bench

import (
	"fmt"
	"slices"
	"strings"

	"kvasir/kernels/quant"
)

// preset is the dimensions of a published model, under the name that --preset gives it.
type preset struct {
	name                       string
	experts, topK, hidden, ffn int
	like                       string // in package synth
}

var presets = []preset{
	{"qwen3.5-122b", 256, 8, 3072, 1024, "qwen3.5-122b-a10b"},
	{"qwen3-30b", 128, 8, 2048, 768, "qwen3-30b-a3b"},
	{"tiny", 16, 4, 256, 256, "mini"},
}

// Presets names the dimensions that a layer or a model can have by one word.
func Presets() []string {
	var names []string
	for i := range presets {
		names = append(names, presets[i].name)
	}
	return names
}

// presetOf returns an error, wrapping ErrSettings, for a name that is none.
func presetOf(name string) (*preset, error) {
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: --preset %q, want one of %s", ErrSettings, name, strings.Join(Presets(), ", "))
	}
	return &presets[i], nil
}

// PresetLayer returns the dimensions of a preset's layers.
func PresetLayer(name string) (experts, topK, hidden, ffn int, err error) {
	p, err := presetOf(name)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	return p.experts, p.topK, p.hidden, p.ffn, nil
}

// Preset gives the model the dimensions of a preset.
func (m *Model) Preset(name string) error {
	p, err := presetOf(name)
	if err == nil {
		m.Like = p.like
	}
	return err
}

// ParseQuant reads the name of a format of weights, such as Q4_K.
func ParseQuant(text string) (quant.Format, error) {
	var names []string
	for _, f := range quant.Supported() {
		if strings.EqualFold(f.String(), text) {
			return f, nil
		}
		names = append(names, f.String())
	}
	return 0, fmt.Errorf("want one of %s, got %q", strings.Join(names, ", "), text)
}
