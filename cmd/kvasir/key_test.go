package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysAreMadeListedAndRevoked(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if o := kvasir(t, "key", "list", "--home", home).wantDone(t); !strings.Contains(o.stdout, "No API keys") {
		t.Errorf("none: %q", o.stdout)
	}
	var made keyRow
	kvasir(t, "key", "create", "--json", "--home", home, "--name", "alice", "--scopes", "chat", "--at-once", "3").wantDone(t).object(t, &made)
	if !strings.HasPrefix(made.Key, "kv_"+made.ID+"_") || made.Limits.Sequences != 3 || len(made.Scopes) != 1 {
		t.Errorf("%+v", made)
	}
	o := kvasir(t, "key", "create", "--home", home).wantDone(t)
	if strings.Count(o.stdout, "\n") != 1 || !strings.HasPrefix(o.stdout, "kv_") {
		t.Errorf("standard output %q", o.stdout)
	}
	kept, err := os.ReadFile(filepath.Join(home, "keys.json"))
	if err != nil || strings.Contains(string(kept), strings.TrimPrefix(made.Key, "kv_"+made.ID+"_")) {
		t.Errorf("%v: the secret is kept:\n%s", err, kept)
	}
	kvasir(t, "key", "revoke", made.ID, "--home", home).wantDone(t)
	var list struct{ Keys []keyRow }
	kvasir(t, "key", "list", "--json", "--home", home).wantDone(t).object(t, &list)
	if len(list.Keys) != 2 || list.Keys[0].Revoked == "" || list.Keys[1].Revoked != "" || list.Keys[0].Key != "" {
		t.Errorf("%+v", list)
	}
	if o := kvasir(t, "key", "list", "--home", home).wantDone(t); !strings.Contains(o.stdout, "alice") || !strings.Contains(o.stdout, "revoked") {
		t.Errorf("list prints %q", o.stdout)
	}
	wantNarrow(t, kvasir(t, "key", "list", "--home", home).stdout)
}

func TestWrongKeysAndDoorsAreRefused(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "cert.pem"), []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert := filepath.Join(home, "cert.pem")
	for _, c := range []struct {
		name   string
		status int
		args   []string
		want   []string
	}{
		{"scope that is none", statusUsage, []string{"key", "create", "--scopes", "chat,root"}, []string{"--scopes", `"root"`}},
		{"limit that is none", statusUsage, []string{"key", "create", "--tokens-minute", "-1"}, []string{"--tokens-minute"}},
		{"long name", statusFailed, []string{"key", "create", "--name", strings.Repeat("x", 101)}, []string{"100 characters"}},
		{"unknown id", statusFailed, []string{"key", "revoke", "abc"}, []string{"no such key", "kvasir key list"}},
		{"key for its id", statusUsage, []string{"key", "revoke", "kv_abc_def"}, []string{"give its id"}},
		{"no id", statusUsage, []string{"key", "revoke"}, []string{"ID is missing"}},
		{"beyond this machine", statusFailed, []string{"serve", "--listen", "0.0.0.0:0"}, []string{"kvasir key create", "--open"}},
		{"keys and none", statusUsage, []string{"serve", "--keys", "--open"}, []string{"--keys and --open"}},
		{"origin that is none", statusUsage, []string{"serve", "--cors", "example.org"}, []string{"--cors", "https://example.org"}},
		{"certificate alone", statusUsage, []string{"serve", "--cert", cert}, []string{"--cert and --key"}},
		{"no certificate", statusFailed, []string{"serve", "--listen", anyPort, "--cert", cert, "--key", cert}, []string{"certificate"}},
		{"two ways to one", statusUsage, []string{"serve", "--cert", cert, "--key", cert, "--acme", "a.example"}, []string{"two ways"}},
		{"log in no folder", statusFailed, []string{"serve", "--access-log", filepath.Join(home, "none", "x")}, []string{"--access-log"}},
		{"metrics on no address", statusFailed, []string{"hub", "--listen", anyPort, "--metrics", "nowhere"}, []string{"nowhere"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own := t.TempDir()
			if c.args[0] == "hub" {
				kvasir(t, "token", "root", "--home", own).wantDone(t)
			}
			kvasir(t, append(c.args, "--home", own)...).wantFailure(t, c.status, c.want...)
		})
	}
}

// fetch returns what an address answers.
func fetch(t *testing.T, url, key string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it is only read
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(all)
}

func TestServerAsksForKeysAndWritesItsLog(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	var made keyRow
	kvasir(t, "key", "create", "--json", "--home", home, "--scopes", "admin").wantDone(t).object(t, &made)
	log := filepath.Join(home, "access.log")
	var r serveReady
	p := launch(t, home, &r, "serve", "--listen", anyPort, "--keys", "--access-log", log)
	if !r.Keys {
		t.Errorf("%+v does not say that keys are asked for", r)
	}
	base := strings.TrimSuffix(r.URL, "/v1")
	for _, c := range []struct {
		path, key string
		status    int
		text      string
	}{
		{"/v1/models", "", http.StatusUnauthorized, "invalid_api_key"},
		{"/v1/models", made.Key, http.StatusOK, "kvasir-tiny"},
		{"/readyz", "", http.StatusOK, `"ready":true`},
		{"/metrics", "", http.StatusUnauthorized, "API key"},
		{"/metrics", made.Key, http.StatusOK, `kvasir_layer_ready{layer="0"} 1`},
	} {
		if status, body := fetch(t, base+c.path, c.key); status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: status %d, want %d and %q: %.300s", c.path, status, c.status, c.text, body)
		}
	}
	// Commands that ask a server have a key too, which kvasir config shows nobody.
	kvasir(t, "batch", "status", "--server", base).wantFailure(t, statusFailed, "API key is needed")
	kvasir(t, "batch", "status", "--server", base, "--api-key", made.Key).wantDone(t)
	kvasir(t, "trace", "--url", base).wantFailure(t, statusFailed, "API key is needed")
	kvasir(t, "trace", "--url", base, "--api-key", made.Key).wantFailure(t, statusFailed, "no worker takes part")
	file := filepath.Join(home, "with-key.toml")
	if err := os.WriteFile(file, []byte("[trace]\napi-key = \""+made.Key+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := kvasir(t, "config", "--json", "--config", file).wantDone(t); strings.Contains(o.stdout, made.Key[:20]) || !strings.Contains(o.stdout, made.Key[:6]+"…") {
		t.Errorf("kvasir config: %s", o.stdout)
	}
	kvasir(t, "key", "revoke", made.ID, "--home", home).wantDone(t)
	p.stop()
	lines, err := os.ReadFile(log)
	if err != nil || strings.Count(string(lines), "\n") != 9 || strings.Count(string(lines), fmt.Sprintf(`"key":%q`, made.ID)) != 4 ||
		strings.Contains(string(lines), made.Key) {
		t.Errorf("%v: the log is\n%s", err, lines)
	}
}

func TestHubAndGatewayTellTheirMetricsWhereTheyAreAsked(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	kvasir(t, "token", "root", "--home", home).wantDone(t)
	var h hubReady
	launch(t, home, &h, "hub", "--listen", anyPort, "--metrics", anyPort)
	var g gatewayReady
	launch(t, home, &g, "gateway", "--hub", h.Hub, "--listen", anyPort, "--metrics", anyPort)
	for role, addr := range map[string]string{"hub": h.Metrics, "gateway": g.Metrics} {
		if status, body := fetch(t, "http://"+addr+"/metrics", ""); status != http.StatusOK ||
			!strings.Contains(body, `kvasir_relay_open{role="`+role+`",what="connections"} 0`) || !strings.Contains(body, "kvasir_build_info{") {
			t.Errorf("%s: status %d: %.500s", role, status, body)
		}
		if status, _ := fetch(t, "http://"+addr+"/healthz", ""); status != http.StatusNotFound {
			t.Errorf("%s answers something else there: status %d", role, status)
		}
	}
}
