package seal

import (
	"errors"
	"strings"
	"testing"
)

func TestJoinIsOneLine(t *testing.T) {
	j := Join{Host: "hub.example.org:8443", Token: token(t, nil), Root: root.Public()}
	line := j.Line()
	if want := "kvasir worker kvasir://hub.example.org:8443/" + j.Token.Text() + "#" + root.Public().String(); line != want {
		t.Errorf("got %s", line)
	}
	if strings.ContainsAny(line[len(joinCommand):], " \"'$&;|<>()*?[]{}`\\!~") {
		t.Errorf("a shell would change %s", line)
	}
	for _, text := range []string{line, j.URL(), "  " + line + "\n", `"` + j.URL() + `"`, "'" + line + "'\r\n", "<" + j.URL() + ">",
		joinCommand + " '" + j.URL() + "'"} {
		if got, err := ParseJoin(text); err != nil || got != j {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	// In the shortest form, for a chat: 200 characters or so.
	if n := len(Join{"h.io", token(t, func(t *Token) { t.Hub = "" }), root.Public()}.Line()); n > 200 {
		t.Errorf("%d characters", n)
	}
}

func TestJoinTakesHosts(t *testing.T) {
	for host, want := range map[string]bool{
		"hub.example.org": true, "hub": true, "hub.": true, "HUB-1.example.org:1": true, "10.0.0.1": true, "10.0.0.1:65535": true,
		"[::1]": true, "[2001:db8::1]:443": true, "xn--bcher-kva.example": true, "my_hub": true,
		"": false, ":443": false, "hub:": false, "hub:0": false, "hub:65536": false, "hub:x": false, "hub:0443": false, "hub:+1": false,
		"::1": false, "[::1": false, "[10.0.0.1]": false, "[fe80::1%eth0]": false, "a..b": false, "-a": false, "a-": false,
		"bücher.example": false, "a b": false, "me@hub": false, "hub\n": false, strings.Repeat("a", 64): false,
		strings.Repeat("a.", 150) + "a": false,
	} {
		j := Join{Host: host, Token: token(t, nil), Root: root.Public()}
		got, err := ParseJoin(j.URL())
		if (err == nil) != want || err == nil && got != j {
			t.Errorf("%q: %+v, %v", host, got, err)
		}
		if err != nil {
			oneLine(t, err, j.Token.Text())
		}
	}
}

func TestJoinIsRefused(t *testing.T) {
	tok := token(t, nil)
	good := Join{Host: "hub", Token: tok, Root: root.Public()}.URL()
	noRoot, _, _ := strings.Cut(good, "#")
	for _, tt := range []struct {
		name, text, want string
		err              error
	}{
		{"empty", "", "does not begin with kvasir://", ErrBadJoin},
		{"another scheme", strings.Replace(good, "kvasir:", "https:", 1), "does not begin with kvasir://", ErrBadJoin},
		{"host alone", "kvasir://hub", "the / and the token are missing", ErrBadJoin},
		{"no root", noRoot, "the # and the root key are missing", ErrBadJoin},
		{"empty root", noRoot + "#", "root: ", ErrBadKey},
		{"root cut", good[:len(good)-1], "47 characters, want 48", ErrBadKey},
		{"root with a wrong character", good[:len(good)-1] + "A", "checksum", ErrBadKey},
		{"no token", "kvasir://hub/#" + root.Public().String(), "cut short", ErrBadToken},
		{"another swarm's root", Join{"hub", tok, stranger.Public()}.URL(), "a character of the token is wrong, or it is of another swarm", ErrNotRoot},
		{"a path", strings.Replace(good, "hub/", "hub/x/", 1), "cannot be in it", ErrBadToken},
		{"wrapped by a mail", strings.Replace(good, "#", "\n#", 1), "cannot be in it", ErrBadToken},
		{"a user", strings.Replace(good, "hub", "me:pw@hub", 1), "host: ", ErrBadJoin},
		{"too long", good + strings.Repeat("A", maxJoin), "at most 1024", ErrBadJoin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseJoin(tt.text)
			if !errors.Is(err, ErrBadJoin) || !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if n := strings.Count(err.Error(), "seal: "); n != 1 {
				t.Errorf("%v names the package %d times", err, n)
			}
			oneLine(t, err, tok.Text())
		})
	}
	altered(good[len("kvasir://hub/"):], func(name, text string) {
		if _, err := ParseJoin("kvasir://hub/" + text); err == nil && strings.TrimSpace(text) != good[len("kvasir://hub/"):] {
			t.Fatalf("%s: %s accepted", name, text)
		}
	})
}

func FuzzParseJoin(f *testing.F) {
	f.Add(Join{"hub:1", token(f, nil), root.Public()}.Line())
	f.Add("kvasir://[::1]/A#B")
	f.Fuzz(func(t *testing.T, text string) {
		j, err := ParseJoin(text)
		if err != nil {
			if !errors.Is(err, ErrBadJoin) || len(err.Error()) > 500 {
				t.Fatal(err)
			}
			return
		}
		if again, err := ParseJoin(j.Line()); err != nil || again != j {
			t.Fatalf("%q: %v, %v", text, again, err)
		}
	})
}
