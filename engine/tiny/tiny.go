// Package tiny holds kvasir-tiny, the embedded default model: 19.2 million parameters with the
// architecture of Qwen3.5-MoE, so that everything can be tried without a download. CARD.md tells what it
// is, recipe/ how it was made.
package tiny

import (
	"embed"
	"unsafe"
)

const (
	// Name is the model's name in messages.
	Name = "kvasir-tiny"
	// File is the name of its GGUF file.
	File = "kvasir-tiny-q4_k_m.gguf"
)

//go:embed kvasir-tiny-q4_k_m.gguf
var model string // and not bytes: a string is in read-only memory, so no stray write can change it

// beside has the card and the arithmetic profile. It is a pattern so that the package compiles, and so
// that a profile can be measured, before there is one.
//
//go:embed *.[jm]*
var beside embed.FS

// Model returns the bytes of the GGUF file, without a copy: nobody may write to them.
func Model() []byte { return unsafe.Slice(unsafe.StringData(model), len(model)) }

// Profile returns the model's arithmetic profile, as kvasir model profile writes it, or nil if it has
// not been measured.
func Profile() []byte {
	data, err := beside.ReadFile(File + ".profile.json")
	if err != nil {
		return nil
	}
	return data
}
