package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvasir/engine"
	"kvasir/wire/seal"
)

// tokenCmd groups the commands on tokens and grants.
type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a line with which others become workers."`
	List   tokenListCmd   `cmd:"" help:"List the tokens that were made here."`
	Revoke tokenRevokeCmd `cmd:"" help:"Make a token useless."`
	Root   tokenRootCmd   `cmd:"" help:"Print the public half of the swarm's root key."`
	Grant  tokenGrantCmd  `cmd:"" help:"Sign the key of a gateway, hub or backbone."`
}

// Help is printed by kvasir token --help.
func (tokenCmd) Help() string {
	return `A swarm belongs to its root key, which lies in the home folder of its owner. The root signs tokens, with which others become workers, and grants, which make a key a gateway's, a hub's or a backbone's.

Example:

    kvasir token create --hub ID@gateway.example:443 --uses 1`
}

// span is a time from now on: 12h, 30d.
type span string

// UnmarshalText checks a span, wherever it comes from.
func (s *span) UnmarshalText(text []byte) error {
	*s = span(text)
	_, err := s.duration()
	return err
}

func (s span) duration() (d time.Duration, err error) {
	if s == "" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(string(s), "d"); ok {
		n, perr := strconv.ParseUint(days, 10, 16)
		d, err = time.Duration(n)*24*time.Hour, perr
	} else {
		d, err = time.ParseDuration(string(s))
	}
	if err != nil || d < time.Second {
		return 0, fmt.Errorf("want a time such as 12h or 30d, got %q", string(s))
	}
	return d, nil
}

type tokenCreateCmd struct {
	Hub     hubRefs `help:"Hub that workers are to come to, as kvasir hub or gateway prints it." placeholder:"ID@HOST:PORT"`
	Gateway string  `help:"Name by which they reach it, if it is another than in --hub." placeholder:"HOST"`
	Expires span    `help:"How long the token lets anybody in, for instance 12h or 30d. Default: for ever." placeholder:"TIME"`
	Uses    uses    `help:"How many workers may join with it. 0: any number." placeholder:"N" default:"0"`
	jsonFlag
}

// uses is how many keys may use a token; 0: any number.
type uses int

// UnmarshalText checks a number of uses, wherever it comes from.
func (u *uses) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil {
		return fmt.Errorf("want a whole number, got %q", text)
	}
	*u = uses(n)
	return nil
}

// Help is printed by kvasir token create --help.
func (tokenCreateCmd) Help() string {
	return `Run it where the root key is. The line that it prints is all that a friend needs, and all that a stranger would: hand it on in private.

Example:

    kvasir token create --hub ID@gateway.example:443 --expires 30d --uses 1`
}

// tokenRow is a token in JSON. Line is there when it was just made.
type tokenRow struct {
	ID      string `json:"id"`
	Role    string `json:"role"`
	Host    string `json:"host"`
	Hub     string `json:"hub"`
	Issued  string `json:"issued"`
	Expires string `json:"expires,omitempty"` // absent: never
	Uses    uint32 `json:"uses,omitempty"`    // absent: any number
	Revoked bool   `json:"revoked,omitempty"`
	Line    string `json:"line,omitempty"`
}

func newTokenRow(n engine.TokenNote) tokenRow {
	r := tokenRow{ID: n.ID(), Role: n.Token.Role.String(), Host: n.Host, Hub: n.Token.Hub,
		Issued: n.Token.Issued.UTC().Format(time.RFC3339), Uses: n.Token.Uses, Revoked: n.Revoked}
	if !n.Token.Expires.IsZero() {
		r.Expires = n.Token.Expires.UTC().Format(time.RFC3339)
	}
	return r
}

// Run makes a token.
func (c *tokenCreateCmd) Run(a *app) error {
	hubs := c.Hub.list()
	if len(hubs) != 1 {
		return usagef("--hub: want one hub, as kvasir hub or kvasir gateway prints it")
	}
	home := a.homeFolder()
	root, err := home.NewRoot()
	if err != nil {
		return err
	}
	t := seal.Token{Role: seal.Worker, Hub: hubs[0].ID, Uses: uint32(c.Uses)}
	if d, _ := c.Expires.duration(); d > 0 {
		t.Expires = time.Now().Add(d)
	}
	host := c.Gateway
	if host == "" {
		host = strings.TrimSuffix(hubs[0].Addr, ":443")
	}
	j, err := home.CreateToken(root, host, t)
	if err != nil {
		return err
	}
	if c.JSON {
		r := newTokenRow(engine.TokenNote{Token: j.Token, Host: host})
		r.Line = j.Line()
		return a.stdout.printJSON(r)
	}
	a.stdout.printf("%s\n", j.Line())
	return nil
}

type tokenListCmd struct{ jsonFlag }

// Help is printed by kvasir token list --help.
func (tokenListCmd) Help() string {
	return `Example:

    kvasir token list`
}

// Run lists the tokens.
func (c *tokenListCmd) Run(a *app) error {
	list, err := a.homeFolder().Tokens()
	if err != nil {
		return err
	}
	rows := []tokenRow{}
	t := table{head: []string{"token", "for", "host", "expires", "uses", "revoked"}}
	for _, n := range list {
		r := newTokenRow(n)
		rows = append(rows, r)
		text := func(v, none string, is bool) string {
			if is {
				return v
			}
			return none
		}
		t.add(r.ID, r.Role, r.Host, text(r.Expires, "never", r.Expires != ""),
			text(strconv.FormatUint(uint64(r.Uses), 10), "any", r.Uses > 0), text("yes", "no", r.Revoked))
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Tokens []tokenRow `json:"tokens"`
		}{rows})
	}
	if len(rows) == 0 {
		a.stdout.printf("No token was made here.\n")
		return nil
	}
	t.print(a.stdout)
	return nil
}

type tokenRevokeCmd struct {
	ID string `arg:"" name:"id" help:"Id of the token, as kvasir token list prints it."`
	jsonFlag
}

// Help is printed by kvasir token revoke --help.
func (tokenRevokeCmd) Help() string {
	return `A revoked token lets nobody in at the hubs and backbones of this home folder, also while they run. On other machines run the same again. Workers that are at work stay until their connection ends.

Example:

    kvasir token revoke 0123456789abcdef01234567`
}

// Run revokes a token.
func (c *tokenRevokeCmd) Run(a *app) error {
	id, err := seal.ParseTokenID(c.ID)
	if err != nil {
		return usagef("%v; kvasir token list prints the ids", err)
	}
	if err := a.homeFolder().Revoke(id); err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Revoked string `json:"revoked"`
		}{id.String()})
	}
	a.stdout.printf("Token %v is revoked here. Run the same on other machines with a hub of this swarm.\n", id)
	return nil
}

type tokenRootCmd struct{ jsonFlag }

// Help is printed by kvasir token root --help.
func (tokenRootCmd) Help() string {
	return `Hubs and gateways are told it with --root. The key itself, root.key in the home folder, is drawn when it is needed for the first time; keep a copy of it in a safe place, since who has it owns the swarm.

Example:

    kvasir token root`
}

// Run prints the root.
func (c *tokenRootCmd) Run(a *app) error {
	root, err := a.homeFolder().NewRoot()
	if err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Root string `json:"root"`
		}{root.Public().String()})
	}
	a.stdout.printf("%v\n", root.Public())
	return nil
}

type tokenGrantCmd struct {
	Role string    `arg:"" enum:"gateway,hub,backbone" help:"gateway, hub or backbone."`
	Key  publicKey `arg:"" help:"Public key of that machine, as it has printed it."`
	jsonFlag
}

// Help is printed by kvasir token grant --help.
func (tokenGrantCmd) Help() string {
	return `Run it where the root key is, and give what it prints to the other machine with --grant. A grant is no secret.

Example:

    kvasir token grant gateway KEY`
}

// Run signs a grant.
func (c *tokenGrantCmd) Run(a *app) error {
	root, err := a.homeFolder().NewRoot()
	if err != nil {
		return err
	}
	role := map[string]seal.Role{"gateway": seal.Gateway, "hub": seal.Hub, "backbone": seal.Backbone}[c.Role]
	g, err := seal.SignGrant(root, seal.Grant{Role: role, Key: c.Key.key(), Issued: time.Now()})
	if err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Grant string `json:"grant"`
		}{g.String()})
	}
	a.stdout.printf("%v\n", g)
	return nil
}
