// NEON instructions that the assembler lacks, by the numbers of their registers, in its order: the
// last one is the result, and OP(m, n, d) is d = n op m.

#define THREE(code, m, n, d) WORD $((code) | (m)<<16 | (n)<<5 | (d))
#define TWO(code, n, d) WORD $((code) | (n)<<5 | (d))

// Four binary32 or int32.
#define FADD(m, n, d) THREE(0x4E20D400, m, n, d)
#define FSUB(m, n, d) THREE(0x4EA0D400, m, n, d)
#define FMUL(m, n, d) THREE(0x6E20DC00, m, n, d)
#define FDIV(m, n, d) THREE(0x6E20FC00, m, n, d)
#define FMAX(m, n, d) THREE(0x4E20F400, m, n, d)
#define FMIN(m, n, d) THREE(0x4EA0F400, m, n, d)
#define FMINNM(m, n, d) THREE(0x4EA0C400, m, n, d)
#define FCMEQ(m, n, d) THREE(0x4E20E400, m, n, d)
#define FCMGT(m, n, d) THREE(0x6EA0E400, m, n, d)
#define ADD4(m, n, d) THREE(0x4EA08400, m, n, d)
#define SUB4(m, n, d) THREE(0x6EA08400, m, n, d)
#define SMAX(m, n, d) THREE(0x4EA06400, m, n, d)
#define UMAX(m, n, d) THREE(0x6EA06400, m, n, d)
#define BIC(m, n, d) THREE(0x4E601C00, m, n, d) // d = n &^ m
#define SHL23(n, d) TWO(0x4F375400, n, d)
#define FABS(n, d) TWO(0x4EA0F800, n, d)
#define FNEG(n, d) TWO(0x6EA0F800, n, d)
#define FMAXV(n, d) TWO(0x6E30F800, n, d)
#define SMAXV(n, d) TWO(0x4EB0A800, n, d)
#define SIGN(n, d) TWO(0x4F210400, n, d) // SSHR #31
#define UMAXV(n, d) TWO(0x6EB0A800, n, d)
#define FCVTNS(n, d) TWO(0x4E21A800, n, d)
#define SCVTF(n, d) TWO(0x4E21D800, n, d)

// Two binary64 or int64.
#define FADD2(m, n, d) THREE(0x4E60D400, m, n, d)
#define FMUL2(m, n, d) THREE(0x6E60DC00, m, n, d)
#define SSHL2(m, n, d) THREE(0x4EE04400, m, n, d)
#define USHL2(m, n, d) THREE(0x6EE04400, m, n, d)
#define FCVTNS2(n, d) TWO(0x4E61A800, n, d)
#define SCVTF2(n, d) TWO(0x4E61D800, n, d)
#define SIGN2(n, d) TWO(0x4F410400, n, d) // SSHR #63

// Bytes.
#define SMAX16(m, n, d) THREE(0x4E206400, m, n, d)
#define CMTST(m, n, d) THREE(0x4E208C00, m, n, d)

// Wider and narrower: LOW takes or fills the lower half of a register, HIGH the upper one.
#define FCVTL_LOW(n, d) TWO(0x0E617800, n, d)    // binary32 to binary64
#define FCVTL_HIGH(n, d) TWO(0x4E617800, n, d)
#define FCVTN_LOW(n, d) TWO(0x0E616800, n, d)    // binary64 to binary32
#define FCVTN_HIGH(n, d) TWO(0x4E616800, n, d)
#define HALF_LOW(n, d) TWO(0x0E217800, n, d)     // binary16 to binary32
#define HALF_HIGH(n, d) TWO(0x4E217800, n, d)
#define TOHALF_LOW(n, d) TWO(0x0E216800, n, d)   // binary32 to binary16
#define TOHALF_HIGH(n, d) TWO(0x4E216800, n, d)
#define SHLL_LOW(n, d) TWO(0x2E613800, n, d)     // 16 bits to the upper half of 32
#define SHLL_HIGH(n, d) TWO(0x6E613800, n, d)
#define SQXTN4_LOW(n, d) TWO(0x0E614800, n, d)   // int32 to int16
#define SQXTN4_HIGH(n, d) TWO(0x4E614800, n, d)
#define SQXTN8_LOW(n, d) TWO(0x0E214800, n, d)   // int16 to int8
#define SQXTN8_HIGH(n, d) TWO(0x4E214800, n, d)
#define SXTL8_LOW(n, d) TWO(0x0F08A400, n, d)    // int8 to int16
#define SXTL8_HIGH(n, d) TWO(0x4F08A400, n, d)
#define SXTL16_LOW(n, d) TWO(0x0F10A400, n, d)   // int16 to int32
#define SXTL16_HIGH(n, d) TWO(0x4F10A400, n, d)
