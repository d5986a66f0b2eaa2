package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"kvasir/wire/seal"
)

// childPath is set for the process that is killed; with childURL and childRoot.
const (
	childPath = "KVASIR_TEST_WALLET"
	childURL  = "KVASIR_TEST_FEED"
	childRoot = "KVASIR_TEST_ROOT"
)

// child is a gateway that reads a feed until it is killed.
func child(path string) int {
	root, err := seal.ParsePublicKey(os.Getenv(childRoot))
	if err == nil {
		var w *Wallet
		if w, err = OpenWallet(context.Background(), path, root, nil); err == nil {
			for err == nil {
				_, err = w.Poll(context.Background(), "hub", &Client{URL: os.Getenv(childURL)})
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// A gateway, as a process of its own, is killed while it reads; what it leaves is read on by the next.
func TestGatewayProcessKilledLosesAndDoublesNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		h := openHub(t, temp(t))
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		must(t, h.Begin(t.Context(), s.session(2, 1)))
		handler := Handler(h)
		requests := make(chan struct{})
		feed := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			query.Set("limit", "3")
			r.URL.RawQuery = query.Encode()
			handler.ServeHTTP(w, r)
			select {
			case requests <- struct{}{}:
			case <-r.Context().Done():
			}
		}))
		path := temp(t)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		self, err := os.Executable()
		must(t, err)
		var want [2]NKVR
		rounds := 12
		if isURL(path) {
			rounds = 4 // a process takes longer to open it
		}
		for range rounds {
			for range 10 {
				x, y := 1+random.Int64N(9), 1+random.Int64N(9)
				for _, signed := range [][]byte{next(t, a, x), next(t, b, y)} {
					_, err := h.Append(t.Context(), signed)
					must(t, err)
				}
				want[0] += NKVR(x) * perPick
				want[1] += NKVR(y) * perPick
			}
			gateway := exec.CommandContext(t.Context(), self)
			gateway.Env = append(os.Environ(), childPath+"="+path, childURL+"="+feed.URL, childRoot+"="+s.root.Public().String())
			gateway.Stderr = os.Stderr
			must(t, gateway.Start())
			ended := make(chan error, 1)
			go func() { ended <- gateway.Wait() }()
			for range 1 + random.IntN(6) {
				select {
				case <-requests:
				case err := <-ended:
					t.Fatalf("the gateway ended by itself: %v", err)
				}
			}
			for range random.IntN(3000) { // somewhere in what follows the request
				runtime.Gosched()
			}
			must(t, gateway.Process.Kill())
			if err := <-ended; err == nil {
				t.Fatal("the gateway ended well, though it was killed")
			}
			w := openWallet(t, path, s)
			pending(t, w, s.workers)
			must(t, w.Close())
		}
		w := openWallet(t, path, s)
		poll(t, w, feedFunc(h.After))
		wantPending(t, w, s.workers, want[0], want[1])
	})
}
