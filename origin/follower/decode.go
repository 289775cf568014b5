package follower

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"listedge/origin/publication"
	"listedge/stream"
)

// maxPairs bounds a change; above it, whole collections are touched.
const maxPairs = 1000

const everything = 1<<stream.Collections - 1

// table is what the decoder knows of a relation.
type table struct {
	foreign    bool // none of ours
	collection stream.Collection
	workspace  int // the column that names the workspace, or the key; -1 = none is sent
}

// decoder turns the messages of pgoutput, protocol 1, into changes.
type decoder struct {
	// rootOf names the table a relation belongs to: itself, or the root of
	// its partitions; empty when it has been dropped since.
	rootOf func(ctx context.Context, relation uint32) (string, error)

	tables    map[uint32]table
	reference uint64 // a recent transaction id, 64 bits wide
	change    stream.Change
	seen      map[stream.Pair]struct{}
}

// next takes one message; done is a transaction that it ended.
func (d *decoder) next(ctx context.Context, data []byte) (done *commit, err error) {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		d.change = stream.Change{XID: widen(m.Xid, d.reference)}
		d.seen = map[stream.Pair]struct{}{}
	case *pglogrepl.RelationMessage:
		return nil, d.learn(ctx, m)
	case *pglogrepl.InsertMessage:
		d.touch(m.RelationID, m.Tuple)
	case *pglogrepl.UpdateMessage:
		d.touch(m.RelationID, m.NewTuple)
		if m.OldTuple != nil { // the key changed: a move between workspaces touches both
			d.touch(m.RelationID, m.OldTuple)
		}
	case *pglogrepl.DeleteMessage:
		d.touch(m.RelationID, m.OldTuple)
	case *pglogrepl.TruncateMessage:
		for _, relation := range m.RelationIDs {
			d.touch(relation, nil)
		}
	case *pglogrepl.LogicalDecodingMessage:
		if m.Transactional && m.Prefix == publication.MessagePrefix {
			d.told(m.Content)
		}
	case *pglogrepl.CommitMessage:
		d.change.LSN, d.change.CommittedAt = uint64(m.TransactionEndLSN), m.CommitTime.UnixMicro()
		c := d.change
		c.Pairs = slices.DeleteFunc(c.Pairs, func(p stream.Pair) bool { return c.Touches(p.Collection) })
		if len(c.Pairs) > 0 || c.Whole != 0 {
			return &commit{change: c, start: m.CommitLSN}, nil
		}
	}
	return nil, nil
}

// learn remembers which collection a relation is and where its workspace is.
// The name comes with the change, as it was then: a table may have been renamed
// or dropped since. Only what is not called like one of ours is looked up.
func (d *decoder) learn(ctx context.Context, m *pglogrepl.RelationMessage) error {
	t, ok := ours(m.RelationName)
	if !ok {
		root, err := d.rootOf(ctx, m.RelationID)
		if err != nil {
			return err
		}
		if root == "" { // it may have been a partition of ours: touch does not know it
			delete(d.tables, m.RelationID)
			return nil
		}
		t, ok = ours(root)
	}
	t.foreign = !ok
	column := "workspace_id"
	if t.collection == stream.Keys { // a key is named itself: it may have been moved between workspaces
		column = "id"
	}
	t.workspace = slices.IndexFunc(m.Columns, func(c *pglogrepl.RelationMessageColumn) bool { return c.Name == column })
	d.tables[m.RelationID] = t
	return nil
}

func ours(name string) (t table, ok bool) {
	switch name {
	case "items":
		t.collection = stream.Items
	case "contacts":
		t.collection = stream.Contacts
	case "api_keys", "workspaces":
		t.collection = stream.Keys
	default:
		return t, false
	}
	return t, true
}

// told takes a message: of a purge, or of a change to the schema.
func (d *decoder) told(message []byte) {
	workspace, ok := publication.Purged(message)
	if !ok {
		d.change.Whole = everything
		return
	}
	for collection := range stream.Collections {
		d.add(stream.Pair{Workspace: workspace, Collection: collection})
	}
}

// touch adds what a row belongs to. Where that is not told, everything that
// the table holds is touched: too much is safe, too little is not.
func (d *decoder) touch(relation uint32, row *pglogrepl.TupleData) {
	t, ok := d.tables[relation]
	if !ok {
		d.change.Whole = everything
		return
	}
	if t.foreign || d.change.Touches(t.collection) {
		return
	}
	if workspace, ok := workspaceOf(t, row); ok {
		d.add(stream.Pair{Workspace: workspace, Collection: t.collection})
	} else {
		d.change.Whole |= 1 << t.collection
	}
}

func (d *decoder) add(pair stream.Pair) {
	if _, known := d.seen[pair]; known {
		return
	}
	if len(d.change.Pairs) == maxPairs {
		d.change.Whole |= 1 << pair.Collection
		return
	}
	d.seen[pair] = struct{}{}
	d.change.Pairs = append(d.change.Pairs, pair)
}

func workspaceOf(t table, row *pglogrepl.TupleData) (workspace uuid.UUID, ok bool) {
	if row == nil || t.workspace < 0 || t.workspace >= len(row.Columns) {
		return workspace, false
	}
	column := row.Columns[t.workspace]
	if column.DataType != pglogrepl.TupleDataTypeText {
		return workspace, false // null, or unchanged and not sent
	}
	workspace, err := uuid.ParseBytes(column.Data)
	return workspace, err == nil
}

// widen gives a 32-bit transaction id of the stream the 64 bits it has in the
// database, from a reference less than 2^31 transactions away.
func widen(xid uint32, reference uint64) uint64 {
	return reference + uint64(int64(int32(xid-uint32(reference))))
}
