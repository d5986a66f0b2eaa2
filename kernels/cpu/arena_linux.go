package cpu

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages: weights are read once a batch from one end to the other, and with small
// pages the processor has to look each of them up. A system without them refuses, which costs only speed.
func adviseHuge(m []byte) { _ = unix.Madvise(m, unix.MADV_HUGEPAGE) }
