// Package slices brings experts to where they are computed: a backbone serves them out of its model file
// (Source), a worker fetches those that it shall hold and keeps them on disk (Cache), or takes them from a
// model file of its own (FromFile) or from a web server (OpenURL), and makes an executor of them (Load).
//
// What is fetched of a slice is its bundle, numbers little-endian:
//
//	0   16  "kvasir bundle 1\x00"
//	16  4   layer
//	20  4   first expert
//	24  4   the expert after the last
//	28  4   how many tensors an expert has
//	each tensor, in the order of their names:
//	    4   length of the name, then the name: "ffn_down_exps.weight"
//	    4   format, as ggml numbers it
//	    8   values a row
//	    8   rows
//	each expert: 32 its hash, experts.Slice.HashExpert
//	zeros up to a multiple of 64
//	each expert: the bytes of its tensors, each followed by zeros up to a multiple of 64
//
// The head, which is all before the experts' bytes, has one encoding only. The hash of the slice follows
// from it (experts.HashSlice), so whoever trusts that hash can check the head, and by the head each expert
// as soon as it is there: a wrong byte is found within the expert that it belongs to.
package slices

import (
	"errors"
	"fmt"

	"kvasir/wire"
)

// Errors of this package; test with errors.Is.
var (
	// ErrLiar: who serves a slice sent what the slice is not: other bytes, another size, another head.
	// Nothing of it is kept.
	ErrLiar = errors.New("slices: wrong weights were sent")
	// ErrDamaged: what is kept on disk is not what was put there. Getting the slice again fetches what is
	// damaged.
	ErrDamaged = errors.New("slices: weights on disk are damaged")
	// ErrOther: the weights at hand are of another model than the one that is asked for.
	ErrOther = errors.New("slices: weights of another model")
	// ErrNoHash: a slice without a hash cannot be fetched, because nobody could tell whether it is right.
	ErrNoHash = errors.New("slices: the slice has no hash; give the model file")
	// ErrHead: the head of a bundle breaks a rule.
	ErrHead = errors.New("slices: bad head of a bundle")
	// ErrRoom: the disk, or the limit of the cache, has no room for a slice.
	ErrRoom = errors.New("slices: no room")
	// ErrLocked: another process uses the folder of the cache.
	ErrLocked = errors.New("slices: another process uses this folder")
)

// name tells which slice is meant, for messages.
func name(s wire.Slice) string {
	return fmt.Sprintf("experts %d to %d of layer %d", s.Lo, s.Hi-1, s.Layer)
}
