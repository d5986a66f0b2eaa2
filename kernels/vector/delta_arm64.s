//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// Four registers from m and n on, and what each pair of them makes.
#define MUL16(by, n) \
	FMUL(by, n, n); FMUL(by, (n)+1, (n)+1); FMUL(by, (n)+2, (n)+2); FMUL(by, (n)+3, (n)+3)

#define PRODUCT16(by, n, d) \
	FMUL(by, n, d); FMUL(by, (n)+1, (d)+1); FMUL(by, (n)+2, (d)+2); FMUL(by, (n)+3, (d)+3)

#define ADD16(m, d) \
	FADD(m, d, d); FADD((m)+1, (d)+1, (d)+1); FADD((m)+2, (d)+2, (d)+2); FADD((m)+3, (d)+3, (d)+3)

#define SUB16(m, n) \
	FSUB(m, n, n); FSUB((m)+1, (n)+1, (n)+1); FSUB((m)+2, (n)+2, (n)+2); FSUB((m)+3, (n)+3, (n)+3)

#define CLEAR8 \
	VEOR V0.B16, V0.B16, V0.B16; VEOR V1.B16, V1.B16, V1.B16; \
	VEOR V2.B16, V2.B16, V2.B16; VEOR V3.B16, V3.B16, V3.B16; \
	VEOR V4.B16, V4.B16, V4.B16; VEOR V5.B16, V5.B16, V5.B16; \
	VEOR V6.B16, V6.B16, V6.B16; VEOR V7.B16, V7.B16, V7.B16

// func vecDelta(out, state, k, q, v *float32, n, stride, rows int, decay, beta float32)
TEXT ·vecDelta(SB), NOSPLIT, $0-72
	MOVD  out+0(FP), R0
	MOVD  state+8(FP), R2
	MOVD  v+32(FP), R10
	MOVD  n+40(FP), R3
	MOVD  stride+48(FP), R4
	FMOVS decay+64(FP), F26
	FMOVS beta+68(FP), F27
	VDUP  V26.S[0], V26.S4
	VDUP  V27.S[0], V27.S4
	LSL   $2, R4, R4

tile:
	CLEAR8
	MOVD R2, R7
	MOVD k+16(FP), R1
	MOVD rows+56(FP), R5

read:
	ADD     $64, R7, R8
	VLD1R.P 4(R1), [V24.S4]
	VLD1    (R7), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1    (R8), [V20.S4, V21.S4, V22.S4, V23.S4]
	MUL16(26, 16)
	MUL16(26, 20)
	VST1    [V16.S4, V17.S4, V18.S4, V19.S4], (R7)
	VST1    [V20.S4, V21.S4, V22.S4, V23.S4], (R8)
	MUL16(24, 16)
	MUL16(24, 20)
	ADD16(16, 0)
	ADD16(20, 4)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     read

	// V8 to V15 are beta * (v - sums).
	VLD1.P 64(R10), [V8.S4, V9.S4, V10.S4, V11.S4]
	VLD1.P 64(R10), [V12.S4, V13.S4, V14.S4, V15.S4]
	SUB16(0, 8)
	SUB16(4, 12)
	MUL16(27, 8)
	MUL16(27, 12)
	CLEAR8
	MOVD   R2, R7
	MOVD   k+16(FP), R1
	MOVD   q+24(FP), R9
	MOVD   rows+56(FP), R5

write:
	ADD     $64, R7, R8
	VLD1R.P 4(R1), [V24.S4]
	VLD1R.P 4(R9), [V25.S4]
	VLD1    (R7), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1    (R8), [V20.S4, V21.S4, V22.S4, V23.S4]
	PRODUCT16(24, 8, 28)
	ADD16(28, 16)
	PRODUCT16(24, 12, 28)
	ADD16(28, 20)
	VST1    [V16.S4, V17.S4, V18.S4, V19.S4], (R7)
	VST1    [V20.S4, V21.S4, V22.S4, V23.S4], (R8)
	MUL16(25, 16)
	MUL16(25, 20)
	ADD16(16, 0)
	ADD16(20, 4)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     write

	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(R0)
	ADD    $128, R2
	SUBS   $32, R3
	BNE    tile
	RET
