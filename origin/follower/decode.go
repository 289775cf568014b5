package follower

import (
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/origin/publication"
)

// maxLists bounds a change; above it, whole collections are touched.
const maxLists = 1000

const everything = 1<<changefeed.Collections - 1

// table is what the stream says of a relation: where rows have their workspace,
// or, where they are of changefeed.Keys, the ID of the key or workspace.
type table struct{ workspace, id column }

type column struct {
	at  int  // -1 = it is not sent
	key bool // an update that changes it sends the row as it was, too
}

// decoder turns the messages of pgoutput, protocol 1, into changes.
type decoder struct {
	collections map[uint32]uint8 // catalog.collections
	tables      map[uint32]table
	reference   uint64 // a recent transaction id, 64 bits wide
	change      changefeed.Change
	seen        map[changefeed.List]struct{}
	unlisted    bool // the change is also of a relation that the catalog does not list
}

// next takes one message; done is a transaction that it ended.
func (d *decoder) next(data []byte) (done *commit, err error) {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		d.change = changefeed.Change{XID: widen(m.Xid, d.reference)}
		d.seen, d.unlisted = map[changefeed.List]struct{}{}, false
	case *pglogrepl.RelationMessage:
		d.tables[m.RelationID] = table{workspace: columnOf(m, "workspace_id"), id: columnOf(m, "id")}
	case *pglogrepl.InsertMessage:
		d.touch(m.RelationID, m.Tuple, false)
	case *pglogrepl.UpdateMessage:
		d.touch(m.RelationID, m.NewTuple, m.OldTuple == nil)
		if m.OldTuple != nil { // the key changed: a move between workspaces touches both
			d.touch(m.RelationID, m.OldTuple, false)
		}
	case *pglogrepl.DeleteMessage:
		d.touch(m.RelationID, m.OldTuple, false)
	case *pglogrepl.TruncateMessage:
		for _, relation := range m.RelationIDs {
			d.touch(relation, nil, false)
		}
	case *pglogrepl.LogicalDecodingMessage:
		if m.Transactional && m.Prefix == publication.MessagePrefix {
			d.message(m.Content)
		}
	case *pglogrepl.CommitMessage:
		d.change.LSN, d.change.CommittedAt = uint64(m.TransactionEndLSN), m.CommitTime.UnixMicro()
		c := d.change
		c.Lists = slices.DeleteFunc(c.Lists, func(p changefeed.List) bool { return c.Touches(p.Collection) })
		done := &commit{change: c, start: m.CommitLSN, unlisted: d.unlisted}
		if done.touches() || done.unlisted {
			return done, nil
		}
	}
	return nil, nil
}

// columnOf finds a column in the description of a relation. The description comes
// before the relation's first change, and again after ALTER TABLE.
func columnOf(m *pglogrepl.RelationMessage, name string) column {
	at := slices.IndexFunc(m.Columns, func(c *pglogrepl.RelationMessageColumn) bool { return c.Name == name })
	return column{at: at, key: at >= 0 && m.Columns[at].Flags&1 != 0}
}

// message takes one that a purge or a follower wrote.
func (d *decoder) message(content []byte) {
	if publication.ByEventTrigger(content) {
		return
	}
	workspace, ok := publication.Purged(content)
	if !ok {
		d.change.Whole = everything
		return
	}
	for collection := range changefeed.Collections {
		d.add(changefeed.List{Workspace: workspace, Collection: collection})
	}
}

// touch adds the lists that a row is or was in. alone says that the row is what an
// update made of another one, which is not sent: that one has the same key. Where
// the workspace is not known, everything that the table holds is touched: too
// much is safe, too little is not.
func (d *decoder) touch(relation uint32, row *pglogrepl.TupleData, alone bool) {
	t, known := d.tables[relation]
	d.unlisted = d.unlisted || d.collections[relation] == 0
	for collection := range changefeed.Collections {
		if d.collections[relation]&(1<<collection) == 0 || d.change.Touches(collection) {
			continue
		}
		c := t.workspace
		if collection == changefeed.Keys { // a key is named itself: it may have been moved between workspaces
			c = t.id
		}
		workspace, ok := valueOf(c, row)
		if known && ok && (c.key || !alone) {
			d.add(changefeed.List{Workspace: workspace, Collection: collection})
		} else {
			d.change.Whole |= 1 << collection
		}
	}
}

func (d *decoder) add(pair changefeed.List) {
	if _, known := d.seen[pair]; known {
		return
	}
	if len(d.change.Lists) == maxLists {
		d.change.Whole |= 1 << pair.Collection
		return
	}
	d.seen[pair] = struct{}{}
	d.change.Lists = append(d.change.Lists, pair)
}

func valueOf(c column, row *pglogrepl.TupleData) (value uuid.UUID, ok bool) {
	if row == nil || c.at < 0 || c.at >= len(row.Columns) {
		return value, false
	}
	v := row.Columns[c.at]
	if v.DataType != pglogrepl.TupleDataTypeText {
		return value, false // null, or unchanged and not sent
	}
	value, err := uuid.ParseBytes(v.Data)
	return value, err == nil
}

// widen gives a 32-bit transaction id of the stream the 64 bits it has in the
// database, from a reference less than 2^31 transactions away.
func widen(xid uint32, reference uint64) uint64 {
	return reference + uint64(int64(int32(xid-uint32(reference))))
}
