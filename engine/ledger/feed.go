package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Feed is a hub's reports and statements as a gateway reads them. *Hub and *Client are one.
type Feed interface {
	// After returns entries with ids above the mark's, ascending, at most limit and at most PageMax. A mark with the
	// hash of its entry tells the hub that all up to there is in a wallet; one without only asks.
	After(ctx context.Context, at Mark, limit int) (Page, error)
}

// Mark is how far a feed was read.
type Mark struct {
	ID   int64
	Hash Hash // Entry.Mark of the entry, or Entry.Hash where it has none; zeros: not known
}

// Page is a piece of a feed.
type Page struct {
	Entries []Entry `json:"entries"`
	Last    int64   `json:"last"` // the highest id that the hub has; 0: none

	// Seen is Mark.Hash of the entry that the page follows; none: there is no such entry, or the hub does
	// not say. A hub that was put back from an old copy has other entries by the same ids.
	Seen []byte `json:"seen,omitempty"`
}

// Entry is one report or one statement in a feed. Nothing of it is trusted before it is checked.
type Entry struct {
	ID        int64  `json:"id"`
	Grant     string `json:"grant,omitempty"` // text of the backbone's seal.Grant, of a report
	Report    []byte `json:"report,omitempty"`
	Statement []byte `json:"statement,omitempty"`

	// Mark is drawn when the hub enters it: one that was put back from an old copy, and is given the same again,
	// has another entry. None: an older program has entered it.
	Mark []byte `json:"mark,omitempty"`
}

// Hash tells entries apart.
func (e *Entry) Hash() Hash { return sha256.Sum256(slices.Concat(e.Report, e.Statement)) }

// mark is Mark.Hash of the entry.
func (e *Entry) mark() Hash {
	if len(e.Mark) == len(Hash{}) {
		return Hash(e.Mark)
	}
	return e.Hash()
}

const (
	// PageMax is the most entries of a page.
	PageMax = 256

	grantMax    = 512     // text of a grant; the longest is 228 characters
	pageBytes   = 4 << 20 // JSON of the largest page: PageMax reports in base64, and their grants
	requestTime = 30 * time.Second
)

// check returns ErrBadPage unless the page answers After, from id on.
func (p *Page) check(id int64, limit int) error {
	if len(p.Entries) > limit {
		return fmt.Errorf("%w: %d entries, asked for %d", ErrBadPage, len(p.Entries), limit)
	}
	if len(p.Seen) != 0 && len(p.Seen) != len(Hash{}) {
		return fmt.Errorf("%w: hash of %d bytes", ErrBadPage, len(p.Seen))
	}
	last := id
	for _, e := range p.Entries {
		if e.ID <= last || e.ID > p.Last {
			return fmt.Errorf("%w: entry %d after %d, the last is %d", ErrBadPage, e.ID, last, p.Last)
		}
		if len(e.Mark) != 0 && len(e.Mark) != len(Hash{}) {
			return fmt.Errorf("%w: mark of %d bytes", ErrBadPage, len(e.Mark))
		}
		last = e.ID
	}
	if len(p.Entries) == 0 && p.Last > id {
		return fmt.Errorf("%w: nothing after %d, though the last is %d", ErrBadPage, id, p.Last)
	}
	return nil
}

// Handler serves a hub's feed: GET ?after=ID&seen=HASH&limit=N, answered with a Page as JSON; and takes
// GET ?held=KEY:NKVR,..., see Holder. It asks nobody who
// they are: put authentication around it.
func Handler(h *Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		query := r.URL.Query()
		if query.Has("held") {
			h.serveHeld(w, r, query.Get("held"))
			return
		}
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
		at := Mark{ID: after}
		if seen, err := hex.DecodeString(query.Get("seen")); err == nil { // older gateways do not say
			copy(at.Hash[:], seen)
		}
		page, err := h.After(r.Context(), at, limit)
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
func (c *Client) After(ctx context.Context, mark Mark, limit int) (page Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	at, err := url.Parse(c.URL)
	if err != nil {
		return Page{}, fmt.Errorf("ledger: feed: %w", err)
	}
	query := url.Values{"after": {strconv.FormatInt(mark.ID, 10)}, "limit": {strconv.Itoa(limit)}}
	if mark.Hash != (Hash{}) {
		query.Set("seen", hex.EncodeToString(mark.Hash[:]))
	}
	at.RawQuery = query.Encode()
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
	return page, page.check(mark.ID, limit)
}
