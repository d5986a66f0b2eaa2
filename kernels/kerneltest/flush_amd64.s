//go:build !purego

#include "textflag.h"

// func floatMode() uint64
TEXT ·floatMode(SB), NOSPLIT, $8-8
	STMXCSR mode-8(SP)
	MOVL    mode-8(SP), AX
	MOVQ    AX, ret+0(FP)
	RET

// func setFloatMode(mode uint64)
TEXT ·setFloatMode(SB), NOSPLIT, $0-8
	LDMXCSR mode+0(FP)
	RET
