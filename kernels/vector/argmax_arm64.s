//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// The four values in register x join the orders in o and the magnitudes in m; s is overwritten. A
// negative value has all bits set in s: its magnitude is inverted, and one more.
#define JOIN(x, X, o, m, s, S) \
	SIGN(x, s); FABS(x, x); UMAX(x, m, m); \
	VEOR S, X, X; SUB4(s, x, x); SMAX(x, o, o)

// func vecTop(x *float32, n int) (top int32, largest uint32)
TEXT ·vecTop(SB), NOSPLIT, $0-24
	MOVD x+0(FP), R0
	MOVD n+8(FP), R1
	MOVD $0x80000000, R2
	VDUP R2, V16.S4
	VDUP R2, V17.S4
	VEOR V18.B16, V18.B16, V18.B16
	VEOR V19.B16, V19.B16, V19.B16

loop:
	VLD1.P 32(R0), [V0.S4, V1.S4]
	JOIN(0, V0.B16, 16, 18, 2, V2.B16)
	JOIN(1, V1.B16, 17, 19, 3, V3.B16)
	SUBS   $8, R1
	BNE    loop

	SMAX(17, 16, 16)
	UMAX(19, 18, 18)
	SMAXV(16, 16)
	UMAXV(18, 18)
	FMOVS F16, top+16(FP)
	FMOVS F18, largest+20(FP)
	RET
