//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func vecScaledMax(y *float32, n int, w, scale float32) uint32
TEXT ·vecScaledMax(SB), NOSPLIT, $0-28
	MOVD  y+0(FP), R0
	MOVD  n+8(FP), R1
	FMOVS w+16(FP), F4
	FMOVS scale+20(FP), F5
	VDUP  V4.S[0], V4.S4
	VDUP  V5.S[0], V5.S4
	VEOR  V6.B16, V6.B16, V6.B16
	VEOR  V7.B16, V7.B16, V7.B16

loop:
	VLD1.P 32(R0), [V0.S4, V1.S4]
	FMUL(4, 0, 0)
	FMUL(4, 1, 1)
	FMUL(5, 0, 0)
	FMUL(5, 1, 1)
	FABS(0, 0)
	FABS(1, 1)
	UMAX(0, 6, 6)
	UMAX(1, 7, 7)
	SUBS   $8, R1
	BNE    loop

	UMAX(7, 6, 6)
	UMAXV(6, 6)
	VMOV V6.S[0], R2
	MOVW R2, ret+24(FP)
	RET

// func vecAddPick(sum *int64, y *float32, n int, w, scale float32)
TEXT ·vecAddPick(SB), NOSPLIT, $0-32
	MOVD  sum+0(FP), R0
	MOVD  y+8(FP), R1
	MOVD  n+16(FP), R2
	FMOVS w+24(FP), F4
	FMOVS scale+28(FP), F5
	VDUP  V4.S[0], V4.S4
	VDUP  V5.S[0], V5.S4

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1   (R0), [V2.D2, V3.D2]
	FMUL(4, 0, 0)
	FMUL(5, 0, 0)
	FCVTL_HIGH(0, 1)
	FCVTL_LOW(0, 0)
	FCVTNS2(0, 0)
	FCVTNS2(1, 1)
	VADD   V0.D2, V2.D2, V2.D2
	VADD   V1.D2, V3.D2, V3.D2
	VST1.P [V2.D2, V3.D2], 32(R0)
	SUBS   $4, R2
	BNE    loop
	RET

// func vecAddSums(dst, src *int64, n int)
TEXT ·vecAddSums(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1.P 64(R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	VLD1   (R0), [V4.D2, V5.D2, V6.D2, V7.D2]
	VADD   V0.D2, V4.D2, V4.D2
	VADD   V1.D2, V5.D2, V5.D2
	VADD   V2.D2, V6.D2, V6.D2
	VADD   V3.D2, V7.D2, V7.D2
	VST1.P [V4.D2, V5.D2, V6.D2, V7.D2], 64(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecFloats(dst *float32, sum *int64, n int, scale float32)
TEXT ·vecFloats(SB), NOSPLIT, $0-28
	MOVD  dst+0(FP), R0
	MOVD  sum+8(FP), R1
	MOVD  n+16(FP), R2
	FMOVS scale+24(FP), F4
	VDUP  V4.S[0], V4.S4

loop:
	VLD1.P 64(R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	SCVTF2(0, 0)
	SCVTF2(1, 1)
	SCVTF2(2, 2)
	SCVTF2(3, 3)
	FCVTN_LOW(0, 5)
	FCVTN_HIGH(1, 5)
	FCVTN_LOW(2, 6)
	FCVTN_HIGH(3, 6)
	FMUL(4, 5, 5)
	FMUL(4, 6, 6)
	VST1.P [V5.S4, V6.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET
