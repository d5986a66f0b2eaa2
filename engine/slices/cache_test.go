package slices

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kvasir/engine/experts"
	"kvasir/wire"
	"kvasir/wire/link"
)

// several are slices of one size, and who serves them.
func several(t testing.TB) (list []wire.Slice, from link.SliceReader, size int64) {
	t.Helper()
	s := source(t, open(t, write(t, smallKind)), 1)
	for lo := 0; lo < 8; lo += 2 {
		list = append(list, offered(t, s, 0, lo, lo+2))
	}
	return list, s.Read, int64(len(bundleOf(t, s, list[0])))
}

// fill gets slices and closes them.
func fill(t testing.TB, c *Cache, from link.SliceReader, list ...wire.Slice) {
	t.Helper()
	for _, x := range list {
		b, err := c.Get(context.Background(), x, from, GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCacheKeepsWhatWasUsedLast(t *testing.T) {
	list, from, size := several(t)
	dir := t.TempDir()
	c := cache(t, dir, 2*size+9)
	fill(t, c, from, list[0], list[1], list[0], list[2])
	if held, want := c.Held(), []wire.Slice{list[2], list[0]}; !slices.Equal(held, want) {
		t.Errorf("held: %v, want %v", held, want)
	}
	if n := c.Bytes(); n != 2*size {
		t.Errorf("%d bytes, want %d", n, 2*size)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = cache(t, dir, 2*size+9) // the order outlives the process
	if held, want := c.Held(), []wire.Slice{list[2], list[0]}; !slices.Equal(held, want) {
		t.Errorf("after a restart: %v, want %v", held, want)
	}
	fill(t, c, from, list[3])
	if held, want := c.Held(), []wire.Slice{list[3], list[2]}; !slices.Equal(held, want) {
		t.Errorf("held: %v, want %v", held, want)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 4 { // two bundles, index, lock
		t.Errorf("%v, %v", names, err)
	}
	if err := c.Remove(list[3].Hash); err != nil {
		t.Error(err)
	}
	if held := c.Held(); !slices.Equal(held, []wire.Slice{list[2]}) {
		t.Errorf("held after Remove: %v", held)
	}
}

func TestCacheNeverRemovesWhatIsInUse(t *testing.T) {
	list, from, size := several(t)
	c := cache(t, t.TempDir(), 2*size+9)
	a := get(t, c, list[0], from, GetOptions{})
	b := get(t, c, list[1], from, GetOptions{})
	_, err := c.Get(context.Background(), list[2], from, GetOptions{})
	if !errors.Is(err, ErrRoom) || !strings.Contains(err.Error(), "raise it") {
		t.Error(err)
	}
	if err := c.Remove(list[0].Hash); err == nil {
		t.Error("a bundle in use was removed")
	}
	if held := c.Held(); len(held) != 2 {
		t.Errorf("held: %v", held)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	fill(t, c, from, list[2])
	if held := c.Held(); !slices.Equal(held, []wire.Slice{list[2], list[0]}) {
		t.Errorf("held: %v", held)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCacheRemovesNothingInVain(t *testing.T) {
	list, from, size := several(t)
	c := cache(t, t.TempDir(), 3*size)
	fill(t, c, from, list[0], list[1])
	c.limit = size - 1
	if _, err := c.Get(context.Background(), list[2], from, GetOptions{}); !errors.Is(err, ErrRoom) {
		t.Error(err)
	}
	c.limit = 3 * size
	c.free = func(string) (uint64, error) { return 0, nil }
	defer func() { c.free = freeSpace }()
	large := source(t, open(t, write(t, largeKind)), 1)
	if _, err := c.Get(context.Background(), offered(t, large, 0, 0, 5), large.Read, GetOptions{}); !errors.Is(err, ErrRoom) {
		t.Errorf("a slice larger than what the disk could have: %v", err)
	}
	if held := c.Held(); len(held) != 2 {
		t.Errorf("held: %v", held)
	}
	// The two are room enough for another, and its marks.
	fill(t, c, from, list[2])
	if held := c.Held(); !slices.Equal(held, []wire.Slice{list[2]}) {
		t.Errorf("held: %v", held)
	}
}

func TestCacheIsForOneProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	c := cache(t, dir, 0)
	if _, err := OpenCache(dir, 0); !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = cache(t, dir, 0)
	_ = c
}

func TestCacheIsNobodyElses(t *testing.T) {
	if os.PathSeparator == '\\' {
		t.Skip("modes mean little on Windows")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // what is tested
		t.Fatal(err)
	}
	list, from, _ := several(t)
	c := cache(t, dir, 0)
	fill(t, c, from, list[0])
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != dirMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if info, err := n.Info(); err != nil || info.Mode().Perm() != fileMode {
			t.Errorf("%s: %v, %v", n.Name(), info.Mode(), err)
		}
	}
}

func TestCacheLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"notes.txt", strings.Repeat("ab", 31), strings.Repeat("AB", 32), "index.part"} {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("mine"), fileMode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, strings.Repeat("cd", 32)), dirMode); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, indexName), []byte(`[{"hash":3}]`), fileMode); err != nil {
		t.Fatal(err)
	}
	list, from, size := several(t)
	c := cache(t, dir, size+10)
	fill(t, c, from, list[0], list[1])
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 8 {
		t.Errorf("%v, %v", names, err)
	}
}

// touch changes a byte of a file, and its time unless that is to be hidden.
func touch(t testing.TB, path string, at int64, hide bool) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, fileMode); err != nil {
		t.Fatal(err)
	}
	then := info.ModTime()
	if !hide {
		then = then.Add(1e9)
	}
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

// A file that was changed is not offered, and the next Get fetches the one expert that is wrong.
func TestCacheFindsChangedFiles(t *testing.T) {
	x, bundle := slice(t, smallKind)
	h, err := parseHead(bundle)
	if err != nil {
		t.Fatal(err)
	}
	for _, hide := range []bool{false, true} {
		dir := t.TempDir()
		r := &reader{bundle: bundle}
		c := cache(t, dir, 0)
		fill(t, c, r.read, x)
		path := c.path(x.Hash)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		touch(t, path, h.expert(3)+5, hide)
		c = cache(t, dir, 0)
		if n := len(c.Held()); hide != (n == 1) {
			t.Errorf("hidden %v: %d held", hide, n)
		}
		r.bytes.Store(0)
		told := 0
		o := GetOptions{Damaged: func() { told++ }}
		b := get(t, c, x, r.read, o)
		if hide {
			if r.bytes.Load() != 0 {
				t.Error("a change was seen that was hidden")
			}
			_, err := Load([]*Bundle{b}, experts.Options{}, nil)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "expert 4") {
				t.Errorf("damaged weights were loaded: %v", err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if n := len(c.Held()); n != 0 {
				t.Error("what is damaged is offered")
			}
			b = get(t, c, x, r.read, o)
		}
		if n := r.bytes.Load(); n != h.stride || told != 1 {
			t.Errorf("hidden %v: %d bytes were fetched, an expert has %d; told %d times", hide, n, h.stride, told)
		}
		load(t, []*Bundle{b}, experts.Options{}, nil)
		if !bytes.Equal(b.mapping.Bytes(), bundle) || len(c.Held()) != 1 {
			t.Errorf("hidden %v: other bytes, or not held", hide)
		}
	}
}

func TestCacheVerifiesWhenTold(t *testing.T) {
	x, bundle := slice(t, smallKind)
	r := &reader{bundle: bundle}
	c := cache(t, t.TempDir(), 0)
	fill(t, c, r.read, x)
	touch(t, c.path(x.Hash), int64(len(bundle)-1), true)
	r.bytes.Store(0)
	if b := get(t, c, x, r.read, GetOptions{Verify: true}); !bytes.Equal(b.mapping.Bytes(), bundle) || r.bytes.Load() == 0 {
		t.Errorf("%d bytes fetched, and it is not right", r.bytes.Load())
	}
}

// Two who want one slice fetch it once.
func TestCacheFetchesASliceOnceAtATime(t *testing.T) {
	x, bundle := slice(t, smallKind)
	r := &reader{bundle: bundle}
	c := cache(t, t.TempDir(), 0)
	var wg sync.WaitGroup
	var open atomic.Int64
	for range 6 {
		wg.Go(func() {
			b, err := c.Get(context.Background(), x, r.read, GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			open.Add(1)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := r.bytes.Load(); open.Load() != 6 || n > int64(len(bundle))+1000 {
		t.Errorf("%d got it, with %d bytes of %d", open.Load(), n, len(bundle))
	}
}

// Who waits for another's fetch can stop waiting.
func TestCacheWaitEndsWithTheContext(t *testing.T) {
	x, bundle := slice(t, smallKind)
	r := &reader{bundle: bundle}
	c := cache(t, t.TempDir(), 0)
	began, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		fill(t, c, func(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error) {
			once.Do(func() { close(began) })
			<-goOn
			return r.read(ctx, h, off, dst)
		}, x)
	})
	<-began
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		if _, err := c.Get(ctx, x, r.read, GetOptions{}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(goOn)
	})
	cancel()
	wg.Wait()
}
