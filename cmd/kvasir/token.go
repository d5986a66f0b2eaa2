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

// longestSpan ends before the times that fit in a token do.
const longestSpan = 25_000 * 24 * time.Hour

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
	if d > longestSpan {
		return 0, fmt.Errorf("want at most 25000d, got %q", string(s))
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
	ID        string       `json:"id"`
	Role      string       `json:"role"`
	Host      string       `json:"host"`
	Hub       string       `json:"hub"`
	Issued    string       `json:"issued,omitempty"`    // absent: made elsewhere
	Expires   string       `json:"expires,omitempty"`   // absent: never
	Expired   bool         `json:"expired,omitempty"`   // by this machine's clock
	Uses      uint32       `json:"uses,omitempty"`      // absent: any number
	Elsewhere bool         `json:"elsewhere,omitempty"` // made on another machine: only its id is known
	Revoked   bool         `json:"revoked,omitempty"`
	Keys      []keySeenRow `json:"keys,omitempty"` // who has shown it at the hub or the backbone of this home
	Line      string       `json:"line,omitempty"`
}

// keySeenRow is a key that has shown a token.
type keySeenRow struct {
	Key   string `json:"key,omitempty"` // absent: further keys
	Sight string `json:"sight"`         // joined, used_up, revoked, refused
	First string `json:"first"`
	Last  string `json:"last"`
	Times uint64 `json:"times"`
	From  string `json:"from,omitempty"`
}

func newTokenRow(n engine.TokenNote, now time.Time) tokenRow {
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	r := tokenRow{ID: n.ID(), Role: n.Token.Role.String(), Host: n.Host, Hub: n.Token.Hub, Uses: n.Token.Uses,
		Elsewhere: n.Elsewhere, Revoked: n.Revoked}
	if !n.Elsewhere {
		r.Issued = stamp(n.Token.Issued)
	}
	if !n.Token.Expires.IsZero() {
		r.Expires, r.Expired = stamp(n.Token.Expires), now.After(n.Token.Expires)
	}
	for _, g := range n.Seen {
		k := keySeenRow{Sight: g.Sight.String(), First: stamp(g.First), Last: stamp(g.Last), Times: g.Times, From: g.From}
		if !g.Key.IsZero() {
			k.Key = g.Key.String()
		}
		r.Keys = append(r.Keys, k)
	}
	return r
}

// counts returns how many keys have joined, and how often others were refused.
func (r *tokenRow) counts() (joined int, refused uint64) {
	for _, k := range r.Keys {
		if k.Sight == engine.Joined.String() {
			joined++
		} else {
			refused += k.Times
		}
	}
	return joined, refused
}

// state says how long the token lets anybody in.
func (r *tokenRow) state() string {
	day, _, _ := strings.Cut(r.Expires, "T")
	switch {
	case r.Revoked:
		return "revoked"
	case r.Elsewhere:
		return "made elsewhere"
	case r.Expired:
		return "ended " + day
	case day != "":
		return "until " + day
	}
	return "no end"
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
		r := newTokenRow(engine.TokenNote{Token: j.Token, Host: host}, time.Now())
		r.Line = j.Line()
		return a.stdout.printJSON(r)
	}
	a.stdout.printf("%s\n", j.Line())
	return nil
}

type tokenListCmd struct {
	ID string `arg:"" optional:"" name:"id" help:"Id of one token: say which keys have shown it, when, and from where."`
	jsonFlag
}

// Help is printed by kvasir token list --help.
func (tokenListCmd) Help() string {
	return `A token of one use belongs to the machine that shows it first, and one of N uses to as many; they come back as often as they like, and others are refused. What the hub or the backbone of this home folder has seen is counted. A token that was refused may be in wrong hands: look who it was, revoke it, and hand out another.

Example:

    kvasir token list
    kvasir token list 0123456789abcdef01234567`
}

// Run lists the tokens.
func (c *tokenListCmd) Run(a *app) error {
	var only seal.TokenID
	if c.ID != "" {
		var err error
		if only, err = seal.ParseTokenID(c.ID); err != nil {
			return usagef("%v; kvasir token list prints the ids", err)
		}
	}
	list, err := a.homeFolder().Tokens()
	if err != nil {
		return err
	}
	rows, now := []tokenRow{}, time.Now()
	for _, n := range list {
		if c.ID == "" || n.Token.ID == only {
			rows = append(rows, newTokenRow(n, now))
		}
	}
	if c.ID != "" && len(rows) == 0 {
		return fmt.Errorf("token %v was neither made nor shown here; kvasir token list prints those that were", only)
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
	printTokens(a.stdout, rows)
	if c.ID != "" {
		a.stdout.printf("\n")
		printKeysSeen(a.stdout, rows[0].Keys)
	}
	return nil
}

func printTokens(s *screen, rows []tokenRow) {
	t := table{head: []string{"token", "holds", "joined", "refused", "host"}}
	for i := range rows {
		r := &rows[i]
		joined, refused := r.counts()
		used := strconv.Itoa(joined)
		switch {
		case r.Uses > 0:
			used += fmt.Sprintf(" of %d", r.Uses)
		case !r.Elsewhere:
			used += " of any"
		}
		host := r.Host
		if host == "" {
			host = "-"
		}
		t.add(r.ID, r.state(), used, strconv.FormatUint(refused, 10), host)
	}
	t.print(s)
}

func printKeysSeen(s *screen, keys []keySeenRow) {
	if len(keys) == 0 {
		s.printf("No key has shown it at the hub or the backbone of this home folder.\n")
		return
	}
	words := map[string]string{
		engine.Joined.String():         "joined",
		engine.RefusedUsed.String():    "refused: used up",
		engine.RefusedRevoked.String(): "refused: revoked",
		engine.RefusedOther.String():   "refused",
	}
	t := table{head: []string{"key", "", "times", "first", "last", "from"}}
	for _, k := range keys {
		key, from := "further keys", k.From
		if k.Key != "" {
			key = k.Key[:8]
		}
		if from == "" {
			from = "-"
		}
		t.add(key, words[k.Sight], strconv.FormatUint(k.Times, 10), k.First, k.Last, from)
	}
	t.print(s)
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
	known, err := a.homeFolder().Revoke(id)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Revoked string `json:"revoked"`
			Known   bool   `json:"known"` // the token was made or shown here
		}{id.String(), known})
	}
	if !known {
		a.stdout.printf("No token of that id was made or shown here: look whether it is right. It is revoked all the same.\n")
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
