//go:build !purego

#include "textflag.h"
#include "const_amd64.h"

EIGHT(minus127, $0x81818181)

DATA order<>+0(SB)/8, $0x0000000400000000
DATA order<>+8(SB)/8, $0x0000000500000001
DATA order<>+16(SB)/8, $0x0000000600000002
DATA order<>+24(SB)/8, $0x0000000700000003
GLOBL order<>(SB), RODATA|NOPTR, $32

// X1 = recip(X0), by two steps of Newton's and one that rounds better. X7 is 2, X8 is 1.
#define STEP \
	VMULSS X1, X0, X2 \
	VSUBSS X2, X7, X2 \
	VMULSS X2, X1, X1

// func vecQuantize(q *int8, scales, x *float32, blocks, length int) uint32
TEXT ·vecQuantize(SB), NOSPLIT, $0-44
	MOVQ q+0(FP), DI
	MOVQ scales+8(FP), SI
	MOVQ x+16(FP), DX
	MOVQ blocks+24(FP), CX
	MOVQ length+32(FP), R8
	XORL R9, R9
	VPCMPEQD Y15, Y15, Y15
	VPSRLD   $1, Y15, Y15
	VMOVDQU  order<>(SB), Y14
	VMOVDQU  minus127<>(SB), Y13
	MOVL     $0x40000000, AX
	VMOVD    AX, X7
	MOVL     $0x3F800000, AX
	VMOVD    AX, X8
	MOVL     $0x42FE0000, AX // 127
	VMOVD    AX, X9
	MOVL     $0x3C010204, AX // 1/127
	VMOVD    AX, X10

block:
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	MOVQ  DX, R10
	MOVQ  R8, R11

largest:
	VPAND   (R10), Y15, Y4
	VPAND   32(R10), Y15, Y5
	VPAND   64(R10), Y15, Y6
	VPAND   96(R10), Y15, Y11
	VPMAXSD Y4, Y0, Y0
	VPMAXSD Y5, Y1, Y1
	VPMAXSD Y6, Y2, Y2
	VPMAXSD Y11, Y3, Y3
	ADDQ    $128, R10
	SUBQ    $32, R11
	JNZ     largest

	VPMAXSD      Y1, Y0, Y0
	VPMAXSD      Y3, Y2, Y2
	VPMAXSD      Y2, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPMAXSD      X1, X0, X0
	VPSHUFD      $0x4E, X0, X1
	VPMAXSD      X1, X0, X0
	VPSHUFD      $0xB1, X0, X1
	VPMAXSD      X1, X0, X0
	VMOVD        X0, AX
	CMPL         AX, R9
	CMOVLHI      AX, R9
	MOVQ         R8, R11
	CMPL         AX, $0x2B800000 // 2^-40
	JCS          zero

	VMOVD        AX, X0
	MOVL         $0x7EF311C7, BX
	SUBL         AX, BX
	VMOVD        BX, X1
	STEP
	STEP
	VMULSS       X1, X0, X2
	VSUBSS       X2, X8, X2
	VMULSS       X2, X1, X2
	VADDSS       X2, X1, X1
	VMULSS       X1, X9, X1
	VMULSS       X10, X0, X0
	VMOVSS       X0, (SI)
	VBROADCASTSS X1, Y1

values:
	VMULPS     (DX), Y1, Y2
	VMULPS     32(DX), Y1, Y3
	VMULPS     64(DX), Y1, Y4
	VMULPS     96(DX), Y1, Y5
	VCVTPS2DQ  Y2, Y2
	VCVTPS2DQ  Y3, Y3
	VCVTPS2DQ  Y4, Y4
	VCVTPS2DQ  Y5, Y5
	VPACKSSDW  Y3, Y2, Y2
	VPACKSSDW  Y5, Y4, Y4
	VPACKSSWB  Y4, Y2, Y2
	VPERMD     Y2, Y14, Y2
	VPMAXSB    Y13, Y2, Y2
	VMOVDQU    Y2, (DI)
	ADDQ       $128, DX
	ADDQ       $32, DI
	SUBQ       $32, R11
	JNZ        values
	JMP        next

zero:
	MOVL  $0, (SI)
	VPXOR Y2, Y2, Y2

zeros:
	VMOVDQU Y2, (DI)
	ADDQ    $128, DX
	ADDQ    $32, DI
	SUBQ    $32, R11
	JNZ     zeros

next:
	ADDQ $4, SI
	DECQ CX
	JNZ  block
	MOVL R9, ret+40(FP)
	VZEROUPPER
	RET
