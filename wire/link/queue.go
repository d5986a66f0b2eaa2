package link

import (
	"kvasir/internal/moe"
	"kvasir/wire"
)

// message is one on its way out. It is in at most one queue.
type message struct {
	head wire.Header // of the next chunk, Size aside
	off  int         // payload bytes that have left
	data frame       // the payload; of a Dispatch none
	job  *job        // whose end this is; nil: none
	call *call       // that this begins; nil: none

	queue      *queue
	prev, next *message
}

// begin makes msg ready to be sent. Its links to job and call stay.
func (msg *message) begin(t wire.Type, length int, id uint64, data frame) {
	msg.head, msg.off, msg.data = wire.NewHeader(t, length, id), 0, data
}

// chunk returns the payload bytes of the next chunk.
func (msg *message) chunk() int { return min(msg.head.Length-msg.off, wire.MaxPayload) }

// sent reports whether all of it has left.
func (msg *message) sent() bool { return msg.queue == nil && msg.off == msg.head.Length }

// copyTo appends the next chunk to dst.
func (msg *message) copyTo(dst []byte, epoch uint32, b *moe.Batch) []byte {
	n := msg.chunk()
	msg.head.Size = n
	dst = wire.AppendHeader(dst, msg.head)
	if msg.head.Type == wire.TypeDispatch {
		dst = dst[:len(dst)+n]
		wire.CopyDispatch(dst[len(dst)-n:], msg.off, epoch, b)
	} else {
		dst = append(dst, msg.data.data[msg.off:msg.off+n]...)
	}
	msg.off += n
	return dst
}

// queue is messages of one priority, oldest first: who gets a whole batch can begin with it.
type queue struct {
	head, tail *message
	count      int
	bytes      int // payload bytes of its messages, those that have left included
}

func (q *queue) push(msg *message) {
	if msg.queue != nil {
		panic("BUG: message is in a queue already")
	}
	msg.queue, msg.prev, msg.next = q, q.tail, nil
	if q.tail == nil {
		q.head = msg
	} else {
		q.tail.next = msg
	}
	q.tail = msg
	q.count++
	q.bytes += msg.head.Length
}

// remove takes msg out of the queue that it is in, if any.
func (msg *message) remove() {
	q := msg.queue
	if q == nil {
		return
	}
	if msg.prev == nil {
		q.head = msg.next
	} else {
		msg.prev.next = msg.next
	}
	if msg.next == nil {
		q.tail = msg.prev
	} else {
		msg.next.prev = msg.prev
	}
	msg.queue, msg.prev, msg.next = nil, nil, nil
	q.count--
	q.bytes -= msg.head.Length
}
