package changefeed

import (
	"encoding/binary"
	"slices"

	"listedge/internal/list"
)

// Checkpoint says when tables last changed, also before the part of the log that is kept: a node that begins to read the
// log knows by it of which tables it has missed nothing. It is immutable.
//
// Invariant: the changes of a table of Lists that heartbeats behind First settle, up to the one at At, are all settled at or
// before the position that Last has for the table or for all rows of its list. Of a table without a position there are none.
type Checkpoint struct {
	Epoch     string // of the positions
	First, At Position
	Lists     []*list.List
	Last      []LastChange // each table once
}

// LastChange is the heartbeat that settled the last change of a table.
type LastChange struct {
	Table uint64 // Table.Sum
	At    Position
}

// checkpointVersion begins a checkpoint in Redis. A form that differs in anything has another version.
const checkpointVersion = '1'

// encodeCheckpoint returns the form of a checkpoint:
//
//	version 1 | first 16 | at 16 | number of lists 2 | each: table 8, digest 8 | each last change: table 8, at 16
func encodeCheckpoint(c *Checkpoint) []byte {
	body := append(make([]byte, 0, 35+16*len(c.Lists)+24*len(c.Last)), checkpointVersion)
	body = c.At.AppendBytes(c.First.AppendBytes(body))
	body = binary.BigEndian.AppendUint16(body, uint16(len(c.Lists)))
	for _, l := range c.Lists {
		body = append(append(body, l.TableID[:]...), l.Digest[:]...)
	}
	for _, last := range c.Last {
		body = last.At.AppendBytes(binary.BigEndian.AppendUint64(body, last.Table))
	}
	return body
}

// decodeCheckpoint reads what encodeCheckpoint wrote; nil = it is of another version, or damaged. Lists that the reader has not
// in the same form are left out.
func (c *codec) decodeCheckpoint(epoch, text string) *Checkpoint {
	body := []byte(text)
	if len(body) < 35 || body[0] != checkpointVersion {
		return nil
	}
	p := &Checkpoint{Epoch: epoch, First: PositionIn(body[1:]), At: PositionIn(body[17:])}
	lists := 16 * int(binary.BigEndian.Uint16(body[33:]))
	body = body[35:]
	if len(body) < lists || (len(body)-lists)%24 != 0 {
		return nil
	}
	for id := range slices.Chunk(body[:lists], 16) {
		l := c.byID[listID{list.Digest(id[:8]), list.Digest(id[8:])}]
		if l != nil {
			p.Lists = append(p.Lists, l)
		}
	}
	p.Last = make([]LastChange, 0, (len(body)-lists)/24)
	for last := range slices.Chunk(body[lists:], 24) {
		p.Last = append(p.Last, LastChange{binary.BigEndian.Uint64(last), PositionIn(last[8:])})
	}
	return p
}
