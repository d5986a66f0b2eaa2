//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// The constants of exp, recip and silu in kernels/ref, for V16 to V31.
DATA constants<>+0(SB)/4, $0x3FB8AA3B  // V16: log2e
DATA constants<>+4(SB)/4, $0x4B400000  // V17: magic
DATA constants<>+8(SB)/4, $0x3F317200  // V18: ln2Hi
DATA constants<>+12(SB)/4, $0x35BFBE8E // V19: ln2Lo
DATA constants<>+16(SB)/4, $0x39506967 // V20: exp7
DATA constants<>+20(SB)/4, $0x3AB743CE // V21: exp6
DATA constants<>+24(SB)/4, $0x3C088908 // V22: exp5
DATA constants<>+28(SB)/4, $0x3D2AA9C1 // V23: exp4
DATA constants<>+32(SB)/4, $0x3E2AAAAA // V24: exp3
DATA constants<>+36(SB)/4, $0x3F000000 // V25: 1/2
DATA constants<>+40(SB)/4, $0x3F800000 // V26: 1
DATA constants<>+44(SB)/4, $0x40000000 // V27: 2
DATA constants<>+48(SB)/4, $0xC2AE0000 // V28: -87
DATA constants<>+52(SB)/4, $0xC2300000 // V29: -44
DATA constants<>+56(SB)/4, $0x7EF311C7 // V30: seed
DATA constants<>+60(SB)/4, $0x7F800000 // V31: infinity
GLOBL constants<>(SB), RODATA|NOPTR, $64

// Each constant in four lanes.
#define CONSTANTS \
	MOVD $constants<>(SB), R8 \
	VLD1R.P 4(R8), [V16.S4]; VLD1R.P 4(R8), [V17.S4]; VLD1R.P 4(R8), [V18.S4]; VLD1R.P 4(R8), [V19.S4] \
	VLD1R.P 4(R8), [V20.S4]; VLD1R.P 4(R8), [V21.S4]; VLD1R.P 4(R8), [V22.S4]; VLD1R.P 4(R8), [V23.S4] \
	VLD1R.P 4(R8), [V24.S4]; VLD1R.P 4(R8), [V25.S4]; VLD1R.P 4(R8), [V26.S4]; VLD1R.P 4(R8), [V27.S4] \
	VLD1R.P 4(R8), [V28.S4]; VLD1R.P 4(R8), [V29.S4]; VLD1R.P 4(R8), [V30.S4]; VLD1R.P 4(R8), [V31.S4]

// p = exp(x). z, n, r and t are overwritten, x stays.
#define EXP(x, z, n, r, p, t) \
	FMUL(16, x, z); FADD(17, z, z); FSUB(17, z, n); SUB4(17, z, z); SHL23(z, z); \
	FMUL(18, n, t); FSUB(t, x, r); FMUL(19, n, t); FSUB(t, r, r); \
	FMUL(20, r, p); FADD(21, p, p); \
	FMUL(r, p, p); FADD(22, p, p); \
	FMUL(r, p, p); FADD(23, p, p); \
	FMUL(r, p, p); FADD(24, p, p); \
	FMUL(r, p, p); FADD(25, p, p); \
	FMUL(r, r, t); FMUL(t, p, p); FADD(r, p, p); FADD(26, p, p); ADD4(z, p, p); \
	FCMGT(x, 28, t); BIC(t, p, p)

// y = recip(x). t is overwritten, x stays.
#define RECIP(x, y, t) \
	SUB4(x, 30, y); \
	FMUL(y, x, t); FSUB(t, 27, t); FMUL(t, y, y); \
	FMUL(y, x, t); FSUB(t, 27, t); FMUL(t, y, y); \
	FMUL(y, x, t); FSUB(t, 26, t); FMUL(t, y, t); FADD(t, y, y)

// V1 = silu(V0). V0 stays; V2 to V6 are overwritten.
#define SILU \
	FNEG(0, 1); \
	EXP(1, 2, 3, 4, 5, 6); \
	FADD(26, 5, 5); \
	RECIP(5, 1, 2); \
	FMUL(1, 0, 1); \
	FCMGT(0, 29, 2); BIC(2, 1, 1)

// func vecExp(x *float32, n int, top float32)
TEXT ·vecExp(SB), NOSPLIT, $0-20
	MOVD  x+0(FP), R0
	MOVD  n+8(FP), R1
	FMOVS top+16(FP), F7
	VDUP  V7.S[0], V7.S4
	CONSTANTS

loop:
	VLD1   (R0), [V0.S4]
	FSUB(7, 0, 0)
	EXP(0, 1, 2, 3, 4, 5)
	VST1.P [V4.S4], 16(R0)
	SUBS   $4, R1
	BNE    loop
	RET

// func vecGate(h, gate, up *float32, n int)
TEXT ·vecGate(SB), NOSPLIT, $0-32
	MOVD h+0(FP), R0
	MOVD gate+8(FP), R1
	MOVD up+16(FP), R2
	MOVD n+24(FP), R3
	CONSTANTS

loop:
	VLD1.P 16(R1), [V0.S4]
	VLD1.P 16(R2), [V7.S4]
	SILU
	FMUL(7, 1, 1)
	VAND   V31.B16, V0.B16, V0.B16
	VAND   V31.B16, V7.B16, V7.B16
	VCMEQ  V31.S4, V0.S4, V0.S4
	VCMEQ  V31.S4, V7.S4, V7.S4
	VORR   V0.B16, V1.B16, V1.B16
	VORR   V7.B16, V1.B16, V1.B16
	VST1.P [V1.S4], 16(R0)
	SUBS   $4, R3
	BNE    loop
	RET

// func vecSilu(x *float32, n int)
TEXT ·vecSilu(SB), NOSPLIT, $0-16
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	CONSTANTS

loop:
	VLD1   (R0), [V0.S4]
	SILU
	VST1.P [V1.S4], 16(R0)
	SUBS   $4, R1
	BNE    loop
	RET

// func vecSigmoid(x *float32, n int)
TEXT ·vecSigmoid(SB), NOSPLIT, $0-16
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	CONSTANTS
	MOVD $0xC2B00000, R2 // -88
	VDUP R2, V29.S4

loop:
	VLD1   (R0), [V0.S4]
	FNEG(0, 1)
	EXP(1, 2, 3, 4, 5, 6)
	FADD(26, 5, 5)
	FDIV(5, 26, 5)
	FCMGT(0, 29, 2)
	BIC(2, 5, 5)
	VST1.P [V5.S4], 16(R0)
	SUBS   $4, R1
	BNE    loop
	RET

// func vecMax(x *float32, n int) float32
TEXT ·vecMax(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	VLD1 (R0), [V0.S4, V1.S4]

loop:
	VLD1.P 32(R0), [V2.S4, V3.S4]
	FMAX(2, 0, 0)
	FMAX(3, 1, 1)
	SUBS   $8, R1
	BNE    loop

	FMAX(1, 0, 0)
	FMAXV(0, 0)
	FMOVS F0, ret+16(FP)
	RET
