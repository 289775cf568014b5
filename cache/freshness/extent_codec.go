package freshness

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

var errExtent = errors.New("not an extent")

// Append appends the extent's encoding. Numbers are sizes in bytes:
//
//	order 1 | filter 1 | searched 1 | name order 4 | After | End | tags, 4 each
//
// A bound is its kind 1. If it is a position, there follow created_at 8, id 16, the
// length of the name key 1, and the name key.
func (e *Extent) Append(b []byte) []byte {
	searched := byte(0)
	if e.Searched {
		searched = 1
	}
	b = append(b, byte(e.Order), byte(e.Filter), searched)
	b = binary.BigEndian.AppendUint32(b, e.NameOrder)
	for _, bound := range []*Bound{&e.After, &e.End} {
		if b = append(b, byte(bound.Kind)); bound.Kind != At {
			continue
		}
		b = binary.BigEndian.AppendUint64(b, uint64(bound.CreatedAt))
		b = append(b, bound.ID[:]...)
		key := bound.NameKey
		if len(key) > math.MaxUint8 {
			key = "" // not known
		}
		b = append(append(b, byte(len(key))), key...)
	}
	for _, tag := range e.Tags {
		b = binary.BigEndian.AppendUint32(b, tag)
	}
	return b
}

// ParseExtent reads what Append wrote.
func ParseExtent(b []byte) (*Extent, error) {
	if len(b) < 3+4 || b[0] > byte(ByName) || b[2] > 1 {
		return nil, errExtent
	}
	e := &Extent{Order: Order(b[0]), Filter: changefeed.RowFlags(b[1]), Searched: b[2] == 1, NameOrder: binary.BigEndian.Uint32(b[3:])}
	b = b[3+4:]
	for _, bound := range []*Bound{&e.After, &e.End} {
		if len(b) < 1 || b[0] > byte(At) {
			return nil, errExtent
		}
		if bound.Kind, b = BoundKind(b[0]), b[1:]; bound.Kind != At {
			continue
		}
		const fixed = 8 + 16 + 1
		if len(b) < fixed || len(b) < fixed+int(b[fixed-1]) {
			return nil, errExtent
		}
		end := fixed + int(b[fixed-1])
		bound.CreatedAt, bound.ID = int64(binary.BigEndian.Uint64(b)), uuid.UUID(b[8:8+16])
		bound.NameKey, b = string(b[fixed:end]), b[end:]
	}
	if len(b)%4 != 0 {
		return nil, errExtent
	}
	e.Tags = make([]uint32, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		e.Tags = append(e.Tags, binary.BigEndian.Uint32(b))
	}
	return e, nil
}
