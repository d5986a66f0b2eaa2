package synth

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"kvasir/engine/gguf"
	"kvasir/kernels/quant"
)

// Errors of Write.
var (
	// ErrExists: there is something of that name, and Force was not given.
	ErrExists = errors.New("synth: the file exists")
	// ErrSpace: the file system has no room for the file.
	ErrSpace = errors.New("synth: not enough space")
)

// Options say how a file is written.
type Options struct {
	Seed     uint64
	Force    bool                    // write over a file that is there
	Threads  int                     // that make weights; 0: GOMAXPROCS
	Progress func(done, total int64) // bytes, on the goroutine of Write; may be nil
}

// piece is how many bytes are made at a time, less what is no whole block.
const piece = 1 << 20

// Plan is a file that is yet to be written.
type Plan struct {
	Size    int64 // bytes
	Values  int64 // weights
	Tensors int

	tensors []tensor
	layout  *gguf.Layout
}

// Plan checks the shape and returns what Write would write.
func (s *Shape) Plan() (*Plan, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	p := &Plan{tensors: s.tensors()}
	var err error
	if p.layout, err = s.writer(p.tensors).Layout(); err != nil {
		return nil, err
	}
	p.Size, p.Tensors = p.layout.Size, len(p.tensors)
	for i := range p.tensors {
		n := int64(1)
		for _, d := range p.tensors[i].dims {
			n *= int64(d)
		}
		p.Values += n
	}
	return p, nil
}

// Write writes the file, under another name in the same folder until it is complete. On an error, and when
// ctx ends, nothing is left of it.
func (p *Plan) Write(ctx context.Context, path string, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.check(path, o.Force); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.part")
	if err != nil {
		return pathless(err)
	}
	err = p.fill(ctx, f, o)
	if e := f.Chmod(0o644); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // what went wrong before matters more
		return pathless(err)
	}
	return nil
}

// check refuses what is there already and what there is no room for.
func (p *Plan) check(path string, force bool) error {
	switch info, err := os.Lstat(path); {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%w, and is no ordinary file: %s; give another name", ErrExists, path)
	case err == nil && !force:
		return fmt.Errorf("%w: %s; remove it, or write over it with --force", ErrExists, path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return pathless(err)
	}
	folder := filepath.Dir(path)
	free, err := freeSpace(folder)
	if err != nil {
		return fmt.Errorf("%s: %w", folder, pathless(err))
	}
	if free < uint64(p.Size) {
		return fmt.Errorf("%w: the file takes %.2f GB, and %s has %.2f GB free; make room, or take fewer --layers or a lower --expert-count",
			ErrSpace, float64(p.Size)/1e9, folder, float64(free)/1e9)
	}
	return nil
}

// pathless strips what os adds to an error: the call and the temporary name.
func pathless(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// job is a piece of a tensor.
type job struct {
	tensor, piece int
}

// fill writes head and tensors. The gaps between them are holes, which read as zeros.
func (p *Plan) fill(ctx context.Context, f *os.File, o Options) error {
	if _, err := f.WriteAt(p.layout.Head, 0); err != nil {
		return err
	}
	if err := f.Truncate(p.Size); err != nil {
		return err
	}
	threads := o.Threads
	if threads < 1 {
		threads = runtime.GOMAXPROCS(0)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	jobs, wrote := make(chan job), make(chan int)
	var makers sync.WaitGroup
	for range threads {
		makers.Go(func() {
			m := maker{p: p, f: f, seed: o.Seed, buffer: make([]byte, piece)}
			for j := range jobs {
				n, err := m.make(j)
				if err != nil {
					stop(err)
				}
				wrote <- n
			}
		})
	}
	go func() { // ends when all jobs are given out, or ctx is done
		defer close(wrote)
		defer makers.Wait()
		defer close(jobs)
		for i := range p.tensors {
			for k := 0; int64(k)*p.tensors[i].piece() < p.layout.Tensors[i].Size; k++ {
				select {
				case jobs <- job{i, k}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	done := int64(len(p.layout.Head))
	for n := range wrote {
		if done += int64(n); o.Progress != nil {
			o.Progress(done, p.Size)
		}
	}
	return context.Cause(ctx)
}

// piece is how many bytes of the tensor are made at a time: whole blocks.
func (t *tensor) piece() int64 {
	_, block := t.format.Block()
	return int64(piece / block * block)
}

// maker makes pieces of tensors, on one goroutine.
type maker struct {
	p      *Plan
	f      *os.File
	seed   uint64
	buffer []byte
}

// make makes a piece, writes it where it belongs, and returns its bytes. What is in it depends on the seed
// and its place alone.
func (m *maker) make(j job) (int, error) {
	t, at := &m.p.tensors[j.tensor], m.p.layout.Tensors[j.tensor]
	from := int64(j.piece) * t.piece()
	b := m.buffer[:min(t.piece(), at.Size-from)]
	seed := mix(mix(m.seed+uint64(j.tensor)) + uint64(j.piece))
	if t.values == weights {
		quant.Synthetic(b, t.format, seed)
		balance(b, t.format)
		if t.name == embedding {
			enlarge(b, t.format)
		}
	} else {
		t.values.fill(b, seed)
	}
	return m.f.WriteAt(b, at.Offset+from)
}

// fill fills b with values of float32.
func (s span) fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for ; len(b) > 0; b = b[4:] {
		v := s.lo + float32((s.hi-s.lo)*r.Float32())
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	}
}

// balance makes each run of 32 values of a Q4_K or Q5_K block even around 0, with the minimum equal to the
// scale and dmin to the mean of q times d. Else weights would share a mean of a tenth of their deviation,
// which a matrix of 2048 columns makes 4.5 times as large against the rest: after a few of them all tokens
// are alike, and all pick the same experts.
func balance(b []byte, f quant.Format) {
	var mean float32 // of q
	switch f {
	case quant.Q4K:
		mean = 7.5
	case quant.Q5K:
		mean = 15.5
	default:
		return
	}
	_, block := f.Block()
	for ; len(b) > 0; b = b[block:] {
		const exact = 0xffe0 // bits of d that leave room for the product
		d := binary.LittleEndian.Uint16(b) & exact
		binary.LittleEndian.PutUint16(b, d)
		binary.LittleEndian.PutUint16(b[2:], quant.F32ToF16(float32(mean*quant.F16ToF32(d))))
		for j := range 4 {
			b[8+j] = b[4+j]
			b[12+j] = b[12+j]&15 | b[12+j]<<4
		}
	}
}

// enlargeBits is the power of 2 by which embeddings are larger than other weights: a token must count for
// more than what the first attention adds, which is much the same for all tokens of a long prompt. Without
// it 512 random tokens picked 327 of the anchor's 512 experts.
const enlargeBits = 5

// enlarge makes weights 32 times as large.
func enlarge(b []byte, f quant.Format) {
	_, block := f.Block()
	for ; len(b) > 0; b = b[block:] {
		switch f {
		case quant.F32:
			binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)+enlargeBits<<23)
		case quant.BF16:
			binary.LittleEndian.PutUint16(b, binary.LittleEndian.Uint16(b)+enlargeBits<<7)
		case quant.MXFP4:
			b[0] += enlargeBits
		case quant.Q4K, quant.Q5K:
			enlargeHalf(b)
			enlargeHalf(b[2:])
		case quant.Q6K:
			enlargeHalf(b[208:])
		default:
			enlargeHalf(b)
		}
	}
}

// enlargeHalf does so with a binary16.
func enlargeHalf(b []byte) {
	v := float32(quant.F16ToF32(binary.LittleEndian.Uint16(b)) * (1 << enlargeBits))
	binary.LittleEndian.PutUint16(b, quant.F32ToF16(v))
}

// mix is the finaliser of splitmix64: seeds of neighbours have nothing in common.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
