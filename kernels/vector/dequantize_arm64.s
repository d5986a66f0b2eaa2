//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func vecF16(dst *float32, src *byte, n int)
TEXT ·vecF16(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1.P 16(R1), [V0.H8]
	HALF_LOW(0, 1)
	HALF_HIGH(0, 2)
	VST1.P [V1.S4, V2.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// func vecBF16(dst *float32, src *byte, n int)
TEXT ·vecBF16(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2

loop:
	VLD1.P 16(R1), [V0.H8]
	SHLL_LOW(0, 1)
	SHLL_HIGH(0, 2)
	VST1.P [V1.S4, V2.S4], 32(R0)
	SUBS   $8, R2
	BNE    loop
	RET

// V0 to V3 are the 16 bytes of register n as floats, times V28.
#define SIXTEEN(n) \
	SXTL8_LOW(n, 4); SXTL8_HIGH(n, 5); \
	SXTL16_LOW(4, 0); SXTL16_HIGH(4, 1); SXTL16_LOW(5, 2); SXTL16_HIGH(5, 3); \
	SCVTF(0, 0); SCVTF(1, 1); SCVTF(2, 2); SCVTF(3, 3); \
	FMUL(28, 0, 0); FMUL(28, 1, 1); FMUL(28, 2, 2); FMUL(28, 3, 3)

#define STORE16 VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R0)

// func vecQ8(dst *float32, src *byte, blocks int)
TEXT ·vecQ8(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD blocks+16(FP), R2

loop:
	MOVHU.P 2(R1), R3
	VDUP    R3, V28.H8
	HALF_LOW(28, 28)
	VLD1.P  32(R1), [V16.B16, V17.B16]
	SIXTEEN(16)
	STORE16
	SIXTEEN(17)
	STORE16
	SUBS    $1, R2
	BNE     loop
	RET

// V16 and V17 are the lower and the upper nibbles of V18.
#define NIBBLES \
	VAND V20.B16, V18.B16, V16.B16; VUSHR $4, V18.B16, V17.B16

DATA fifth<>+0(SB)/8, $0x0000000000000000 // byte of the fifth bits
DATA fifth<>+8(SB)/8, $0x0101010101010101
DATA fifth<>+16(SB)/8, $0x0202020202020202
DATA fifth<>+24(SB)/8, $0x0303030303030303
DATA fifth<>+32(SB)/8, $0x8040201008040201 // bit within it
DATA fifth<>+40(SB)/8, $0x8040201008040201
GLOBL fifth<>(SB), RODATA|NOPTR, $48

// func vecQ5(dst *float32, src *byte, blocks int)
//
// A value without its fifth bit is 16 lower: its upper bits are set.
TEXT ·vecQ5(SB), NOSPLIT, $0-24
	MOVD  dst+0(FP), R0
	MOVD  src+8(FP), R1
	MOVD  blocks+16(FP), R2
	VMOVI $15, V20.B16
	VMOVI $0xF0, V21.B16
	MOVD  $fifth<>(SB), R4
	VLD1  (R4), [V22.B16, V23.B16, V24.B16]

loop:
	MOVHU.P 2(R1), R3
	VDUP    R3, V28.H8
	HALF_LOW(28, 28)
	MOVWU.P 4(R1), R3
	VMOV    R3, V25.S[0]
	VLD1.P  16(R1), [V18.B16]
	NIBBLES
	VTBL    V22.B16, [V25.B16], V26.B16
	VTBL    V23.B16, [V25.B16], V27.B16
	CMTST(24, 26, 26)
	CMTST(24, 27, 27)
	BIC(26, 21, 26)
	BIC(27, 21, 27)
	VORR    V26.B16, V16.B16, V16.B16
	VORR    V27.B16, V17.B16, V17.B16
	SIXTEEN(16)
	STORE16
	SIXTEEN(17)
	STORE16
	SUBS    $1, R2
	BNE     loop
	RET

DATA doubled<>+0(SB)/8, $0x0C08060403020100
DATA doubled<>+8(SB)/8, $0xF4F8FAFCFDFEFF00
GLOBL doubled<>(SB), RODATA|NOPTR, $16

// func vecMXFP4(dst *float32, src *byte, blocks int)
TEXT ·vecMXFP4(SB), NOSPLIT, $0-24
	MOVD  dst+0(FP), R0
	MOVD  src+8(FP), R1
	MOVD  blocks+16(FP), R2
	VMOVI $15, V20.B16
	MOVD  $doubled<>(SB), R4
	VLD1  (R4), [V19.B16]

loop:
	MOVBU.P 1(R1), R3
	VLD1.P  16(R1), [V18.B16]
	NIBBLES
	VTBL    V16.B16, [V19.B16], V16.B16
	VTBL    V17.B16, [V19.B16], V17.B16
	CMP     $80, R3
	BLO     zero
	CMP     $190, R3
	BHI     invalid
	SUB     $1, R3
	LSL     $23, R3

scaled:
	VDUP R3, V28.S4
	SIXTEEN(16)
	STORE16
	SIXTEEN(17)
	STORE16
	SUBS $1, R2
	BNE  loop
	RET

zero:
	MOVD ZR, R3
	VEOR V16.B16, V16.B16, V16.B16
	VEOR V17.B16, V17.B16, V17.B16
	B    scaled

invalid:
	MOVD $0x7FC00000, R3
	B    scaled

// The next sixteen values with their scale, an element of V20 to V23.
#define SCALED(scale) \
	VLD1.P 16(R1), [V16.B16]; \
	VDUP scale, V28.S4; \
	SIXTEEN(16)

#define PLAIN(scale) \
	SCALED(scale); \
	STORE16

// The same less V29.
#define LESS(scale) \
	SCALED(scale); \
	FSUB(29, 0, 0); FSUB(29, 1, 1); FSUB(29, 2, 2); FSUB(29, 3, 3); \
	STORE16

// Thirty-two values with one minimum, an element of V24 or V25.
#define PAIR(first, second, minimum) \
	VDUP minimum, V29.S4; \
	LESS(first); \
	LESS(second)

// func vecBlockK(dst *float32, b *quant.BlockK, minimums bool)
//
// The 16 scales and 8 minimums are multiplied out first, into V20 to V25.
TEXT ·vecBlockK(SB), NOSPLIT, $0-17
	MOVD  dst+0(FP), R0
	MOVD  b+8(FP), R1
	ADD   $256, R1, R2
	VLD1  (R2), [V16.B16]
	ADD   $280, R1, R2
	VLD1R (R2), [V28.S4]
	SIXTEEN(16)
	VMOV  V0.B16, V20.B16
	VMOV  V1.B16, V21.B16
	VMOV  V2.B16, V22.B16
	VMOV  V3.B16, V23.B16
	MOVBU minimums+16(FP), R3
	CBZ   R3, plain
	ADD   $272, R1, R2
	VLD1  (R2), [V16.B8]
	ADD   $284, R1, R2
	VLD1R (R2), [V28.S4]
	SIXTEEN(16)
	VMOV  V0.B16, V24.B16
	VMOV  V1.B16, V25.B16
	PAIR(V20.S[0], V20.S[1], V24.S[0])
	PAIR(V20.S[2], V20.S[3], V24.S[1])
	PAIR(V21.S[0], V21.S[1], V24.S[2])
	PAIR(V21.S[2], V21.S[3], V24.S[3])
	PAIR(V22.S[0], V22.S[1], V25.S[0])
	PAIR(V22.S[2], V22.S[3], V25.S[1])
	PAIR(V23.S[0], V23.S[1], V25.S[2])
	PAIR(V23.S[2], V23.S[3], V25.S[3])
	RET

plain:
	PLAIN(V20.S[0])
	PLAIN(V20.S[1])
	PLAIN(V20.S[2])
	PLAIN(V20.S[3])
	PLAIN(V21.S[0])
	PLAIN(V21.S[1])
	PLAIN(V21.S[2])
	PLAIN(V21.S[3])
	PLAIN(V22.S[0])
	PLAIN(V22.S[1])
	PLAIN(V22.S[2])
	PLAIN(V22.S[3])
	PLAIN(V23.S[0])
	PLAIN(V23.S[1])
	PLAIN(V23.S[2])
	PLAIN(V23.S[3])
	RET
