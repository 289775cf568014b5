//go:build !race

package origin

import (
	"math/rand/v2"
	"testing"

	"listedge/internal/lists"
)

// The race detector allocates on its own account, hence the build tag.

func TestEncodingIntoRoomAllocatesNothing(t *testing.T) {
	columns := lists.Contacts.Listed()
	row := randomRow(rand.New(rand.NewPCG(1, 1)), columns).sent
	room, err := appendRow(nil, columns, row)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = appendRow(room[:0], columns, row) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
