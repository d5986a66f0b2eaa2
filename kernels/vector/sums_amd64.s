//go:build !purego

#include "textflag.h"
#include "const_amd64.h"

FOUR8(magic52, $0x4338000000000000) // 1.5 * 2^52: adding it leaves rne(x) in the low bits of the sum
FOUR8(magicLow, $0x4330000000000000) // 2^52
FOUR8(magicHigh, $0x4530000080000000) // 2^84 + 2^63
FOUR8(magicBoth, $0x4530000080100000) // 2^84 + 2^63 + 2^52

// func vecScaledMax(y *float32, n int, w, scale float32) uint32
TEXT ·vecScaledMax(SB), NOSPLIT, $0-28
	MOVQ         y+0(FP), SI
	MOVQ         n+8(FP), CX
	VBROADCASTSS w+16(FP), Y4
	VBROADCASTSS scale+20(FP), Y5
	VPCMPEQD     Y6, Y6, Y6
	VPSRLD       $1, Y6, Y6
	VPXOR        Y0, Y0, Y0

loop:
	VMULPS  (SI), Y4, Y1
	VMULPS  Y5, Y1, Y1
	VPAND   Y6, Y1, Y1
	VPMAXSD Y1, Y0, Y0
	ADDQ    $32, SI
	SUBQ    $8, CX
	JNZ     loop

	VEXTRACTI128 $1, Y0, X1
	VPMAXSD      X1, X0, X0
	VPSHUFD      $0x4E, X0, X1
	VPMAXSD      X1, X0, X0
	VPSHUFD      $0xB1, X0, X1
	VPMAXSD      X1, X0, X0
	VMOVD        X0, AX
	MOVL         AX, ret+24(FP)
	VZEROUPPER
	RET

// func vecAddPick(sum *int64, y *float32, n int, w, scale float32)
TEXT ·vecAddPick(SB), NOSPLIT, $0-32
	MOVQ         sum+0(FP), DI
	MOVQ         y+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS w+24(FP), Y4
	VBROADCASTSS scale+28(FP), Y5
	VMOVUPD      magic52<>(SB), Y6

loop:
	VMULPS       (SI), Y4, Y0
	VMULPS       Y5, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VCVTPS2PD    X0, Y0
	VCVTPS2PD    X1, Y1
	VADDPD       Y6, Y0, Y0
	VADDPD       Y6, Y1, Y1
	VPSUBQ       Y6, Y0, Y0
	VPSUBQ       Y6, Y1, Y1
	VPADDQ       (DI), Y0, Y0
	VPADDQ       32(DI), Y1, Y1
	VMOVDQU      Y0, (DI)
	VMOVDQU      Y1, 32(DI)
	ADDQ         $32, SI
	ADDQ         $64, DI
	SUBQ         $8, CX
	JNZ          loop
	VZEROUPPER
	RET

// func vecAddSums(dst, src *int64, n int)
TEXT ·vecAddSums(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VPADDQ  (DI), Y0, Y0
	VPADDQ  32(DI), Y1, Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	ADDQ    $64, SI
	ADDQ    $64, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// X = float32 of the four integers at off(SI): the low half of each stands in the mantissa of 2^52,
// the upper one in that of 2^84; taking both constants off is exact, and the last sum rounds once.
#define FLOATS(off, X, Y, T) \
	VMOVDQU off(SI), Y; \
	VPSRLQ $32, Y, T; VPXOR Y7, T, T; \
	VPBLENDD $0x55, Y, Y6, Y; \
	VSUBPD Y8, T, T; VADDPD Y, T, Y; \
	VCVTPD2PSY Y, X

// func vecFloats(dst *float32, sum *int64, n int, scale float32)
TEXT ·vecFloats(SB), NOSPLIT, $0-28
	MOVQ         dst+0(FP), DI
	MOVQ         sum+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y5
	VMOVDQU      magicLow<>(SB), Y6
	VMOVDQU      magicHigh<>(SB), Y7
	VMOVDQU      magicBoth<>(SB), Y8

loop:
	FLOATS(0, X0, Y0, Y2)
	FLOATS(32, X1, Y1, Y3)
	VMULPS  X5, X0, X0
	VMULPS  X5, X1, X1
	VMOVUPS X0, (DI)
	VMOVUPS X1, 16(DI)
	ADDQ    $64, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET
