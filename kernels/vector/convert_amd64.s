//go:build !purego

#include "textflag.h"
#include "const_amd64.h"

EIGHT(halfMax, $0x477FE000)  // 65504
EIGHT(halfMin, $0xC77FE000)
EIGHT(float127, $0x42FE0000)
EIGHT(minus127, $0x81818181) // bytes

DATA order<>+0(SB)/8, $0x0000000400000000
DATA order<>+8(SB)/8, $0x0000000500000001
DATA order<>+16(SB)/8, $0x0000000600000002
DATA order<>+24(SB)/8, $0x0000000700000003
GLOBL order<>(SB), RODATA|NOPTR, $32

// func vecToF16(dst *byte, src *float32, n int)
//
// The minimum and the maximum are their first operand here if there is a NaN.
TEXT ·vecToF16(SB), NOSPLIT, $0-24
	MOVQ    dst+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    n+16(FP), CX
	VMOVUPS halfMax<>(SB), Y14
	VMOVUPS halfMin<>(SB), Y15

loop:
	VMINPS    (SI), Y14, Y0
	VMAXPS    Y0, Y15, Y0
	VCVTPS2PH $0, Y0, (DI)
	ADDQ      $32, SI
	ADDQ      $16, DI
	SUBQ      $8, CX
	JNZ       loop
	VZEROUPPER
	RET

// X1 = recip(X0), by two of these steps and one that rounds better. X7 is 2, X8 is 1.
#define STEP \
	VMULSS X1, X0, X2 \
	VSUBSS X2, X7, X2 \
	VMULSS X2, X1, X1

// y = the eight values at off(SI) times Y1, as int32. A NaN becomes 127.
#define INTEGERS(off, y) \
	VMULPS off(SI), Y1, y; VMINPS Y12, y, y; VCVTPS2DQ y, y

// func vecToQ8(dst *byte, src *float32, blocks int)
//
// A value far below -127 is the lowest int32 after its conversion, and so the lowest int8.
TEXT ·vecToQ8(SB), NOSPLIT, $0-24
	MOVQ     dst+0(FP), DI
	MOVQ     src+8(FP), SI
	MOVQ     blocks+16(FP), CX
	VPCMPEQD Y15, Y15, Y15
	VPSRLD   $1, Y15, Y15
	VMOVDQU  order<>(SB), Y14
	VMOVDQU  minus127<>(SB), Y13
	VMOVUPS  float127<>(SB), Y12
	MOVL     $0x40000000, AX
	VMOVD    AX, X7
	MOVL     $0x3F800000, AX
	VMOVD    AX, X8
	MOVL     $0x4AFDE040, AX // 127 * 65504
	VMOVD    AX, X9
	MOVL     $0x3C010204, AX // 1/127
	VMOVD    AX, X10

block:
	VPAND        (SI), Y15, Y0
	VPAND        32(SI), Y15, Y1
	VPAND        64(SI), Y15, Y2
	VPAND        96(SI), Y15, Y3
	VPMAXUD      Y1, Y0, Y0
	VPMAXUD      Y3, Y2, Y2
	VPMAXUD      Y2, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD      X1, X0, X0
	VPSHUFD      $0x4E, X0, X1
	VPMAXUD      X1, X0, X0
	VPSHUFD      $0xB1, X0, X1
	VPMAXUD      X1, X0, X0
	VPMINUD      X9, X0, X0 // the other lanes of X9 are 0
	VMOVD        X0, AX
	VMULSS       X10, X0, X3
	VCVTPS2PH    $0, X3, X3
	VMOVD        X3, DX
	MOVW         DX, (DI)
	TESTL        DX, DX
	JZ           zero

	MOVL         $0x7EF311C7, BX
	SUBL         AX, BX
	VMOVD        BX, X1
	STEP
	STEP
	VMULSS       X1, X0, X2
	VSUBSS       X2, X8, X2
	VMULSS       X2, X1, X2
	VADDSS       X2, X1, X1
	VMULSS       X1, X12, X1
	VBROADCASTSS X1, Y1
	INTEGERS(0, Y2)
	INTEGERS(32, Y3)
	INTEGERS(64, Y4)
	INTEGERS(96, Y5)
	VPACKSSDW    Y3, Y2, Y2
	VPACKSSDW    Y5, Y4, Y4
	VPACKSSWB    Y4, Y2, Y2
	VPERMD       Y2, Y14, Y2
	VPMAXSB      Y13, Y2, Y2

next:
	VMOVDQU Y2, 2(DI)
	ADDQ    $128, SI
	ADDQ    $34, DI
	DECQ    CX
	JNZ     block
	VZEROUPPER
	RET

zero:
	VPXOR Y2, Y2, Y2
	JMP   next
