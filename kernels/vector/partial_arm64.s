//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// Offsets into packing.
#define shuffleA 0
#define leftA 64
#define carry 128
#define width 144
#define right 152
#define mask 168
#define double 176
#define rest 184
#define nibble 192
#define unnibble 200
#define middle 208

// func vecBits(sum *int64, n int) (any, magnitude uint64)
TEXT ·vecBits(SB), NOSPLIT, $0-32
	MOVD sum+0(FP), R0
	MOVD n+8(FP), R1
	VEOR V16.B16, V16.B16, V16.B16
	VEOR V17.B16, V17.B16, V17.B16

loop:
	VLD1.P 32(R0), [V0.D2, V1.D2]
	VORR   V0.B16, V16.B16, V16.B16
	VORR   V1.B16, V16.B16, V16.B16
	SIGN2(0, 2)
	SIGN2(1, 3)
	VEOR   V2.B16, V0.B16, V0.B16
	VEOR   V3.B16, V1.B16, V1.B16
	VORR   V0.B16, V17.B16, V17.B16
	VORR   V1.B16, V17.B16, V17.B16
	SUBS   $4, R1
	BNE    loop

	VMOV V16.D[0], R2
	VMOV V16.D[1], R3
	ORR  R3, R2, R2
	MOVD R2, any+16(FP)
	VMOV V17.D[0], R2
	VMOV V17.D[1], R3
	ORR  R3, R2, R2
	MOVD R2, magnitude+24(FP)
	RET

// Q, of register q, is made half a group: four values in a and b become pairs, and the pairs 128 bits.
// V20 is the mask, V21 the shift of a pair's second value, V22 those of the second pair, V31 zero.
#define MERGE(A, B, AB, BB, q, Q, QB) \
	VAND V20.B16, AB, AB; VAND V20.B16, BB, BB; \
	VUZP1 B, A, V4.D2; VUZP2 B, A, V5.D2; \
	USHL2(21, 5, 5); VORR V5.B16, V4.B16, V4.B16; \
	VDUP V4.D[1], V5.D2; USHL2(22, 5, 5); \
	VZIP1 V31.D2, V4.D2, Q; VORR V5.B16, QB, QB

// func vecPack(dst *byte, sum *int64, groups int, p *packing)
//
// The second half of a group is stored over the end of the first, which it shares a byte with where
// the width is odd. A negative shift is one to the right.
TEXT ·vecPack(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD sum+8(FP), R1
	MOVD groups+16(FP), R2
	MOVD p+24(FP), R3
	MOVD width(R3), R4
	MOVD middle(R3), R5
	MOVD mask(R3), R6
	VDUP R6, V20.D2
	VDUP R4, V21.D2
	MOVD double(R3), R6
	MOVD rest(R3), R7
	NEG  R7, R7
	VMOV R6, V22.D[0]
	VMOV R7, V22.D[1]
	MOVD nibble(R3), R6
	VDUP R6, V23.D2
	MOVD unnibble(R3), R6
	NEG  R6, R6
	VDUP R6, V24.D2
	ADD  $carry, R3, R6
	VLD1 (R6), [V25.B16]
	VEOR V31.B16, V31.B16, V31.B16

loop:
	VLD1.P 64(R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	MERGE(V0.D2, V1.D2, V0.B16, V1.B16, 6, V6.D2, V6.B16)
	MERGE(V2.D2, V3.D2, V2.B16, V3.B16, 7, V7.D2, V7.B16)
	ADD    R5, R0, R6
	VST1   [V6.B16], (R0)
	USHL2(23, 7, 16)
	USHL2(24, 7, 17)
	VEXT   $8, V17.B16, V31.B16, V17.B16
	VTBL   V25.B16, [V6.B16], V18.B16
	VORR   V17.B16, V16.B16, V16.B16
	VORR   V18.B16, V16.B16, V16.B16
	VST1   [V16.B16], (R6)
	ADD    R4, R0, R0
	SUBS   $1, R2
	BNE    loop
	RET

// Register d, D as bytes, is made two values from the 16 bytes of FROM. shuffle and left are theirs,
// V28 moves down again with the sign; V7 gathers where a bit differs from the one below it.
#define SPREAD(FROM, shuffle, left, d, D, DD) \
	VTBL shuffle, [FROM], D; USHL2(left, d, d); SSHL2(28, d, d); \
	VADD DD, DD, V5.D2; VEOR D, V5.B16, V5.B16; VORR V5.B16, V7.B16, V7.B16

// func vecUnpack(sum *int64, src *byte, groups int, p *packing) uint64
TEXT ·vecUnpack(SB), NOSPLIT, $0-40
	MOVD sum+0(FP), R0
	MOVD src+8(FP), R1
	MOVD groups+16(FP), R2
	MOVD p+24(FP), R3
	MOVD width(R3), R4
	MOVD middle(R3), R5
	MOVD right(R3), R6
	NEG  R6, R6
	VDUP R6, V28.D2
	ADD  $shuffleA, R3, R6
	VLD1 (R6), [V16.B16, V17.B16, V18.B16, V19.B16]
	ADD  $leftA, R3, R6
	VLD1 (R6), [V20.D2, V21.D2, V22.D2, V23.D2]
	VEOR V7.B16, V7.B16, V7.B16

loop:
	ADD    R5, R1, R6
	VLD1   (R1), [V24.B16]
	VLD1   (R6), [V25.B16]
	SPREAD(V24.B16, V16.B16, 20, 0, V0.B16, V0.D2)
	SPREAD(V24.B16, V17.B16, 21, 1, V1.B16, V1.D2)
	SPREAD(V25.B16, V18.B16, 22, 2, V2.B16, V2.D2)
	SPREAD(V25.B16, V19.B16, 23, 3, V3.B16, V3.D2)
	VST1.P [V0.D2, V1.D2, V2.D2, V3.D2], 64(R0)
	ADD    R4, R1, R1
	SUBS   $1, R2
	BNE    loop

	VMOV V7.D[0], R2
	VMOV V7.D[1], R3
	ORR  R3, R2, R2
	MOVD R2, ret+32(FP)
	RET
