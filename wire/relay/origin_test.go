package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// origins is a store that keeps where tokens come from.
type origins struct {
	mu   sync.Mutex
	seen []string
}

func (o *origins) Use(ctx context.Context, _ seal.Token, _ seal.PublicKey) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, seal.Origin(ctx))
	return seal.ErrTokenRevoked // seen is seen
}

func TestOriginIsBelievedOfGatewaysOnly(t *testing.T) {
	hub := &Hub{f: &front{o: Limits{Behind: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.9/32")}}}}
	for _, tt := range []struct{ remote, said, want string }{
		{"203.0.113.5:99", "", "203.0.113.5"},
		{"203.0.113.5:99", "198.51.100.1", "203.0.113.5"},
		{"[::ffff:203.0.113.5]:99", "", "203.0.113.5"},
		{"127.0.0.1:99", "198.51.100.1", "198.51.100.1"},
		{"192.0.2.9:99", "2001:db8::7", "2001:db8::7"},
		{"127.0.0.1:99", "", "127.0.0.1"},
		{"127.0.0.1:99", "nonsense", "127.0.0.1"},
		{"pipe", "198.51.100.1", ""},
	} {
		req := &ws.Request{Request: &http.Request{RemoteAddr: tt.remote, Header: http.Header{}}}
		if tt.said != "" {
			req.Header.Set(fromHeader, tt.said)
		}
		if got := hub.origin(req); got != tt.want {
			t.Errorf("%s, said %q: %q, want %q", tt.remote, tt.said, got, tt.want)
		}
	}
}

// TestOriginReachesTheStore comes through a gateway from an address of its own, and says that it is another.
func TestOriginReachesTheStore(t *testing.T) {
	const from = "127.0.0.2"
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	store := &origins{}
	r := newRig(t, rigConfig{hub: HubConfig{Store: store}})
	w := r.worker(r.gateAt)
	w.Dialer.NetDial = dialer.DialContext
	if nc, err := dialer.Dial("tcp", strings.TrimPrefix(r.gateAt, "ws://")); err != nil {
		t.Skipf("this system has no second address to dial from: %v", err)
	} else {
		_ = nc.Close()
	}
	if _, err := DialWorker(within(t), w); !errors.Is(err, seal.ErrTokenRevoked) {
		t.Fatalf("%v, want what the store says", err)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(store.seen) != 1 || store.seen[0] != from {
		t.Errorf("from %q, want %s", store.seen, from)
	}
}

func TestSayFromComesFirst(t *testing.T) {
	head := "GET /worker HTTP/1.1\r\nKvasir-From: 6.6.6.6\r\nHost: x\r\n\r\n"
	want := "GET /worker HTTP/1.1\r\nKvasir-From: 192.0.2.1\r\nKvasir-From: 6.6.6.6\r\nHost: x\r\n\r\n"
	if got := string(sayFrom([]byte(head), "192.0.2.1")); got != want {
		t.Errorf("%q", got)
	}
}
