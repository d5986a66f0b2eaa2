package serve

import (
	"strconv"
	"unicode/utf8"
)

// Chunks of a stream that add text are most of what a server writes, and differ in a few bytes. They are put
// together from what all of them have in common, to the bytes that encoding/json makes of the same chunk.

// chunkHead is how every chunk of the stream begins.
func (a *reply) chunkHead() []byte {
	whole := encode(a.object(true))
	return append([]byte("data: "), whole[:len(whole)-len("]}")]...)
}

// appendText appends the chunk that adds a delta, which is no call, to a choice without log probabilities.
func appendText(dst, head []byte, k kind, index int, d *delta) []byte {
	dst = append(append(dst, head...), `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	switch {
	case k == plainText:
		dst = appendString(append(dst, `,"text":`...), d.text)
	case d.reasoning != "":
		dst = append(appendString(append(dst, `,"delta":{"reasoning_content":`...), d.reasoning), '}')
	default:
		dst = append(appendString(append(dst, `,"delta":{"content":`...), d.text), '}')
	}
	return append(dst, `,"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

// appendDelta appends the event of a response that adds text to the part which is being written.
func appendDelta(dst []byte, w *writing, text string) []byte {
	item := w.last()
	kind, end := item.Content[0].Type, "}\n\n"
	if item.Type == "message" {
		end = `,"logprobs":[]}` + "\n\n"
	}
	dst = append(append(append(dst, "event: response."...), kind...), ".delta\ndata: {\"type\":\"response."...)
	dst = append(append(dst, kind...), `.delta","sequence_number":`...)
	dst = appendString(append(strconv.AppendInt(dst, int64(w.seq), 10), `,"item_id":`...), item.ID)
	dst = strconv.AppendInt(append(dst, `,"output_index":`...), int64(len(w.Output)-1), 10)
	return append(appendString(append(dst, `,"content_index":0,"delta":`...), text), end...)
}

const hexDigits = "0123456789abcdef"

// appendString appends a text as JSON. What HTML or JavaScript might take for their own is escaped, and what
// is no UTF-8 replaced, as encoding/json does.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0 // what is not yet appended
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				dst = appendEscape(append(dst, s[from:i]...), c)
				from = i + 1
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			from = i + n
		case r == '\u2028' || r == '\u2029': // they end lines in JavaScript
			dst = append(append(dst, s[from:i]...), `\u202`...)
			dst = append(dst, hexDigits[r&15])
			from = i + n
		}
		i += n
	}
	return append(append(dst, s[from:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
