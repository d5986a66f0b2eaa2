package model_test

// goldenLogits are checksums of the logits of prompt p64 as shipped, at exponent 20.
var goldenLogits = map[string]uint32{
	"mini35-f32":     0xe8f3447f,
	"mini35-q8_0":    0x0315a288,
	"mini35k-q4_k_m": 0x8cf397bf,
	"mini3-f32":      0x66869b9d,
	"mini3-q8_0":     0xec373947,
	"mini3k-q4_k_m":  0xd17c3029,
}

// goldenTiny is the same of kvasir-tiny and its prompt "hello".
const goldenTiny = 0xb539cce4
