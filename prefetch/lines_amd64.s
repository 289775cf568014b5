#include "textflag.h"

// func lines(from, to uintptr)
TEXT ·lines(SB), NOSPLIT, $0-16
	MOVQ from+0(FP), AX
	MOVQ to+8(FP), BX

next:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, BX
	JCS  next
	RET
