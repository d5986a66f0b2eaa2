package link

import (
	"github.com/valyala/bytebufferpool"

	"kvasir/internal/slab"
)

// frame is the payload of a message, and where its memory goes when it is not needed any more: a bulk
// message's is a slab, and 64-byte aligned; a control message's is a buffer of a pool. It has one owner.
// The zero frame is none.
type frame struct {
	data []byte
	slab *slab.Slab
	text *bytebufferpool.ByteBuffer
}

// newFrame returns a frame for a bulk message of n bytes, of any content. What may be under way at once
// is bounded elsewhere, so when the arena is full the heap will do.
func (m *mux) newFrame(n int) frame {
	s, err := m.o.slabs.Get(n)
	if err != nil {
		return frame{data: slab.Aligned(n)}
	}
	return frame{data: s.Bytes(), slab: s}
}

// textFrame returns the frame of a control message whose payload b holds.
func textFrame(b *bytebufferpool.ByteBuffer) frame { return frame{data: b.B, text: b} }

// copyFrame returns the frame of a control message that has come.
func copyFrame(p []byte) frame {
	b := bytebufferpool.Get()
	b.B = append(b.B, p...)
	return textFrame(b)
}

// release gives the memory back. Nothing reads it any more.
func (f *frame) release() {
	if f.text != nil {
		bytebufferpool.Put(f.text)
	}
	f.slab.Release()
	*f = frame{}
}
