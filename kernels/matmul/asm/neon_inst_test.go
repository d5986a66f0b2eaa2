package asm

import (
	"regexp"
	"strings"
	"testing"
)

// Words as an assembler that knows the instructions writes them.
func TestWordsAreThoseOfAnAssembler(t *testing.T) {
	golden := []string{
		"4e39d77b FADD V27.4S, V27.4S, V25.4S",
		"0e217826 FCVTL V6.4S, V1.4H",
		"4e217827 FCVTL2 V7.4S, V1.8H",
		"6e3bdf5a FMUL V26.4S, V26.4S, V27.4S",
		"4f9893fa FMUL V26.4S, V31.4S, V24.S[0]",
		"4ebad739 FSUB V25.4S, V25.4S, V26.4S",
		"4eb997f7 MLA V23.4S, V31.4S, V25.4S",
		"6f00e417 MOVI V23.2D, #0",
		"4e606aef SADALP V15.4S, V23.8H",
		"4e602aef SADDLP V15.4S, V23.8H",
		"4e21dafb SCVTF V27.4S, V23.4S",
		"4fbdebf7 SDOT V23.4S, V31.16B, V29.4B[3]",
		"4f9de3f7 SDOT V23.4S, V31.16B, V29.4B[0]",
		"4fbde3f7 SDOT V23.4S, V31.16B, V29.4B[1]",
		"4f9debf7 SDOT V23.4S, V31.16B, V29.4B[2]",
		"0f0a87fd SHRN V29.8B, V31.8H, #6",
		"0f732bea SMLAL V10.4S, V31.4H, V3.H[7]",
		"0f6323ca SMLAL V10.4S, V30.4H, V3.H[2]",
		"0f432bca SMLAL V10.4S, V30.4H, V3.H[4]",
		"0f632bca SMLAL V10.4S, V30.4H, V3.H[6]",
		"0f5323ea SMLAL V10.4S, V31.4H, V3.H[1]",
		"0f7323ea SMLAL V10.4S, V31.4H, V3.H[3]",
		"0f532bea SMLAL V10.4S, V31.4H, V3.H[5]",
		"0e3b83f6 SMLAL V22.8H, V31.8B, V27.8B",
		"4f732beb SMLAL2 V11.4S, V31.8H, V3.H[7]",
		"4f6323cb SMLAL2 V11.4S, V30.8H, V3.H[2]",
		"4f432bcb SMLAL2 V11.4S, V30.8H, V3.H[4]",
		"4f632bcb SMLAL2 V11.4S, V30.8H, V3.H[6]",
		"4f5323eb SMLAL2 V11.4S, V31.8H, V3.H[1]",
		"4f7323eb SMLAL2 V11.4S, V31.8H, V3.H[3]",
		"4f532beb SMLAL2 V11.4S, V31.8H, V3.H[5]",
		"4e3b83f7 SMLAL2 V23.8H, V31.16B, V27.16B",
		"4e9aa7f7 SMMLA V23.4S, V31.16B, V26.16B",
		"0f43a3ca SMULL V10.4S, V30.4H, V3.H[0]",
		"0e3bc3ae SMULL V14.8H, V29.8B, V27.8B",
		"4f43a3cb SMULL2 V11.4S, V30.8H, V3.H[0]",
		"4e3bc3af SMULL2 V15.8H, V29.16B, V27.16B",
		"0f10a446 SXTL V6.4S, V2.4H",
		"0f08a401 SXTL V1.8H, V0.8B",
		"4f10a447 SXTL2 V7.4S, V2.8H",
		"4f08a402 SXTL2 V2.8H, V0.16B",
		"6e3747bd USHL V29.16B, V29.16B, V23.16B",
		"4e212bfd XTN2 V29.16B, V31.8H",
	}
	want := map[string]string{} // by mnemonic and arrangement
	for _, line := range golden {
		word, text, _ := strings.Cut(line, " ")
		want[text] = word
	}
	written := map[string]bool{}
	for name, text := range Files() {
		if !strings.HasSuffix(name, "_arm64.s") {
			continue
		}
		for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(text, -1) {
			written[kind(m[2])] = true
			if w, ok := want[m[2]]; ok && w != m[1] {
				t.Errorf("%s: %s is written as %s, want %s", name, m[2], m[1], w)
			}
		}
	}
	known := map[string]bool{}
	for text := range want {
		known[kind(text)] = true
	}
	for k := range written {
		if !known[k] {
			t.Errorf("no word is known for %s", k)
		}
	}
	for k := range known {
		if !written[k] {
			t.Errorf("%s is not written any more", k)
		}
	}
}

// kind is an instruction without the numbers of its registers and element.
func kind(text string) string {
	return regexp.MustCompile(`V\d+|\[\d\]`).ReplaceAllString(text, "")
}
