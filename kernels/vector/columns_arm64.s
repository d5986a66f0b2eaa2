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

#define CLEAR8 \
	VEOR V0.B16, V0.B16, V0.B16; VEOR V1.B16, V1.B16, V1.B16; \
	VEOR V2.B16, V2.B16, V2.B16; VEOR V3.B16, V3.B16, V3.B16; \
	VEOR V4.B16, V4.B16, V4.B16; VEOR V5.B16, V5.B16, V5.B16; \
	VEOR V6.B16, V6.B16, V6.B16; VEOR V7.B16, V7.B16, V7.B16

#define STORE32(at) \
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(at); \
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(at)

// func vecAddRows(dst, e, v *float32, n, stride, rows int)
TEXT ·vecAddRows(SB), NOSPLIT, $0-48
	MOVD dst+0(FP), R0
	MOVD v+16(FP), R2
	MOVD n+24(FP), R3
	MOVD stride+32(FP), R4
	LSL  $2, R4, R4

tile:
	ADD  $64, R0, R6
	VLD1 (R0), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1 (R6), [V4.S4, V5.S4, V6.S4, V7.S4]
	MOVD R2, R7
	MOVD e+8(FP), R1
	MOVD rows+40(FP), R5

row:
	ADD     $64, R7, R8
	VLD1R.P 4(R1), [V24.S4]
	VLD1    (R7), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1    (R8), [V20.S4, V21.S4, V22.S4, V23.S4]
	MUL16(24, 16)
	MUL16(24, 20)
	ADD16(16, 0)
	ADD16(20, 4)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     row

	STORE32(R0)
	ADD  $128, R2
	SUBS $32, R3
	BNE  tile
	RET

// func vecDeltaRead(delta, state, k *float32, n, stride, rows int, decay float32)
TEXT ·vecDeltaRead(SB), NOSPLIT, $0-52
	MOVD  delta+0(FP), R0
	MOVD  state+8(FP), R2
	MOVD  n+24(FP), R3
	MOVD  stride+32(FP), R4
	FMOVS decay+48(FP), F25
	VDUP  V25.S[0], V25.S4
	LSL   $2, R4, R4

tile:
	CLEAR8
	MOVD R2, R7
	MOVD k+16(FP), R1
	MOVD rows+40(FP), R5

row:
	ADD     $64, R7, R8
	VLD1R.P 4(R1), [V24.S4]
	VLD1    (R7), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1    (R8), [V20.S4, V21.S4, V22.S4, V23.S4]
	MUL16(25, 16)
	MUL16(25, 20)
	VST1    [V16.S4, V17.S4, V18.S4, V19.S4], (R7)
	VST1    [V20.S4, V21.S4, V22.S4, V23.S4], (R8)
	MUL16(24, 16)
	MUL16(24, 20)
	ADD16(16, 0)
	ADD16(20, 4)
	ADD     R4, R7, R7
	SUBS    $1, R5
	BNE     row

	STORE32(R0)
	ADD  $128, R2
	SUBS $32, R3
	BNE  tile
	RET

// func vecDeltaWrite(o, state, k, q, delta *float32, n, stride, rows int)
TEXT ·vecDeltaWrite(SB), NOSPLIT, $0-64
	MOVD o+0(FP), R0
	MOVD state+8(FP), R2
	MOVD delta+32(FP), R10
	MOVD n+40(FP), R3
	MOVD stride+48(FP), R4
	LSL  $2, R4, R4

tile:
	CLEAR8
	VLD1.P 64(R10), [V8.S4, V9.S4, V10.S4, V11.S4]
	VLD1.P 64(R10), [V12.S4, V13.S4, V14.S4, V15.S4]
	MOVD   R2, R7
	MOVD   k+16(FP), R1
	MOVD   q+24(FP), R9
	MOVD   rows+56(FP), R5

row:
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
	BNE     row

	STORE32(R0)
	ADD  $128, R2
	SUBS $32, R3
	BNE  tile
	RET
