//go:build !purego

#include "textflag.h"

// The 32 lanes of binary32 a to d are folded into the lowest value of A, the X register of a.
#define FOLD(a, b, c, d, A, D) \
	VADDPS c, a, a; VADDPS d, b, b; VADDPS b, a, a; \
	VEXTRACTF128 $1, a, D; VADDPS D, A, A; \
	VPSHUFD $0x4E, A, D; VADDPS D, A, A; \
	VPSHUFD $0xB1, A, D; VADDSS D, A, A

// func vecSum(x *float32, n int, tail *float32) float32
TEXT ·vecSum(SB), NOSPLIT, $0-28
	MOVQ  x+0(FP), SI
	MOVQ  n+8(FP), CX
	MOVQ  tail+16(FP), R8
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	TESTQ CX, CX
	JZ    last

loop:
	VADDPS (SI), Y0, Y0
	VADDPS 32(SI), Y1, Y1
	VADDPS 64(SI), Y2, Y2
	VADDPS 96(SI), Y3, Y3
	ADDQ   $128, SI
	SUBQ   $32, CX
	JNZ    loop

last:
	TESTQ R8, R8
	JZ    fold
	MOVQ  R8, SI
	MOVQ  $32, CX
	XORL  R8, R8
	JMP   loop

fold:
	FOLD(Y0, Y1, Y2, Y3, X0, X3)
	VMOVSS X0, ret+24(FP)
	VZEROUPPER
	RET

// func vecDot(x, w *float32, n int, xTail, wTail *float32) float32
TEXT ·vecDot(SB), NOSPLIT, $0-44
	MOVQ  x+0(FP), SI
	MOVQ  w+8(FP), DI
	MOVQ  n+16(FP), CX
	MOVQ  xTail+24(FP), R8
	MOVQ  wTail+32(FP), R9
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	TESTQ CX, CX
	JZ    last

loop:
	VMOVUPS (SI), Y4
	VMOVUPS 32(SI), Y5
	VMOVUPS 64(SI), Y6
	VMOVUPS 96(SI), Y7
	VMULPS  (DI), Y4, Y4
	VMULPS  32(DI), Y5, Y5
	VMULPS  64(DI), Y6, Y6
	VMULPS  96(DI), Y7, Y7
	VADDPS  Y4, Y0, Y0
	VADDPS  Y5, Y1, Y1
	VADDPS  Y6, Y2, Y2
	VADDPS  Y7, Y3, Y3
	ADDQ    $128, SI
	ADDQ    $128, DI
	SUBQ    $32, CX
	JNZ     loop

last:
	TESTQ R8, R8
	JZ    fold
	MOVQ  R8, SI
	MOVQ  R9, DI
	MOVQ  $32, CX
	XORL  R8, R8
	JMP   loop

fold:
	FOLD(Y0, Y1, Y2, Y3, X0, X3)
	VMOVSS X0, ret+40(FP)
	VZEROUPPER
	RET

#define SQUARES(off, s, t) \
	VCVTPS2PD off(SI), t; VMULPD t, t, t; VADDPD t, s, s

// func vecSumSquares(x *float32, n int, tail *float32) float64
TEXT ·vecSumSquares(SB), NOSPLIT, $0-32
	MOVQ  x+0(FP), SI
	MOVQ  n+8(FP), CX
	MOVQ  tail+16(FP), R8
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	VXORPD Y4, Y4, Y4
	VXORPD Y5, Y5, Y5
	VXORPD Y6, Y6, Y6
	VXORPD Y7, Y7, Y7
	TESTQ CX, CX
	JZ    last

loop:
	SQUARES(0, Y0, Y8)
	SQUARES(16, Y1, Y9)
	SQUARES(32, Y2, Y10)
	SQUARES(48, Y3, Y11)
	SQUARES(64, Y4, Y12)
	SQUARES(80, Y5, Y13)
	SQUARES(96, Y6, Y14)
	SQUARES(112, Y7, Y15)
	ADDQ $128, SI
	SUBQ $32, CX
	JNZ  loop

last:
	TESTQ R8, R8
	JZ    fold
	MOVQ  R8, SI
	MOVQ  $32, CX
	XORL  R8, R8
	JMP   loop

fold:
	VADDPD       Y4, Y0, Y0
	VADDPD       Y5, Y1, Y1
	VADDPD       Y6, Y2, Y2
	VADDPD       Y7, Y3, Y3
	VADDPD       Y2, Y0, Y0
	VADDPD       Y3, Y1, Y1
	VADDPD       Y1, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPD       X1, X0, X0
	VPSHUFD      $0x4E, X0, X1
	VADDSD       X1, X0, X0
	VMOVSD       X0, ret+24(FP)
	VZEROUPPER
	RET

// Eight values of w meet those of three rows. Y12 to Y15 are overwritten.
#define THREE(off, a, b, c) \
	VMOVUPS off(DI)(AX*1), Y12; \
	VMULPS off(SI)(AX*1), Y12, Y13; VADDPS Y13, a, a; \
	VMULPS off(R10)(AX*1), Y12, Y14; VADDPS Y14, b, b; \
	VMULPS off(R11)(AX*1), Y12, Y15; VADDPS Y15, c, c

// func vecDots(dst, w, x *float32, n, stride, rows int)
TEXT ·vecDots(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DX
	MOVQ w+8(FP), DI
	MOVQ x+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ stride+32(FP), R8
	MOVQ rows+40(FP), R9
	SHLQ $2, CX
	SHLQ $2, R8
	SUBQ $3, R9
	JLT  rest

three:
	LEAQ   (SI)(R8*1), R10
	LEAQ   (SI)(R8*2), R11
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	XORL   AX, AX

loop3:
	THREE(0, Y0, Y4, Y8)
	THREE(32, Y1, Y5, Y9)
	THREE(64, Y2, Y6, Y10)
	THREE(96, Y3, Y7, Y11)
	ADDQ $128, AX
	CMPQ AX, CX
	JNE  loop3

	FOLD(Y0, Y1, Y2, Y3, X0, X3)
	FOLD(Y4, Y5, Y6, Y7, X4, X7)
	FOLD(Y8, Y9, Y10, Y11, X8, X11)
	VMOVSS X0, (DX)
	VMOVSS X4, 4(DX)
	VMOVSS X8, 8(DX)
	ADDQ   $12, DX
	LEAQ   (R11)(R8*1), SI
	SUBQ   $3, R9
	JGE    three

rest:
	ADDQ $3, R9
	JZ   done

one:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	XORL   AX, AX

loop1:
	VMOVUPS (DI)(AX*1), Y4
	VMOVUPS 32(DI)(AX*1), Y5
	VMOVUPS 64(DI)(AX*1), Y6
	VMOVUPS 96(DI)(AX*1), Y7
	VMULPS  (SI)(AX*1), Y4, Y4
	VMULPS  32(SI)(AX*1), Y5, Y5
	VMULPS  64(SI)(AX*1), Y6, Y6
	VMULPS  96(SI)(AX*1), Y7, Y7
	VADDPS  Y4, Y0, Y0
	VADDPS  Y5, Y1, Y1
	VADDPS  Y6, Y2, Y2
	VADDPS  Y7, Y3, Y3
	ADDQ    $128, AX
	CMPQ    AX, CX
	JNE     loop1

	FOLD(Y0, Y1, Y2, Y3, X0, X3)
	VMOVSS X0, (DX)
	ADDQ   $4, DX
	ADDQ   R8, SI
	DECQ   R9
	JNZ    one

done:
	VZEROUPPER
	RET
