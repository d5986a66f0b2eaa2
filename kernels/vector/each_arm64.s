//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func vecAdd(x, y *float32, n int)
TEXT ·vecAdd(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD y+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1   (R0), [V0.S4, V1.S4]
	VLD1.P 32(R1), [V2.S4, V3.S4]
	FADD(2, 0, 0)
	FADD(3, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecScale(x *float32, n int, s float32)
TEXT ·vecScale(SB), NOSPLIT, $0-20
	MOVD  x+0(FP), R0
	MOVD  n+8(FP), R2
	FMOVS s+16(FP), F4
	VDUP  V4.S[0], V4.S4

loop:
	VLD1   (R0), [V0.S4, V1.S4]
	FMUL(4, 0, 0)
	FMUL(4, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecDivide(x *float32, n int, by float32)
TEXT ·vecDivide(SB), NOSPLIT, $0-20
	MOVD  x+0(FP), R0
	MOVD  n+8(FP), R2
	FMOVS by+16(FP), F4
	VDUP  V4.S[0], V4.S4

loop:
	VLD1   (R0), [V0.S4, V1.S4]
	FDIV(4, 0, 0)
	FDIV(4, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecScaleMul(dst, x, w *float32, n int, scale float32)
TEXT ·vecScaleMul(SB), NOSPLIT, $0-36
	MOVD  dst+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  w+16(FP), R3
	MOVD  n+24(FP), R2
	FMOVS scale+32(FP), F4
	VDUP  V4.S[0], V4.S4

loop:
	VLD1.P 32(R1), [V0.S4, V1.S4]
	VLD1.P 32(R3), [V2.S4, V3.S4]
	FMUL(4, 0, 0)
	FMUL(4, 1, 1)
	FMUL(2, 0, 0)
	FMUL(3, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecScaleAdd(y, x *float32, n int, s float32)
TEXT ·vecScaleAdd(SB), NOSPLIT, $0-28
	MOVD  y+0(FP), R0
	MOVD  x+8(FP), R1
	MOVD  n+16(FP), R2
	FMOVS s+24(FP), F4
	VDUP  V4.S[0], V4.S4

loop:
	VLD1.P 32(R1), [V0.S4, V1.S4]
	VLD1   (R0), [V2.S4, V3.S4]
	FMUL(4, 0, 0)
	FMUL(4, 1, 1)
	FADD(2, 0, 0)
	FADD(3, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecMul(dst, x, y *float32, n int)
TEXT ·vecMul(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R3
	MOVD n+24(FP), R2

loop:
	VLD1.P 32(R1), [V0.S4, V1.S4]
	VLD1.P 32(R3), [V2.S4, V3.S4]
	FMUL(2, 0, 0)
	FMUL(3, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecMulAdd(dst, x, y *float32, n int)
TEXT ·vecMulAdd(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD y+16(FP), R3
	MOVD n+24(FP), R2

loop:
	VLD1.P 32(R1), [V0.S4, V1.S4]
	VLD1.P 32(R3), [V2.S4, V3.S4]
	VLD1   (R0), [V4.S4, V5.S4]
	FMUL(2, 0, 0)
	FMUL(3, 1, 1)
	FADD(4, 0, 0)
	FADD(5, 1, 1)
	VST1.P [V0.S4, V1.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecTurn(lo, hi, cos, sin *float32, n int)
TEXT ·vecTurn(SB), NOSPLIT, $0-40
	MOVD lo+0(FP), R0
	MOVD hi+8(FP), R1
	MOVD cos+16(FP), R2
	MOVD sin+24(FP), R3
	MOVD n+32(FP), R4

loop:
	VLD1   (R0), [V0.S4]
	VLD1   (R1), [V1.S4]
	VLD1.P 16(R2), [V2.S4]
	VLD1.P 16(R3), [V3.S4]
	FMUL(2, 0, 4)
	FMUL(3, 1, 5)
	FMUL(3, 0, 6)
	FMUL(2, 1, 7)
	FSUB(5, 4, 4)
	FADD(7, 6, 6)
	VST1.P [V4.S4], 16(R0)
	VST1.P [V6.S4], 16(R1)
	SUBS   $4, R4
	BNE    loop
	RET
