package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kvasir/wire/relay"
)

func TestGatewayTakesOneWayToSpeakTLS(t *testing.T) {
	t.Parallel()
	const id = "abcdefghijklmnopqrstuvwxyz"
	hub := "--hub=" + id + "@127.0.0.1:7700"
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"two ways", []string{hub, "--acme=a.example", "--plain"}, []string{"--acme", "--passthrough", "one"}},
		{"two other ways", []string{hub, "--passthrough", "--cert=a", "--key=b"}, []string{"--passthrough", "one"}},
		{"half of a way", []string{hub, "--cert=a"}, []string{"--cert and --key go together"}},
		{"an address for nothing", []string{hub, "--acme-email=a@b.example"}, []string{"--acme-email", "--acme"}},
		{"an authority for nothing", []string{hub, "--acme-directory=https://ca.example/"}, []string{"--acme-directory", "--acme"}},
		{"an authority in the open", []string{hub, "--acme=a.example", "--acme-directory=http://ca.example/"}, []string{"--acme-directory", "https://ca.example.org/directory"}},
		{"no name", []string{hub, "--acme=localhost"}, []string{"--acme: want names", `"localhost"`}},
		{"a pattern", []string{hub, "--acme=*.example.org"}, []string{`"*.example.org"`}},
		{"a hub that is not led to", []string{hub, "--passthrough", "--names=a.example=" + strings.Repeat("b", 26)}, []string{"--names", "--hub"}},
		{"no hub", []string{hub, "--passthrough", "--names=a.example"}, []string{"--names: want NAME=ID"}},
		{"no network", []string{hub, "--behind=10.0.0.0/99"}, []string{"--behind: want an address or a network"}},
		{"no connections", []string{hub, "--address-sessions=0"}, []string{"--address-sessions: want a whole number of 1 or more"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			kvasir(t, append([]string{"gateway"}, c.args...)...).wantFailure(t, statusUsage, c.want...)
		})
	}
}

func TestLimitsOfHubAndGateway(t *testing.T) {
	t.Parallel()
	var n networks
	if err := n.UnmarshalText([]byte("192.0.2.7, 2001:db8::/32")); err != nil || fmt.Sprint(n) != "[192.0.2.7/32 2001:db8::/32]" {
		t.Errorf("networks %v, %v", n, err)
	}
	hub := hubCmd{relayFlags: relayFlags{Connections: 10, Handshakes: 5, AddressRate: 20, AddressBytes: "2MB", Behind: n},
		AddressSessions: 7, WorkerRate: 30, KeyRate: 2, KeyWorkers: 4, KeyBytes: "1kB"}
	want := relay.Limits{Conns: 10, Pending: 5, Pace: 30, Behind: []netip.Prefix(n),
		Address: relay.Quota{Rate: 20, Burst: 128, Sessions: 7, Bytes: 2e6}, Key: relay.Quota{Rate: 2, Burst: 32, Sessions: 4, Bytes: 1000}}
	if got := hub.limits(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("limits %+v, want %+v", got, want)
	}
}
