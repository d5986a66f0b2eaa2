package slices

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/internal/moe"
)

// keeper keeps hashes of experts in a file, so that a restart need not read the whole model again:
//
//	0   16  "kvasir hashes 1\x00"
//	16  32  key of the model file, from its paths, sizes, times of change, and tensors
//	each layer that is known:
//	    4   layer
//	    4   how many experts, then 32 each
//	32  SHA-256 of all before it
//
// A file that is damaged, or of another key, is none.
type keeper struct {
	mu    sync.Mutex
	path  string // empty: nothing is kept
	key   [sha256.Size]byte
	known map[int][]experts.Hash // by layer; under mu
}

const (
	keepMagic = "kvasir hashes 1\x00"
	maxKept   = 1 << 28 // bytes: moe.MaxLayers layers of moe.MaxExperts
)

// KeepIn takes hashes of experts from a file in dir that an earlier call has left there, and keeps there
// what Slice computes from now on. It is called before Slice. A model that is changed has another name
// there; one that is no file on disk is an error, and nothing is kept.
func (s *Source) KeepIn(dir string) error {
	key, err := fileKey(s.file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	k := &s.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key, k.path = key, filepath.Join(dir, hex.EncodeToString(key[:16])+".hashes")
	k.known = readKept(k.path, key)
	for layer, list := range k.known {
		if layer >= len(s.layers) || s.layers[layer] == nil || s.layers[layer].slice.Experts != len(list) {
			delete(k.known, layer)
			continue
		}
		l := s.layers[layer]
		l.turn <- struct{}{}
		l.hashes = list
		<-l.turn
	}
	return nil
}

// fileKey tells a model file from others, and from itself before it was changed.
func fileKey(f *gguf.File) (key [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, p := range f.Parts {
		path, err := filepath.Abs(p.Name)
		if err != nil {
			return key, err
		}
		info, err := os.Stat(path)
		if err != nil {
			return key, fmt.Errorf("keep hashes: %w", err)
		}
		_, _ = fmt.Fprintf(h, "%q %d %d\n", path, info.Size(), info.ModTime().UnixNano()) // a hash takes all
	}
	for _, t := range f.Tensors {
		_, _ = fmt.Fprintf(h, "%q %d %v %d %d\n", t.Name, t.Format, t.Dims, t.Part, t.Offset) // here too
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// put keeps the hashes of a layer. A disk that refuses costs time after the next start, and no more.
func (k *keeper) put(layer int, list []experts.Hash) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" {
		return
	}
	if k.known == nil {
		k.known = map[int][]experts.Hash{}
	}
	k.known[layer] = list
	b := append([]byte(keepMagic), k.key[:]...)
	for layer, list := range k.known {
		b = binary.LittleEndian.AppendUint32(b, uint32(layer))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
		for i := range list {
			b = append(b, list[i][:]...)
		}
	}
	sum := sha256.Sum256(b)
	_ = replaceFile(k.path, append(b, sum[:]...))
}

// readKept returns what a file has kept for a key.
func readKept(path string, key [sha256.Size]byte) map[int][]experts.Hash {
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxKept {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) < len(keepMagic)+2*sha256.Size {
		return nil
	}
	b, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if sha256.Sum256(b) != [sha256.Size]byte(sum) || string(b[:len(keepMagic)]) != keepMagic {
		return nil
	}
	b = b[len(keepMagic):]
	if [sha256.Size]byte(b) != key {
		return nil
	}
	known := map[int][]experts.Hash{}
	for b = b[sha256.Size:]; len(b) >= 8; {
		layer, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		if layer >= moe.MaxLayers || n > moe.MaxExperts || len(b) < int(n)*hashLen {
			return nil
		}
		list := make([]experts.Hash, n)
		for i := range list {
			list[i] = experts.Hash(b[i*hashLen:])
		}
		known[int(layer)] = list
		b = b[int(n)*hashLen:]
	}
	return known
}

// replaceFile puts data in the place of a file, whole or not at all.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // what went wrong before matters more
	}
	return err
}
