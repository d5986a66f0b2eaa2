package chat

import (
	"bytes"
	"encoding/json"
	"strings"
)

// The marks that Qwen's models put around what is no plain answer.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
)

const (
	lineBreaks = "\r\n"
	maxBreaks  = 64 // line breaks before a mark that go with it
)

// Part is a piece of an answer; one of its fields is set.
type Part struct {
	Reasoning string
	Content   string
	Call      *ToolCall // whole; its ID is empty
}

// ReplyOptions say how to read an answer.
type ReplyOptions struct {
	Thinking bool              // it begins in the middle of the reasoning (Prompt.Thinks)
	Tools    []json.RawMessage // as in Options; without any, nothing is a call
}

// Reply splits what a model says, piece by piece, into reasoning, content and calls of tools, written
// as Qwen3 does, in JSON, or as Qwen3.5 does, in tags. How the text is cut into pieces makes no
// difference. Line breaks beside a mark go with it, and spaces before the first <think>; no other text
// is lost: what looks like a call and is none is content. It belongs to one goroutine, and holds back at most maxCall bytes.
type Reply struct {
	state  replyState
	o      ReplyOptions
	types  schemaTypes
	held   []byte // within buffer, or nil
	buffer []byte
	call   callReader
	called bool // the last part was a call
	parts  []Part
}

type replyState uint8

const (
	atStart    replyState = iota // nothing but white space so far
	atOpen                       // line breaks behind <think>
	inThought                    // up to </think>
	afterClose                   // line breaks behind </think>
	inContent                    // up to <tool_call>
	inCall                       // behind <tool_call>
)

// NewReply returns a Reply at its start. Tools that are not as they should be only lose what they say
// about types.
func NewReply(o ReplyOptions) *Reply {
	return &Reply{o: o, types: readTypes(o.Tools)}
}

// Push returns what is certain once piece is known.
func (r *Reply) Push(piece string) []Part { return r.Append(nil, piece) }

// Append appends to dst what Push returns. Content that can be nothing else is not copied.
func (r *Reply) Append(dst []Part, piece string) []Part {
	if r.state == inContent && len(r.o.Tools) == 0 && len(r.held) == 0 {
		if piece == "" {
			return dst
		}
		return append(dst, Part{Content: piece})
	}
	r.parts = dst
	if len(r.held) < len(callClose)*4 { // what is long is not moved again and again
		r.held = append(r.buffer[:0], r.held...)
	}
	r.held = append(r.held, piece...)
	r.buffer = r.held[:0]
	for r.step() {
	}
	return r.take()
}

// Flush returns what is held back, at the end of the answer. A call that lacks no more than its
// closing mark counts.
func (r *Reply) Flush() []Part {
	switch r.state {
	case atStart:
		if r.o.Thinking {
			r.thought(len(r.held))
		} else {
			r.content(len(r.held))
		}
	case inThought:
		r.thought(len(bytes.TrimRight(r.held, lineBreaks)))
	case inCall:
		if call := r.call.atEnd(); call != nil {
			r.parts = append(r.parts, Part{Call: call})
		} else {
			r.content(len(r.held))
		}
	case inContent:
		if !r.called || len(bytes.Trim(r.held, lineBreaks)) > 0 {
			r.content(len(r.held))
		}
	}
	r.held = nil
	return r.take()
}

func (r *Reply) take() []Part {
	out := r.parts
	r.parts = nil
	return out
}

// step goes on from one state to the next; false when it needs more text.
func (r *Reply) step() bool {
	switch r.state {
	case atStart:
		return r.start()
	case atOpen, afterClose:
		r.held = bytes.TrimLeft(r.held, lineBreaks)
		if len(r.held) == 0 {
			return false
		}
		r.state++
		return true
	case inThought:
		n, mark := r.before(thinkClose)
		r.thought(n)
		if mark {
			r.held = bytes.TrimLeft(r.held, lineBreaks)[len(thinkClose):]
			r.state = afterClose
		}
		return mark
	case inContent:
		if len(r.o.Tools) == 0 {
			r.content(len(r.held))
			return false
		}
		n, mark := r.before(callOpen)
		r.content(n)
		if mark {
			r.call = callReader{at: len(r.held) - len(bytes.TrimLeft(r.held, lineBreaks)) + len(callOpen)}
			r.state = inCall
		}
		return mark
	}
	call, n := r.call.read(r.held, r.types)
	switch {
	case call != nil:
		r.parts = append(r.parts, Part{Call: call})
		r.called = true
		r.held = r.held[n:]
	case n > 0:
		r.content(n)
	default:
		return false
	}
	r.state = inContent
	return true
}

func (r *Reply) start() bool {
	space := lineBreaks + " \t"
	if r.o.Thinking {
		space = lineBreaks
		r.held = bytes.TrimLeft(r.held, space)
	}
	rest := bytes.TrimLeft(r.held, space)
	switch {
	case len(r.held)-len(rest) > maxBreaks:
		r.state = inContent
	case bytes.HasPrefix(rest, []byte(thinkOpen)):
		r.held, r.state = rest[len(thinkOpen):], atOpen
	case strings.HasPrefix(thinkOpen, string(rest[:min(len(rest), len(thinkOpen))])):
		return false
	case r.o.Thinking:
		r.state = inThought
	default:
		r.state = inContent
	}
	return true
}

// before returns how much of what is held stands before mark and the line breaks at it; or, where
// mark does not come, before what may yet become that.
func (r *Reply) before(mark string) (n int, found bool) {
	n = bytes.Index(r.held, []byte(mark))
	found = n >= 0
	if !found {
		n = len(r.held)
		for i := min(len(mark)-1, len(r.held)); i > 0; i-- {
			if bytes.HasSuffix(r.held, []byte(mark[:i])) {
				n -= i
				break
			}
		}
	}
	for i := 0; i < maxBreaks && n > 0 && strings.IndexByte(lineBreaks, r.held[n-1]) >= 0; i++ {
		n--
	}
	return n, found
}

func (r *Reply) thought(n int) {
	if n > 0 {
		r.parts = append(r.parts, Part{Reasoning: string(r.held[:n])})
		r.held = r.held[n:]
	}
}

func (r *Reply) content(n int) {
	if n > 0 {
		r.parts = append(r.parts, Part{Content: string(r.held[:n])})
		r.held, r.called = r.held[n:], false
	}
}
