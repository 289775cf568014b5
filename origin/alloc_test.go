//go:build !race

package origin

import (
	"math/rand/v2"
	"testing"

	"listedge/internal/lists"
)

// The race detector allocates on its own account, hence the build tag.

func TestEncodingIntoRoomAllocatesNothing(t *testing.T) {
	row := randomRow(rand.New(rand.NewPCG(1, 1)), lists.Items.Listed()).sent
	room := must1(lists.Items.AppendText(nil, row))
	if n := testing.AllocsPerRun(1000, func() { _, _ = lists.Items.AppendText(room[:0], row) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
