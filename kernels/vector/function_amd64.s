//go:build !purego

#include "textflag.h"
#include "const_amd64.h"

// The constants of exp, recip and silu in kernels/ref.
EIGHT(log2e, $0x3FB8AA3B)
EIGHT(magic, $0x4B400000)
EIGHT(ln2Hi, $0x3F317200)
EIGHT(ln2Lo, $0x35BFBE8E)
EIGHT(exp7, $0x39506967)
EIGHT(exp6, $0x3AB743CE)
EIGHT(exp5, $0x3C088908)
EIGHT(exp4, $0x3D2AA9C1)
EIGHT(exp3, $0x3E2AAAAA)
EIGHT(half, $0x3F000000)
EIGHT(one, $0x3F800000)
EIGHT(two, $0x40000000)
EIGHT(expMin, $0xC2AE0000) // -87
EIGHT(siluMin, $0xC2300000) // -44
EIGHT(sigmoidMin, $0xC2B00000) // -88
EIGHT(seed, $0x7EF311C7)
EIGHT(signs, $0x80000000)
EIGHT(infinity, $0x7F800000)

// p = exp(x). z, n, r and t are overwritten, x stays.
#define EXP(x, z, n, r, p, t) \
	VMULPS log2e<>(SB), x, z; VADDPS magic<>(SB), z, z; \
	VSUBPS magic<>(SB), z, n; VPSUBD magic<>(SB), z, z; VPSLLD $23, z, z; \
	VMULPS ln2Hi<>(SB), n, t; VSUBPS t, x, r; \
	VMULPS ln2Lo<>(SB), n, t; VSUBPS t, r, r; \
	VMULPS exp7<>(SB), r, p; VADDPS exp6<>(SB), p, p; \
	VMULPS r, p, p; VADDPS exp5<>(SB), p, p; \
	VMULPS r, p, p; VADDPS exp4<>(SB), p, p; \
	VMULPS r, p, p; VADDPS exp3<>(SB), p, p; \
	VMULPS r, p, p; VADDPS half<>(SB), p, p; \
	VMULPS r, r, t; VMULPS t, p, p; VADDPS r, p, p; \
	VADDPS one<>(SB), p, p; VPADDD z, p, p; \
	VCMPPS $0x11, expMin<>(SB), x, t; VANDNPS p, t, p

// y = recip(x). t is overwritten, x stays.
#define RECIP(x, y, t) \
	VMOVUPS seed<>(SB), t; VPSUBD x, t, y; \
	VMULPS x, y, t; VSUBPS t, Y15, t; VMULPS t, y, y; \
	VMULPS x, y, t; VSUBPS t, Y15, t; VMULPS t, y, y; \
	VMULPS x, y, t; VSUBPS t, Y14, t; VMULPS t, y, t; VADDPS t, y, y

// Y1 = silu(Y0). Y0 stays; Y2 to Y6 are overwritten; Y15 is 2, Y14 is 1.
#define SILU \
	VXORPS signs<>(SB), Y0, Y1; \
	EXP(Y1, Y2, Y3, Y4, Y5, Y6); \
	VADDPS Y14, Y5, Y5; \
	RECIP(Y5, Y1, Y2); \
	VMULPS Y1, Y0, Y1; \
	VCMPPS $0x11, siluMin<>(SB), Y0, Y2; VANDNPS Y1, Y2, Y1

// func vecExp(x *float32, n int, top float32)
TEXT ·vecExp(SB), NOSPLIT, $0-20
	MOVQ         x+0(FP), DI
	MOVQ         n+8(FP), CX
	VBROADCASTSS top+16(FP), Y7

loop:
	VMOVUPS (DI), Y0
	VSUBPS  Y7, Y0, Y0
	EXP(Y0, Y1, Y2, Y3, Y4, Y5)
	VMOVUPS Y4, (DI)
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func vecGate(h, gate, up *float32, n int)
TEXT ·vecGate(SB), NOSPLIT, $0-32
	MOVQ    h+0(FP), DI
	MOVQ    gate+8(FP), SI
	MOVQ    up+16(FP), DX
	MOVQ    n+24(FP), CX
	VMOVUPS one<>(SB), Y14
	VMOVUPS two<>(SB), Y15
	VMOVUPS infinity<>(SB), Y13

loop:
	VMOVUPS  (SI), Y0
	VMOVUPS  (DX), Y7
	SILU
	VMULPS   Y7, Y1, Y1
	VPAND    Y13, Y0, Y0
	VPAND    Y13, Y7, Y7
	VPCMPEQD Y13, Y0, Y0
	VPCMPEQD Y13, Y7, Y7
	VPOR     Y0, Y1, Y1
	VPOR     Y7, Y1, Y1
	VMOVUPS  Y1, (DI)
	ADDQ     $32, SI
	ADDQ     $32, DX
	ADDQ     $32, DI
	SUBQ     $8, CX
	JNZ      loop
	VZEROUPPER
	RET

// func vecSilu(x *float32, n int)
TEXT ·vecSilu(SB), NOSPLIT, $0-16
	MOVQ    x+0(FP), DI
	MOVQ    n+8(FP), CX
	VMOVUPS one<>(SB), Y14
	VMOVUPS two<>(SB), Y15

loop:
	VMOVUPS (DI), Y0
	SILU
	VMOVUPS Y1, (DI)
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func vecSigmoid(x *float32, n int)
TEXT ·vecSigmoid(SB), NOSPLIT, $0-16
	MOVQ    x+0(FP), DI
	MOVQ    n+8(FP), CX
	VMOVUPS one<>(SB), Y14

loop:
	VMOVUPS (DI), Y0
	VXORPS  signs<>(SB), Y0, Y1
	EXP(Y1, Y2, Y3, Y4, Y5, Y6)
	VADDPS  Y14, Y5, Y5
	VDIVPS  Y5, Y14, Y5
	VCMPPS  $0x11, sigmoidMin<>(SB), Y0, Y2
	VANDNPS Y5, Y2, Y5
	VMOVUPS Y5, (DI)
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func vecMax(x *float32, n int) float32
TEXT ·vecMax(SB), NOSPLIT, $0-20
	MOVQ    x+0(FP), SI
	MOVQ    n+8(FP), CX
	VMOVUPS (SI), Y0
	VPXOR   Y2, Y2, Y2 // where a NaN has been seen

loop:
	VMOVUPS (SI), Y1
	VMAXPS  Y1, Y0, Y0
	VCMPPS  $3, Y1, Y1, Y1
	VORPS   Y1, Y2, Y2
	ADDQ    $32, SI
	SUBQ    $8, CX
	JNZ     loop

	VMOVMSKPS    Y2, AX
	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VPSHUFD      $0x4E, X0, X1
	VMAXPS       X1, X0, X0
	VPSHUFD      $0xB1, X0, X1
	VMAXPS       X1, X0, X0
	VXORPS       X1, X1, X1
	VADDSS       X1, X0, X0 // a zero becomes +0
	TESTL        AX, AX
	JZ           done
	MOVL         $0x7FC00000, AX
	VMOVD        AX, X0

done:
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET
