package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvasir/engine/access"
)

// keyCmd groups the commands on API keys.
type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Make an API key, which is shown once."`
	List   keyListCmd   `cmd:"" help:"List the API keys that were made here."`
	Revoke keyRevokeCmd `cmd:"" help:"Make an API key useless, at once."`
}

// Help is printed by kvasir key --help.
func (keyCmd) Help() string {
	return `API keys are for those who ask kvasir serve. They hold where the server has the same home folder, also one that runs already. Of a key only a sum is kept.

Example:

    kvasir key create --name alice --scopes chat`
}

// scopes is a list of scopes with commas between.
type scopes []access.Scope

// UnmarshalText checks them, wherever they come from.
func (s *scopes) UnmarshalText(text []byte) error {
	*s = nil
	for name := range strings.SplitSeq(string(text), ",") {
		one := access.Scope(strings.TrimSpace(name))
		if !slices.Contains(access.Scopes, one) {
			return fmt.Errorf("want chat, batch and admin, some of them with commas between, got %q", string(one))
		}
		if !slices.Contains(*s, one) {
			*s = append(*s, one)
		}
	}
	return nil
}

type keyCreateCmd struct {
	Name           string `help:"What to call it in lists." placeholder:"TEXT"`
	Scopes         scopes `help:"What it is for: chat (completions, chats, responses), batch (files and batch jobs), admin (all of this, metrics, everybody's files). Several with commas between (default ${default})." placeholder:"SCOPE" default:"chat,batch"`
	RequestsMinute uses   `help:"How many requests a minute. 0: any number." placeholder:"N" default:"0" group:"limits"`
	TokensMinute   uses   `help:"How many tokens a minute, of prompts and answers. 0: any number." placeholder:"N" default:"0" group:"limits"`
	AtOnce         uses   `help:"How many sequences at a time; a request has one for each of its choices. 0: any number." placeholder:"N" default:"0" group:"limits"`
	jsonFlag
}

// Help is printed by kvasir key create --help.
func (keyCreateCmd) Help() string {
	return `The key is printed to standard output and cannot be shown again. Clients send it as Authorization: Bearer KEY, which is what OpenAI's do with theirs.

A limit holds for a minute's worth at once, and fills all the time. Who is beyond it gets status 429 and is told when to come again. The lines of batch jobs do not count.

Example:

    kvasir key create --name alice --scopes chat --tokens-minute 100000`
}

// keyRow is a key in JSON. Key is there when it was just made.
type keyRow struct {
	ID      string         `json:"id"`
	Name    string         `json:"name,omitempty"`
	Scopes  []access.Scope `json:"scopes"`
	Limits  access.Limits  `json:"limits"`
	Created string         `json:"created"`
	Revoked string         `json:"revoked,omitempty"`
	Key     string         `json:"key,omitempty"`
}

func newKeyRow(k *access.Key) keyRow {
	r := keyRow{ID: k.ID, Name: k.Name, Scopes: k.Scopes, Limits: k.Limits, Created: k.Created.Format(time.RFC3339)}
	if !k.Revoked.IsZero() {
		r.Revoked = k.Revoked.Format(time.RFC3339)
	}
	return r
}

// Run makes a key.
func (c *keyCreateCmd) Run(a *app) error {
	text, k, err := a.homeFolder().CreateAPIKey(access.Key{
		Name: c.Name, Scopes: c.Scopes, Created: time.Now(),
		Limits: access.Limits{Requests: int(c.RequestsMinute), Tokens: int(c.TokensMinute), Sequences: int(c.AtOnce)},
	})
	if err != nil {
		return err
	}
	if c.JSON {
		r := newKeyRow(&k)
		r.Key = text
		return a.stdout.printJSON(r)
	}
	a.stdout.printf("%s\n", text)
	if a.stderr.terminal {
		a.stderr.printf("This is the only time that the key is shown. Its id is %s.\n", k.ID)
	}
	return nil
}

type keyListCmd struct{ jsonFlag }

// Help is printed by kvasir key list --help.
func (keyListCmd) Help() string {
	return `The keys themselves are not kept, and not shown.

Example:

    kvasir key list`
}

// limited is a limit in words.
func limited(n int) string {
	if n == 0 {
		return "any"
	}
	return strconv.Itoa(n)
}

// Run prints the keys.
func (c *keyListCmd) Run(a *app) error {
	list, err := a.homeFolder().APIKeys()
	if err != nil {
		return err
	}
	rows := []keyRow{}
	t := table{head: []string{"id", "name", "scopes", "requests/min", "tokens/min", "at once", "created", "state"},
		right: []bool{false, false, false, true, true, true}}
	for i := range list {
		k := &list[i]
		rows = append(rows, newKeyRow(k))
		var names []string
		for _, s := range k.Scopes {
			names = append(names, string(s))
		}
		state := "holds"
		if !k.Revoked.IsZero() {
			state = "revoked " + k.Revoked.Format(time.DateOnly)
		}
		t.add(k.ID, clean(k.Name), strings.Join(names, ","), limited(k.Limits.Requests), limited(k.Limits.Tokens),
			limited(k.Limits.Sequences), k.Created.Format(time.DateOnly), state)
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			Keys []keyRow `json:"keys"`
		}{rows})
	}
	if len(rows) == 0 {
		a.stdout.printf("No API keys were made here.\n")
		return nil
	}
	t.print(a.stdout)
	return nil
}

type keyRevokeCmd struct {
	ID string `arg:"" name:"id" help:"Id of the key, as kvasir key list prints it."`
	jsonFlag
}

// Help is printed by kvasir key revoke --help.
func (keyRevokeCmd) Help() string {
	return `A server that runs refuses the key within a second. Requests under way are finished.

Example:

    kvasir key revoke ID`
}

// Run revokes a key.
func (c *keyRevokeCmd) Run(a *app) error {
	if strings.HasPrefix(c.ID, "kv_") {
		return usagef("ID is the key itself; give its id, as kvasir key list prints it")
	}
	if err := a.homeFolder().RevokeAPIKey(c.ID); err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(struct {
			ID      string `json:"id"`
			Revoked bool   `json:"revoked"`
		}{c.ID, true})
	}
	a.stdout.printf("Key %s is revoked.\n", c.ID)
	return nil
}
