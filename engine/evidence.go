package engine

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// Evidence is kept for keepEvidence, maxEvidence pieces of it at most.
const (
	keepEvidence = 90 * 24 * time.Hour
	maxEvidence  = 1000
)

// ErrConvicted: a worker of this key has answered wrong.
var ErrConvicted = errors.New("a row that this worker computed was found wrong")

// Court keeps who was convicted, and by what. The evidence holds rows of somebody's text: it is encrypted to
// the backbone's key (AES-256-GCM), and removed after 90 days. It is safe for concurrent use.
type Court struct {
	home   Home
	secret [32]byte
	now    func() time.Time
	mu     sync.Mutex // one writer

	lost      sync.Mutex  // after mu
	unwritten []unwritten // under lost
}

// unwritten is a conviction that the disk has refused. Its worker stays out all the same, and Retry writes it.
type unwritten struct {
	Conviction
	text []byte // the evidence; nil: it is on the disk, or there is too much
}

// Bounds of what waits for a disk that refuses: convictions, and pieces of evidence. The oldest are lost.
const (
	maxUnwritten = 1 << 12
	maxTexts     = 64
)

// OpenCourt opens what a home keeps of those that the backbone with this key has convicted. Without the key
// there is only who that is, and not the evidence.
func (h Home) OpenCourt(backbone seal.Key, now func() time.Time) *Court {
	c := &Court{home: h, now: now}
	if now == nil {
		c.now = time.Now
	}
	if !backbone.IsZero() {
		c.secret = backbone.Secret("evidence 1")
	}
	return c
}

// Convict keeps the evidence, the name and the token by which the worker came, if that is known, and returns the
// hash of the evidence. Of a worker that is convicted already the first piece is enough: else one with a thousand
// wrong rows would push out all others'.
func (c *Court) Convict(f audit.Finding, token seal.TokenID) (hash ledger.Hash, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all, err := c.Convicted(); err == nil {
		if i := slices.IndexFunc(all, func(v Conviction) bool { return v.Worker == f.Worker }); i >= 0 {
			return all[i].Evidence, nil
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		panic("BUG: " + err.Error()) // numbers and bytes
	}
	hash = sha256.Sum256(text)
	u := unwritten{Conviction{f.Worker, c.now(), hash, hashOfToken(token)}, text}
	if err = c.write(&u); err != nil {
		c.wait(u)
	}
	return hash, err
}

// write writes a conviction, and takes out what is written. c.mu is held.
func (c *Court) write(u *unwritten) error {
	var err error
	if u.text != nil {
		if err = c.keep(u.Evidence, u.text); err == nil {
			u.text = nil
		}
	}
	named, nerr := c.onDisk()
	if nerr == nil && !slices.ContainsFunc(named, func(v Conviction) bool { return v.Worker == u.Worker }) {
		nerr = c.name(u.Conviction)
	}
	return errors.Join(err, nerr)
}

// wait keeps a conviction until Retry.
func (c *Court) wait(u unwritten) {
	c.lost.Lock()
	defer c.lost.Unlock()
	c.unwritten = append(c.unwritten, u)
	if over := len(c.unwritten) - maxUnwritten; over > 0 {
		c.unwritten = slices.Delete(c.unwritten, 0, over)
	}
	texts := 0
	for i := len(c.unwritten) - 1; i >= 0; i-- {
		if c.unwritten[i].text != nil {
			if texts++; texts > maxTexts {
				c.unwritten[i].text = nil
			}
		}
	}
}

// waiting returns what the disk has refused.
func (c *Court) waiting() []unwritten {
	c.lost.Lock()
	defer c.lost.Unlock()
	return slices.Clone(c.unwritten)
}

// Retry writes what the disk has refused. It returns how many convictions have come to it.
func (c *Court) Retry() (written int, err error) {
	if len(c.waiting()) == 0 {
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var left []unwritten
	for _, u := range c.waiting() {
		if err == nil {
			err = c.write(&u)
		}
		if err != nil {
			left = append(left, u)
		} else {
			written++
		}
	}
	c.lost.Lock()
	defer c.lost.Unlock()
	c.unwritten = left // all who add hold c.mu
	return written, err
}

func aead(secret *[32]byte) cipher.AEAD {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic("BUG: " + err.Error()) // 32 bytes are a key
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("BUG: " + err.Error()) // AES has the block that GCM wants
	}
	return aead
}

// sealText seals a text under a name.
func sealText(secret *[32]byte, text, name []byte) []byte {
	aead := aead(secret)
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never returns an error
	return aead.Seal(nonce, nonce, text, name)
}

// errSealed: what is to be opened was not sealed so.
var errSealed = errors.New("sealed by another key, or damaged")

func openText(secret *[32]byte, sealed, name []byte) ([]byte, error) {
	aead := aead(secret)
	if len(sealed) < aead.NonceSize() {
		return nil, errSealed
	}
	text, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], name)
	if err != nil {
		return nil, errSealed
	}
	return text, nil
}

func (c *Court) keep(hash ledger.Hash, text []byte) error {
	dir, err := c.home.path("evidence")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	c.sweep(dir)
	return writeState(filepath.Join(dir, hex.EncodeToString(hash[:])), sealText(&c.secret, text, hash[:]))
}

// sweep removes what is too old, and the oldest where there is too much.
func (c *Court) sweep(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return // the next write says it
	}
	type file struct {
		name string
		at   time.Time
	}
	var files []file
	for _, e := range list {
		if info, err := e.Info(); err == nil && !e.IsDir() {
			files = append(files, file{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return a.at.Compare(b.at) })
	for i, f := range files {
		if c.now().Sub(f.at) > keepEvidence || len(files)-i >= maxEvidence {
			_ = os.Remove(filepath.Join(dir, f.name)) // tried again the next time
		}
	}
}

// Evidence returns what was kept under a hash.
func (c *Court) Evidence(hash ledger.Hash) (f audit.Finding, err error) {
	path, err := c.home.path(filepath.Join("evidence", hex.EncodeToString(hash[:])))
	if err != nil {
		return f, err
	}
	sealed, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("evidence: %w", err)
	}
	text, err := openText(&c.secret, sealed, hash[:])
	if err != nil {
		return f, fmt.Errorf("evidence: %s was %w", path, err)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("evidence: %s: %w", path, err)
	}
	return f, nil
}

// Conviction is that a worker is not let in any more.
type Conviction struct {
	Worker   seal.PublicKey
	At       time.Time
	Evidence ledger.Hash
	Token    ledger.Hash // of the id of the token by which it came: whoever has that is not let in either; zeros: not known
}

// hashOfToken is what is kept of a token, which is somebody's secret.
func hashOfToken(id seal.TokenID) ledger.Hash {
	if id == (seal.TokenID{}) {
		return ledger.Hash{}
	}
	return sha256.Sum256(append([]byte("convicted token 1 "), id[:]...))
}

// name adds a worker to those that are convicted.
func (c *Court) name(v Conviction) error {
	path, err := c.home.path("convicted")
	if err != nil {
		return err
	}
	return appendLine(path, v.line(), func(line string) bool { _, err := parseConviction(line); return err == nil })
}

// line is how the file has it. A version before this one knew no token.
func (v Conviction) line() string {
	return fmt.Sprintf("%s %d %x %x", v.Worker, v.At.Unix(), v.Evidence, v.Token)
}

func parseConviction(line string) (v Conviction, err error) {
	words := strings.Fields(line)
	if len(words) != 3 && len(words) != 4 {
		return v, errors.New("want a key, a time, a hash of evidence, and a hash of a token")
	}
	if v.Worker, err = seal.ParsePublicKey(words[0]); err != nil {
		return v, err
	}
	at, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return v, errors.New("no time")
	}
	v.At = time.Unix(at, 0).UTC()
	for i, h := range []*ledger.Hash{&v.Evidence, &v.Token}[:len(words)-2] {
		raw, err := hex.DecodeString(words[2+i])
		if err != nil || len(raw) != len(h) {
			return v, errors.New("no hash")
		}
		copy(h[:], raw)
	}
	return v, nil
}

// Convicted returns who was convicted, in the order of time, also what the disk has refused.
func (c *Court) Convicted() (all []Conviction, err error) {
	if all, err = c.onDisk(); err != nil {
		return nil, err
	}
	for _, u := range c.waiting() {
		if !slices.ContainsFunc(all, func(v Conviction) bool { return v.Worker == u.Worker }) {
			all = append(all, u.Conviction)
		}
	}
	return all, nil
}

// onDisk returns the convictions that are written.
func (c *Court) onDisk() (all []Conviction, err error) {
	path, err := c.home.path("convicted")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	valid := func(line string) bool { _, err := parseConviction(line); return err == nil }
	for i, line := range wholeLines(text, valid) {
		v, err := parseConviction(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w; mend the line, or remove it and its worker is let in again", path, i+1, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// Guilty reports whether a worker was convicted, and by which evidence.
func (c *Court) Guilty(worker seal.PublicKey) (evidence ledger.Hash, guilty bool) {
	all, err := c.Convicted()
	if err != nil {
		return ledger.Hash{}, false // Refuse says it
	}
	i := slices.IndexFunc(all, func(v Conviction) bool { return v.Worker == worker })
	if i < 0 {
		return ledger.Hash{}, false
	}
	return all[i].Evidence, true
}

// Refuse returns ErrConvicted for a worker that was convicted, and for one that comes by the token of such a
// worker: it may be the same one with another key.
func (c *Court) Refuse(worker seal.PublicKey, token seal.TokenID) error {
	all, err := c.Convicted()
	if err != nil {
		return err
	}
	const mercy = "who keeps the backbone has the evidence and can let it in again (kvasir ledger pardon)"
	hash := hashOfToken(token)
	for _, v := range all {
		if v.Worker == worker {
			return fmt.Errorf("%w on %s; %s", ErrConvicted, v.At.Format(time.DateOnly), mercy)
		}
	}
	for _, v := range all {
		if v.Token == hash && hash != (ledger.Hash{}) {
			return fmt.Errorf("%w, or one that came by the same token, on %s; ask for a token of your own, or %s",
				ErrConvicted, v.At.Format(time.DateOnly), mercy)
		}
	}
	return nil
}

// Pardon lets a worker in again, and its token; the evidence stays until it is too old.
func (c *Court) Pardon(worker seal.PublicKey) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost.Lock()
	c.unwritten = slices.DeleteFunc(c.unwritten, func(u unwritten) bool { return u.Worker == worker })
	c.lost.Unlock()
	all, err := c.onDisk()
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(v Conviction) bool { return v.Worker == worker })
	if len(kept) == len(all) {
		return fmt.Errorf("%s is not among those that were convicted here", worker.Short())
	}
	var text strings.Builder
	for _, v := range kept {
		fmt.Fprintln(&text, v.line())
	}
	path, err := c.home.path("convicted")
	if err != nil {
		return err
	}
	return writeState(path, []byte(text.String()))
}
