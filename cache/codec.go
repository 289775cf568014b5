package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// In Redis a page is the rows that a statement returned, with its read point:
//
//	magic 4 | CRC-32C of the rest 4 | life ms 8 | read at, wall clock ms 8 | LSN 8 | through 8 | end 1 |
//	key, epoch, position, snapshot, start, timeline, rows, each after its length
//
// A node that takes the page applies the changes that the read point does not see. end is 1
// if the list ends with the page. The magic ends in the version. A page of another version
// is a miss. Who changes the JSON of a row raises the version, too:
// TestTheJSONOfPagesInRedisBelongsToTheirMagic (origin) fails until then.
const (
	magic      = "lep\x06"
	headerSize = 4 + 4 + 8 + 8 + 8 + 8 + 1
)

// redisTick is the unit of Redis' clock, which rounds the remaining life up.
const redisTick = time.Millisecond

var errMalformed = errors.New("not a page of this key and version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the page in the form above. Redis keeps it for life, counted from readAt.
func (p *FillResult) encode(key []byte, life time.Duration, readAt time.Time) []byte {
	b := append(make([]byte, 0, 1024), magic...)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64((life+time.Millisecond-1)/time.Millisecond))
	b = binary.BigEndian.AppendUint64(b, uint64(readAt.UnixMilli()))
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, p.At.LSN), p.At.Through)
	end := byte(0)
	if p.End {
		end = 1
	}
	b = append(b, end)
	for _, field := range [][]byte{key, []byte(p.epoch), []byte(p.At.Began.String()), []byte(p.At.Snapshot.String()),
		[]byte(p.At.StartedAt), []byte(p.At.Timeline), lists.AppendRows(nil, p.Rows)} {
		b = append(binary.AppendUvarint(b, uint64(len(field))), field...)
	}
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// decode reads what encode wrote, and returns the page and its age. remaining is how long
// Redis will still keep it. now is the reader's wall clock before it sent the command.
//
// The age is the larger of two estimates. The first is the part of the life that Redis
// has counted down: it compares no clocks, but is too small by the delay with which the
// page reached Redis. The second is the difference of the wall clocks: it is wrong by
// their skew. So the age is too small only if both estimates are, and then by the
// smaller error.
func decode(b, key []byte, remaining time.Duration, now time.Time) (p *FillResult, age time.Duration, err error) {
	if len(b) < headerSize || string(b[:4]) != magic || binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return nil, 0, errMalformed
	}
	life := time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond
	readAt := time.UnixMilli(int64(binary.BigEndian.Uint64(b[16:])))
	var storedKey, epoch, position, snapshot, run, server, rows []byte
	rest := b[headerSize:]
	for _, field := range []*[]byte{&storedKey, &epoch, &position, &snapshot, &run, &server, &rows} {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return nil, 0, errMalformed
		}
		rest = rest[width:]
		*field, rest = rest[:n:n], rest[n:]
	}
	if len(rest) != 0 || !bytes.Equal(storedKey, key) || b[headerSize-1] > 1 {
		return nil, 0, errMalformed
	}
	p = &FillResult{End: b[headerSize-1] == 1, epoch: string(epoch),
		At: changefeed.ReadPoint{StartedAt: string(run), Timeline: string(server), LSN: binary.BigEndian.Uint64(b[24:]), Through: binary.BigEndian.Uint64(b[32:])}}
	var ok bool
	if p.Rows, rest, ok = lists.ParseRows(rows); !ok || len(rest) > 0 {
		return nil, 0, errMalformed
	}
	if p.At.Began, err = changefeed.ParsePosition(string(position)); err != nil {
		return nil, 0, errMalformed
	}
	if p.At.Snapshot, err = changefeed.ParseSnapshot(string(snapshot)); err != nil {
		return nil, 0, errMalformed
	}
	return p, max(life-remaining+redisTick, now.Sub(readAt), 0), nil
}
