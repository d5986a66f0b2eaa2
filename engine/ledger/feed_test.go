package ledger

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return &Client{URL: server.URL + "/feed", HTTP: server.Client()}
}

func TestFeedTravelsInPages(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		h := openHub(t, temp(t))
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		r := s.reporter(1, 0)
		for range 5 {
			_, err := h.Append(t.Context(), next(t, r, 1))
			must(t, err)
		}
		feed := serve(t, Handler(h))
		for _, c := range []struct {
			after int64
			limit int
			want  string
		}{
			{0, 2, "1 2 of 5"}, {2, 2, "3 4 of 5"}, {4, 2, "5 of 5"}, {5, 2, "of 5"}, {6, 2, "of 5"}, {0, 100_000, "1 2 3 4 5 of 5"},
		} {
			page, err := feed.After(t.Context(), Mark{ID: c.after}, c.limit)
			must(t, err)
			got := ""
			for _, e := range page.Entries {
				_, err := Verify(e.Report)
				must(t, err)
				got += fmt.Sprintf("%d ", e.ID)
			}
			if got += fmt.Sprintf("of %d", page.Last); got != c.want {
				t.Errorf("after %d, limit %d: %s, want %s", c.after, c.limit, got, c.want)
			}
		}
	})
}

func TestHandlerRefuses(t *testing.T) {
	both(t, func(t *testing.T) {
		h := openHub(t, temp(t))
		handler := Handler(h)
		for _, c := range []struct {
			method, query string
			want          int
		}{
			{"GET", "?after=0&limit=1", 200},
			{"POST", "?after=0&limit=1", 405},
			{"GET", "", 400},
			{"GET", "?after=-1&limit=1", 400},
			{"GET", "?after=x&limit=1", 400},
			{"GET", "?after=0&limit=0", 400},
			{"GET", "?after=0", 400},
			{"GET", "?after=99999999999999999999&limit=1", 400},
		} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(c.method, "/"+c.query, nil))
			if w.Code != c.want {
				t.Errorf("%s %s: %d, want %d", c.method, c.query, w.Code, c.want)
			}
		}
		must(t, h.Close())
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?after=0&limit=1", nil))
		if w.Code != 500 || strings.Contains(w.Body.String(), os.TempDir()) {
			t.Errorf("closed: %d, %s", w.Code, w.Body)
		}
	})
}

func TestClientRefuses(t *testing.T) {
	answer := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	for _, c := range []struct {
		name    string
		handler http.Handler
		want    string
	}{
		{"not JSON", answer(200, "<html>"), ErrBadPage.Error()},
		{"endless", answer(200, strings.Repeat(" ", pageBytes+1)), "more than"},
		{"status", answer(502, "line\nline"), "502 Bad Gateway"},
		{"more than asked for", answer(200, `{"entries":[{"id":1},{"id":2},{"id":3}],"last":3}`), "3 entries"},
		{"out of order", answer(200, `{"entries":[{"id":2},{"id":1}],"last":3}`), "entry 1 after 2"},
		{"too high", answer(200, `{"entries":[{"id":99999999999999999999}],"last":3}`), ErrBadPage.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := serve(t, c.handler).After(t.Context(), Mark{}, 2)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error is %v, want %q in one line", err, c.want)
			}
		})
	}
}
