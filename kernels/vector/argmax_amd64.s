//go:build !purego

#include "textflag.h"

// Eight values at off(SI) join the orders in o and the magnitudes in m. Y5 and Y6 are overwritten.
#define JOIN(off, o, m) \
	VMOVDQU off(SI), Y5; VPAND Y15, Y5, Y6; \
	VPSIGND Y5, Y6, Y5; VPMAXSD Y5, o, o; VPMAXSD Y6, m, m

// func vecTop(x *float32, n int) (top int32, largest uint32)
TEXT ·vecTop(SB), NOSPLIT, $0-24
	MOVQ     x+0(FP), SI
	MOVQ     n+8(FP), CX
	VPCMPEQD Y15, Y15, Y15
	VPSLLD   $31, Y15, Y0 // the lowest int32
	VMOVDQA  Y0, Y1
	VPSRLD   $1, Y15, Y15
	VPXOR    Y2, Y2, Y2
	VPXOR    Y3, Y3, Y3
	SUBQ     $32, CX
	JLT      rest

loop:
	JOIN(0, Y0, Y2)
	JOIN(32, Y1, Y3)
	JOIN(64, Y0, Y2)
	JOIN(96, Y1, Y3)
	ADDQ $128, SI
	SUBQ $32, CX
	JGE  loop

rest:
	ADDQ $32, CX
	JZ   fold

eight:
	JOIN(0, Y0, Y2)
	ADDQ $32, SI
	SUBQ $8, CX
	JNZ  eight

fold:
	VPMAXSD      Y1, Y0, Y0
	VPMAXSD      Y3, Y2, Y2
	VEXTRACTI128 $1, Y0, X1
	VEXTRACTI128 $1, Y2, X3
	VPMAXSD      X1, X0, X0
	VPMAXSD      X3, X2, X2
	VPSHUFD      $0x4E, X0, X1
	VPSHUFD      $0x4E, X2, X3
	VPMAXSD      X1, X0, X0
	VPMAXSD      X3, X2, X2
	VPSHUFD      $0xB1, X0, X1
	VPSHUFD      $0xB1, X2, X3
	VPMAXSD      X1, X0, X0
	VPMAXSD      X3, X2, X2
	VMOVD        X0, AX
	VMOVD        X2, BX
	MOVL         AX, top+16(FP)
	MOVL         BX, largest+20(FP)
	VZEROUPPER
	RET
