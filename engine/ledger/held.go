package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kvasir/wire/seal"
)

// Held is what a wallet holds back of what was signed for a worker: it is not credited, because a backbone's limit is
// reached. It is there to be told, and no money.
type Held struct {
	Worker seal.PublicKey
	NKVR   NKVR
}

// MaxHeld is of how many workers it is told, those with the most first: a request's address has room for them.
const MaxHeld = 64

// Holder is a Feed whose hub tells workers what is held back.
type Holder interface {
	// Hold takes what is held back now, in the place of what was before.
	Hold(ctx context.Context, list []Held) error
}

// Held returns what is held back, the most first.
func (w *Wallet) Held(ctx context.Context) (all []Held, err error) {
	err = w.file.each(ctx, func(scan func(...any) error) error {
		var h Held
		err := scan(keyColumn{&h.Worker}, &h.NKVR)
		all = append(all, h)
		return err
	}, `SELECT worker, CAST(sum(nkvr) AS BIGINT) FROM reports WHERE funded = 0 AND verdict <> 'voided'
		GROUP BY worker HAVING sum(nkvr) > 0 ORDER BY 2 DESC, worker LIMIT $1`, MaxHeld)
	return all, err
}

// tellHeld tells a hub what is held back, where that has changed since it was told last.
func (w *Wallet) tellHeld(ctx context.Context, feed Feed, told *[]Held) error {
	to, ok := feed.(Holder)
	if !ok {
		return nil
	}
	now, err := w.Held(ctx)
	if err != nil || *told != nil && slices.Equal(now, *told) {
		return err
	}
	if err := to.Hold(ctx, now); err != nil {
		return err
	}
	*told = append([]Held{}, now...)
	return nil
}

// Hold is Holder's.
func (h *Hub) Hold(ctx context.Context, list []Held) error {
	if err := checkHeld(list); err != nil {
		return err
	}
	return h.file.update(ctx, func(t *tx) error {
		if err := t.exec(ctx, "DELETE FROM held"); err != nil {
			return err
		}
		for _, l := range list {
			if err := t.exec(ctx, "INSERT INTO held (worker, nkvr) VALUES ($1, $2)", l.Worker.String(), int64(l.NKVR)); err != nil {
				return err
			}
		}
		return nil
	})
}

// held is what is held back of a worker's. What cannot be read is not told.
func (h *Hub) held(ctx context.Context, worker seal.PublicKey) (n NKVR) {
	_ = h.file.db.QueryRowContext(ctx, "SELECT nkvr FROM held WHERE worker = $1", worker.String()).Scan(&n)
	return n
}

// ErrBadHeld: what a gateway says that it holds back cannot be.
var ErrBadHeld = errors.New("ledger: not a list of what is held back")

func checkHeld(list []Held) error {
	if len(list) > MaxHeld {
		return fmt.Errorf("%w: %d workers, at most %d", ErrBadHeld, len(list), MaxHeld)
	}
	seen := map[seal.PublicKey]bool{}
	for _, l := range list {
		if l.NKVR <= 0 || l.NKVR > MaxBalance || seen[l.Worker] {
			return fmt.Errorf("%w: %d nKVR of worker %s", ErrBadHeld, int64(l.NKVR), l.Worker.Short())
		}
		seen[l.Worker] = true
	}
	return nil
}

// formatHeld is the list as a request has it, "KEY:NKVR,KEY:NKVR"; parseHeld reads it.
func formatHeld(list []Held) string {
	words := make([]string, 0, len(list))
	for _, l := range list {
		words = append(words, fmt.Sprintf("%s:%d", l.Worker, int64(l.NKVR)))
	}
	return strings.Join(words, ",")
}

func parseHeld(text string) (list []Held, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		if len(list) == MaxHeld {
			return nil, fmt.Errorf("%w: more than %d workers", ErrBadHeld, MaxHeld)
		}
		key, number, _ := strings.Cut(word, ":")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %.80q", ErrBadHeld, word)
		}
		worker, err := seal.ParsePublicKey(key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadHeld, err)
		}
		list = append(list, Held{worker, NKVR(n)})
	}
	return list, checkHeld(list)
}

// serveHeld answers a request that says what is held back.
func (h *Hub) serveHeld(w http.ResponseWriter, r *http.Request, text string) {
	list, err := parseHeld(text)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := h.Hold(r.Context(), list); err != nil {
		http.Error(w, "the ledger cannot be written", http.StatusInternalServerError) // it says so itself
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Hold is Holder's. A hub of an older version refuses it.
func (c *Client) Hold(ctx context.Context, list []Held) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	at, err := url.Parse(c.URL)
	if err != nil {
		return fmt.Errorf("ledger: held: %w", err)
	}
	at.RawQuery = url.Values{"held": {formatHeld(list)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return fmt.Errorf("ledger: held: %w", err)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ledger: held: %w", err)
	}
	_ = response.Body.Close() // there is nothing in it
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("ledger: held: %s", response.Status)
	}
	return nil
}
