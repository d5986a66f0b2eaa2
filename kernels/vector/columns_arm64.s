//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// Four registers from m and n on, and what each pair of them makes.
#define MUL16(by, n) \
	FMUL(by, n, n); FMUL(by, (n)+1, (n)+1); FMUL(by, (n)+2, (n)+2); FMUL(by, (n)+3, (n)+3)

#define ADD16(m, d) \
	FADD(m, d, d); FADD((m)+1, (d)+1, (d)+1); FADD((m)+2, (d)+2, (d)+2); FADD((m)+3, (d)+3, (d)+3)

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
