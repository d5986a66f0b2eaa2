package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"kvasir/engine/access"
	"kvasir/engine/batches"
	"kvasir/engine/serve"
)

// openBatches goes on with the batch jobs that this node shares with others, or with those of the home
// folder. Where another process has the latter, or there is no folder, this one serves none.
func (n *ServeNode) openBatches(o ServeOptions, g *access.Guard) (err error) {
	work := batches.Options{Answerer: charged{n.handler, g}, Database: o.Database, Log: o.Log}
	dir := o.Files
	if o.Database == "" {
		if dir, err = o.Home.path("batches"); errors.Is(err, ErrNoHome) {
			return nil
		}
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err != nil {
			return err
		}
		if ours, err := n.lockBatches(dir, o); err != nil || !ours {
			n.handler.Handle("/v1/files", http.HandlerFunc(elsewhere))
			n.handler.Handle("/v1/batches", http.HandlerFunc(elsewhere))
			return err
		}
	}
	work.Model = n.Engine().arithmetic()
	if n.batches, err = batches.Open(context.Background(), dir, work); err != nil {
		if o.Database == "" {
			return fmt.Errorf("%w; to serve without the batch jobs that are there, move %s away", err, dir)
		}
		return err
	}
	h := owned(batches.NewHandler(n.batches))
	n.handler.Handle("/v1/files", h)
	n.handler.Handle("/v1/batches", h)
	return nil
}

// elsewhere answers where another process serves the batch jobs.
func elsewhere(w http.ResponseWriter, _ *http.Request) {
	serve.Refuse(w, http.StatusServiceUnavailable, "", "the batch jobs of this server are served by another process of the same home folder: ask that one")
}

// lockBatches takes the batch jobs of a home folder for this process, unless another has them.
func (n *ServeNode) lockBatches(dir string, o ServeOptions) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	if err := lockFile(f); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, errLocked) {
			if o.Log != nil {
				o.Log.Warn("batch jobs are served by another process of this home folder, and not by this one", "home", o.Home)
			}
			return false, nil
		}
		return false, err
	}
	n.unlock = func() { _ = f.Close() } // nor here
	return true, nil
}

// charged answers lines of batches at the cost of the keys that have begun them.
type charged struct {
	*serve.Handler
	guard *access.Guard
}

// Answer is batches.Answerer's. A line whose key has used up its tokens is tried again later.
func (c charged) Answer(ctx context.Context, path string, body []byte, stamp serve.Stamp) (int, []byte) {
	ctx, wait := c.guard.Behind(ctx, batches.OwnerOf(ctx).ID)
	if wait > 0 {
		return http.StatusTooManyRequests, nil
	}
	return c.Handler.Answer(ctx, path, body, stamp)
}

// owned has files and batches belong to the key that made them.
func owned(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, all := access.From(r.Context()).Owner()
		next.ServeHTTP(w, r.WithContext(batches.WithOwner(r.Context(), batches.Owner{ID: id, All: all})))
	})
}
