package ledger

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// writersOfBench is how many backbones give receipts of one feed.
const writersOfBench = 128

// BenchmarkDurableReceipts has many backbones give receipts to a hub, each waiting for the acknowledgement of one
// before the next, and prints how many a second were stored, how long an acknowledgement took, the bare fsync of
// the same disk, and what part of the processors' time the check of a signature is. The bar is 10,000 receipts/s
// with a p99-ms of at most 20, or as much as the disk's own fsync-p99-ms makes it.
//
//	go test -run xxx -bench DurableReceipts -benchtime 30000x ./engine/ledger
//
// All that wait are in a queue, so twice as many wait twice as long.
func BenchmarkDurableReceipts(b *testing.B) {
	for _, writers := range []int{64, writersOfBench} {
		b.Run(fmt.Sprintf("%d-wait", writers), func(b *testing.B) { durableReceipts(b, writers) })
	}
}

func durableReceipts(b *testing.B, writers int) {
	s := newSwarm(b, writers)
	dir := b.TempDir()
	h := openHub(b, filepath.Join(dir, "hub.db"))
	each := b.N/writers + 1
	receipts := make([][][]byte, writers)
	for n := range receipts {
		must(b, h.Begin(b.Context(), s.session(byte(n), n)))
		r := s.reporter(byte(n), n)
		for range each {
			receipts[n] = append(receipts[n], next(b, r, 8))
		}
	}
	sign := signatureTime(b, receipts[0][0])
	fsync := bareFsync(b, dir)
	before := h.file.w.groups.Load()
	took := make([][]time.Duration, writers)
	var failed atomic.Pointer[error]
	b.ResetTimer()
	start := time.Now()
	var wg sync.WaitGroup
	for n, list := range receipts {
		wg.Go(func() {
			for _, signed := range list {
				began := time.Now()
				g, err := h.Receive(context.Background(), Item{Grant: s.grant, Report: signed})
				if err != nil || g.Refused != "" {
					failed.Store(&err)
					return
				}
				took[n] = append(took[n], time.Since(began))
			}
		})
	}
	wg.Wait()
	wall := time.Since(start)
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/wall.Seconds(), "receipts/s")
	b.ReportMetric(quantile(all, 50), "p50-ms")
	b.ReportMetric(quantile(all, 99), "p99-ms")
	b.ReportMetric(quantile(fsync, 50), "fsync-p50-ms")
	b.ReportMetric(quantile(fsync, 99), "fsync-p99-ms")
	b.ReportMetric(float64(len(all))/float64(h.file.w.groups.Load()-before), "receipts/commit")
	b.ReportMetric(float64(sign.Microseconds()), "signature-us")
	b.ReportMetric(100*float64(sign)*float64(len(all))/float64(wall), "signatures-%-of-a-core")
}

// quantile of sorted times, in milliseconds.
func quantile(sorted []time.Duration, percent int) float64 {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].Seconds() * 1000
}

// signatureTime is how long it takes one core to check a signature.
func signatureTime(b *testing.B, signed []byte) time.Duration {
	b.Helper()
	const times = 200
	start := time.Now()
	for range times {
		_, err := Verify(signed)
		must(b, err)
	}
	return time.Since(start) / times
}

// bareFsync is how long a write of a page and its fsync take in a folder, alone on the disk; sorted.
func bareFsync(b *testing.B, dir string) (all []time.Duration) {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "fsync"))
	must(b, err)
	page := make([]byte, 4096)
	for range 200 {
		start := time.Now()
		_, err := f.Write(page)
		must(b, err)
		must(b, f.Sync())
		all = append(all, time.Since(start))
	}
	must(b, f.Close())
	slices.Sort(all)
	return all
}

// BenchmarkDurableCredits is the gateway's side: it reads receipts from a feed, page by page, and credits them.
func BenchmarkDurableCredits(b *testing.B) {
	s := newSwarm(b, writersOfBench)
	w := openWallet(b, filepath.Join(b.TempDir(), "wallet.db"), s)
	var feed memory
	reporters := make([]*Reporter, writersOfBench)
	for n := range reporters {
		reporters[n] = NewReporter(s.backbone, Subject{Session: SessionID{byte(n)}, Worker: s.workers[n], Hidden: 3072})
	}
	for i := range max(b.N, PageMax) {
		feed = append(feed, Entry{ID: int64(i + 1), Grant: s.grant.String(),
			Report: nextAudited(b, reporters[i%writersOfBench], 8, Audit{Mode: Sampled, Holds: int64(i / writersOfBench)})})
	}
	b.ResetTimer()
	start := time.Now()
	sum, err := w.Poll(b.Context(), "hub", feed)
	must(b, err)
	b.ReportMetric(float64(sum.Credited)/time.Since(start).Seconds(), "receipts/s")
}
