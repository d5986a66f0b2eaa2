//go:build !purego

#include "textflag.h"

// Offsets into packing.
#define shuffleA 0
#define shuffleB 32
#define leftA 64
#define leftB 96
#define carry 128
#define width 144
#define right 152
#define sign 160
#define mask 168
#define double 176
#define rest 184
#define nibble 192
#define unnibble 200
#define middle 208

// The OR of the four lanes of A, an X register whose Y register is a, ends in R.
#define ORLANES(a, A, t, R) \
	VEXTRACTI128 $1, a, t; VPOR t, A, A; \
	VPSHUFD $0x4E, A, t; VPOR t, A, A; VMOVQ A, R

// func vecBits(sum *int64, n int) (any, magnitude uint64)
TEXT ·vecBits(SB), NOSPLIT, $0-32
	MOVQ  sum+0(FP), SI
	MOVQ  n+8(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y7, Y7, Y7

loop:
	VMOVDQU  (SI), Y2
	VMOVDQU  32(SI), Y3
	VPCMPGTQ Y2, Y7, Y4
	VPCMPGTQ Y3, Y7, Y5
	VPOR     Y2, Y0, Y0
	VPOR     Y3, Y0, Y0
	VPXOR    Y2, Y4, Y4
	VPXOR    Y3, Y5, Y5
	VPOR     Y4, Y1, Y1
	VPOR     Y5, Y1, Y1
	ADDQ     $64, SI
	SUBQ     $8, CX
	JNZ      loop

	ORLANES(Y0, X0, X2, AX)
	ORLANES(Y1, X1, X2, BX)
	MOVQ AX, any+16(FP)
	MOVQ BX, magnitude+24(FP)
	VZEROUPPER
	RET

// func vecPack(dst *byte, sum *int64, groups int, p *packing)
//
// Eight values are merged into pairs, the pairs into halves of 128 bits, and the upper half is
// stored over the end of the lower one, which it shares a byte with where the width is odd.
TEXT ·vecPack(SB), NOSPLIT, $0-32
	MOVQ         dst+0(FP), DI
	MOVQ         sum+8(FP), SI
	MOVQ         groups+16(FP), CX
	MOVQ         p+24(FP), DX
	MOVQ         width(DX), R8
	MOVQ         middle(DX), R9
	VPBROADCASTQ mask(DX), Y15
	VMOVQ        width(DX), X14
	VMOVQ        double(DX), X13
	VMOVQ        rest(DX), X12
	VMOVQ        nibble(DX), X11
	VMOVQ        unnibble(DX), X10
	VMOVDQU      carry(DX), X9

loop:
	VPAND        (SI), Y15, Y0
	VPAND        32(SI), Y15, Y1
	VPUNPCKLQDQ  Y1, Y0, Y2     // values 0 4 2 6
	VPUNPCKHQDQ  Y1, Y0, Y3     // values 1 5 3 7
	VPSLLQ       X14, Y3, Y3
	VPOR         Y3, Y2, Y2     // pairs 01 45 23 67
	VEXTRACTI128 $1, Y2, X3
	VPSLLQ       X13, X3, X4
	VPSRLQ       X12, X3, X5
	VPOR         X4, X2, X2     // low words of both halves
	VPUNPCKLQDQ  X5, X2, X6
	VPUNPCKHQDQ  X5, X2, X7
	VMOVDQU      X6, (DI)
	VPSLLQ       X11, X7, X8
	VPSRLQ       X10, X7, X7
	VPSLLDQ      $8, X7, X7
	VPSHUFB      X9, X6, X6
	VPOR         X7, X8, X8
	VPOR         X6, X8, X8
	VMOVDQU      X8, (DI)(R9*1)
	ADDQ         $64, SI
	ADDQ         R8, DI
	DECQ         CX
	JNZ          loop
	VZEROUPPER
	RET

// y = the four values in y, each spread over eight bytes: to the top, and down again with its sign.
// Y7 gathers where a bit differs from the one below it.
#define SPREAD(y, shuffle, left, t) \
	VPSHUFB shuffle, y, y; VPSLLVQ left, y, y; VPSRLQ X15, y, y; \
	VPXOR Y14, y, y; VPSUBQ Y14, y, y; \
	VPADDQ y, y, t; VPXOR y, t, t; VPOR t, Y7, Y7

// func vecUnpack(sum *int64, src *byte, groups int, p *packing) uint64
TEXT ·vecUnpack(SB), NOSPLIT, $0-40
	MOVQ         sum+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         groups+16(FP), CX
	MOVQ         p+24(FP), DX
	MOVQ         width(DX), R8
	MOVQ         middle(DX), R9
	VMOVQ        right(DX), X15
	VPBROADCASTQ sign(DX), Y14
	VMOVDQU      shuffleA(DX), Y13
	VMOVDQU      shuffleB(DX), Y12
	VMOVDQU      leftA(DX), Y11
	VMOVDQU      leftB(DX), Y10
	VPXOR        Y7, Y7, Y7

loop:
	VBROADCASTI128 (SI), Y0
	VBROADCASTI128 (SI)(R9*1), Y1
	SPREAD(Y0, Y13, Y11, Y2)
	SPREAD(Y1, Y12, Y10, Y3)
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	ADDQ    R8, SI
	ADDQ    $64, DI
	DECQ    CX
	JNZ     loop

	ORLANES(Y7, X7, X0, AX)
	MOVQ AX, ret+32(FP)
	VZEROUPPER
	RET
