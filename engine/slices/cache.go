package slices

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"kvasir/wire"
)

const (
	partSuffix = ".part"  // of a bundle that is not complete
	indexName  = "index"  // what is known of the bundles, see indexEntry
	lockName   = "lock"   // held while a process uses the folder
	maxEntries = 1 << 16  // files in the folder that are looked at
	maxIndex   = 32 << 20 // bytes
	maxTries   = 3        // times that a file which another removes is made anew
	dirMode    = 0o700    // weights may be nobody else's business
	fileMode   = 0o600
	allOfIt    = 1<<63 - 1 // bytes: no limit
)

// Cache keeps bundles on disk, one file each, named by the hash of the slice; one that is not complete
// ends in .part. It is safe for concurrent use by one process.
type Cache struct {
	dir   string
	limit int64
	lock  *os.File
	free  func(dir string) (uint64, error) // bytes that may still be written

	mu      sync.Mutex
	entries map[wire.Hash]*entry // under mu
	clock   uint64               // counts uses; under mu
	saving  sync.Mutex           // held while the index is written; locked before mu
}

// errLocked: another process has the lock.
var errLocked = errors.New("locked")

// entry is a file of the cache.
type entry struct {
	slice   wire.Slice
	size    int64 // bytes on disk, or that there will be
	mtime   int64 // of a complete file, when its content was compared with its hashes
	used    uint64
	whole   bool
	checked bool          // as far as size and mtime tell
	pins    int           // who uses it: it stays
	stuck   bool          // the system refuses to remove it
	owed    int64         // bytes that are yet to be written
	turn    chan struct{} // held by who gets it
}

// indexEntry is what the index keeps of a complete bundle. The index is a help: without it bundles are
// compared with their hashes before they are used, and the order in which they were used is lost.
type indexEntry struct {
	Hash  string `json:"hash"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // nanoseconds
	Used  uint64 `json:"used"`
}

// OpenCache opens a folder, or makes it, for at most limit bytes of bundles; 0 means no limit. One
// process uses a folder at a time: another gets ErrLocked.
func OpenCache(dir string, limit int64) (*Cache, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, dirMode); err != nil { // it may have been there
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		_ = lock.Close() // nothing was written
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("%w: %s; stop it, or give this one another", ErrLocked, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if limit <= 0 {
		limit = allOfIt
	}
	c := &Cache{dir: dir, limit: limit, lock: lock, free: freeSpace, entries: map[wire.Hash]*entry{}}
	if err := c.scan(); err != nil {
		_ = lock.Close() // here too
		return nil, err
	}
	return c, nil
}

// Close lets another process use the folder. Bundles that are open stay good.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lock.Close()
}

func (c *Cache) path(h wire.Hash) string { return filepath.Join(c.dir, hex.EncodeToString(h[:])) }

// scan looks at what is in the folder.
func (c *Cache) scan() error {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	known := c.readIndex()
	for _, f := range list {
		text, part := strings.CutSuffix(f.Name(), partSuffix)
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(wire.Hash{}) || text != strings.ToLower(text) || !f.Type().IsRegular() {
			continue // not ours
		}
		info, err := f.Info()
		if err != nil || len(c.entries) == maxEntries {
			continue
		}
		h := wire.Hash(raw)
		if old := c.entries[h]; old != nil && old.whole {
			_ = os.Remove(c.path(h) + partSuffix) // a leftover of before it was complete
			continue
		}
		e := &entry{size: info.Size(), whole: !part, turn: make(chan struct{}, 1)}
		if e.whole {
			k := known[text]
			e.used, e.mtime = k.Used, info.ModTime().UnixNano()
			c.clock = max(c.clock, k.Used)
			s, err := headOf(c.path(h), h)
			e.slice, e.checked = s, err == nil && k.Size == e.size && k.Mtime == e.mtime
		}
		e.slice.Hash = h
		c.entries[h] = e
	}
	return nil
}

// headOf reads which slice a file holds.
func headOf(path string, h wire.Hash) (wire.Slice, error) {
	f, err := os.Open(path)
	if err != nil {
		return wire.Slice{}, err
	}
	defer f.Close() //nolint:errcheck // read-only
	head, err := readHead(f)
	if err != nil {
		return wire.Slice{}, err
	}
	if head.hash() != h {
		return wire.Slice{}, ErrDamaged
	}
	return wire.Slice{Layer: head.layer, Lo: head.lo, Hi: head.hi, Hash: h}, nil
}

// readHead reads the head at the beginning of a file.
func readHead(f *os.File) (*head, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(int64(maxHead), info.Size()))
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return parseHead(b)
}

func (c *Cache) readIndex() map[string]indexEntry {
	known := map[string]indexEntry{}
	path := filepath.Join(c.dir, indexName)
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxIndex {
		return known
	}
	text, err := os.ReadFile(path)
	var list []indexEntry
	if err != nil || json.Unmarshal(text, &list) != nil {
		return known
	}
	for _, e := range list {
		known[e.Hash] = e
	}
	return known
}

// save writes the index. A disk that refuses costs a look at the bundles after the next start, no more.
func (c *Cache) save() {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	var list []indexEntry
	for h, e := range c.entries {
		if e.whole && e.checked {
			list = append(list, indexEntry{hex.EncodeToString(h[:]), e.size, e.mtime, e.used})
		}
	}
	c.mu.Unlock()
	text, err := json.Marshal(list)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	_ = replaceFile(filepath.Join(c.dir, indexName), text)
}

// Held returns the slices that are complete, and that nobody has touched since they were compared with
// their hashes; those used last come first. Their exponents are not said.
func (c *Cache) Held() []wire.Slice {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*entry
	for _, e := range c.entries {
		if e.whole && e.checked {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		if a.used != b.used {
			return int(min(max(int64(b.used-a.used), -1), 1))
		}
		return slices.Compare(a.slice.Hash[:], b.slice.Hash[:])
	})
	held := make([]wire.Slice, len(list))
	for i, e := range list {
		held[i] = e.slice
	}
	return held
}

// Bytes returns how much of the limit is taken.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes()
}

func (c *Cache) bytes() (n int64) {
	for _, e := range c.entries {
		n += e.size
	}
	return n
}

// enter pins the entry of a slice and waits until nobody else gets it.
// The caller ends the wait of others by taking from turn, and the pin by unpin.
func (c *Cache) enter(ctx context.Context, h wire.Hash) (*entry, error) {
	c.mu.Lock()
	e := c.entries[h]
	if e == nil {
		if len(c.entries) >= maxEntries {
			c.mu.Unlock()
			return nil, fmt.Errorf("%w: %d files are in %s; remove some", ErrRoom, maxEntries, c.dir)
		}
		e = &entry{turn: make(chan struct{}, 1)}
		e.slice.Hash = h
		c.entries[h] = e
	}
	e.pins++
	c.clock++
	e.used = c.clock
	c.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		return e, nil
	case <-ctx.Done():
		c.unpin(h, e)
		return nil, context.Cause(ctx)
	}
}

func (c *Cache) unpin(h wire.Hash, e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.pins--; e.pins == 0 && !e.whole && e.size == 0 && c.entries[h] == e {
		delete(c.entries, h)
		_ = remove(c.path(h) + partSuffix) // which is empty
	}
}

// reserve makes room for an entry to have size bytes, of which have are on disk already. Nothing is
// removed in vain.
func (c *Cache) reserve(e *entry, size, have int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	former := e.size
	e.size, e.owed = size, max(0, size-have)
	var inUse, owed, rest int64
	for _, x := range c.entries {
		owed += x.owed
		if x.pins > 0 || x.stuck {
			inUse += x.size
		} else {
			rest += x.size
		}
	}
	free, err := c.free(c.dir)
	switch {
	case err != nil:
		err = fmt.Errorf("free space of %s: %w", c.dir, err)
	case inUse > c.limit:
		err = fmt.Errorf("%w: %d bytes, with those in use, exceed the limit of %d for %s; raise it", ErrRoom, inUse, c.limit, c.dir)
	case owed > rest && uint64(owed-rest) > free:
		err = fmt.Errorf("%w: %d bytes to come, and the disk of %s has %d free; make room", ErrRoom, owed, c.dir, free)
	}
	for err == nil && (inUse+rest > c.limit || uint64(owed) > free) {
		n, evicted := c.evict()
		rest -= n
		free += uint64(n)
		if !evicted {
			err = fmt.Errorf("%w: %s has bundles that cannot be removed", ErrRoom, c.dir)
		}
	}
	if err != nil {
		e.size, e.owed = former, 0
	}
	return err
}

// evict removes the bundle that was not used for longest, and returns its size, and whether there was one.
// Under mu.
func (c *Cache) evict() (size int64, evicted bool) {
	for {
		var oldest *entry
		for _, e := range c.entries {
			if e.pins == 0 && !e.stuck && (oldest == nil || e.used < oldest.used) {
				oldest = e
			}
		}
		if oldest == nil {
			return 0, false
		}
		h := oldest.slice.Hash
		if errors.Join(remove(c.path(h)), remove(c.path(h)+partSuffix)) != nil {
			oldest.stuck = true // it would be so again
			continue
		}
		delete(c.entries, h)
		return oldest.size, true
	}
}

// Remove takes a slice out of the cache, unless it is in use.
func (c *Cache) Remove(h wire.Hash) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[h]
	if e == nil {
		return nil
	}
	if e.pins > 0 {
		return fmt.Errorf("%s is in use", name(e.slice))
	}
	delete(c.entries, h)
	return errors.Join(remove(c.path(h)), remove(c.path(h)+partSuffix))
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
