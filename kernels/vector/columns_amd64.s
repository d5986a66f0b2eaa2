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

#define READ(off, s, t) \
	VMULPS off(SI), Y15, t; VMOVUPS t, off(SI); \
	VMULPS t, Y8, t; VADDPS t, s, s

// func vecDeltaRead(delta, state, k *float32, n, stride, rows int, decay float32)
TEXT ·vecDeltaRead(SB), NOSPLIT, $0-52
	MOVQ         delta+0(FP), DI
	MOVQ         state+8(FP), R10
	MOVQ         n+24(FP), CX
	MOVQ         stride+32(FP), R8
	VBROADCASTSS decay+48(FP), Y15
	SHLQ         $2, R8

tile:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	MOVQ   R10, SI
	MOVQ   k+16(FP), DX
	MOVQ   rows+40(FP), R9

row:
	VBROADCASTSS (DX), Y8
	READ(0, Y0, Y9)
	READ(32, Y1, Y10)
	READ(64, Y2, Y11)
	READ(96, Y3, Y12)
	ADDQ R8, SI
	ADDQ $4, DX
	DECQ R9
	JNZ  row

	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ    $128, DI
	ADDQ    $128, R10
	SUBQ    $32, CX
	JNZ     tile
	VZEROUPPER
	RET

#define WRITE(off, d, s, t) \
	VMULPS d, Y8, t; VADDPS off(SI), t, t; VMOVUPS t, off(SI); \
	VMULPS t, Y9, t; VADDPS t, s, s

// func vecDeltaWrite(o, state, k, q, delta *float32, n, stride, rows int)
TEXT ·vecDeltaWrite(SB), NOSPLIT, $0-64
	MOVQ o+0(FP), DI
	MOVQ state+8(FP), R10
	MOVQ delta+32(FP), R11
	MOVQ n+40(FP), CX
	MOVQ stride+48(FP), R8
	SHLQ $2, R8

tile:
	VXORPS  Y0, Y0, Y0
	VXORPS  Y1, Y1, Y1
	VXORPS  Y2, Y2, Y2
	VXORPS  Y3, Y3, Y3
	VMOVUPS (R11), Y4
	VMOVUPS 32(R11), Y5
	VMOVUPS 64(R11), Y6
	VMOVUPS 96(R11), Y7
	MOVQ    R10, SI
	MOVQ    k+16(FP), DX
	MOVQ    q+24(FP), BX
	MOVQ    rows+56(FP), R9

row:
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
	JNZ  row

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
