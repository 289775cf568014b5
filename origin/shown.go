package origin

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"listedge/origin/postgres"
)

// NameOrder is the order of lists by name: packages that show pages know of no Postgres.
type NameOrder = postgres.NameOrder

// Shown is the part of a list that a page shows, from the query's position on: by it
// one can tell which changes of rows leave the page as it is.
type Shown struct {
	IDs   []uuid.UUID // of the page's rows, and of the first row behind them if there is one
	End   Position    // right behind that one; not Set = the list ends with the page
	Names *NameOrder  // of the server that the page is from, if the list is by name; nil = not known
}

// showing is what a page shows while it is read.
type showing struct {
	ids     []uuid.UUID
	end     Position
	unknown bool
}

// add notes one of the page's rows, which is encoded already. Its text does not say all
// of a created_at that has microseconds, as one has whose column's type was changed: such
// a page must not be joined by its text (PositionAfterRow).
func (s *showing) add(row []byte, sort Sort) {
	s.addID(row)
	s.unknown = s.unknown || sort == ByCreatedAt && positionAfter(row, sort).CreatedAt%1000 != 0
}

func (s *showing) addID(row []byte) {
	id, _, _ := cutValue(row)
	s.ids = append(s.ids, uuid.UUID(id))
}

// endBefore notes the first row behind the page. Nobody has looked at it before.
func (s *showing) endBefore(row []byte, sort Sort) {
	const created = 4 + 8 // the last value
	id, rest, err := cutValue(row)
	if err != nil || len(id) != len(uuid.UUID{}) || len(rest) < created || binary.BigEndian.Uint32(rest[len(rest)-created:]) != 8 {
		s.unknown = true
		return
	}
	s.addID(row)
	s.end = positionAfter(row, sort)
	s.unknown = s.unknown || sort == ByCreatedAt && (s.end.CreatedAt < minCreatedAt || s.end.CreatedAt >= maxCreatedAt)
}

// shown returns what the page shows; nil if that is not known.
func (s *showing) shown() *Shown {
	if s.unknown {
		return nil
	}
	return &Shown{IDs: slices.Clone(s.ids), End: s.end}
}
