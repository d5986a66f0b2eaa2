package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Feed is a hub's reports as a gateway reads them. *Hub and *Client are one.
type Feed interface {
	// After returns entries with ids above id, ascending, at most limit and at most PageMax.
	After(ctx context.Context, id int64, limit int) (Page, error)
}

// Page is a piece of a feed.
type Page struct {
	Entries []Entry `json:"entries"`
	Last    int64   `json:"last"` // the highest id that the hub has; 0: none
}

// Entry is one report in a feed. Nothing of it is trusted before it is checked.
type Entry struct {
	ID     int64  `json:"id"`
	Grant  string `json:"grant"` // text of the backbone's seal.Grant
	Report []byte `json:"report"`
}

const (
	// PageMax is the most entries of a page.
	PageMax = 256

	grantMax    = 512     // text of a grant; the longest is 228 characters
	pageBytes   = 4 << 20 // JSON of the largest page: PageMax reports in base64, and their grants
	requestTime = 30 * time.Second
)

// check returns ErrBadPage unless the page answers After(id, limit).
func (p *Page) check(id int64, limit int) error {
	if len(p.Entries) > limit {
		return fmt.Errorf("%w: %d entries, asked for %d", ErrBadPage, len(p.Entries), limit)
	}
	last := id
	for _, e := range p.Entries {
		if e.ID <= last || e.ID > p.Last {
			return fmt.Errorf("%w: entry %d after %d, the last is %d", ErrBadPage, e.ID, last, p.Last)
		}
		last = e.ID
	}
	if len(p.Entries) == 0 && p.Last > id {
		return fmt.Errorf("%w: nothing after %d, though the last is %d", ErrBadPage, id, p.Last)
	}
	return nil
}

// Handler serves a hub's feed: GET ?after=ID&limit=N, answered with a Page as JSON. It asks nobody who
// they are: put authentication around it.
func Handler(h *Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		query := r.URL.Query()
		after, err := strconv.ParseInt(query.Get("after"), 10, 64)
		if err != nil || after < 0 {
			http.Error(w, "after is not a number from 0", http.StatusBadRequest)
			return
		}
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil || limit < 1 {
			http.Error(w, "limit is not a number from 1", http.StatusBadRequest)
			return
		}
		page, err := h.After(r.Context(), after, limit)
		if r.Context().Err() != nil {
			return // nobody is there to answer
		}
		if err != nil {
			// What is wrong with the file is nothing for strangers.
			h.log.Error("feed cannot be served", "error", err)
			http.Error(w, "the ledger cannot be read", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(page); err != nil {
			h.log.Debug("feed not sent", "error", err)
		}
	})
}

// Client reads a feed that Handler serves.
type Client struct {
	URL  string       // of the handler
	HTTP *http.Client // authenticates; nil: http.DefaultClient
}

// After is Feed's. It gives up after 30 seconds.
func (c *Client) After(ctx context.Context, id int64, limit int) (page Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	at, err := url.Parse(c.URL)
	if err != nil {
		return Page{}, fmt.Errorf("ledger: feed: %w", err)
	}
	at.RawQuery = url.Values{"after": {strconv.FormatInt(id, 10)}, "limit": {strconv.Itoa(limit)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return Page{}, fmt.Errorf("ledger: feed: %w", err)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return Page{}, fmt.Errorf("ledger: feed: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // all that counts has been read
	body, err := io.ReadAll(io.LimitReader(response.Body, pageBytes+1))
	switch {
	case err != nil:
		return Page{}, fmt.Errorf("ledger: feed: %w", err)
	case response.StatusCode != http.StatusOK:
		return Page{}, fmt.Errorf("ledger: feed: %s: %.200q", response.Status, strings.TrimSpace(string(body)))
	case len(body) > pageBytes:
		return Page{}, fmt.Errorf("%w: more than %d bytes", ErrBadPage, pageBytes)
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrBadPage, err)
	}
	return page, page.check(id, limit)
}
