//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

#define CLEAR8(a, b, c, d, e, f, g, h) \
	VEOR a, a, a; VEOR b, b, b; VEOR c, c, c; VEOR d, d, d; \
	VEOR e, e, e; VEOR f, f, f; VEOR g, g, g; VEOR h, h, h

// The 32 lanes of binary32 in registers a to a+7 become 4 in register a.
#define FOLD(a) \
	FADD((a)+4, a, a); FADD((a)+5, (a)+1, (a)+1); FADD((a)+6, (a)+2, (a)+2); FADD((a)+7, (a)+3, (a)+3); \
	FADD((a)+2, a, a); FADD((a)+3, (a)+1, (a)+1); \
	FADD((a)+1, a, a)

// The four lanes of register a, whose bytes are A, become one; t and T are another register.
#define FOLD4(a, A, t, T) \
	VEXT $8, A, A, T; FADD(t, a, a); VEXT $4, A, A, T; FADD(t, a, a)

// Lanes in registers a to a+3 get what is in registers b to b+3.
#define ADD16(a, b) \
	FADD(b, a, a); FADD((b)+1, (a)+1, (a)+1); FADD((b)+2, (a)+2, (a)+2); FADD((b)+3, (a)+3, (a)+3)

#define MUL16(m, n) \
	FMUL(m, n, n); FMUL((m)+1, (n)+1, (n)+1); FMUL((m)+2, (n)+2, (n)+2); FMUL((m)+3, (n)+3, (n)+3)

// func vecSum(x *float32, n int, tail *float32) float32
TEXT ·vecSum(SB), NOSPLIT, $0-28
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	MOVD tail+16(FP), R2
	CLEAR8(V0.B16, V1.B16, V2.B16, V3.B16, V4.B16, V5.B16, V6.B16, V7.B16)
	CBZ  R1, last

loop:
	VLD1.P 64(R0), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1.P 64(R0), [V20.S4, V21.S4, V22.S4, V23.S4]
	ADD16(0, 16)
	ADD16(4, 20)
	SUBS   $32, R1
	BNE    loop

last:
	CBZ  R2, fold
	MOVD R2, R0
	MOVD $32, R1
	MOVD ZR, R2
	B    loop

fold:
	FOLD(0)
	FOLD4(0, V0.B16, 1, V1.B16)
	FMOVS F0, ret+24(FP)
	RET

// func vecDot(x, w *float32, n int, xTail, wTail *float32) float32
TEXT ·vecDot(SB), NOSPLIT, $0-44
	MOVD x+0(FP), R0
	MOVD w+8(FP), R1
	MOVD n+16(FP), R2
	MOVD xTail+24(FP), R3
	MOVD wTail+32(FP), R4
	CLEAR8(V0.B16, V1.B16, V2.B16, V3.B16, V4.B16, V5.B16, V6.B16, V7.B16)
	CBZ  R2, last

loop:
	VLD1.P 64(R0), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1.P 64(R0), [V20.S4, V21.S4, V22.S4, V23.S4]
	VLD1.P 64(R1), [V24.S4, V25.S4, V26.S4, V27.S4]
	VLD1.P 64(R1), [V28.S4, V29.S4, V30.S4, V31.S4]
	MUL16(24, 16)
	MUL16(28, 20)
	ADD16(0, 16)
	ADD16(4, 20)
	SUBS   $32, R2
	BNE    loop

last:
	CBZ  R3, fold
	MOVD R3, R0
	MOVD R4, R1
	MOVD $32, R2
	MOVD ZR, R3
	B    loop

fold:
	FOLD(0)
	FOLD4(0, V0.B16, 1, V1.B16)
	FMOVS F0, ret+40(FP)
	RET

// The squares of the four values in register x are added to registers a and a+1.
#define SQUARES(x, a) \
	FCVTL_LOW(x, 24); FCVTL_HIGH(x, 25); \
	FMUL2(24, 24, 24); FMUL2(25, 25, 25); \
	FADD2(24, a, a); FADD2(25, (a)+1, (a)+1)

// func vecSumSquares(x *float32, n int, tail *float32) float64
TEXT ·vecSumSquares(SB), NOSPLIT, $0-32
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	MOVD tail+16(FP), R2
	CLEAR8(V0.B16, V1.B16, V2.B16, V3.B16, V4.B16, V5.B16, V6.B16, V7.B16)
	CLEAR8(V8.B16, V9.B16, V10.B16, V11.B16, V12.B16, V13.B16, V14.B16, V15.B16)
	CBZ  R1, last

loop:
	VLD1.P 64(R0), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1.P 64(R0), [V20.S4, V21.S4, V22.S4, V23.S4]
	SQUARES(16, 0)
	SQUARES(17, 2)
	SQUARES(18, 4)
	SQUARES(19, 6)
	SQUARES(20, 8)
	SQUARES(21, 10)
	SQUARES(22, 12)
	SQUARES(23, 14)
	SUBS   $32, R1
	BNE    loop

last:
	CBZ  R2, fold
	MOVD R2, R0
	MOVD $32, R1
	MOVD ZR, R2
	B    loop

fold:
	FADD2(8, 0, 0)
	FADD2(9, 1, 1)
	FADD2(10, 2, 2)
	FADD2(11, 3, 3)
	FADD2(12, 4, 4)
	FADD2(13, 5, 5)
	FADD2(14, 6, 6)
	FADD2(15, 7, 7)
	FADD2(4, 0, 0)
	FADD2(5, 1, 1)
	FADD2(6, 2, 2)
	FADD2(7, 3, 3)
	FADD2(2, 0, 0)
	FADD2(3, 1, 1)
	FADD2(1, 0, 0)
	VEXT  $8, V0.B16, V0.B16, V1.B16
	FADD2(1, 0, 0)
	FMOVD F0, ret+24(FP)
	RET

// Sixteen values of w, in V24 to V27, meet those of a row; registers a to a+3 get the products.
#define ROW16(row, a) \
	VLD1.P 64(row), [V28.S4, V29.S4, V30.S4, V31.S4]; \
	MUL16(24, 28); ADD16(a, 28)

// func vecDots(dst, w, x *float32, n, stride, rows int)
TEXT ·vecDots(SB), NOSPLIT, $0-48
	MOVD dst+0(FP), R0
	MOVD w+8(FP), R1
	MOVD x+16(FP), R2
	MOVD n+24(FP), R3
	MOVD stride+32(FP), R4
	MOVD rows+40(FP), R5
	LSL  $2, R4, R4
	SUBS $3, R5
	BLT  rest

three:
	MOVD R1, R6
	MOVD R2, R7
	ADD  R4, R2, R8
	ADD  R4, R8, R9
	ADD  R4, R9, R2 // the first row of the next three
	MOVD R3, R10
	CLEAR8(V0.B16, V1.B16, V2.B16, V3.B16, V4.B16, V5.B16, V6.B16, V7.B16)
	CLEAR8(V8.B16, V9.B16, V10.B16, V11.B16, V12.B16, V13.B16, V14.B16, V15.B16)
	CLEAR8(V16.B16, V17.B16, V18.B16, V19.B16, V20.B16, V21.B16, V22.B16, V23.B16)

loop3:
	VLD1.P 64(R6), [V24.S4, V25.S4, V26.S4, V27.S4]
	ROW16(R7, 0)
	ROW16(R8, 8)
	ROW16(R9, 16)
	VLD1.P 64(R6), [V24.S4, V25.S4, V26.S4, V27.S4]
	ROW16(R7, 4)
	ROW16(R8, 12)
	ROW16(R9, 20)
	SUBS   $32, R10
	BNE    loop3

	FOLD(0)
	FOLD(8)
	FOLD(16)
	FOLD4(0, V0.B16, 1, V1.B16)
	FOLD4(8, V8.B16, 9, V9.B16)
	FOLD4(16, V16.B16, 17, V17.B16)
	FMOVS  F0, (R0)
	FMOVS  F8, 4(R0)
	FMOVS  F16, 8(R0)
	ADD    $12, R0
	SUBS   $3, R5
	BGE    three

rest:
	ADDS $3, R5
	BEQ  done

one:
	MOVD R1, R6
	MOVD R2, R7
	ADD  R4, R2, R2
	MOVD R3, R10
	CLEAR8(V0.B16, V1.B16, V2.B16, V3.B16, V4.B16, V5.B16, V6.B16, V7.B16)

loop1:
	VLD1.P 64(R6), [V24.S4, V25.S4, V26.S4, V27.S4]
	ROW16(R7, 0)
	VLD1.P 64(R6), [V24.S4, V25.S4, V26.S4, V27.S4]
	ROW16(R7, 4)
	SUBS   $32, R10
	BNE    loop1

	FOLD(0)
	FOLD4(0, V0.B16, 1, V1.B16)
	FMOVS F0, (R0)
	ADD   $4, R0
	SUBS  $1, R5
	BNE   one

done:
	RET
