package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"time"

	"listedge/internal/changefeed"
)

// In Redis a page is
//
//	magic 4 | CRC-32C of the rest 4 | life ms 8 | proof, wall clock ms 8 | CRC 4 | LSN 8 | key, etag, next, epoch, position, snapshot, run, server, body, deflate, each behind its length
//
// deflate is empty where nobody had asked for it when the page was stored.
// The magic ends in the version: a page of another version is a miss.
const (
	entryMagic = "lep\x04"
	entryHead  = 4 + 4 + 8 + 8 + 4 + 8
)

// redisTick is the unit of Redis' clock, which rounds what remains up.
const redisTick = time.Millisecond

// untold stands for how long Redis will still keep an entry, where it was not
// asked.
const untold = time.Duration(math.MaxInt64)

var errForeign = errors.New("not a page of this key and version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes the page for Redis, where it is to live for life from its proof.
func (p *Entry) encode(key []byte, life time.Duration) []byte {
	b := make([]byte, 0, entryHead+int(p.size(len(key))))
	b = append(b, entryMagic...)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64((life+time.Millisecond-1)/time.Millisecond))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Proof.UnixMilli()))
	b = binary.BigEndian.AppendUint32(b, p.CRC)
	b = binary.BigEndian.AppendUint64(b, p.View.LSN)
	compressed, _ := p.isDeflated()
	for _, part := range [][]byte{key, p.ETag[:], []byte(p.Next), []byte(p.Epoch), []byte(p.Position.String()), []byte(p.View.Snapshot.String()), []byte(p.View.Run), []byte(p.View.Server), p.Body, compressed} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// decode reads what encode wrote; the page keeps b. remaining is the time
// Redis will still keep the entry, or untold, now the reader's clock before it
// asked.
//
// The age has two lower bounds, and the larger one counts: how much of the
// life Redis has run down (no clocks are compared, but an entry that reached
// Redis late looks younger by its delay), and the distance of the wall clocks
// (which a skewed clock makes too long, or too short by its skew). So a page
// looks too young only when both are wrong, and then by the smaller error.
func decode(b, key []byte, remaining time.Duration, now time.Time) (*Entry, error) {
	if len(b) < entryHead || string(b[:4]) != entryMagic ||
		binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return nil, errForeign
	}
	life := time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond
	proof := time.UnixMilli(int64(binary.BigEndian.Uint64(b[16:])))
	p := &Entry{CRC: binary.BigEndian.Uint32(b[24:]), View: View{LSN: binary.BigEndian.Uint64(b[28:])}}
	var whose, etag, next, epoch, position, snapshot, run, server, compressed []byte
	rest := b[entryHead:]
	for _, part := range []*[]byte{&whose, &etag, &next, &epoch, &position, &snapshot, &run, &server, &p.Body, &compressed} {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return nil, errForeign
		}
		rest = rest[width:]
		*part, rest = rest[:n:n], rest[n:]
	}
	if len(rest) != 0 || !bytes.Equal(whose, key) {
		return nil, errForeign
	}
	if len(compressed) > 0 {
		p.deflated.Store(&compressed)
	}
	if len(etag) != len(p.ETag) {
		return nil, errForeign
	}
	p.ETag = EntityTag(etag)
	p.Next, p.Epoch, p.View.Run, p.View.Server = string(next), string(epoch), string(run), string(server)
	var err error
	if p.Position, err = changefeed.ParsePosition(string(position)); err != nil {
		return nil, errForeign
	}
	if p.View.Snapshot, err = changefeed.ParseSnapshot(string(snapshot)); err != nil {
		return nil, errForeign
	}
	age := max(life-remaining+redisTick, now.Sub(proof), 0)
	p.Proof = now.Add(-age)
	p.begun = p.Proof
	return p, nil
}
