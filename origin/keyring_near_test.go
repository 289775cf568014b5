package origin

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime"
)

// crowdedHash is found near in one of four lines, by one of eight tags.
func crowdedHash(n int) (h KeyHash) {
	h[0], h[4] = byte(n%4), byte(n%8)
	binary.BigEndian.PutUint16(h[2:], uint16(n))
	return h
}

// placeOf is what stands for the text of a key that is no more than its hash.
func placeOf(hash KeyHash) KeyPlace { return KeyPlace(hash.beginning()) }

// Whatever is looked up, changed and forgotten meanwhile: what is found without
// a lock is what the key's shard has.
func TestNearKeysAreThoseOfTheShards(t *testing.T) {
	const keys = 64 // in four lines
	table := newKeyTable(0)
	r := NewKeyring(table.lookup, func(Key, *int, *int) {}, time.Hour, boottime.New())
	defer r.Close()

	var running sync.WaitGroup
	for w := range 4 {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range 4000 {
				hash := crowdedHash(random.IntN(keys))
				switch random.IntN(8) {
				case 0:
					table.change(func(s *keyTable) {
						if delete(s.keys, hash); random.IntN(2) == 0 {
							s.keys[hash] = Key{ID: uuid.New()}
						}
					})
					_ = r.update([]KeyHash{hash})
				case 1: // nobody writes the shard, and so nobody takes its keys away
					s := r.shard(hash)
					s.mu.RLock()
					line, _ := r.near.Load().line(placeOf(hash))
					known := s.at(hash)
					for way := range line.keys {
						if near := line.keys[way].Load(); near != nil && near.hash == hash && near != known {
							t.Errorf("found: %v, known: %v", near, known)
						}
					}
					s.mu.RUnlock()
				default:
					if k := r.Known(hash, placeOf(hash), time.Now()); k != nil && k.hash != hash {
						t.Errorf("asked for %x, found %x", hash, k.hash)
					}
				}
			}
		})
	}
	running.Wait()

	known := 0
	for n := range keys {
		hash := crowdedHash(n)
		want, is := table.keys[hash]
		if _ = r.update([]KeyHash{hash}); is {
			known++
		}
		if k := r.Known(hash, placeOf(hash), time.Now()); (k != nil) != is || k != nil && k.Key.ID != want.ID {
			t.Errorf("%v, want %v", k, want)
		}
	}
	if is := r.Stats().Known; is != known || known == 0 {
		t.Errorf("%d keys known, want %d", is, known)
	}
}

// Keys that lie in one place, which their tags then do not tell apart, are all
// found near.
func TestKeysOfOnePlaceAreAllFoundNear(t *testing.T) {
	table := newKeyTable(nearWays)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		const place = KeyPlace(7)
		for n := range nearWays {
			if _, err := r.Load(t.Context(), hashNumber(n)); err != nil {
				t.Fatal(err)
			}
			if r.Known(hashNumber(n), place, time.Now()) == nil {
				t.Fatalf("key %d is not known", n)
			}
		}
		for n := range nearWays {
			if k := r.near.Load().at(place, hashNumber(n)); k == nil || k.hash != hashNumber(n) {
				t.Errorf("key %d is not found near", n)
			}
		}
	})
}

// However many keys there are, nearly all that are asked for are found without
// a lock; and those that were forgotten are kept by nobody.
func TestNearKeysGrowWithTheKeys(t *testing.T) {
	const keys = 5000
	table := newKeyTable(0)
	hashes := make([]KeyHash, keys)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range hashes {
		for j := range hashes[i] {
			hashes[i][j] = byte(random.Uint32())
		}
		table.keys[hashes[i]] = Key{ID: number(i)}
	}
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		lookUpAll := func() {
			t.Helper()
			for some := range slices.Chunk(hashes, lookupBatch) {
				if err := r.update(some); err != nil {
					t.Fatal(err)
				}
			}
		}
		lookUpAll()
		for range 10 { // each doubling begins empty
			for _, hash := range hashes {
				r.Known(hash, placeOf(hash), time.Now())
			}
		}
		found := 0
		for _, hash := range hashes {
			if r.near.Load().at(placeOf(hash), hash) != nil {
				found++
			}
		}
		if lines := len(r.near.Load().lines); found < keys*95/100 || lines > keys {
			t.Errorf("%d of %d keys are found near, in %d lines", found, keys, lines)
		}
		table.change(func(s *keyTable) { clear(s.keys) })
		lookUpAll()
		near := r.near.Load()
		for i := range near.lines {
			for way := range near.lines[i].keys {
				if k := near.lines[i].keys[way].Load(); k != nil {
					t.Fatalf("%x is kept", k.hash)
				}
			}
		}
		if is := r.Stats().Known; is != 0 {
			t.Errorf("%d keys known", is)
		}
	})
}
