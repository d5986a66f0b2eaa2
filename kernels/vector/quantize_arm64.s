//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// F1 = recip(F0), by two of these steps and one that rounds better. F27 is 2, F26 is 1.
#define STEP \
	FMULS F1, F0, F2 \
	FSUBS F2, F27, F2 \
	FMULS F2, F1, F1

// func vecQuantize(q *int8, scales, x *float32, blocks, length int) uint32
TEXT ·vecQuantize(SB), NOSPLIT, $0-44
	MOVD  q+0(FP), R0
	MOVD  scales+8(FP), R1
	MOVD  x+16(FP), R2
	MOVD  blocks+24(FP), R3
	MOVD  length+32(FP), R4
	MOVD  ZR, R9
	FMOVS $2.0, F27
	FMOVS $1.0, F26
	MOVD  $0x42FE0000, R5 // 127
	FMOVS R5, F28
	MOVD  $0x3C010204, R5 // 1/127
	FMOVS R5, F29
	VMOVI $0x81, V25.B16  // -127
	MOVD  $0x2B800000, R10 // 2^-40

block:
	MOVD R2, R5
	MOVD R4, R6
	VEOR V16.B16, V16.B16, V16.B16
	VEOR V17.B16, V17.B16, V17.B16

largest:
	VLD1.P 64(R5), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R5), [V4.S4, V5.S4, V6.S4, V7.S4]
	FABS(0, 0)
	FABS(1, 1)
	FABS(2, 2)
	FABS(3, 3)
	FABS(4, 4)
	FABS(5, 5)
	FABS(6, 6)
	FABS(7, 7)
	UMAX(1, 0, 0)
	UMAX(3, 2, 2)
	UMAX(5, 4, 4)
	UMAX(7, 6, 6)
	UMAX(2, 0, 0)
	UMAX(6, 4, 4)
	UMAX(0, 16, 16)
	UMAX(4, 17, 17)
	SUBS $32, R6
	BNE  largest

	UMAX(17, 16, 16)
	UMAXV(16, 16)
	VMOV V16.S[0], R7
	CMP  R9, R7
	CSEL HI, R7, R9, R9
	MOVD R4, R6
	CMP  R10, R7
	BLO  zero

	FMOVS R7, F0
	MOVD  $0x7EF311C7, R11
	SUBW  R7, R11, R11
	FMOVS R11, F1
	STEP
	STEP
	FMULS F1, F0, F2
	FSUBS F2, F26, F2
	FMULS F2, F1, F2
	FADDS F2, F1, F1
	FMULS F1, F28, F1
	FMULS F0, F29, F3
	FMOVS F3, (R1)
	VDUP  V1.S[0], V24.S4

values:
	VLD1.P 64(R2), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	FMUL(24, 0, 0)
	FMUL(24, 1, 1)
	FMUL(24, 2, 2)
	FMUL(24, 3, 3)
	FMUL(24, 4, 4)
	FMUL(24, 5, 5)
	FMUL(24, 6, 6)
	FMUL(24, 7, 7)
	FCVTNS(0, 0)
	FCVTNS(1, 1)
	FCVTNS(2, 2)
	FCVTNS(3, 3)
	FCVTNS(4, 4)
	FCVTNS(5, 5)
	FCVTNS(6, 6)
	FCVTNS(7, 7)
	SQXTN4_LOW(0, 16)
	SQXTN4_HIGH(1, 16)
	SQXTN4_LOW(2, 17)
	SQXTN4_HIGH(3, 17)
	SQXTN4_LOW(4, 18)
	SQXTN4_HIGH(5, 18)
	SQXTN4_LOW(6, 19)
	SQXTN4_HIGH(7, 19)
	SQXTN8_LOW(16, 20)
	SQXTN8_HIGH(17, 20)
	SQXTN8_LOW(18, 21)
	SQXTN8_HIGH(19, 21)
	SMAX16(25, 20, 20)
	SMAX16(25, 21, 21)
	VST1.P [V20.B16, V21.B16], 32(R0)
	SUBS   $32, R6
	BNE    values
	B      next

zero:
	MOVW ZR, (R1)
	VEOR V20.B16, V20.B16, V20.B16
	VEOR V21.B16, V21.B16, V21.B16

zeros:
	VST1.P [V20.B16, V21.B16], 32(R0)
	ADD    $128, R2
	SUBS   $32, R6
	BNE    zeros

next:
	ADD  $4, R1
	SUBS $1, R3
	BNE  block
	MOVW R9, ret+40(FP)
	RET
