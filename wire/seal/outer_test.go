package seal

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"
)

func TestOuterCertificateIsTrustedByIDOrGrant(t *testing.T) {
	gateway := key(9)
	granted := func(k Key, change func(*Grant)) Grant {
		return grant(t, func(g *Grant) {
			g.Role, g.Key = Gateway, k.Public()
			if change != nil {
				change(g)
			}
		})
	}
	foreign, err := SignGrant(stranger, Grant{Role: Gateway, Key: gateway.Public(), Issued: issued})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		grant Grant
		hub   string
		after time.Duration
		want  error
	}{
		{name: "by the hub's id", hub: HubID(gateway.Public())},
		{name: "by a grant", grant: granted(gateway, nil)},
		{name: "by a grant, another hub behind it", grant: granted(gateway, nil), hub: HubID(worker.Public())},
		{name: "by neither", want: ErrWrongKey},
		{name: "another hub", hub: HubID(worker.Public()), want: ErrWrongKey},
		{name: "grant of another key", grant: granted(worker, nil), want: ErrWrongKey},
		{name: "grant of another root", grant: foreign, want: ErrNotRoot},
		{name: "grant of a backbone", grant: granted(gateway, func(g *Grant) { g.Role = Backbone }), want: ErrWrongRole},
		{name: "old grant", grant: granted(gateway, nil), after: 500 * 24 * time.Hour, want: ErrGrantExpired},
	} {
		cert, err := OuterCertificate(gateway, c.grant)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		x, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := CheckOuter(x, root.Public(), c.hub, issued.Add(c.after)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := OuterCertificate(Key{}, Grant{}); !errors.Is(err, ErrBadKey) {
		t.Errorf("certificate without a key: %v", err)
	}
	if id := HubID(root.Public()); checkName(id) != nil || len(id) != 26 {
		t.Errorf("id of a hub: %q", id)
	}
}
