package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// openTime bounds the opening of a ledger or wallet, which another process may be writing to.
const openTime = 10 * time.Second

// place is where a database is: at an address, or empty, a file of this home.
func (h Home) place(address, name string) (string, error) {
	if address != "" {
		return address, nil
	}
	return h.path(name)
}

// openBooks opens the ledger of the hub of this home, or that at an address.
func (h Home) openBooks(address string, log *slog.Logger) (*ledger.Hub, error) {
	path, err := h.place(address, "hub.db")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	return ledger.OpenHub(ctx, path, log)
}

// ErrNoWallet: no gateway of this home has kept wallets.
var ErrNoWallet = errors.New("no wallet is here; look on the gateway's machine, or give its --home")

// Wallet opens the wallets that the gateway of this home keeps, also while it runs. They are at the address of a
// database; empty: in a file.
func (h Home) Wallet(ctx context.Context, address string) (*ledger.Wallet, error) {
	path, err := h.place(address, "wallet.db")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); address == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoWallet
	}
	root, err := h.Root(seal.PublicKey{})
	if err != nil {
		return nil, err
	}
	return ledger.OpenWallet(ctx, path, root, nil)
}

// wallets credits what the ledgers of a gateway's hubs say. A nil one does nothing.
type wallets struct {
	wallet *ledger.Wallet
	feeds  map[string]ledger.Feed // by the hub's id
	closer []func() error         // of feeds
	wg     sync.WaitGroup
	log    *slog.Logger
	every  time.Duration // a feed is read
}

// openWallets returns nil where there is nothing to credit: the gateway knows no root, or no hub shows
// it a ledger.
func (o *GatewayOptions) openWallets() (*wallets, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	root, err := o.Home.Root(o.Root)
	if errors.Is(err, ErrNoRoot) || errors.Is(err, ErrNoHome) {
		o.Log.Info("no wallets are kept here", "why", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w := &wallets{feeds: map[string]ledger.Feed{}, log: o.Log, every: o.Rhythm.credit()}
	for _, h := range o.Hubs {
		err := w.addFeed(o, h, root)
		if errors.Is(err, ErrNotGranted) {
			o.Log.Info("no wallets are kept here of what this hub's workers do", "hub", h.ID, "why", err)
		} else if err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	if len(w.feeds) == 0 {
		return nil, nil
	}
	path, err := o.Home.place(o.Books, "wallet.db")
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), openTime)
		defer cancel()
		w.wallet, err = ledger.OpenWallet(ctx, path, root, o.Log)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// addFeed finds the way to a hub's ledger: the file, where the hub is of the same home, or asking the
// hub, which answers a gateway that the root has granted.
func (w *wallets) addFeed(o *GatewayOptions, h HubRef, root seal.PublicKey) error {
	hub, err := o.Home.keyIfThere(seal.Hub.String())
	if err != nil {
		return err
	}
	if !hub.IsZero() && seal.HubID(hub.Public()) == h.ID {
		books, err := o.Home.openBooks(o.Books, o.Log)
		if err != nil {
			return err
		}
		w.feeds[h.ID] = books
		w.closer = append(w.closer, books.Close)
		return nil
	}
	key, err := o.Home.Key(seal.Gateway)
	if err != nil {
		return err
	}
	grant, err := o.Home.Grant(seal.Gateway, key.Public(), root, o.Grant)
	if err != nil {
		return err
	}
	client, err := relay.NewHubClient(relay.HubClientConfig{
		Address: "https://" + h.Addr, Hub: h.ID, Root: root, Key: key, Grant: grant,
	})
	if err != nil {
		return err
	}
	w.feeds[h.ID] = &ledger.Client{URL: fmt.Sprintf("https://%s/ledger", h.Addr), HTTP: &http.Client{Transport: client}}
	w.closer = append(w.closer, func() error { client.Close(); return nil })
	return nil
}

// counts returns Wallet.Counts; nil: there are none.
func (w *wallets) counts() func() map[string]uint64 {
	if w == nil {
		return nil
	}
	return w.wallet.Counts
}

// follow credits until ctx ends, and once more then.
func (w *wallets) follow(ctx context.Context) {
	if w == nil {
		return
	}
	for id, feed := range w.feeds {
		w.wg.Go(func() {
			w.wallet.Follow(ctx, id, feed, w.every)
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
			defer cancel()
			if _, err := w.wallet.Poll(last, id, feed); err != nil {
				w.log.Info("the last work is credited at the next start", "hub", id, "why", err)
			}
		})
	}
}

// close returns when no goroutine is left. The context of follow has ended.
func (w *wallets) close() error {
	if w == nil {
		return nil
	}
	w.wg.Wait()
	var errs []error
	if w.wallet != nil {
		errs = append(errs, w.wallet.Close())
	}
	for _, c := range w.closer {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
