package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// nowhere is a hub that nobody dials.
const nowhere = "aaaaaaaaaaaaaaaaaaaaaaaaaa@gateway.example:443"

type tokenList struct {
	Tokens []tokenRow `json:"tokens"`
}

func listTokens(t *testing.T, home string, id ...string) []tokenRow {
	t.Helper()
	var l tokenList
	kvasir(t, append([]string{"token", "list", "--json", "--home", home}, id...)...).wantDone(t).object(t, &l)
	return l.Tokens
}

func TestTokensAreMadeListedAndRevoked(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	create := func(args ...string) (r tokenRow) {
		t.Helper()
		kvasir(t, append([]string{"token", "create", "--json", "--home", home, "--hub", nowhere}, args...)...).wantDone(t).object(t, &r)
		return r
	}
	if o := kvasir(t, "token", "list", "--home", home).wantDone(t); o.stdout != "No token was made here.\n" {
		t.Errorf("an empty list: %q", o.stdout)
	}
	if l := listTokens(t, home); l == nil || len(l) != 0 {
		t.Errorf("an empty list in JSON: %v", l)
	}
	wide := create()
	narrow := create("--uses", "3", "--expires", "30d", "--gateway", "other.example:8443")
	if wide.Uses != 0 || wide.Expires != "" || wide.Host != "gateway.example" || wide.Role != "worker" ||
		!strings.HasPrefix(wide.Line, "kvasir worker kvasir://gateway.example/") {
		t.Errorf("without limits: %+v", wide)
	}
	end, err := time.Parse(time.RFC3339, narrow.Expires)
	if left := time.Until(end); err != nil || narrow.Uses != 3 || narrow.Host != "other.example:8443" ||
		left > 30*24*time.Hour || left < 30*24*time.Hour-time.Hour {
		t.Errorf("with limits: %+v, %v", narrow, err)
	}
	line := kvasir(t, "token", "create", "--home", home, "--hub", nowhere, "--uses", "0").wantDone(t).stdout
	if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "kvasir worker kvasir://") {
		t.Errorf("not one line to hand on: %q", line)
	}

	text := kvasir(t, "token", "revoke", narrow.ID, "--home", home).wantDone(t).stdout
	if !strings.Contains(text, narrow.ID+" is revoked here") || strings.Contains(text, "No token of that id") {
		t.Errorf("revoke says %q", text)
	}
	var again, unknown struct {
		Revoked string `json:"revoked"`
		Known   bool   `json:"known"`
	}
	kvasir(t, "token", "revoke", narrow.ID, "--json", "--home", home).wantDone(t).object(t, &again)
	kvasir(t, "token", "revoke", strings.Repeat("0f", 12), "--json", "--home", home).wantDone(t).object(t, &unknown)
	if again.Revoked != narrow.ID || !again.Known || unknown.Known {
		t.Errorf("revoked again: %+v; one that nobody knows: %+v", again, unknown)
	}
	if o := kvasir(t, "token", "revoke", strings.Repeat("0e", 12), "--home", home).wantDone(t); !strings.Contains(o.stdout, "look whether it is right") {
		t.Errorf("revoking what nobody knows says %q", o.stdout)
	}

	list := listTokens(t, home)
	if len(list) != 3 || list[0].Revoked || !list[1].Revoked || list[2].Uses != 0 {
		t.Errorf("the list: %+v", list)
	}
	for _, r := range list {
		if r.Line != "" || strings.Contains(fmt.Sprintf("%+v", r), wide.Line) {
			t.Errorf("the list gives a token away: %+v", r)
		}
	}
	out := kvasir(t, "token", "list", "--home", home).wantDone(t).stdout
	wantNarrow(t, out)
	for _, want := range []string{wide.ID, narrow.ID, "0 of any", "0 of 3", "no end", "revoked", "other.example:8443"} {
		if !strings.Contains(out, want) {
			t.Errorf("the list has no %q:\n%s", want, out)
		}
	}
	out = kvasir(t, "token", "list", narrow.ID, "--home", home).wantDone(t).stdout
	if strings.Contains(out, wide.ID) || !strings.Contains(out, "No key has shown it") {
		t.Errorf("one token: %s", out)
	}
}

func TestBadTokenCommandsAreNamed(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	with := func(base []string, args ...string) []string { return append(base[:len(base):len(base)], args...) }
	create := []string{"token", "create", "--home", home}
	hub := with(create, "--hub", nowhere)
	for _, tt := range []struct {
		args   []string
		status int
		want   []string
	}{
		{create, statusUsage, []string{"--hub", "kvasir hub"}},
		{with(create, "--hub", "nonsense"), statusUsage, []string{"--hub", "ID@HOST:PORT", "nonsense"}},
		{with(create, "--hub", nowhere+","+nowhere), statusUsage, []string{"--hub", "one hub"}},
		{with(hub, "--gateway", "no host"), statusFailed, []string{"no host", "not a name or an address"}},
		{with(hub, "--gateway", "x:0"), statusFailed, []string{"port"}},
		{with(hub, "--uses=-1"), statusUsage, []string{"--uses", "-1"}},
		{with(hub, "--uses", "1.5"), statusUsage, []string{"--uses", "1.5"}},
		{with(hub, "--uses", "4294967296"), statusUsage, []string{"--uses", "4294967296"}},
		{with(hub, "--expires", "0s"), statusUsage, []string{"--expires", "12h or 30d"}},
		{with(hub, "--expires=-1h"), statusUsage, []string{"--expires", "12h or 30d"}},
		{with(hub, "--expires", "tomorrow"), statusUsage, []string{"--expires", "12h or 30d"}},
		{with(hub, "--expires", "25001d"), statusUsage, []string{"--expires", "at most 25000d"}},
		{with(hub, "--expires", "99999999d"), statusUsage, []string{"--expires"}},
		{[]string{"token", "revoke", "--home", home}, statusUsage, []string{"ID is missing"}},
		{[]string{"token", "revoke", "", "--home", home}, statusUsage, []string{"24 hexadecimal digits", "kvasir token list"}},
		{[]string{"token", "revoke", "xyz", "--home", home}, statusUsage, []string{"24 hexadecimal digits", "kvasir token list"}},
		{[]string{"token", "revoke", strings.Repeat("0", 26), "--home", home}, statusUsage, []string{"24 hexadecimal digits"}},
		{[]string{"token", "list", "xyz", "--home", home}, statusUsage, []string{"24 hexadecimal digits"}},
		{[]string{"token", "list", strings.Repeat("0", 24), "--home", home}, statusFailed, []string{"neither made nor shown here"}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) { kvasir(t, tt.args...).wantFailure(t, tt.status, tt.want...) })
	}
	if list := listTokens(t, home); len(list) != 0 {
		t.Errorf("bad commands have made %+v", list)
	}
}

// TestTokensOfManyProcesses has processes make and revoke tokens in one home at once.
func TestTokensOfManyProcesses(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	kvasir(t, "token", "root", "--home", home).wantDone(t)
	const processes = 8
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			o := kvasir(t, "token", "create", "--home", home, "--hub", nowhere, "--uses", "1")
			p := kvasir(t, "token", "revoke", fmt.Sprintf("%024x", i+1), "--home", home)
			if o.status != 0 || p.status != 0 {
				t.Errorf("%+v, %+v", o, p)
			}
		})
	}
	wg.Wait()
	if list := listTokens(t, home); len(list) != processes {
		t.Errorf("%d tokens of %d", len(list), processes)
	}
	text, err := os.ReadFile(filepath.Join(home, "revoked"))
	if err != nil || strings.Count(string(text), "\n") != processes || len(text) != processes*25 {
		t.Errorf("revoked: %q, %v", text, err)
	}
}

func TestSecretsThatOthersCanReadAreRefused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("who may read a file is not in its mode on this system")
	}
	for name, args := range map[string][]string{
		"root.key":    {"token", "create", "--hub", nowhere},
		"tokens.json": {"token", "list"},
	} {
		home := t.TempDir()
		kvasir(t, "token", "create", "--home", home, "--hub", nowhere).wantDone(t)
		path := filepath.Join(home, name)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		kvasir(t, append(args, "--home", home)...).wantFailure(t, statusFailed, name, "mode is 0644", "chmod 600")
	}
}

// TestAStolenTokenIsTold has a copy of a line for one worker used from a second machine: it is refused, and
// the owner sees that at the hub, which has seen both, and at home, where the first was paired.
func TestAStolenTokenIsTold(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	once := s.token("--uses", "1")
	friend := s.worker(once.Line)
	friend.await("working")
	thief := s.worker(once.Line)
	thief.ends(statusFailed)
	thief.await("kvasir: ", "token is used up", once.ID, "by 1 of 1 keys; ask for another")

	at := listTokens(t, s.rented, once.ID)
	if len(at) != 1 || !at[0].Elsewhere || len(at[0].Keys) != 2 {
		t.Fatalf("at the hub: %+v", at)
	}
	joined, refused := at[0].Keys[0], at[0].Keys[1]
	if joined.Sight != "joined" || refused.Sight != "used_up" || joined.Key == refused.Key || joined.Key == "" ||
		refused.Times != 1 || refused.From != "127.0.0.1" || joined.From != "127.0.0.1" {
		t.Errorf("at the hub: %+v", at[0].Keys)
	}
	own := listTokens(t, s.own, once.ID)
	if len(own) != 1 || own[0].Elsewhere || len(own[0].Keys) != 1 || own[0].Keys[0].Key != joined.Key {
		t.Errorf("at home: %+v", own)
	}
	out := kvasir(t, "token", "list", once.ID, "--home", s.rented).wantDone(t).stdout
	wantNarrow(t, out)
	for _, want := range []string{"made elsewhere", joined.Key[:8], refused.Key[:8], "refused: used up", "127.0.0.1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out = kvasir(t, "token", "list", "--home", s.own).wantDone(t).stdout; !strings.Contains(out, "1 of 1") {
		t.Errorf("the list at home:\n%s", out)
	}
	for _, p := range []*process{friend, serve, hub} {
		p.stop()
	}
}

// TestRevokedAtHomeOnly revokes at the machine of the owner and not at the hub: the backbone refuses.
func TestRevokedAtHomeOnly(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	hub := s.hub()
	serve := s.serve("--hub", s.hubReady.Hub)
	serve.await("connected to hub")
	gone := s.token()
	kvasir(t, "token", "revoke", gone.ID, "--home", s.own).wantDone(t)
	worker := s.worker(gone.Line)
	worker.await("token was revoked")
	own := listTokens(t, s.own, gone.ID)
	if len(own) != 1 || !own[0].Revoked || len(own[0].Keys) != 1 || own[0].Keys[0].Sight != "revoked" {
		t.Errorf("at home: %+v", own)
	}
	worker.stop()
	serve.stop()
	hub.stop()
}

// TestATokenOfAnotherHubIsRefused leads a worker to a hub that its token is not for.
func TestATokenOfAnotherHubIsRefused(t *testing.T) {
	t.Parallel()
	s := newSwarm(t)
	first := s.hub()
	other := &swarm{t: t, own: s.own, rented: t.TempDir(), root: s.root}
	second := other.hub()
	id, _, _ := strings.Cut(s.hubReady.Hub, "@")
	_, addr, _ := strings.Cut(other.hubReady.Hub, "@")
	var r tokenRow
	kvasir(t, "token", "create", "--json", "--home", s.own, "--hub", id+"@"+addr).wantDone(t).object(t, &r)
	worker := s.worker(r.Line)
	worker.ends(statusFailed)
	worker.await("kvasir: ", "certificate is not trusted", "neither the hub's nor granted by the root")
	for _, p := range []*process{first, second} {
		p.stop()
	}
}
