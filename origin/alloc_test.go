//go:build !race

package origin

import (
	"math/rand/v2"
	"testing"
	"time"

	"listedge/internal/boottime"
)

// The race detector allocates on its own account, hence the build tag.

func TestAKnownKeyAllocatesNothing(t *testing.T) {
	r := NewKeyring(newKeyTable(1).lookup, func(_ Key, _, made **int) { *made = new(int) }, time.Minute, boottime.New())
	defer r.Close()
	hash := hashNumber(0)
	if _, _, err := loadFrom(t.Context(), r, hash); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	known := true
	if n := testing.AllocsPerRun(1000, func() {
		_, _, ok := knownTo(r, hash, now)
		known = known && ok
	}); n != 0 || !known {
		t.Errorf("%v allocations, known: %v", n, known)
	}
}

func TestHashingAKeyAllocatesNothing(t *testing.T) {
	key := []byte(NewKey())
	wellFormed := true
	if n := testing.AllocsPerRun(1000, func() {
		_, ok := HashKey(key)
		wellFormed = wellFormed && ok
	}); n != 0 || !wellFormed {
		t.Errorf("%v allocations, well-formed: %v", n, wellFormed)
	}
}

func TestEncodingIntoRoomAllocatesNothing(t *testing.T) {
	columns := Contacts.listed()
	row := randomRow(rand.New(rand.NewPCG(1, 1)), columns).sent
	room, err := appendRow(nil, columns, row)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = appendRow(room[:0], columns, row) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
