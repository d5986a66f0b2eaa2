//go:build !purego

#include "textflag.h"

// func floatMode() uint64
TEXT ·floatMode(SB), NOSPLIT, $0-8
	MRS  FPCR, R0
	MOVD R0, ret+0(FP)
	RET

// func setFloatMode(mode uint64)
TEXT ·setFloatMode(SB), NOSPLIT, $0-8
	MOVD mode+0(FP), R0
	MSR  R0, FPCR
	RET
