//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func vecToF16(dst *byte, src *float32, n int)
TEXT ·vecToF16(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	MOVD $0x477FE000, R3 // 65504
	VDUP R3, V16.S4
	FNEG(16, 17)

loop:
	VLD1.P 32(R1), [V0.S4, V1.S4]
	FMIN(16, 0, 0)
	FMIN(16, 1, 1)
	FMAX(17, 0, 0)
	FMAX(17, 1, 1)
	TOHALF_LOW(0, 2)
	TOHALF_HIGH(1, 2)
	VST1.P [V2.H8], 16(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// F17 = recip(F16), by two of these steps and one that rounds better. F27 is 2, F26 is 1.
#define STEP \
	FMULS F17, F16, F18 \
	FSUBS F18, F27, F18 \
	FMULS F18, F17, F17

// Register x becomes the integers of x times V24. A NaN becomes 127.
#define INTEGERS(x) FMUL(24, x, x); FMINNM(28, x, x); FCVTNS(x, x)

// func vecToQ8(dst *byte, src *float32, blocks int)
//
// Conversions saturate, so that values far from 0 are the largest int8 and the lowest.
TEXT ·vecToQ8(SB), NOSPLIT, $0-24
	MOVD  dst+0(FP), R0
	MOVD  src+8(FP), R2
	MOVD  blocks+16(FP), R3
	FMOVS $2.0, F27
	FMOVS $1.0, F26
	MOVD  $0x42FE0000, R5 // 127
	VDUP  R5, V28.S4
	MOVD  $0x3C010204, R5 // 1/127
	FMOVS R5, F29
	VMOVI $0x81, V25.B16   // -127
	MOVD  $0x4AFDE040, R10 // 127 * 65504
	MOVD  $0x7EF311C7, R12

block:
	VLD1.P 64(R2), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1.P 64(R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	FABS(0, 16)
	FABS(1, 17)
	FABS(2, 18)
	FABS(3, 19)
	FABS(4, 20)
	FABS(5, 21)
	FABS(6, 22)
	FABS(7, 23)
	UMAX(17, 16, 16)
	UMAX(19, 18, 18)
	UMAX(21, 20, 20)
	UMAX(23, 22, 22)
	UMAX(18, 16, 16)
	UMAX(22, 20, 20)
	UMAX(20, 16, 16)
	UMAXV(16, 16)
	VMOV   V16.S[0], R7
	CMP    R10, R7
	CSEL   HI, R10, R7, R7
	FMOVS  R7, F16
	FMULS  F16, F29, F17
	FCVTSH F17, F17
	FMOVS  F17, R8
	MOVH   R8, (R0)
	CBZ    R8, zero

	SUBW  R7, R12, R11
	FMOVS R11, F17
	STEP
	STEP
	FMULS F17, F16, F18
	FSUBS F18, F26, F18
	FMULS F18, F17, F18
	FADDS F18, F17, F17
	FMULS F17, F28, F17
	VDUP  V17.S[0], V24.S4
	INTEGERS(0)
	INTEGERS(1)
	INTEGERS(2)
	INTEGERS(3)
	INTEGERS(4)
	INTEGERS(5)
	INTEGERS(6)
	INTEGERS(7)
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

next:
	ADD    $2, R0
	VST1.P [V20.B16, V21.B16], 32(R0)
	SUBS   $1, R3
	BNE    block
	RET

zero:
	VEOR V20.B16, V20.B16, V20.B16
	VEOR V21.B16, V21.B16, V21.B16
	B    next
