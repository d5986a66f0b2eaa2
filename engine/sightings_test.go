package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func openSeen(t *testing.T, h Home, now *time.Time) *sightings {
	t.Helper()
	s, err := openSightings(h, seal.Hub, func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSightingsAreWrittenOnceAMinute(t *testing.T) {
	h, now := Home(t.TempDir()), time.Unix(1_800_000_000, 0)
	id, key := seal.TokenID{1}, seal.NewKey().Public()
	s := openSeen(t, h, &now)
	for range 90 { // seconds
		s.note(id, key, Joined, "192.0.2.1")
		now = now.Add(time.Second)
	}
	if s.lines != 2 {
		t.Errorf("%d lines in 90 seconds", s.lines)
	}
	list, err := h.sightings()
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if g := list[0]; g.Times != 61 || g.First.Unix() != 1_800_000_000 || g.Last.Unix() != 1_800_000_060 || g.From != "192.0.2.1" {
		t.Errorf("%+v", g)
	}
	// The next process counts on.
	s = openSeen(t, h, &now)
	s.note(id, key, Joined, "")
	if list, err = h.sightings(); err != nil || len(list) != 1 || list[0].Times != 62 || list[0].From != "" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestStrangersCannotFillTheMemory has a stranger with a copied token draw key after key.
func TestStrangersCannotFillTheMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty thousand keys are made, by one goroutine")
	}
	h, now := Home(t.TempDir()), time.Unix(1_800_000_000, 0)
	s := openSeen(t, h, &now)
	for range 10_000 {
		now = now.Add(time.Millisecond)
		s.note(seal.TokenID{1}, seal.NewKey().Public(), RefusedUsed, "198.51.100.7")
	}
	now = now.Add(2 * noteEvery)
	s.note(seal.TokenID{1}, seal.NewKey().Public(), RefusedUsed, "198.51.100.7")
	list, err := h.sightings()
	if err != nil || len(list) != keysSeen+1 || len(s.seen) != keysSeen+1 {
		t.Fatalf("%d sightings, %d on the disk, %v", len(s.seen), len(list), err)
	}
	if g := list[keysSeen]; !g.Key.IsZero() || g.Times != 10_001-keysSeen {
		t.Errorf("the others: %+v", g)
	}
	// And with more tokens than there is room for.
	for i := range maxSeen + 100 {
		s.note(seal.TokenID{2, byte(i), byte(i >> 8), byte(i >> 16)}, seal.PublicKey{1}, Joined, "")
	}
	if len(s.seen) != maxSeen {
		t.Errorf("%d sightings", len(s.seen))
	}
}

func TestTheFileOfSightingsStaysSmall(t *testing.T) {
	h, now := Home(t.TempDir()), time.Unix(1_800_000_000, 0)
	s := openSeen(t, h, &now)
	key := seal.NewKey().Public()
	for range 3000 {
		now = now.Add(noteEvery)
		s.note(seal.TokenID{1}, key, Joined, "192.0.2.1")
	}
	text, err := os.ReadFile(filepath.Join(string(h), "hub.seen"))
	if err != nil || bytes.Count(text, []byte("\n")) > 1010 {
		t.Errorf("%d lines, %v", bytes.Count(text, []byte("\n")), err)
	}
	if list, err := h.sightings(); err != nil || len(list) != 1 || list[0].Times != 3000 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestSightingsThatMakeNoSenseAreSkipped(t *testing.T) {
	h, now := Home(t.TempDir()), time.Unix(1_800_000_000, 0)
	s := openSeen(t, h, &now)
	s.note(seal.TokenID{1}, seal.NewKey().Public(), Joined, "192.0.2.1")
	path := filepath.Join(string(h), "hub.seen")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(good) - 12 { // less than the last field
		text := append(append(bytes.Clone(good), good[:cut]...), '\n')
		if err := os.WriteFile(path, append(text, good...), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := h.sightings(); err != nil || len(list) != 1 || list[0].From != "192.0.2.1" {
			t.Fatalf("cut at %d: %+v, %v", cut, list, err)
		}
	}
}

// What both the hub and the backbone of a home have seen is told once.
func TestSightingsOfHubAndBackboneAreOne(t *testing.T) {
	h, now := Home(t.TempDir()), time.Unix(1_800_000_000, 0)
	key := seal.NewKey().Public()
	for role, from := range map[seal.Role]string{seal.Backbone: "", seal.Hub: "192.0.2.1"} {
		s, err := openSightings(h, role, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		s.note(seal.TokenID{1}, key, Joined, from)
	}
	if list, err := h.sightings(); err != nil || len(list) != 1 || list[0].From != "192.0.2.1" {
		t.Errorf("%+v, %v", list, err)
	}
}
