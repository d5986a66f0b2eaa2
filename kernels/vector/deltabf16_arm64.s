//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

#define CLEAR8 \
	VEOR V0.B16, V0.B16, V0.B16; VEOR V1.B16, V1.B16, V1.B16; \
	VEOR V2.B16, V2.B16, V2.B16; VEOR V3.B16, V3.B16, V3.B16; \
	VEOR V4.B16, V4.B16, V4.B16; VEOR V5.B16, V5.B16, V5.B16; \
	VEOR V6.B16, V6.B16, V6.B16; VEOR V7.B16, V7.B16, V7.B16

// Eight values in register x, times V26, meet V24 and are added to registers s and s+1.
#define READ8(x, s) \
	SHLL_LOW(x, 20); SHLL_HIGH(x, 21); \
	FMUL(26, 20, 20); FMUL(26, 21, 21); \
	FMUL(24, 20, 20); FMUL(24, 21, 21); \
	FADD(20, s, s); FADD(21, (s)+1, (s)+1)

// Registers d and d+1 become beta, in V27, times what v in them is above the sums in s and s+1.
#define DELTA8(s, d) \
	FSUB(s, d, d); FSUB((s)+1, (d)+1, (d)+1); \
	FMUL(27, d, d); FMUL(27, (d)+1, (d)+1)

// The upper halves of register x are its bfloat16. V28 and t are overwritten.
#define BFLOAT(x, X, X4, t, T, T4) \
	VUSHR $16, X4, T4; VAND V31.B16, T, T; ADD4(29, t, t); ADD4(x, t, t); \
	VORR V30.B16, X, V28.B16; FCMEQ(x, x, x); VBIF X, V28.B16, T

// Eight values in register x, times V26, and V24 times d and d+1 make values of the state; their products
// with V25 are added to s and s+1, and x becomes their bfloat16.
#define WRITE8(x, X8, d, s) \
	SHLL_LOW(x, 20); SHLL_HIGH(x, 21); \
	FMUL(26, 20, 20); FMUL(26, 21, 21); \
	FMUL(24, d, 22); FMUL(24, (d)+1, 23); \
	FADD(22, 20, 20); FADD(23, 21, 21); \
	FMUL(25, 20, 22); FMUL(25, 21, 23); \
	FADD(22, s, s); FADD(23, (s)+1, (s)+1); \
	BFLOAT(20, V20.B16, V20.S4, 22, V22.B16, V22.S4); \
	BFLOAT(21, V21.B16, V21.S4, 23, V23.B16, V23.S4); \
	VUZP2 V23.H8, V22.H8, X8

// func vecDeltaBF16(out *float32, state *byte, k, q, v *float32, n, stride, rows int, decay, beta float32)
TEXT ·vecDeltaBF16(SB), NOSPLIT, $0-72
	MOVD  out+0(FP), R0
	MOVD  state+8(FP), R2
	MOVD  v+32(FP), R10
	MOVD  n+40(FP), R3
	MOVD  stride+48(FP), R4
	FMOVS decay+64(FP), F26
	FMOVS beta+68(FP), F27
	VDUP  V26.S[0], V26.S4
	VDUP  V27.S[0], V27.S4
	MOVD  $0x7FFF, R8
	VDUP  R8, V29.S4
	MOVD  $0x400000, R8
	VDUP  R8, V30.S4
	MOVD  $1, R8
	VDUP  R8, V31.S4
	LSL   $1, R4, R4

tile:
	CLEAR8
	MOVD R2, R7
	MOVD k+16(FP), R1
	MOVD rows+56(FP), R5

read:
	VLD1R.P 4(R1), [V24.S4]
	VLD1    (R7), [V16.H8, V17.H8, V18.H8, V19.H8]
	READ8(16, 0)
	READ8(17, 2)
	READ8(18, 4)
	READ8(19, 6)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     read

	VLD1.P 64(R10), [V8.S4, V9.S4, V10.S4, V11.S4]
	VLD1.P 64(R10), [V12.S4, V13.S4, V14.S4, V15.S4]
	DELTA8(0, 8)
	DELTA8(2, 10)
	DELTA8(4, 12)
	DELTA8(6, 14)
	CLEAR8
	MOVD   R2, R7
	MOVD   k+16(FP), R1
	MOVD   q+24(FP), R9
	MOVD   rows+56(FP), R5

write:
	VLD1R.P 4(R1), [V24.S4]
	VLD1R.P 4(R9), [V25.S4]
	VLD1    (R7), [V16.H8, V17.H8, V18.H8, V19.H8]
	WRITE8(16, V16.H8, 8, 0)
	WRITE8(17, V17.H8, 10, 2)
	WRITE8(18, V18.H8, 12, 4)
	WRITE8(19, V19.H8, 14, 6)
	VST1    [V16.H8, V17.H8, V18.H8, V19.H8], (R7)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     write

	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(R0)
	ADD    $64, R2
	SUBS   $32, R3
	BNE    tile
	RET
