package follower

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

// table says where the columns of a relation are.
type table struct {
	workspace, id column
	columns       int                      // their number
	listed        [lists.Collections][]int // by collection: where its columns are; nil = some are not published, or of another type
}

type column struct {
	at  int  // -1 = not published, or no uuid
	key bool // part of the replica identity: an update that changes it also sends the old row
}

// decoder turns the messages of pgoutput, protocol 2, into changes.
//
// A transaction larger than decodingMemory is streamed: its rows are sent in segments
// before it commits, between those of other transactions. A message of its own says
// that it has committed or aborted. It is published when it commits and dropped when
// it aborts. Rows of an aborted subtransaction are published, too: an invalidation too
// many is safe.
type decoder struct {
	collections map[uint32]lists.Collection // catalog.collections
	rowsUnnamed [lists.Collections]bool     // those whose changes name no rows (Publication.RowsUnnamed)
	tables      map[uint32]table            // by relation: its last committed description
	reference   uint64                      // a recent transaction id of 64 bits, for widen

	*openTransaction                             // the one that the next rows belong to
	streaming        bool                        // inside a segment of a streamed transaction
	streamed         map[uint32]*openTransaction // unfinished ones, by the id of the top-level transaction
}

func newDecoder() decoder {
	d := decoder{tables: map[uint32]table{}, streamed: map[uint32]*openTransaction{}}
	d.openTransaction = d.begin(0, d.tables)
	return d
}

func (d *decoder) begin(xid uint32, tables map[uint32]table) *openTransaction {
	return &openTransaction{change: changefeed.Change{XID: widen(xid, d.reference)}, index: map[changefeed.List]int{}, rowAt: map[rowKey]int{}, tables: tables}
}

// commit is a decoded transaction.
type commit struct {
	change   changefeed.Change
	decoded  time.Time     // when the term published it
	start    pglogrepl.LSN // of its commit record; a slot that is confirmed beyond it does not send it again
	unlisted bool          // it also changed a relation that the catalog did not list
}

// next decodes one message. done is the transaction that the message commits, or nil.
func (d *decoder) next(data []byte) (done *commit, err error) {
	message, err := pglogrepl.ParseV2(data, d.streaming)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		d.openTransaction = d.begin(m.Xid, d.tables)
	case *pglogrepl.StreamStartMessageV2:
		if m.FirstSegment == 1 {
			// A description that this transaction sends is not valid for others before it commits.
			d.streamed[m.Xid] = d.begin(m.Xid, map[uint32]table{})
			d.streamed[m.Xid].rowsUnknown = true
		}
		d.openTransaction = d.streamed[m.Xid]
		if d.openTransaction == nil {
			return nil, fmt.Errorf("decode: the first segment of transaction %d is missing", m.Xid)
		}
		d.streaming = true
	case *pglogrepl.StreamStopMessageV2:
		d.streaming = false
	case *pglogrepl.RelationMessageV2:
		d.openTransaction.tables[m.RelationID] = tableOf(&m.RelationMessage)
	case *pglogrepl.InsertMessageV2:
		d.touch(m.RelationID, m.Tuple, newRow)
	case *pglogrepl.UpdateMessageV2:
		if m.OldTuple == nil {
			d.touch(m.RelationID, m.NewTuple, newRowOfSameKey)
			break
		}
		d.touch(m.RelationID, m.OldTuple, oldRow) // a move between workspaces touches both
		d.touch(m.RelationID, m.NewTuple, newRow)
	case *pglogrepl.DeleteMessageV2:
		d.touch(m.RelationID, m.OldTuple, oldRow)
	case *pglogrepl.TruncateMessageV2:
		for _, relation := range m.RelationIDs {
			d.touch(relation, nil, oldRow)
		}
	case *pglogrepl.LogicalDecodingMessageV2:
		if m.Transactional && m.Prefix == MessagePrefix {
			d.message(m.Content)
		}
	case *pglogrepl.CommitMessage:
		return d.commit(m.CommitLSN, m.TransactionEndLSN, m.CommitTime), nil
	case *pglogrepl.StreamCommitMessageV2:
		d.openTransaction = d.streamed[m.Xid]
		if d.openTransaction == nil {
			return nil, fmt.Errorf("decode: nothing of transaction %d was sent before its commit", m.Xid)
		}
		delete(d.streamed, m.Xid)
		maps.Copy(d.tables, d.openTransaction.tables) // Postgres does not send these descriptions again
		return d.commit(m.CommitLSN, m.TransactionEndLSN, m.CommitTime), nil
	case *pglogrepl.StreamAbortMessageV2:
		if m.SubXid == m.Xid {
			delete(d.streamed, m.Xid)
		}
	}
	return nil, nil
}

// commit ends the open transaction.
func (d *decoder) commit(start, end pglogrepl.LSN, at time.Time) *commit {
	t := d.openTransaction
	c := t.change
	c.LSN, c.CommittedAt = uint64(end), at.UnixMicro()
	c.Lists = slices.DeleteFunc(c.Lists, func(l changefeed.Touched) bool { return !l.OfAll() && t.touchesAll(l.Collection) })
	return &commit{change: c, start: start, unlisted: t.unlisted}
}

// setCatalog sets the catalog. The rows of open transactions were decoded with the
// previous one, which may have assigned their relations to other collections. So an
// open transaction that has changed any row touches all collections.
func (d *decoder) setCatalog(collections map[uint32]lists.Collection) {
	d.collections = collections
	for _, t := range append(slices.Collect(maps.Values(d.streamed)), d.openTransaction) {
		if t.unlisted || len(t.change.Lists) > 0 {
			t.addAll()
		}
	}
}

// tableOf reads a relation's description. Postgres sends it before the relation's
// first change, and again after ALTER TABLE or a change of the publication.
func tableOf(m *pglogrepl.RelationMessage) table {
	t := table{workspace: columnOf(m, "workspace_id"), id: columnOf(m, "id"), columns: len(m.Columns)}
	for collection := range lists.Collections {
		t.listed[collection] = positionsOf(m, collection.Columns())
	}
	return t
}

func columnOf(m *pglogrepl.RelationMessage, name string) column {
	at := positionOf(m, lists.Column{Name: name, Kind: lists.UUID})
	return column{at: at, key: at >= 0 && m.Columns[at].Flags&1 != 0}
}

// positionOf returns where a column is in a relation's description; -1 = it is missing, or of
// another type.
func positionOf(m *pglogrepl.RelationMessage, c lists.Column) int {
	return slices.IndexFunc(m.Columns, func(of *pglogrepl.RelationMessageColumn) bool {
		return of.Name == c.Name && of.DataType == c.Kind.OID()
	})
}

// positionsOf returns where the columns are; nil = positionOf does not find one.
func positionsOf(m *pglogrepl.RelationMessage, columns []lists.Column) (at []int) {
	for _, c := range columns {
		i := positionOf(m, c)
		if i < 0 {
			return nil
		}
		at = append(at, i)
	}
	return at
}

// message decodes a WAL message that a purge or a follower wrote.
func (d *decoder) message(content []byte) {
	workspace, err := uuid.ParseBytes(bytes.TrimPrefix(content, []byte(purge)))
	if err != nil {
		d.addAll()
		return
	}
	for collection := range lists.Collections {
		d.add(changefeed.List{Workspace: workspace, Collection: collection}, nil)
	}
}

// tuple says which version of a row a message has.
type tuple int

const (
	oldRow          tuple = iota // before the change; perhaps only its replica identity
	newRow                       // after the change
	newRowOfSameKey              // after an update that did not change the replica identity, so that no old row was sent
)

// touch adds the lists that the row is or was in, and names the row. If the row's
// workspace is not known, it touches the whole collection: to invalidate too much is
// safe, to invalidate too little is not.
func (d *decoder) touch(relation uint32, sent *pglogrepl.TupleData, which tuple) {
	collection, listed := d.collections[relation]
	if !listed {
		d.unlisted = true
		return
	}
	if d.touchesAll(collection) {
		return
	}
	t, known := d.openTransaction.tables[relation]
	c := t.workspace
	if collection == lists.Keys { // a key is found by its id or its workspace's; it may have moved between workspaces, so the id is used
		c = t.id
	}
	workspace, ok := valueOf(c, sent)
	list := changefeed.List{Workspace: workspace, Collection: collection}
	switch {
	case !known || !ok || list.OfAll() || which == newRowOfSameKey && !c.key:
		d.add(changefeed.List{Collection: collection}, nil)
	case !d.anyRow(list): // else a further row adds nothing
		d.add(list, d.row(list, &t, sent, which))
	}
}

func valueOf(c column, row *pglogrepl.TupleData) (value uuid.UUID, ok bool) {
	if row == nil || c.at < 0 || c.at >= len(row.Columns) {
		return value, false
	}
	v := row.Columns[c.at]
	if v.DataType != pglogrepl.TupleDataTypeBinary {
		return value, false // null, or unchanged and not sent
	}
	return value, copy(value[:], v.Data) == len(value)
}

// widen extends a 32-bit transaction id to 64 bits. The id must be less than 2^31
// transactions away from the reference.
func widen(xid uint32, reference uint64) uint64 {
	return reference + uint64(int64(int32(xid-uint32(reference))))
}

const (
	// maxLists bounds the lists of a change. A change that touches more lists touches
	// whole collections instead.
	maxLists = 1000
	// maxRows and maxRowBytes bound the named rows of a change. The list of a row beyond
	// them names none: any of its rows may have changed.
	maxRows     = 1000
	maxRowBytes = 512 << 10
)

// openTransaction collects what the rows that are decoded so far touch.
type openTransaction struct {
	change      changefeed.Change       // so far: at most maxLists of single workspaces, and the changed rows of each in their last versions
	index       map[changefeed.List]int // into the lists
	rowAt       map[rowKey]int          // into the rows of its list; also of rows that were dropped again
	rowBytes    int                     // of all rows in rowAt
	rowsUnknown bool                    // it names no rows, since some may be of aborted subtransactions
	unlisted    bool                    // it also changed a relation that the catalog does not list
	tables      map[uint32]table        // the relations' descriptions as the transaction sees them
}

// anyRow says whether the transaction already counts all rows of the list as changed.
func (t *openTransaction) anyRow(list changefeed.List) bool {
	i, known := t.index[list]
	return known && t.change.Lists[i].Rows == nil
}

// touchesAll says whether the transaction already counts all rows of the collection as changed.
func (t *openTransaction) touchesAll(c lists.Collection) bool {
	_, all := t.index[changefeed.List{Collection: c}]
	return all
}

// addAll counts all rows of all collections as changed.
func (t *openTransaction) addAll() {
	for _, l := range allRows() {
		t.add(l.List, nil)
	}
}

// allRows says that each row of each collection may have changed.
func allRows() (of []changefeed.Touched) {
	for c := range lists.Collections {
		of = append(of, changefeed.AllRowsOf(c))
	}
	return of
}

// rowKey is a row of a list: by the list's index.
type rowKey struct {
	list int
	id   uuid.UUID
}

// rowSize is what a row takes in the log besides its name and its text, at most, in bytes.
const rowSize = 40

// add adds a list, and r to its rows. r = nil: any row of the list may have changed.
func (t *openTransaction) add(list changefeed.List, r *lists.Row) {
	i, known := t.index[list]
	switch {
	case known && t.change.Lists[i].Rows == nil:
		return
	case !known && len(t.change.Lists) >= maxLists && !list.OfAll():
		list, r = changefeed.List{Collection: list.Collection}, nil
		i, known = t.index[list]
	}
	if !known {
		i = len(t.change.Lists)
		t.index[list] = i
		t.change.Lists = append(t.change.Lists, changefeed.Touched{List: list})
	}
	l := &t.change.Lists[i]
	if r == nil || t.rowsUnknown {
		l.Rows = nil
		return
	}
	at, again := t.rowAt[rowKey{i, r.ID}]
	if again { // this is a later version
		r = r.Complete(&l.Rows[at])
		t.rowBytes -= l.Rows[at].Size()
	} else {
		at, l.Rows = len(l.Rows), append(l.Rows, lists.Row{})
		t.rowAt[rowKey{i, r.ID}] = at
		t.rowBytes += rowSize
	}
	t.rowBytes += r.Size()
	l.Rows[at] = *r
	if len(t.rowAt) > maxRows || t.rowBytes > maxRowBytes {
		l.Rows = nil
	}
}

// maxText bounds the text of a row in the log, in bytes. Nodes read a row with a longer
// one from the database.
const maxText = 8 << 10

// row reads a row of a list. It returns nil if the message does not say for certain which row
// it is, or whether the list has it now.
func (d *decoder) row(list changefeed.List, t *table, sent *pglogrepl.TupleData, which tuple) *lists.Row {
	if list.Collection == lists.Keys || d.rowsUnnamed[list.Collection] {
		return nil
	}
	id, ok := valueOf(t.id, sent)
	if !ok || which == newRowOfSameKey && !t.id.key {
		return nil
	}
	gone := &lists.Row{ID: id, State: lists.Gone}
	if which == oldRow {
		return gone
	}
	at := t.listed[list.Collection]
	if at == nil || len(sent.Columns) < t.columns {
		return nil
	}
	values := make([][]byte, 0, 32)
	unsent := uint64(0)
	for i, column := range list.Collection.Columns() {
		var value []byte
		switch v := sent.Columns[at[i]]; v.DataType {
		case pglogrepl.TupleDataTypeNull:
		case pglogrepl.TupleDataTypeBinary:
			value = v.Data
		default: // an unchanged TOAST value, which Postgres does not send
			if list.Collection.IsFilteredBy(column.Name) {
				return nil
			}
			unsent |= 1 << i
		}
		values = append(values, value)
	}
	listed := len(values) - 1
	if active := values[listed]; len(active) == 0 || active[0] == 0 { // NULL, too
		return gone
	}
	r, err := list.Collection.Row(values[:listed], unsent)
	if err != nil && !errors.Is(err, lists.ErrBounds) {
		return nil
	}
	// A row that has come from elsewhere has left its values there.
	moved := unsent != 0 && which == newRow
	if r.Size()-len(r.NameKey()) > maxText || moved {
		r.ForgetText()
	}
	return &r
}

// sizeOf returns what an entry takes in Redis, in bytes, or a little more.
func sizeOf(e *changefeed.Entry) (n int) {
	n = 350
	switch {
	case e.Heartbeat != nil:
		n += len(e.Heartbeat.Snapshot) + 60*len(e.Heartbeat.Unsettled)
	case e.Change != nil:
		n += 30 * len(e.Change.Lists)
		for _, l := range e.Change.Lists {
			for i := range l.Rows {
				n += rowSize + l.Rows[i].Size()
			}
		}
	}
	return n
}
