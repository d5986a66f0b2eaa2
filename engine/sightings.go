package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// Sight is what became of who has shown a token.
type Sight uint8

// Sights.
const (
	Joined         Sight = iota // it was let in
	RefusedUsed                 // other keys had used the token up
	RefusedRevoked              // the token was revoked
	RefusedOther                // for another reason, such as a full disk
)

var sights = [...]string{Joined: "joined", RefusedUsed: "used_up", RefusedRevoked: "revoked", RefusedOther: "refused"}

// String returns the word that stands in files and in JSON.
func (s Sight) String() string { return sights[s] }

func sightOf(err error) Sight {
	switch {
	case err == nil:
		return Joined
	case errors.Is(err, seal.ErrTokenUsed):
		return RefusedUsed
	case errors.Is(err, seal.ErrTokenRevoked):
		return RefusedRevoked
	}
	return RefusedOther
}

// Sighting is that a key has shown a token at this home's hub, or was paired with its backbone.
type Sighting struct {
	Token seal.TokenID
	Key   seal.PublicKey // zero: keys beyond those that are told apart
	Sight Sight
	First time.Time
	Last  time.Time
	Times uint64 // since First; one that came within a minute before the process ended may be missing
	From  string // where the last came from; empty: not known
}

// Bounds of what is remembered. A stranger with a copied token makes keys as he likes.
const (
	keysSeen  = 64      // keys told apart, for a token and a Sight
	maxSeen   = 1 << 14 // sightings in all
	noteEvery = time.Minute
)

// sightings are those of one role in a home, which that role's process alone writes. A line of the file is
// one sighting; the last line of a key counts:
//
//	TOKEN KEY SIGHT FIRST LAST TIMES FROM
//
// Times are Unix seconds; KEY and FROM may be -. It is for people to look at: an error in writing it keeps
// nobody out.
type sightings struct {
	path string
	now  func() time.Time

	mu    sync.Mutex
	seen  map[sightKey]*sightNote
	keys  map[sightKey]int // told apart; Key is zero
	lines int              // of the file
}

type sightKey struct {
	token seal.TokenID
	sight Sight
	key   seal.PublicKey
}

type sightNote struct {
	Sighting
	written time.Time // when it was last put into the file
}

// sightingsFile is where the hub or the backbone of a home writes.
func (h Home) sightingsFile(role seal.Role) (string, error) { return h.path(role.String() + ".seen") }

func openSightings(h Home, role seal.Role, now func() time.Time) (*sightings, error) {
	path, err := h.sightingsFile(role)
	if err != nil {
		return nil, err
	}
	s := &sightings{path: path, now: now, seen: map[sightKey]*sightNote{}, keys: map[sightKey]int{}}
	list, lines, err := readSightings(path)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		s.enter(g)
	}
	s.lines = lines
	return s, nil
}

func (s *sightings) enter(g Sighting) *sightNote {
	k := sightKey{g.Token, g.Sight, g.Key}
	n := &sightNote{Sighting: g}
	s.seen[k] = n
	k.key = seal.PublicKey{}
	s.keys[k]++
	return n
}

// note remembers that a key has shown a token, and writes it down once in a while.
func (s *sightings) note(id seal.TokenID, key seal.PublicKey, sight Sight, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := sightKey{id, sight, key}, s.now()
	n := s.seen[k]
	if n == nil && s.keys[sightKey{token: id, sight: sight}] >= keysSeen {
		k.key = seal.PublicKey{}
		n = s.seen[k]
	}
	if n == nil {
		if len(s.seen) >= maxSeen {
			return
		}
		n = s.enter(Sighting{Token: id, Key: k.key, Sight: sight, First: now})
	}
	n.Last, n.Times, n.From = now, n.Times+1, from
	if now.Sub(n.written) < noteEvery && now.After(n.written) {
		return
	}
	n.written = now
	_ = s.write(n.Sighting) // see the type
}

func (s *sightings) write(g Sighting) error {
	if s.lines >= 4*len(s.seen)+1000 {
		var text []byte
		for _, n := range s.seen {
			text = append(append(text, n.line()...), '\n')
		}
		s.lines = len(s.seen)
		return writeState(s.path, text)
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s.lines++
	_, err = f.WriteString(g.line() + "\n")
	return errors.Join(err, f.Close())
}

func (g Sighting) line() string {
	key, from := "-", "-"
	if !g.Key.IsZero() {
		key = g.Key.String()
	}
	if g.From != "" {
		from = g.From
	}
	return fmt.Sprintf("%v %s %v %d %d %d %s", g.Token, key, g.Sight, g.First.Unix(), g.Last.Unix(), g.Times, from)
}

// readSightings reads a file, and says how many lines it has. Lines that cannot be understood are skipped:
// nothing hangs on them.
func readSightings(path string) (list []Sighting, lines int, err error) {
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	at := map[sightKey]int{}
	for line := range strings.Lines(string(text)) {
		lines++
		g, ok := parseSighting(line)
		if !ok {
			continue
		}
		k := sightKey{g.Token, g.Sight, g.Key}
		if i, ok := at[k]; ok {
			list[i] = g
		} else if len(list) < maxSeen {
			at[k] = len(list)
			list = append(list, g)
		}
	}
	return list, lines, nil
}

func parseSighting(line string) (g Sighting, ok bool) {
	f := strings.Fields(line)
	if len(f) != 7 {
		return g, false
	}
	var err error
	if g.Token, err = seal.ParseTokenID(f[0]); err != nil {
		return g, false
	}
	if f[1] != "-" {
		if g.Key, err = seal.ParsePublicKey(f[1]); err != nil {
			return g, false
		}
	}
	sight := slices.Index(sights[:], f[2])
	first, err1 := strconv.ParseInt(f[3], 10, 64)
	last, err2 := strconv.ParseInt(f[4], 10, 64)
	times, err3 := strconv.ParseUint(f[5], 10, 64)
	if sight < 0 || errors.Join(err1, err2, err3) != nil || len(f[6]) > maxLine {
		return g, false
	}
	g.Sight, g.First, g.Last, g.Times = Sight(sight), time.Unix(first, 0), time.Unix(last, 0), times
	if f[6] != "-" {
		g.From = f[6]
	}
	return g, true
}

// sightings returns those of the hub and the backbone of this home, the first first. What both have seen
// is the hub's: it knows where a worker comes from.
func (h Home) sightings() (all []Sighting, err error) {
	at := map[sightKey]bool{}
	for _, role := range []seal.Role{seal.Hub, seal.Backbone} {
		path, err := h.sightingsFile(role)
		if err != nil {
			return nil, err
		}
		list, _, err := readSightings(path)
		if err != nil {
			return nil, err
		}
		for _, g := range list {
			if k := (sightKey{g.Token, g.Sight, g.Key}); !at[k] {
				at[k] = true
				all = append(all, g)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Sighting) int { return cmp.Compare(a.First.Unix(), b.First.Unix()) })
	return all, nil
}
