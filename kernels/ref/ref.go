// Package ref defines the arithmetic of Kvasir: what an expert computes, to the bit. It is portable
// Go, written to be read; every other backend and variant must give the same bits
// (kernels/kerneltest). The vectors in testdata/golden let an implementation in another language
// show that it does.
//
// # Float steps
//
// All floats are IEEE 754 binary32. Every multiplication, addition, subtraction and conversion
// rounds by itself, to nearest, ties to even. There is no fused multiply-add, and no division,
// square root or library function. In Go the compiler may fuse x*y + z, across statements too,
// unless the product stands inside a conversion: so every product here is written float32(x*y).
//
// rne(x) is x rounded to the nearest integer, ties to even. 0x… constants are bit patterns. No
// result of an integer format depends on how subnormal floats are handled: within the limits below
// a product is either normal, or so small that it is rounded to the integer 0 either way.
//
// # Functions
//
//	recip(x), 2^-64 <= x <= 2^64
//	    y = float(0x7EF311C7 - bits(x))
//	    twice:  p = x*y;  e = 2 - p;  y = y*e
//	    once:   p = x*y;  e = 1 - p;  q = y*e;  y = y + q
//	exp(x), x <= 88; 0 for x < -87
//	    z = x*0x3FB8AA3B + 0x4B400000;  n = z - 0x4B400000;  k = bits(z) - 0x4B400000 (integers)
//	    r = (x - n*0x3F317200) - n*0x35BFBE8E
//	    P = 0x39506967;  for c in 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000:  P = P*r + c
//	    P = P*(r*r);  P = P + r;  P = P + 1;  result float(bits(P) + (k << 23))
//	silu(g)
//	    0 if g < -44, else g * recip(1 + exp(-g))
//
// recip is off by at most 1.155 ulp and recip(1) = 1; exp by at most 0.987 ulp, and it is monotone;
// silu by at most 3.22 ulp. The CRC-32/IEEE of the little-endian results is b318045d for recip of
// all 2^23 x in [1, 2), 0cbe354c for exp of i/1024 with i = -89088 to 90112, df68c3cd for silu of
// i/1024 with i = -45056 to 90112, all in ascending order.
//
// # Rows
//
// A row is quantised by blocks: 256 values for gate and up of K-quants (Q8K; the last block may be
// shorter), 32 if both are Q8_0 or MXFP4 (Q8). With any other pair it stays float32. The format of
// down decides in the same way how the hidden values h are kept. For each block, amax = max |x|:
//
//	amax < 2^-40:  scale = 0, all q = 0
//	otherwise:     scale = amax * 0x3C010204 (1/127);  inv = 127 * recip(amax)
//	               q = rne(x * inv), clamped to [-127, 127]
//
// # Dot products
//
// Every sum starts from +0 and runs over the blocks in ascending order. Within a block all sums are
// integers, which fit 32 bits. d, dmin, sc, m and q are those of the weights (kernels/quant), a and
// da the values and the scale of the row.
//
//	Q4_K, Q5_K     I = sum_j sc_j * (sum_i q_i*a_i);  M = sum_j m_j * (sum_i a_i)
//	               acc += (d*da)*float(I) - (dmin*da)*float(M)
//	Q6_K           I likewise;  acc += (d*da)*float(I)
//	Q8_0, MXFP4    I = sum_i q_i*a_i;  acc += (d*da)*float(I)
//	float32 rows   weights of any format as quant.Dequantize gives them, then the lane sum:
//	               lane l of 32 adds x_i*w_i for all i = l mod 32, ascending, from +0;
//	               then s_l = s_l + s_(l+step) for step = 16, 8, 4, 2, 1; the result is s_0
//
// MXFP4 is computed with doubled values and half the scale, 2^(e-128); an exponent byte e below 80
// is a block of zeros.
//
// # Expert
//
//	g = gate x;  u = up x;  h = silu(g)*u;  y = down h, with h quantised as a row
//
// # Gated sum
//
// A pick of weight w adds, for each value, the integer v = rne((w*y) * 2^E), and |v| < 2^40; a w
// below 2^-126 in magnitude counts as 0. The partial of a row is the sum of v over its picks, as
// int64: exact, so neither the order of the picks nor who computed which of them can be seen in it.
// The exponent E belongs to the layer and comes from the model's Profile. A sum turns back into a
// float once: int64 to binary64 (exact), to binary32, times 2^-E.
//
// # Faults
//
// A fault is the answer of one row and leaves other rows alone. For one pick the first of these
// decides that finds one: the row, h, y, v; among the values of that one, the largest status. Of
// all picks of a row the largest status is its answer. So it depends on no order.
//
//	nonfinite  a NaN or infinity in the row or its scales, in g, u, h, y or (w*y)*2^E
//	range      a value of a row or of h above 2^40 in magnitude; a scale other than 0 and outside
//	           2^-40 * 1/127 to 2^40 * 1/127, which no row quantised as above has; |v| >= 2^40
//	wide       never given here: a backend that sums in 32 bits answers it
//
// g and u are looked at themselves because silu would turn an infinite g into 0. Nothing else needs
// a look on the way: what is NaN or infinite in a weight, or overflows in a product, stays so
// through the sums that follow.
package ref

// Arithmetic is the version of this arithmetic. Two machines that compute for one another must have
// the same; any change of a bit in any result is a new version.
const Arithmetic = 1
