package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"time"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
)

// In Redis an entry is
//
//	magic 4 | CRC-32C of the rest 4 | life ms 8 | proof, wall clock ms 8 | CRC 4 | LSN 8 | key, etag, next, epoch, position, snapshot, run, server, body, deflate, extent, each after its length
//
// deflate is empty if no client had wanted the compressed form before the entry was
// stored. extent is empty if it is not known which rows the page shows. The magic ends
// in the version. An entry of another version is a miss. Who changes the JSON of a page raises the version, too:
// TestTheJSONOfPagesInRedisBelongsToTheirMagic (origin) fails until then.
const (
	magic      = "lep\x05"
	headerSize = 4 + 4 + 8 + 8 + 4 + 8
)

// redisTick is the unit of Redis' clock, which rounds the remaining life up.
const redisTick = time.Millisecond

// remainingUnknown is the remaining life of an entry for which no PTTL was sent.
const remainingUnknown = time.Duration(math.MaxInt64)

var errMalformed = errors.New("not an entry of this key and version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the entry. Redis keeps it until life after its proof.
func (e *Entry) encode(key []byte, life time.Duration, proof time.Time) []byte {
	b := make([]byte, 0, headerSize+int(e.size(len(key))))
	b = append(b, magic...)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64((life+time.Millisecond-1)/time.Millisecond))
	b = binary.BigEndian.AppendUint64(b, uint64(proof.UnixMilli()))
	b = binary.BigEndian.AppendUint32(b, e.CRC)
	b = binary.BigEndian.AppendUint64(b, e.ReadPoint.LSN)
	compressed, _ := e.compressed()
	var extent []byte
	if e.Extent != nil {
		extent = e.Extent.Append(nil)
	}
	for _, field := range [][]byte{key, e.ETag[:], []byte(e.Next), []byte(e.Epoch), []byte(e.Position.String()),
		[]byte(e.ReadPoint.Snapshot.String()), []byte(e.ReadPoint.Run), []byte(e.ReadPoint.Server), e.Body, compressed, extent} {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// decode reads what encode wrote, and returns the entry and its age. The entry keeps b.
// remaining is how long Redis will still keep it, or remainingUnknown. now is the
// reader's wall clock before it sent the command.
//
// The age is the larger of two estimates. The first is the part of the life that Redis
// has counted down: it compares no clocks, but is too small by the delay with which the
// entry reached Redis. The second is the difference of the wall clocks: it is wrong by
// their skew. So the age is too small only if both estimates are, and then by the
// smaller error.
func decode(b, key []byte, remaining time.Duration, now time.Time) (e *Entry, age time.Duration, err error) {
	if len(b) < headerSize || string(b[:4]) != magic || binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return nil, 0, errMalformed
	}
	life := time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond
	proof := time.UnixMilli(int64(binary.BigEndian.Uint64(b[16:])))
	e = &Entry{CRC: binary.BigEndian.Uint32(b[24:])}
	var storedKey, etag, next, epoch, position, snapshot, run, server, compressed, extent []byte
	rest := b[headerSize:]
	for _, field := range []*[]byte{&storedKey, &etag, &next, &epoch, &position, &snapshot, &run, &server, &e.Body, &compressed, &extent} {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return nil, 0, errMalformed
		}
		rest = rest[width:]
		*field, rest = rest[:n:n], rest[n:]
	}
	if len(rest) != 0 || !bytes.Equal(storedKey, key) || len(etag) != len(e.ETag) {
		return nil, 0, errMalformed
	}
	if len(compressed) > 0 {
		e.deflated.Store(&compressed)
	}
	e.ETag = EntityTag(etag)
	e.Next, e.Epoch = string(next), string(epoch)
	e.ReadPoint = freshness.ReadPoint{Run: string(run), Server: string(server), LSN: binary.BigEndian.Uint64(b[28:])}
	if e.Position, err = changefeed.ParsePosition(string(position)); err != nil {
		return nil, 0, errMalformed
	}
	if e.ReadPoint.Snapshot, err = changefeed.ParseSnapshot(string(snapshot)); err != nil {
		return nil, 0, errMalformed
	}
	if len(extent) > 0 {
		if e.Extent, err = freshness.ParseExtent(extent); err != nil {
			return nil, 0, errMalformed
		}
	}
	return e, max(life-remaining+redisTick, now.Sub(proof), 0), nil
}
