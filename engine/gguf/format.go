package gguf

import "kvasir/kernels/quant"

// otherBlocks sizes the ggml formats that cannot be computed with, so that a file with such tensors
// can be shown: values and bytes of a block, by format number.
var otherBlocks = map[quant.Format]struct{ values, bytes int }{
	9:  {32, 36},   // Q8_1
	15: {256, 292}, // Q8_K
	16: {256, 66},  // IQ2_XXS
	17: {256, 74},  // IQ2_XS
	18: {256, 98},  // IQ3_XXS
	19: {256, 50},  // IQ1_S
	21: {256, 110}, // IQ3_S
	22: {256, 82},  // IQ2_S
	24: {1, 1},     // I8
	25: {1, 2},     // I16
	26: {1, 4},     // I32
	27: {1, 8},     // I64
	28: {1, 8},     // F64
	29: {256, 56},  // IQ1_M
	34: {256, 54},  // TQ1_0
	35: {256, 66},  // TQ2_0
	40: {64, 36},   // NVFP4
	41: {128, 18},  // Q1_0
	42: {64, 18},   // Q2_0
}

// block is the values and bytes of a block of f; 0, 0 if the format is unknown.
func block(f quant.Format) (values, bytes int) {
	if f.Supported() {
		return f.Block()
	}
	b := otherBlocks[f]
	return b.values, b.bytes
}
