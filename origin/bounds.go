package origin

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"listedge/origin/postgres"
)

// Bounds of what one row and one page can hold. Without them a row of a
// gigabyte, which Postgres takes, would be read, encoded and cached whole.

// The schema refuses rows beyond these two bounds (migration 8), as imports do.
// Rows that are older than that migration may be larger.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // of a number, before the point and after it: as many as numeric(p, s) can be declared with
)

const (
	// maxPage, in bytes, is where a page ends before its limit. Its first row may
	// be larger: a walk gets past every row that can be read. The widest row that
	// the schema takes is 2 MB of JSON.
	maxPage = 4 << 20
	// keepBuffer, in bytes: larger buffers are not kept for the next page.
	keepBuffer = 1 << 20
)

// nameLongRow says which row it was.
func nameLongRow(q *Query, err error) error {
	long := (*postgres.LongRowError)(nil)
	if !errors.As(err, &long) {
		return err
	}
	var id uuid.UUID
	if _, row, err := cutSeen(long.Head, len(q.Collection.listed())); err == nil {
		v, _, _ := cutValue(row)
		copy(id[:], v)
	}
	return fmt.Errorf("%w: %s of workspace %s, id %s, has %d bytes", ErrRowTooLong, q.Collection, q.Workspace, id, long.Size)
}
