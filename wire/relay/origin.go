package relay

import (
	"bytes"
	"net/netip"
	"slices"

	"kvasir/wire/ws"
)

// fromHeader is where a gateway says who has come to it.
const fromHeader = "Kvasir-From"

// sayFrom puts where a request comes from into its head, before any line of the stranger's own.
func sayFrom(head []byte, from string) []byte { return addLine(head, fromHeader, from) }

// addLine puts a line into the head of a request, before all of its own.
func addLine(head []byte, name, value string) []byte {
	end := bytes.Index(head, []byte("\r\n"))
	if end < 0 {
		return head
	}
	end += len("\r\n")
	out := make([]byte, 0, len(head)+len(name)+len(value)+4)
	out = append(append(out, head[:end]...), name+": "+value+"\r\n"...)
	return append(out, head[end:]...)
}

// origin is where a request comes from: the address at the other end, or what a gateway there says, which
// is believed of Limits.Behind and of nobody else.
func (h *Hub) origin(req *ws.Request) string {
	at, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return ""
	}
	addr := at.Addr().Unmap()
	if slices.ContainsFunc(h.f.o.Behind, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		if said, err := netip.ParseAddr(req.Header.Get(fromHeader)); err == nil {
			return said.Unmap().String()
		}
	}
	return addr.String()
}
