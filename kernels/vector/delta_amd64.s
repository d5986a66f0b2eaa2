//go:build !purego

#include "textflag.h"

// Eight values at off(SI) are multiplied by Y15, and their products with Y8 added to s.
#define READ(off, s, t) \
	VMULPS off(SI), Y15, t; VMOVUPS t, off(SI); \
	VMULPS t, Y8, t; VADDPS t, s, s

// Y8 times d is added to the eight values at off(SI), and their products with Y9 to s.
#define WRITE(off, d, s, t) \
	VMULPS d, Y8, t; VADDPS off(SI), t, t; VMOVUPS t, off(SI); \
	VMULPS t, Y9, t; VADDPS t, s, s

// func vecDelta(out, state, k, q, v *float32, n, stride, rows int, decay, beta float32)
TEXT ·vecDelta(SB), NOSPLIT, $0-72
	MOVQ         out+0(FP), DI
	MOVQ         state+8(FP), R10
	MOVQ         v+32(FP), R11
	MOVQ         n+40(FP), CX
	MOVQ         stride+48(FP), R8
	VBROADCASTSS decay+64(FP), Y15
	VBROADCASTSS beta+68(FP), Y14
	SHLQ         $2, R8

tile:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	MOVQ   R10, SI
	MOVQ   k+16(FP), DX
	MOVQ   rows+56(FP), R9

read:
	VBROADCASTSS (DX), Y8
	READ(0, Y0, Y9)
	READ(32, Y1, Y10)
	READ(64, Y2, Y11)
	READ(96, Y3, Y12)
	ADDQ R8, SI
	ADDQ $4, DX
	DECQ R9
	JNZ  read

	// Y4 to Y7 are beta * (v - sums).
	VMOVUPS (R11), Y4
	VMOVUPS 32(R11), Y5
	VMOVUPS 64(R11), Y6
	VMOVUPS 96(R11), Y7
	VSUBPS  Y0, Y4, Y4
	VSUBPS  Y1, Y5, Y5
	VSUBPS  Y2, Y6, Y6
	VSUBPS  Y3, Y7, Y7
	VMULPS  Y14, Y4, Y4
	VMULPS  Y14, Y5, Y5
	VMULPS  Y14, Y6, Y6
	VMULPS  Y14, Y7, Y7
	VXORPS  Y0, Y0, Y0
	VXORPS  Y1, Y1, Y1
	VXORPS  Y2, Y2, Y2
	VXORPS  Y3, Y3, Y3
	MOVQ    R10, SI
	MOVQ    k+16(FP), DX
	MOVQ    q+24(FP), BX
	MOVQ    rows+56(FP), R9

write:
	VBROADCASTSS (DX), Y8
	VBROADCASTSS (BX), Y9
	WRITE(0, Y4, Y0, Y10)
	WRITE(32, Y5, Y1, Y11)
	WRITE(64, Y6, Y2, Y12)
	WRITE(96, Y7, Y3, Y13)
	ADDQ R8, SI
	ADDQ $4, DX
	ADDQ $4, BX
	DECQ R9
	JNZ  write

	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ    $128, DI
	ADDQ    $128, R10
	ADDQ    $128, R11
	SUBQ    $32, CX
	JNZ     tile
	VZEROUPPER
	RET
