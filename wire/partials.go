package wire

import (
	"encoding/binary"
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
	"kvasir/kernels/vector"
)

const partialsLen = 8

// PartialsBound returns the most bytes that the payload of the Partials for a Dispatch can have.
func PartialsBound(rows, hidden int) int {
	return partialsLen + rows*(1+ref.MaxPartialBytes(hidden))
}

// AppendPartials appends the payload of a Partials to dst. out keeps the invariants of moe.Partials,
// and its sums are within 52 bits: the caller's promise.
//
//	0   4   rows, 1 to 4,096
//	4   4   hidden size, 1 to 32,768
//	8   1   each row: status: 0 ok, 1 wide, 2 range, 3 nonfinite
//	…       each row that is ok: its sums, packed as kernels/ref tells
//
// A row is packed in blocks of 256 sums, of which the last may be shorter: one byte w, then the sums in
// w bits each.
func AppendPartials(dst []byte, out *moe.Partials) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(out.Rows))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(out.Hidden))
	for _, s := range out.Status[:out.Rows] {
		dst = append(dst, byte(s))
	}
	for r, s := range out.Status[:out.Rows] {
		if s == moe.OK {
			dst = vector.Active().AppendPartial(dst, out.Row(r))
		}
	}
	return dst
}

// ParsePartials fills out from the payload of a Partials that answers a Dispatch of so many rows of
// hidden values. After an error out holds nothing of use.
func ParsePartials(out *moe.Partials, p []byte, rows, hidden int) error {
	const t = TypePartials
	if err := checkLen(t, p); err != nil {
		return err
	}
	if r, h := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]); r != uint32(rows) || h != uint32(hidden) {
		return payload(t, "%d rows of %d, want %d of %d", r, h, rows, hidden)
	}
	if len(p) < partialsLen+rows {
		return payload(t, "%d bytes for the statuses of %d rows", len(p)-partialsLen, rows)
	}
	status, sums := p[partialsLen:partialsLen+rows], p[partialsLen+rows:]
	out.Size(rows, hidden)
	for r, b := range status {
		s := moe.Status(b)
		if !s.Valid() {
			return payload(t, "row %d has status %d, want 0 to %d", r, b, moe.NonFinite)
		}
		out.Status[r] = s
		n, err := parseRow(out.Hold(r), s, sums)
		out.Let(r)
		if err != nil {
			return fmt.Errorf("%w: %s: row %d: %w", ErrPayload, t, r, err)
		}
		sums = sums[n:]
	}
	if len(sums) > 0 {
		return payload(t, "%d bytes behind the last row", len(sums))
	}
	return nil
}

// parseRow fills a row from the first n bytes of p.
func parseRow(row []int64, s moe.Status, p []byte) (n int, err error) {
	if s != moe.OK {
		clear(row)
		return 0, nil
	}
	return vector.Active().ParsePartial(row, p)
}
