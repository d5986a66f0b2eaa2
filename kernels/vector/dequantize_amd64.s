//go:build !purego

#include "textflag.h"

// func vecF16(dst *float32, src *byte, n int)
TEXT ·vecF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VCVTPH2PS (SI), Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// func vecBF16(dst *float32, src *byte, n int)
TEXT ·vecBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VPMOVZXWD (SI), Y0
	VPSLLD    $16, Y0, Y0
	VMOVUPS   Y0, (DI)
	ADDQ      $16, SI
	ADDQ      $32, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// y = the eight bytes at x as floats, times Y15.
#define BYTES(x, y) \
	VPMOVSXBD x, y; VCVTDQ2PS y, y; VMULPS Y15, y, y

// func vecQ8(dst *float32, src *byte, blocks int)
TEXT ·vecQ8(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ blocks+16(FP), CX

loop:
	MOVWLZX      (SI), AX
	VMOVD        AX, X15
	VCVTPH2PS    X15, X15
	VBROADCASTSS X15, Y15
	BYTES(2(SI), Y0)
	BYTES(10(SI), Y1)
	BYTES(18(SI), Y2)
	BYTES(26(SI), Y3)
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ    $34, SI
	ADDQ    $128, DI
	DECQ    CX
	JNZ     loop
	VZEROUPPER
	RET

DATA fifth<>+0(SB)/8, $0x0000000000000000 // byte of the fifth bits
DATA fifth<>+8(SB)/8, $0x0101010101010101
DATA fifth<>+16(SB)/8, $0x0202020202020202
DATA fifth<>+24(SB)/8, $0x0303030303030303
GLOBL fifth<>(SB), RODATA|NOPTR, $32

DATA within<>+0(SB)/8, $0x8040201008040201 // bit within it
GLOBL within<>(SB), RODATA|NOPTR, $8

// func vecQ5(dst *float32, src *byte, blocks int)
//
// A value without its fifth bit is 16 lower: its upper bits are set.
TEXT ·vecQ5(SB), NOSPLIT, $0-24
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         blocks+16(FP), CX
	VMOVDQU      fifth<>(SB), Y14
	VPBROADCASTQ within<>(SB), Y13
	VPCMPEQB     Y12, Y12, Y12
	VPSRLW       $12, Y12, Y12
	VPACKUSWB    Y12, Y12, Y12 // 15 in each byte
	VPSLLW       $4, Y12, Y11  // -16

loop:
	MOVWLZX      (SI), AX
	VMOVD        AX, X15
	VCVTPH2PS    X15, X15
	VBROADCASTSS X15, Y15
	VMOVDQU      6(SI), X0
	VPSRLW       $4, X0, X1
	VINSERTI128  $1, X1, Y0, Y0
	VPAND        Y12, Y0, Y0
	VPBROADCASTD 2(SI), Y1
	VPSHUFB      Y14, Y1, Y1
	VPAND        Y13, Y1, Y1
	VPCMPEQB     Y13, Y1, Y1
	VPANDN       Y11, Y1, Y1
	VPOR         Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPSRLDQ      $8, X0, X2
	VPSRLDQ      $8, X1, X3
	BYTES(X0, Y0)
	BYTES(X2, Y2)
	BYTES(X1, Y1)
	BYTES(X3, Y3)
	VMOVUPS      Y0, (DI)
	VMOVUPS      Y2, 32(DI)
	VMOVUPS      Y1, 64(DI)
	VMOVUPS      Y3, 96(DI)
	ADDQ         $22, SI
	ADDQ         $128, DI
	DECQ         CX
	JNZ          loop
	VZEROUPPER
	RET

DATA doubled<>+0(SB)/8, $0x0C08060403020100
DATA doubled<>+8(SB)/8, $0xF4F8FAFCFDFEFF00
GLOBL doubled<>(SB), RODATA|NOPTR, $16

// func vecMXFP4(dst *float32, src *byte, blocks int)
TEXT ·vecMXFP4(SB), NOSPLIT, $0-24
	MOVQ     dst+0(FP), DI
	MOVQ     src+8(FP), SI
	MOVQ     blocks+16(FP), CX
	VMOVDQU  doubled<>(SB), X14
	VPCMPEQB X13, X13, X13
	VPSRLW   $12, X13, X13
	VPACKUSWB X13, X13, X13 // 15 in each byte

loop:
	MOVBLZX (SI), AX
	VMOVDQU 1(SI), X0
	VPSRLW  $4, X0, X1
	VPAND   X13, X0, X0
	VPAND   X13, X1, X1
	VPSHUFB X0, X14, X0
	VPSHUFB X1, X14, X1
	CMPL    AX, $80
	JCS     zero
	CMPL    AX, $190
	JHI     invalid
	DECL    AX
	SHLL    $23, AX

scaled:
	VMOVD        AX, X15
	VBROADCASTSS X15, Y15
	VPSRLDQ      $8, X0, X2
	VPSRLDQ      $8, X1, X3
	BYTES(X0, Y0)
	BYTES(X2, Y2)
	BYTES(X1, Y1)
	BYTES(X3, Y3)
	VMOVUPS Y0, (DI)
	VMOVUPS Y2, 32(DI)
	VMOVUPS Y1, 64(DI)
	VMOVUPS Y3, 96(DI)
	ADDQ    $17, SI
	ADDQ    $128, DI
	DECQ    CX
	JNZ     loop
	VZEROUPPER
	RET

zero:
	XORL  AX, AX
	VPXOR X0, X0, X0
	VPXOR X1, X1, X1
	JMP   scaled

invalid:
	MOVL $0x7FC00000, AX
	JMP  scaled

// Sixteen values with one scale and the minimum in Y13.
#define SIXTEEN(i, y, z) \
	VBROADCASTSS (4*(i))(R8), Y12; \
	VPMOVSXBD (16*(i))(SI), y; VPMOVSXBD (16*(i)+8)(SI), z; \
	VCVTDQ2PS y, y; VCVTDQ2PS z, z; \
	VMULPS Y12, y, y; VMULPS Y12, z, z

#define PLAIN(i, y, z) \
	SIXTEEN(i, y, z); \
	VMOVUPS y, (64*(i))(DI); VMOVUPS z, (64*(i)+32)(DI)

#define LESS(i, y, z) \
	SIXTEEN(i, y, z); \
	VSUBPS Y13, y, y; VSUBPS Y13, z, z; \
	VMOVUPS y, (64*(i))(DI); VMOVUPS z, (64*(i)+32)(DI)

// Thirty-two values with one minimum.
#define PAIR(i) \
	VBROADCASTSS (64+4*(i))(R8), Y13; LESS(2*(i), Y0, Y1); LESS(2*(i)+1, Y2, Y3)

// func vecBlockK(dst *float32, b *quant.BlockK, minimums bool)
//
// The 16 scales and 8 minimums are multiplied out first, into the frame.
TEXT ·vecBlockK(SB), NOSPLIT, $96-17
	MOVQ         dst+0(FP), DI
	MOVQ         b+8(FP), SI
	MOVQ         SP, R8
	VBROADCASTSS 280(SI), Y4
	VPMOVSXBD    256(SI), Y0
	VPMOVSXBD    264(SI), Y1
	VCVTDQ2PS    Y0, Y0
	VCVTDQ2PS    Y1, Y1
	VMULPS       Y4, Y0, Y0
	VMULPS       Y4, Y1, Y1
	VMOVUPS      Y0, (R8)
	VMOVUPS      Y1, 32(R8)
	MOVBLZX      minimums+16(FP), AX
	TESTL        AX, AX
	JZ           plain
	VBROADCASTSS 284(SI), Y4
	VPMOVZXBD    272(SI), Y0
	VCVTDQ2PS    Y0, Y0
	VMULPS       Y4, Y0, Y0
	VMOVUPS      Y0, 64(R8)
	PAIR(0)
	PAIR(1)
	PAIR(2)
	PAIR(3)
	PAIR(4)
	PAIR(5)
	PAIR(6)
	PAIR(7)
	VZEROUPPER
	RET

plain:
	PLAIN(0, Y0, Y1)
	PLAIN(1, Y2, Y3)
	PLAIN(2, Y4, Y5)
	PLAIN(3, Y6, Y7)
	PLAIN(4, Y0, Y1)
	PLAIN(5, Y2, Y3)
	PLAIN(6, Y4, Y5)
	PLAIN(7, Y6, Y7)
	PLAIN(8, Y0, Y1)
	PLAIN(9, Y2, Y3)
	PLAIN(10, Y4, Y5)
	PLAIN(11, Y6, Y7)
	PLAIN(12, Y0, Y1)
	PLAIN(13, Y2, Y3)
	PLAIN(14, Y4, Y5)
	PLAIN(15, Y6, Y7)
	VZEROUPPER
	RET
