//go:build !purego

#include "textflag.h"
#include "const_amd64.h"

EIGHT(below, $0x00007FFF)
EIGHT(quiet, $0x00400000)
EIGHT(upper, $0xFFFF0000)

// Sixteen values at off(SI), times Y15, meet Y8: the even ones are added to e, the odd ones to o. As
// words of 32 bits, two neighbours are floats after a shift and after an AND.
#define READ16(off, e, o) \
	VMOVDQU off(SI), Y10; \
	VPSLLD $16, Y10, Y11; VMULPS Y15, Y11, Y11; VMULPS Y11, Y8, Y11; VADDPS Y11, e, e; \
	VPAND Y14, Y10, Y12; VMULPS Y15, Y12, Y12; VMULPS Y12, Y8, Y12; VADDPS Y12, o, o

// Y11, times Y15, and Y8 times d make a value of the state; its product with Y9 is added to s. The upper
// halves of Y11 are its bfloat16. Y12 and Y13 are overwritten.
#define WRITE8(d, s) \
	VMULPS Y15, Y11, Y11; VMULPS d, Y8, Y12; VADDPS Y12, Y11, Y11; \
	VMULPS Y11, Y9, Y12; VADDPS Y12, s, s; \
	VPSLLD $15, Y11, Y12; VPSRLD $31, Y12, Y12; VPADDD Y11, Y12, Y12; VPADDD below<>(SB), Y12, Y12; \
	VPOR quiet<>(SB), Y11, Y13; VCMPPS $3, Y11, Y11, Y11; VBLENDVPS Y11, Y13, Y12, Y11

#define WRITE16(off, de, do, e, o) \
	VMOVDQU off(SI), Y10; \
	VPSLLD $16, Y10, Y11; WRITE8(de, e); VPSRLD $16, Y11, Y14; \
	VPAND upper<>(SB), Y10, Y11; WRITE8(do, o); \
	VPBLENDW $0xAA, Y11, Y14, Y11; VMOVDQU Y11, off(SI)

// e and o are beta * (v - sums) of the even and the odd ones of sixteen values of v at off(R11).
#define DELTA16(off, sumE, sumO, e, o) \
	VMOVUPS off(R11), Y10; VMOVUPS off+32(R11), Y11; \
	VSHUFPS $0x88, Y11, Y10, e; VPERMPD $0xD8, e, e; \
	VSHUFPS $0xDD, Y11, Y10, o; VPERMPD $0xD8, o, o; \
	VSUBPS sumE, e, e; VMULPS Y12, e, e; \
	VSUBPS sumO, o, o; VMULPS Y12, o, o

// The even and the odd sums e and o become sixteen values at off(DI).
#define OUT16(off, e, o) \
	VUNPCKLPS o, e, Y10; VUNPCKHPS o, e, Y11; \
	VPERM2F128 $0x20, Y11, Y10, Y12; VMOVUPS Y12, off(DI); \
	VPERM2F128 $0x31, Y11, Y10, Y12; VMOVUPS Y12, off+32(DI)

// func vecDeltaBF16(out *float32, state *byte, k, q, v *float32, n, stride, rows int, decay, beta float32)
TEXT ·vecDeltaBF16(SB), NOSPLIT, $0-72
	MOVQ         out+0(FP), DI
	MOVQ         state+8(FP), R10
	MOVQ         v+32(FP), R11
	MOVQ         n+40(FP), CX
	MOVQ         stride+48(FP), R8
	VBROADCASTSS decay+64(FP), Y15
	SHLQ         $1, R8

tile:
	VMOVDQU upper<>(SB), Y14
	VXORPS  Y0, Y0, Y0
	VXORPS  Y1, Y1, Y1
	VXORPS  Y2, Y2, Y2
	VXORPS  Y3, Y3, Y3
	MOVQ    R10, SI
	MOVQ    k+16(FP), DX
	MOVQ    rows+56(FP), R9

read:
	VBROADCASTSS (DX), Y8
	READ16(0, Y0, Y1)
	READ16(32, Y2, Y3)
	ADDQ R8, SI
	ADDQ $4, DX
	DECQ R9
	JNZ  read

	VBROADCASTSS beta+68(FP), Y12
	DELTA16(0, Y0, Y1, Y4, Y5)
	DELTA16(64, Y2, Y3, Y6, Y7)
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	MOVQ   R10, SI
	MOVQ   k+16(FP), DX
	MOVQ   q+24(FP), BX
	MOVQ   rows+56(FP), R9

write:
	VBROADCASTSS (DX), Y8
	VBROADCASTSS (BX), Y9
	WRITE16(0, Y4, Y5, Y0, Y1)
	WRITE16(32, Y6, Y7, Y2, Y3)
	ADDQ R8, SI
	ADDQ $4, DX
	ADDQ $4, BX
	DECQ R9
	JNZ  write

	OUT16(0, Y0, Y1)
	OUT16(64, Y2, Y3)
	ADDQ $128, DI
	ADDQ $64, R10
	ADDQ $128, R11
	SUBQ $32, CX
	JNZ  tile
	VZEROUPPER
	RET
