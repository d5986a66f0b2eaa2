package ws

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// parseHeader reads a frame header from the beginning of b and returns its length, or 0 when b
// holds only a part of it.
//
//	byte 0   FIN 1 bit, RSV 3 bits, opcode 4 bits
//	byte 1   MASK 1 bit, length 7 bits; 126: 2 bytes of length follow, 127: 8 bytes follow
//	then     4 bytes of key, if MASK
func parseHeader(b []byte) (h ws.Header, n int, err error) {
	if len(b) < ws.MinHeaderSize {
		return h, 0, nil
	}
	h.Fin = b[0]&0x80 != 0
	h.Rsv = b[0] >> 4 & 7
	h.OpCode = ws.OpCode(b[0] & 0x0f)
	h.Masked = b[1]&0x80 != 0
	h.Length = int64(b[1] & 0x7f)

	n = 2
	short := int64(0) // the largest length that a shorter header could have said
	switch h.Length {
	case 126:
		if len(b) < 4 {
			return h, 0, nil
		}
		n, short = 4, 125
		h.Length = int64(binary.BigEndian.Uint16(b[2:]))
	case 127:
		if len(b) < 10 {
			return h, 0, nil
		}
		n, short = 10, 0xffff
		v := binary.BigEndian.Uint64(b[2:])
		if v>>63 != 0 {
			return h, 0, fmt.Errorf("%w: frame length with the top bit set", ErrProtocol)
		}
		h.Length = int64(v)
	}
	if n > 2 && h.Length <= short {
		return h, 0, fmt.Errorf("%w: frame length %d is not in its shortest form", ErrProtocol, h.Length)
	}
	if h.Masked {
		if len(b) < n+4 {
			return h, 0, nil
		}
		copy(h.Mask[:], b[n:])
		n += 4
	}
	return h, n, nil
}

// putHeader writes h to b, which has the ws.HeaderSize bytes that it needs.
func putHeader(b []byte, h ws.Header) {
	b[0] = h.Rsv<<4 | byte(h.OpCode)
	if h.Fin {
		b[0] |= 0x80
	}
	n := 2
	switch {
	case h.Length <= 125:
		b[1] = byte(h.Length)
	case h.Length <= 0xffff:
		b[1], n = 126, 4
		binary.BigEndian.PutUint16(b[2:], uint16(h.Length))
	default:
		b[1], n = 127, 10
		binary.BigEndian.PutUint64(b[2:], uint64(h.Length))
	}
	if h.Masked {
		b[1] |= 0x80
		copy(b[n:], h.Mask[:])
	}
}

// checkHeader returns an error, wrapping ErrProtocol, when h may not come from the peer of a Conn
// of this role. more says that a fragmented message is under way.
func checkHeader(h ws.Header, role Role, more bool) error {
	state := ws.StateServerSide
	if role == Client {
		state = ws.StateClientSide
	}
	if more {
		state = state.Set(ws.StateFragmented)
	}
	if err := ws.CheckHeader(h, state); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// parseClose reads the payload of a Close frame.
func parseClose(p []byte) (CloseError, error) {
	switch {
	case len(p) == 0:
		return CloseError{Code: StatusNoStatus}, nil
	case len(p) == 1:
		return CloseError{}, fmt.Errorf("%w: Close frame with half a status code", ErrProtocol)
	}
	code := StatusCode(binary.BigEndian.Uint16(p))
	if !sendable(code) {
		return CloseError{}, fmt.Errorf("%w: Close frame with status code %d", ErrProtocol, code)
	}
	if !utf8.Valid(p[2:]) {
		return CloseError{}, fmt.Errorf("%w: reason of a Close frame", ErrUTF8)
	}
	return CloseError{Code: code, Reason: string(p[2:])}, nil
}

// sendable reports whether a Close frame may carry code. gobwas refuses 1012 to 1014, which IANA
// has registered since, and lets 5000 and above pass.
func sendable(code StatusCode) bool {
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014:
		return true
	}
	return code >= 3000 && code <= 4999
}

// closePayload builds the payload of a Close frame. A reason that is too long is cut, at a
// character.
func closePayload(code StatusCode, reason string) []byte {
	if code == StatusNoStatus {
		return nil
	}
	if !sendable(code) {
		panic(fmt.Sprintf("BUG: close with status code %d", code))
	}
	reason = strings.ToValidUTF8(reason, "?")
	room := ws.MaxControlFramePayloadSize - 2
	for len(reason) > room {
		_, n := utf8.DecodeLastRuneInString(reason)
		reason = reason[:len(reason)-n]
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
}

// textPrefix returns how many bytes of p are whole characters, and whether what follows them, at
// most three bytes, can be the beginning of one.
func textPrefix(p []byte) (n int, ok bool) {
	n = len(p)
	for i := 1; i <= min(utf8.UTFMax-1, len(p)); i++ {
		if utf8.RuneStart(p[len(p)-i]) {
			if !utf8.FullRune(p[len(p)-i:]) {
				n = len(p) - i
			}
			break
		}
	}
	return n, utf8.Valid(p[:n])
}
