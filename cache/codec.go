package cache

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/page"
)

// In Redis a page is the rows that a statement returned, with its read point, as in the log of changes:
//
//	magic 4 | CRC-32 of the rest 4 | stored, in JSON | line feed | rows, by lists.AppendRows
//
// A node that takes the page applies the changes that the read point does not see. The magic
// ends in the version. A page of another version is a miss. Who changes this form, or a field of
// stored, raises the version. So does who changes the JSON of a row:
// TestTheJSONOfRowsInRedisBelongsToTheirMagic (origin) fails until then.
const (
	magic      = "lep\x07"
	headerSize = len(magic) + 4
)

// stored is what Redis has of a page besides its rows.
type stored struct {
	Key    []byte
	Life   time.Duration // the expiry that was set in Redis, counted from ReadAt
	ReadAt time.Time     // by the writer's wall clock
	Epoch  string
	At     changefeed.ReadPoint
	End    bool // the list ends with the page
}

// redisTick is the unit of Redis' clock, which rounds the remaining life up.
const redisTick = time.Millisecond

// encode returns the page in the form above. Redis keeps it for life, counted from readAt.
func (p *reading) encode(key []byte, life time.Duration, readAt time.Time) []byte {
	head, _ := json.Marshal(stored{key, life, readAt.UTC(), p.epoch, p.At, p.End}) // all of it can be encoded
	b := append(make([]byte, headerSize, 1024), head...)
	b = lists.AppendRows(append(b, '\n'), p.Rows)
	copy(b, magic)
	binary.BigEndian.PutUint32(b[len(magic):], crc32.ChecksumIEEE(b[headerSize:]))
	return b
}

// decode reads what encode wrote, and returns the page and its age; nil = it is not a page of this
// key and version. remaining is how long Redis will still keep it. now is the reader's wall clock
// before it sent the command.
//
// The age is the larger of two estimates. The first is the part of the life that Redis
// has counted down: it compares no clocks, but is too small by the delay with which the
// page reached Redis. The second is the difference of the wall clocks: it is wrong by
// their skew. So the age is too small only if both estimates are, and then by the
// smaller error.
func decode(b, key []byte, remaining time.Duration, now time.Time) (p *reading, age time.Duration) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic || binary.BigEndian.Uint32(b[len(magic):]) != crc32.ChecksumIEEE(b[headerSize:]) {
		return nil, 0
	}
	head, tail, _ := bytes.Cut(b[headerSize:], []byte{'\n'})
	var s stored
	if json.Unmarshal(head, &s) != nil || !bytes.Equal(s.Key, key) {
		return nil, 0
	}
	rows, rest, ok := lists.ParseRows(tail)
	if !ok || len(rest) > 0 {
		return nil, 0
	}
	return &reading{Read: page.Read{Rows: rows, End: s.End, At: s.At}, epoch: s.Epoch}, max(s.Life-remaining+redisTick, now.Sub(s.ReadAt), 0)
}
