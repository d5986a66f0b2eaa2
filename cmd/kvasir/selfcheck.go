package main

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"math"

	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// arithmeticCheck is one part of the check that a machine computes the bits that it should.
type arithmeticCheck struct {
	name string
	want uint32 // CRC-32 (IEEE) of the results, little-endian
	run  func() uint32
}

// arithmeticChecks are the published checksums of the three functions, and one over experts of every
// weight format. The suite of kernels/ref checks far more; these take a fraction of a second and notice a
// compiler or a processor that rounds differently. A new format is a new sum of the last.
var arithmeticChecks = []arithmeticCheck{
	{"recip", 0xb318045d, func() uint32 {
		return checksum(1<<23, func(i int) float32 {
			return ref.Recip(math.Float32frombits(0x3f800000 + uint32(i)))
		})
	}},
	{"exp", 0x0cbe354c, func() uint32 {
		return checksum(90112+89088+1, func(i int) float32 { return ref.Exp(float32(i-89088) / 1024) })
	}},
	{"silu", 0xdf68c3cd, func() uint32 {
		return checksum(90112+45056+1, func(i int) float32 { return ref.Silu(float32(i-45056) / 1024) })
	}},
	{"experts", 0xedeaaa90, checksumExperts},
}

// checkArithmetic names the parts that went wrong. The kernels that compute here are compared with the
// definition, which the sums are about.
func checkArithmetic(checks []arithmeticCheck) (wrong []string) {
	backend, err := cpu.Default()
	if err == nil {
		err = backend.Check()
	}
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	for _, c := range checks {
		if got := c.run(); got != c.want {
			wrong = append(wrong, fmt.Sprintf("%s gives %08x, want %08x", c.name, got, c.want))
		}
	}
	return wrong
}

// checksum returns the CRC of n values.
func checksum(n int, f func(i int) float32) uint32 {
	h := crc32.NewIEEE()
	buf := make([]byte, 0, 4<<10)
	for i := range n {
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(f(i)))
		if len(buf) == cap(buf) {
			writeAll(h, buf)
			buf = buf[:0]
		}
	}
	writeAll(h, buf)
	return h.Sum32()
}

// writeAll writes to a hash, which never fails.
func writeAll(h hash.Hash, p []byte) { _, _ = h.Write(p) }

// checksumExperts runs one expert a weight format on one row.
func checksumExperts() uint32 {
	const hidden, ffn = 512, 256
	x := make([]float32, hidden)
	for i := range x {
		x[i] = float32(i*i%1021-510) / 256
	}
	var results []float32
	for i, f := range quant.Supported() {
		weights := func(in, out int, seed uint64) ref.Matrix {
			n, err := f.RowBytes(in)
			if err != nil {
				panic("BUG: " + err.Error())
			}
			data := make([]byte, n*out)
			quant.Synthetic(data, f, seed)
			m, err := ref.NewMatrix(f, in, out, data)
			if err != nil {
				panic("BUG: " + err.Error())
			}
			return m
		}
		seed := uint64(10 * i)
		e := ref.Expert{
			Gate: weights(hidden, ffn, seed), Up: weights(hidden, ffn, seed+1), Down: weights(ffn, hidden, seed+2),
		}
		row := moe.Row{Format: e.RowFormat()}
		if row.Format == moe.RowF32 {
			row.F = make([]float32, hidden)
		} else {
			row.Q = make([]int8, hidden)
			row.Scales = make([]float32, row.Format.Scales(hidden))
		}
		y := make([]float32, hidden)
		if status, _ := ref.QuantizeRow(row, x); status != moe.OK {
			return 0
		}
		if e.Forward(y, row, new(ref.Scratch)) != moe.OK {
			return 0
		}
		results = append(results, y...)
	}
	return checksum(len(results), func(i int) float32 { return results[i] })
}
