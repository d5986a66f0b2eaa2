package slices

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/kernels/quant"
	"kvasir/wire"
)

// The process that is killed: it fetches from a model file and ends without a word after some requests.
const (
	killModel = "KVASIR_TEST_KILL_MODEL"
	killCache = "KVASIR_TEST_KILL_CACHE"
	killAfter = "KVASIR_TEST_KILL_AFTER"
)

// killKind has more requests than the kills let through.
var killKind = kind{quant.Q8_0, quant.Q8_0, 512, 800, 12, false}

func TestKilledProcess(t *testing.T) {
	if os.Getenv(killModel) == "" {
		t.Skip("it is a part of TestGetGoesOnAfterTheProcessWasKilled")
	}
	f, err := gguf.Open(os.Getenv(killModel))
	if err != nil {
		t.Fatal(err)
	}
	s := source(t, f, 1)
	x := offered(t, s, 0, 0, killKind.experts)
	after, err := strconv.Atoi(os.Getenv(killAfter))
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	from := func(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error) {
		if n.Add(1) > int64(after) {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			t.Error(err) // else it is not reached
		}
		return s.Read(ctx, h, off, dst)
	}
	c, err := OpenCache(os.Getenv(killCache), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Get(context.Background(), x, from, GetOptions{Window: 1})
	t.Errorf("the process was not killed: %v", err)
}

// A process that is killed leaves the lock, and what it had fetched; each goes on where the one before
// was killed.
func TestGetGoesOnAfterTheProcessWasKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Skipf("the test does not know its own program: %v", err)
	}
	path, dir := write(t, killKind), t.TempDir()
	s := source(t, open(t, path), 1)
	x := offered(t, s, 0, 0, killKind.experts)
	want := bundleOf(t, s, x)
	for _, after := range []int{0, 2, 3, 4, 4} {
		q := exec.Command(self, "-test.run=^TestKilledProcess$", "-test.v")
		q.Env = append(os.Environ(), killModel+"="+path, killCache+"="+dir, killAfter+"="+strconv.Itoa(after))
		out, err := q.CombinedOutput()
		if err == nil || bytes.Contains(out, []byte("FAIL")) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := &reader{bundle: want}
	b := get(t, cache(t, dir, 0), x, r.read, GetOptions{})
	if !bytes.Equal(b.mapping.Bytes(), want) {
		t.Error("other bytes")
	}
	if n := r.bytes.Load(); n > b.Bytes()*2/3 {
		t.Errorf("%d of %d bytes were fetched after five kills", n, b.Bytes())
	}
}
