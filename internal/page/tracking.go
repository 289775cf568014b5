package page

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// A client that tracks a list asks again and again what has changed, and follows cursors of its own kind. One
// says which changes the client knows:
//
//	base64url( checksum 4 | version 1 | scope 8 | epoch 8 | kind 1 | seen 16 | delta: since 16, ordinal 4; full: position ≤ 264 )
//
// checksum and scope are as in other cursors, and the scope has the workspace as well: what a client knows is of
// its workspace. A cursor of another epoch is no error: the client gets the whole list.

// TrackingStart is the cursor of a client that has nothing yet.
const TrackingStart = "changes"

const (
	trackingVersion = 3
	trackingHead    = 8 + 1 + 16 // up to what depends on the kind
)

// TrackingKind says what a client has.
type TrackingKind uint8

// The kinds.
const (
	Untracked TrackingKind = iota // nothing
	InFull                        // the list as far as After, at Seen or later
	InDelta                       // the list, with all changes up to Since
	AtEnd                         // the list, with all changes up to the end of Seen
)

// Tracking is where a client that tracks a list stands. No page that follows may show an earlier state than Seen.
type Tracking struct {
	Kind  TrackingKind
	Epoch uint64 // EpochOf
	Seen  changefeed.Position
	Since changefeed.Point // of InDelta
	After list.Position    // of InFull
}

// Known returns the point up to which a client that is InDelta or AtEnd knows all changes.
func (t *Tracking) Known() changefeed.Point {
	if t.Kind == AtEnd {
		return changefeed.EndOf(t.Seen)
	}
	return t.Since
}

// EpochOf names an epoch of the log and a description of the list: states of others cannot be compared.
func EpochOf(epoch string, l *list.List) uint64 {
	return xxhash.Sum64(append([]byte(epoch), l.Digest[:]...))
}

// IsTracking reports whether a cursor is one of a client that tracks a list, or damaged. It allocates nothing.
func IsTracking(text []byte) bool {
	var head [6]byte
	if len(text) < 8 {
		return string(text) == TrackingStart
	}
	n, err := cursorText.Decode(head[:], text[:8])
	return err == nil && n == len(head) && head[4] == trackingVersion
}

// AppendTracking appends the cursor of a client of the query's list.
func (q *Query) AppendTracking(dst []byte, t *Tracking) []byte {
	if t.Kind == Untracked {
		return append(dst, TrackingStart...)
	}
	raw := binary.BigEndian.AppendUint64(beginCursor(trackingVersion, q.trackingScope()), t.Epoch)
	raw = t.Seen.AppendBytes(append(raw, byte(t.Kind)))
	switch t.Kind {
	case InDelta:
		raw = binary.BigEndian.AppendUint32(t.Since.At.AppendBytes(raw), t.Since.Ordinal)
	case InFull:
		raw = append(raw, t.After...)
	}
	return sealCursor(dst, raw)
}

// ParseTracking reads a cursor for the query's list, workspace, order and filters.
// Errors: ErrCursorMalformed, ErrCursorForeign.
func (q *Query) ParseTracking(text []byte) (t Tracking, err error) {
	if string(text) == TrackingStart {
		return t, nil
	}
	raw, err := openCursor(new([]byte), text, trackingVersion, q.trackingScope())
	if err == nil && len(raw) < trackingHead {
		err = ErrCursorMalformed
	}
	if err != nil {
		return t, err
	}
	t = Tracking{Kind: TrackingKind(raw[8]), Epoch: binary.BigEndian.Uint64(raw), Seen: changefeed.PositionIn(raw[9:])}
	rest, ok := raw[9+16:], false
	switch t.Kind {
	case AtEnd:
		ok = len(rest) == 0
	case InDelta:
		ok = len(rest) == 16+4
		if ok {
			t.Since = changefeed.Point{At: changefeed.PositionIn(rest), Ordinal: binary.BigEndian.Uint32(rest[16:])}
		}
	case InFull:
		t.After = list.Position(rest)
		ok = q.List.IsPosition(q.Order, t.After)
	}
	if !ok {
		return Tracking{}, ErrCursorMalformed
	}
	return t, nil
}

func (q *Query) trackingScope() uint64 {
	var space [512]byte
	b := append(binary.AppendUvarint(space[:0], uint64(len(q.Tenant))), q.Tenant...)
	return xxhash.Sum64(q.List.AppendScope(b, q.Order, q.Match))
}

// MaxGone and MaxGoneBytes bound the keys that one page says to be gone: a proxy in between takes headers of 4 kB. The
// bytes are those of the header's value; one key has at most 771.
const (
	MaxGone      = 32
	MaxGoneBytes = 1280
)

// AppendHeaderText appends a text as an item of a header (RFC 9651): a String, or a Display String where it is not
// ASCII.
func AppendHeaderText(dst []byte, text string) []byte {
	const hexits = "0123456789abcdef"
	display := false
	for i := range len(text) {
		display = display || text[i] < ' ' || text[i] > '~'
	}
	if display {
		dst = append(dst, '%')
	}
	dst = append(dst, '"')
	for i := range len(text) {
		c := text[i]
		switch {
		case display && (c < ' ' || c > '~' || c == '"' || c == '%'):
			dst = append(dst, '%', hexits[c>>4], hexits[c&15])
		case !display && (c == '"' || c == '\\'):
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
