package engine

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"kvasir/wire/seal"
)

func TestAPlainPortIsNamed(t *testing.T) {
	for listen, want := range map[string]bool{"127.0.0.1:0": false, "0.0.0.0:0": true} {
		var said bytes.Buffer
		n, err := NewGatewayNode(GatewayOptions{
			Home: Home(t.TempDir()), Listen: listen, Plain: true, Log: slog.New(slog.NewTextHandler(&said, nil)),
			Hubs: []HubRef{{ID: seal.HubID(seal.NewKey().Public()), Addr: "127.0.0.1:1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(said.String(), "speaks no TLS"); got != want {
			t.Errorf("%s: said %v: %s", listen, got, said.String())
		}
	}
	warnPlain(nil, &net.TCPAddr{})
}
