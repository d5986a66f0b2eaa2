package relay

import (
	"fmt"
	"testing"
)

func TestBytesAreEqualOnEveryPath(t *testing.T) {
	for _, c := range []struct{ hubTLS, gateTLS, workerDirect, backboneGate bool }{
		{},
		{gateTLS: true},
		{hubTLS: true, gateTLS: true},
		{gateTLS: true, backboneGate: true}, // gateway and hub together on a rented machine
		{hubTLS: true, workerDirect: true},
		{hubTLS: true, gateTLS: true, backboneGate: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, rigConfig{hubTLS: c.hubTLS, gateTLS: c.gateTLS})
			wAt, bAt := r.gateAt, r.hubAt
			if c.workerDirect {
				wAt = r.hubAt
			}
			if c.backboneGate {
				bAt = r.gateAt
			}
			b := r.backbone(bAt, nil)
			p, a := r.pair(b, wAt)
			exchange(t, p.Conn, a.Conn, 7, 300)
		})
	}
}
