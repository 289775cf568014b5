package origin

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"listedge/origin/postgres"
)

// NameOrder is the order of lists by name. The alias is for packages that must not import
// origin/postgres.
type NameOrder = postgres.NameOrder

// Shown is the part of a list that a page shows. It begins at the query's position. With
// it one can decide which changes of rows do not change the page.
type Shown struct {
	IDs   []uuid.UUID // of the page's rows and of the first row after them, if there is one
	End   Position    // directly after that row; not Set = the list ends with the page
	Names *NameOrder  // of the server that the page was read from, if the list is by name; nil = not known
}

// showing collects Shown while a page is read.
type showing struct {
	ids     []uuid.UUID
	end     Position
	unknown bool
}

// add adds one of the page's rows. The row has been encoded, so it is well-formed. If its
// created_at has microseconds, which the page's text does not show, the page's extent is
// unknown: PositionAfterRow would be wrong. Only an altered schema has such values.
func (s *showing) add(row []byte, sort Sort) {
	s.addID(row)
	s.unknown = s.unknown || sort == ByCreatedAt && positionAfter(row, sort).CreatedAt%1000 != 0
}

func (s *showing) addID(row []byte) {
	id, _, _ := cutValue(row)
	s.ids = append(s.ids, uuid.UUID(id))
}

// endBefore adds the first row after the page. The row has not been encoded, so it is
// checked here.
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
