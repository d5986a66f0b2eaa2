//go:build !purego

#include "textflag.h"

// Y8 times eight values at off(SI), added to s.
#define ROW(off, s, t) \
	VMULPS off(SI), Y8, t; VADDPS t, s, s

// func vecAddRows(dst, e, v *float32, n, stride, rows int)
TEXT ·vecAddRows(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ v+16(FP), R10
	MOVQ n+24(FP), CX
	MOVQ stride+32(FP), R8
	SHLQ $2, R8
	SUBQ $64, CX
	JLT  half

tile:
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	VMOVUPS 128(DI), Y4
	VMOVUPS 160(DI), Y5
	VMOVUPS 192(DI), Y6
	VMOVUPS 224(DI), Y7
	MOVQ    R10, SI
	MOVQ    e+8(FP), DX
	MOVQ    rows+40(FP), R9

row:
	VBROADCASTSS (DX), Y8
	ROW(0, Y0, Y9)
	ROW(32, Y1, Y10)
	ROW(64, Y2, Y11)
	ROW(96, Y3, Y12)
	ROW(128, Y4, Y9)
	ROW(160, Y5, Y10)
	ROW(192, Y6, Y11)
	ROW(224, Y7, Y12)
	ADDQ R8, SI
	ADDQ $4, DX
	DECQ R9
	JNZ  row

	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	VMOVUPS Y4, 128(DI)
	VMOVUPS Y5, 160(DI)
	VMOVUPS Y6, 192(DI)
	VMOVUPS Y7, 224(DI)
	ADDQ    $256, DI
	ADDQ    $256, R10
	SUBQ    $64, CX
	JGE     tile

half:
	ADDQ $64, CX
	JZ   done
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	MOVQ    R10, SI
	MOVQ    e+8(FP), DX
	MOVQ    rows+40(FP), R9

row32:
	VBROADCASTSS (DX), Y8
	ROW(0, Y0, Y9)
	ROW(32, Y1, Y10)
	ROW(64, Y2, Y11)
	ROW(96, Y3, Y12)
	ADDQ R8, SI
	ADDQ $4, DX
	DECQ R9
	JNZ  row32

	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)

done:
	VZEROUPPER
	RET
